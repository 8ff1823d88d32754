//! Tests of keys and certificates.

use super::*;
use std::os::unix::fs::PermissionsExt as _;

#[test]
fn keys_are_created_once_and_private() {
    let dir = tempfile::tempdir().unwrap();
    let config = ApiServerConfig::in_directory(dir.path().join("data"), Seams::system());
    let first = Pki::open(&config).unwrap();
    let second = Pki::open(&config).unwrap();
    assert_eq!(
        (&first.ca, &first.server.key, &first.continue_key),
        (&second.ca, &second.server.key, &second.continue_key)
    );
    let mode = |name: &str| std::fs::metadata(dir.path().join("data").join(name)).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode("admin.kubeconfig"), mode("pki/ca.key"), mode("pki")), (0o600, 0o600, 0o700));
    let text = std::fs::read_to_string(dir.path().join("data/admin.kubeconfig")).unwrap();
    assert!(text.contains("current-context: root@127.0.0.1:6443\n"), "{text}");
    assert!(
        text.contains("https://127.0.0.1:6443/clusters/root\n")
            && text.contains("- name: portolan-admin@127.0.0.1:6443\n")
    );
    let named = ApiServerConfig { name: Some("prod".into()), ..config };
    Pki::open(&named).unwrap();
    let text = std::fs::read_to_string(dir.path().join("data/admin.kubeconfig")).unwrap();
    assert!(text.contains("current-context: root@prod\n") && text.contains("user: portolan-admin@prod\n"), "{text}");
}

#[test]
fn kubeconfigs_have_keys_that_clients_of_ec_keys_read() {
    use base64::{Engine as _, engine::general_purpose::STANDARD};
    let pki = Pki::open(&ApiServerConfig::in_memory(Seams::system())).unwrap();
    let text = pki.admin_kubeconfig("127.0.0.1:6443".parse().unwrap());
    let data = text.lines().find_map(|line| line.trim().strip_prefix("client-key-data: ")).unwrap();
    let key = String::from_utf8(STANDARD.decode(data).unwrap()).unwrap();
    assert!(key.starts_with("-----BEGIN EC PRIVATE KEY-----\n"), "{key}");
    certified(&pki.admin.certificate, &key).expect("it is the key of the certificate");
}

#[test]
fn an_empty_directory_is_made_private_and_a_filled_one_refused() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let open_to_all = || std::fs::set_permissions(&data, std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::create_dir(&data).unwrap();
    open_to_all();
    let config = ApiServerConfig::in_directory(data.clone(), Seams::system());
    check_private(&data).expect("it is empty and ours");
    assert_eq!(std::fs::metadata(&data).unwrap().permissions().mode() & 0o777, 0o700);
    open_to_all();
    Pki::open(&config).expect("it is empty and ours");
    assert_eq!(std::fs::metadata(&data).unwrap().permissions().mode() & 0o777, 0o700);
    open_to_all();
    assert!(matches!(check_private(&data), Err(ConfigError::TooOpen { path, .. }) if path == data));
    assert!(matches!(Pki::open(&config), Err(ConfigError::TooOpen { path, .. }) if path == data));
}

#[test]
fn a_key_that_others_can_read_stops_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let config = ApiServerConfig::in_directory(dir.path().join("data"), Seams::system());
    Pki::open(&config).unwrap();
    let key = dir.path().join("data/pki/ca.key");
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o644)).unwrap();
    assert!(matches!(Pki::open(&config), Err(ConfigError::TooOpen { path, .. }) if path == key));
}

#[test]
fn half_an_authority_stops_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let config = ApiServerConfig::in_directory(dir.path().join("data"), Seams::system());
    let first = Pki::open(&config).unwrap();
    let folder = KeyFolder::open(config.data_dir.as_deref()).unwrap();
    for half in ["pki/ca.key", "pki/ca.crt"] {
        let path = dir.path().join("data").join(half);
        let kept = std::fs::read(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert!(matches!(Pki::open(&config), Err(ConfigError::Content { path: missing, .. }) if missing == path));
        folder.write(half, &kept).unwrap();
        assert_eq!(Pki::open(&config).unwrap().ca, first.ca);
    }
    let crashed = ApiServerConfig::in_directory(dir.path().join("crashed"), Seams::system());
    let folder = KeyFolder::open(crashed.data_dir.as_deref()).unwrap();
    folder.write("pki/ca.key", b"what a crash of the first start leaves").unwrap();
    Pki::open(&crashed).expect("no client has a certificate of it");
}

#[test]
fn unchanged_files_are_not_written() {
    let dir = tempfile::tempdir().unwrap();
    let config = ApiServerConfig::in_directory(dir.path().join("data"), Seams::system());
    Pki::open(&config).unwrap();
    // Writing goes through a temporary file of this name, so it fails.
    std::fs::create_dir(dir.path().join("data/admin.new")).unwrap();
    Pki::open(&config).expect("nothing is to be written");
    let kubeconfig = dir.path().join("data/admin.kubeconfig");
    std::fs::remove_dir(dir.path().join("data/admin.new")).unwrap();
    std::fs::set_permissions(&kubeconfig, std::fs::Permissions::from_mode(0o644)).unwrap();
    Pki::open(&config).expect("what others can read is replaced");
    assert_eq!(std::fs::metadata(&kubeconfig).unwrap().permissions().mode() & 0o777, 0o600);
    std::fs::create_dir(dir.path().join("data/admin.new")).unwrap();
    let moved = ApiServerConfig { bind_address: "127.0.0.1:7443".parse().unwrap(), ..config };
    assert!(matches!(Pki::open(&moved), Err(ConfigError::File { .. })));
}

#[test]
fn a_new_name_makes_a_new_server_certificate_of_the_same_authority() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = ApiServerConfig::in_directory(dir.path().join("data"), Seams::system());
    let first = Pki::open(&config).unwrap();
    config.tls_sans.push("portolan.example.com".into());
    let second = Pki::open(&config).unwrap();
    assert_eq!(first.ca, second.ca);
    assert_ne!(first.server.certificate, second.server.certificate);
}

#[test]
fn the_external_url_is_in_the_certificate_and_in_the_kubeconfig_of_the_administrator() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = ApiServerConfig::in_directory(dir.path().join("data"), Seams::system());
    let first = Pki::open(&config).unwrap();
    config.serving.external_url = Some("https://portolan.example.com:8443".parse().unwrap());
    let renewed = first.renewed(&first.server, &config).unwrap().expect("a running server renews it, too");
    let facts = String::from_utf8_lossy(&crate::pki::certificates(&renewed.certificate).unwrap()[0]).into_owned();
    assert!(facts.contains("portolan.example.com"), "it is a name in the certificate");
    let kubeconfig = std::fs::read_to_string(dir.path().join("data/admin.kubeconfig")).unwrap();
    assert!(kubeconfig.contains("server: https://portolan.example.com:8443/clusters/root\n"), "{kubeconfig}");
    assert!(kubeconfig.contains("name: root@portolan.example.com:8443\n"), "{kubeconfig}");
    assert!(first.renewed(&renewed, &config).unwrap().is_none(), "once");
}

#[test]
fn invalid_files_are_reported_and_left_unchanged() {
    let dir = tempfile::tempdir().unwrap();
    let config = ApiServerConfig::in_directory(dir.path().join("data"), Seams::system());
    Pki::open(&config).unwrap();
    let file = |name: &str| dir.path().join("data/pki").join(name);
    let other = std::fs::read(file("admin.key")).unwrap();
    for (name, content, words) in [
        ("ca.crt", &b"garbage"[..], "-----BEGIN CERTIFICATE-----"),
        ("ca.key", b"garbage", "-----BEGIN PRIVATE KEY-----"),
        ("ca.key", &other, "is not the key of the certificate beside it"),
        ("ca.key", b"", "-----BEGIN PRIVATE KEY-----"),
        ("ca.key", &[0xff; 64], "PEM is expected"),
        ("server.crt", b"garbage", "-----BEGIN CERTIFICATE-----"),
        ("server.key", b"garbage", "-----BEGIN PRIVATE KEY-----"),
        ("admin.crt", b"garbage", "-----BEGIN CERTIFICATE-----"),
        ("admin.key", b"garbage", "-----BEGIN PRIVATE KEY-----"),
        ("service-accounts.key", b"garbage", "ECDSA P-256"),
        ("continue.key", b"short", "5 bytes where 32 are expected"),
    ] {
        let kept = std::fs::read(file(name)).unwrap();
        std::fs::write(file(name), content).unwrap();
        let refused = Pki::open(&config).err().unwrap_or_else(|| panic!("{name} is taken")).to_string();
        assert!(refused.contains(&file(name).display().to_string()) && refused.contains(words), "{name}: {refused}");
        assert_eq!(std::fs::read(file(name)).unwrap(), content, "{name}");
        std::fs::write(file(name), kept).unwrap();
    }
    let before = Pki::open(&config).unwrap();
    std::fs::write(file("server.key"), other).unwrap();
    let after = Pki::open(&config).expect("a crash between writing key and certificate leaves this");
    assert_eq!((&after.ca, after.server.certificate == before.server.certificate), (&before.ca, false));
}

#[test]
fn the_administrators_certificate_is_renewed_when_old_too_long_lived_or_revoked() {
    let dir = tempfile::tempdir().unwrap();
    let config = |day: i64| {
        let start: jiff::Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let seams = Seams::seeded(u64::try_from(day).unwrap(), start + jiff::SignedDuration::from_hours(day * 24));
        ApiServerConfig::in_directory(dir.path().join("data"), seams)
    };
    let first = Pki::open(&config(0)).unwrap();
    let folder = KeyFolder::open(config(0).data_dir.as_deref()).unwrap();
    let admin = |day: i64| Pki::open(&config(day)).unwrap().admin.certificate;
    assert_eq!(admin(9), first.admin.certificate, "it is young");
    let second = admin(11);
    assert_ne!(second, first.admin.certificate, "a start renews it after a third of its life");
    let long = first.authority.client((ADMIN, &["system:masters"]), Lifetime::LEAF, &config(11).seams).unwrap();
    folder.write_pair("pki/admin", &long).unwrap();
    let third = admin(12);
    assert_ne!(third, long.certificate, "that of an earlier version lives for a year");
    let der = &certificates(&third).unwrap()[0];
    let (_, parsed) =
        <x509_parser::prelude::X509Certificate<'_> as x509_parser::prelude::FromDer<'_, _>>::from_der(der).unwrap();
    folder.write(REVOKED, format!("serial:{}\n", parsed.raw_serial_as_string()).as_bytes()).unwrap();
    let fourth = admin(13);
    assert_ne!(fourth, third, "it is on the denylist");
    assert_eq!(admin(14), fourth);
    folder.write(REVOKED, b"nonsense").unwrap();
    assert!(Pki::open(&config(12)).err().unwrap().to_string().contains("revoked-certificates: line 1"));
}

#[test]
fn a_running_server_renews_expiring_certificates() {
    let dir = tempfile::tempdir().unwrap();
    let config = |day: i64| {
        let start: jiff::Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let seams = Seams::seeded(u64::try_from(day).unwrap(), start + jiff::SignedDuration::from_hours(day * 24));
        ApiServerConfig::in_directory(dir.path().join("data"), seams)
    };
    let pki = Pki::open(&config(0)).unwrap();
    let kubeconfig = || std::fs::read_to_string(dir.path().join("data/admin.kubeconfig")).unwrap();
    let before = kubeconfig();
    assert!(pki.renewed(&pki.server, &config(9)).unwrap().is_none(), "it holds long enough");
    assert_eq!(kubeconfig(), before);
    assert!(pki.renewed(&pki.server, &config(240)).unwrap().is_none(), "it holds long enough");
    assert_ne!(kubeconfig(), before, "the administrator's holds for a month");
    let before = kubeconfig();
    let renewed = pki.renewed(&pki.server, &config(250)).unwrap().expect("it would soon end");
    assert!(renewed.is_valid(&pki.authority.pair, &server_names(&config(250)), Lifetime::LEAF, &config(480).seams));
    assert_ne!(kubeconfig(), before);
    assert!(pki.renewed(&renewed, &config(480)).unwrap().is_none());
    let again = Pki::open(&config(480)).unwrap();
    assert_eq!((again.ca, again.server.certificate), (pki.ca.clone(), renewed.certificate), "a start finds it");
    let memory = ApiServerConfig::in_memory(config(0).seams);
    let pki = Pki::open(&memory).unwrap();
    let later = ApiServerConfig::in_memory(config(250).seams);
    assert!(pki.renewed(&pki.server, &memory).unwrap().is_none());
    assert!(pki.renewed(&pki.server, &later).unwrap().is_some(), "without a directory, too");
}

#[test]
fn a_link_beside_a_secret_is_not_followed() {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = tempfile::tempdir().unwrap();
    let [file, new, other] = ["a.key", "a.new", "other"].map(|name| folder.path().join(name));
    std::fs::write(&other, "other").unwrap();
    std::os::unix::fs::symlink(&other, &new).unwrap();
    super::files::write_secret(&file, b"secret").unwrap();
    assert_eq!(std::fs::read_to_string(&other).unwrap(), "other");
    assert!(std::fs::symlink_metadata(&file).unwrap().is_file());

    std::fs::write(&new, "left").unwrap();
    std::fs::set_permissions(&new, std::fs::Permissions::from_mode(0o644)).unwrap();
    super::files::write_secret(&file, b"secret").unwrap();
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
}
