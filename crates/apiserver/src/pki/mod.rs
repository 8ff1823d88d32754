//! Keys and certificates that the server makes for itself, and the admin's kubeconfig.
//!
//! In the data directory: `pki/ca.{crt,key}`, `pki/server.{crt,key}`, `pki/admin.{crt,key}`, `pki/service-accounts.key`,
//! `pki/continue.key`, and `admin.kubeconfig`; and, where the administrator has made it, `pki/revoked-certificates`. Files are 0600, directories 0700; others' read access stops the start.

mod certificates;
pub(crate) mod ec;
mod files;
mod kubeconfig;
mod pem;
pub(crate) mod revoked;
mod token_keys;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use portolan_types::Seams;

pub use certificates::CertifiedKey;
pub use files::{check_private, write_secret};
pub use kubeconfig::{Kubeconfig, kubeconfig};
pub use pem::{Unusable, certificates, certified};
pub use token_keys::TokenVerificationKey;

use crate::config::{ApiServerConfig, ConfigError};
use certificates::{Authority, Lifetime};
use files::Folder;
use revoked::{CertificateId, RevokedCertificates};

const CONTINUE_KEY_BYTES: usize = 32;

/// All keys of a server.
pub struct Pki {
    /// The certificate authority, PEM.
    pub ca: String,
    authority: Authority,
    /// What the server shows to clients.
    pub server: CertifiedKey,
    /// A client certificate in `system:masters`.
    pub admin: CertifiedKey,
    /// Private key that signs service account tokens: ECDSA P-256, PKCS#8 PEM.
    pub service_accounts: String,
    /// Further keys that verify such tokens.
    pub verification_keys: Vec<TokenVerificationKey>,
    pub(crate) revoked: RevokedCertificates,
    /// Key of the MAC over continue tokens.
    pub continue_key: Vec<u8>,
}

impl Pki {
    /// Loads what is there, makes what is missing, and writes `admin.kubeconfig`.
    ///
    /// # Errors
    /// When files cannot be read or written, are open to others, or do not fit together.
    pub fn open(config: &ApiServerConfig) -> Result<Self, ConfigError> {
        let folder = Folder::open(config.data_dir.as_deref())?;
        let authority = authority(&folder, &config.seams)?;
        let server = server(&folder, &authority, config)?;
        let revoked = RevokedCertificates::open(config.data_dir.as_ref().map(|dir| dir.join(REVOKED)))?;
        let admin = admin(&folder, &authority, &revoked, config)?;
        let own = service_accounts(&folder)?;
        let named = config.token_signing_key.as_deref().map(token_keys::signing_key).transpose()?;
        let service_accounts = named.unwrap_or(own);
        let keys = config.token_keys.iter().map(|path| token_keys::verification_keys(path));
        let verification_keys = keys.collect::<Result<Vec<_>, _>>()?.concat();
        let continue_key = continue_key(&folder, &config.seams)?;
        let ca = authority.pair.certificate.clone();
        Ok(Self { ca, authority, server, admin, service_accounts, verification_keys, revoked, continue_key })
    }

    /// Makes what will soon end anew, as a start would: what the server shows, and in its data directory the certificate of the
    /// administrator with the kubeconfig. `None` when what is `shown` goes on.
    ///
    /// # Errors
    /// As for [`Pki::open`].
    pub fn renewed(&self, shown: &CertifiedKey, config: &ApiServerConfig) -> Result<Option<CertifiedKey>, ConfigError> {
        let folder = Folder::open(config.data_dir.as_deref())?;
        if config.data_dir.is_some() {
            admin(&folder, &self.authority, &self.revoked, config)?;
        }
        if shown.is_valid(&self.authority.pair, &server_names(config), Lifetime::LEAF, &config.seams) {
            return Ok(None);
        }
        server(&folder, &self.authority, config).map(Some)
    }

    /// A new client certificate for a user in some groups.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn client(&self, user: &str, groups: &[&str], seams: &Seams) -> Result<CertifiedKey, ConfigError> {
        self.authority.client((user, groups), Lifetime::LEAF, seams)
    }

    /// The admin's kubeconfig for a server at `address`.
    pub fn admin_kubeconfig(&self, address: SocketAddr) -> String {
        admin_kubeconfig((&self.ca, &self.admin), address, None)
    }
}

/// Denylist of client certificates, in the data directory.
const REVOKED: &str = "pki/revoked-certificates";
/// Name of the administrator in certificates and kubeconfigs.
const ADMIN: &str = "portolan-admin";

/// Writes the kubeconfig with names that tell servers apart: those of several are merged.
fn admin_kubeconfig((ca, client): (&str, &CertifiedKey), address: SocketAddr, name: Option<&str>) -> String {
    let address = reachable(address);
    let name = name.map_or_else(|| address.to_string(), str::to_owned);
    kubeconfig(&Kubeconfig {
        server: format!("https://{address}/clusters/root"),
        context: &format!("root@{name}"),
        user: &format!("{ADMIN}@{name}"),
        ca,
        client,
    })
}

fn authority(folder: &Folder, seams: &Seams) -> Result<Authority, ConfigError> {
    if let Some(pair) = folder.pair("pki/ca")? {
        let unusable =
            |error: ConfigError| folder.wrong("pki/ca.crt", format!("holds no authority's certificate: {error}"));
        return Authority::load(pair).map_err(unusable);
    }
    folder.refuse_half("pki/ca", &["pki/server.crt", "pki/admin.crt", "pki/service-accounts.key"])?;
    let authority = Authority::create(seams)?;
    folder.write_pair("pki/ca", &authority.pair)?;
    Ok(authority)
}

/// What the server shows: as it is there, unless it does not fit or will soon end.
fn server(folder: &Folder, authority: &Authority, config: &ApiServerConfig) -> Result<CertifiedKey, ConfigError> {
    let names = server_names(config);
    match folder.leaf("pki/server")? {
        Some(pair) if pair.is_valid(&authority.pair, &names, Lifetime::LEAF, &config.seams) => Ok(pair),
        _ => made(folder, "pki/server", authority.server(&names, &config.seams)?),
    }
}

/// The same of the administrator, and a kubeconfig with it.
fn admin(
    folder: &Folder,
    authority: &Authority,
    revoked: &RevokedCertificates,
    config: &ApiServerConfig,
) -> Result<CertifiedKey, ConfigError> {
    let is_revoked = |pair: &CertifiedKey| {
        let certificates = certificates(&pair.certificate).unwrap_or_default();
        certificates.first().and_then(|der| CertificateId::of(der)).is_some_and(|id| revoked.contains(&id))
    };
    let is_good =
        |pair: &CertifiedKey| pair.is_valid(&authority.pair, &[], Lifetime::ADMIN, &config.seams) && !is_revoked(pair);
    let admin = match folder.leaf("pki/admin")? {
        Some(pair) if is_good(&pair) => pair,
        _ => {
            let made_now = authority.client((ADMIN, &["system:masters"]), Lifetime::ADMIN, &config.seams)?;
            made(folder, "pki/admin", made_now)?
        }
    };
    let (ca, name) = (&*authority.pair.certificate, config.name.as_deref());
    let kubeconfig = admin_kubeconfig((ca, &admin), config.bind_address, name);
    // Where nothing is to be written, a start needs no room on the disk; what others can read is replaced.
    if folder.text("admin.kubeconfig").ok().flatten().as_ref() != Some(&kubeconfig) {
        folder.write("admin.kubeconfig", kubeconfig.as_bytes())?;
    }
    Ok(admin)
}

fn service_accounts(folder: &Folder) -> Result<String, ConfigError> {
    const FILE: &str = "pki/service-accounts.key";
    if let Some(text) = folder.text(FILE)? {
        certificates::check_signing_key(&text).map_err(|what| folder.wrong(FILE, what))?;
        return Ok(text);
    }
    if folder.bytes("pki/continue.key")?.is_some() {
        tracing::warn!("pki/service-accounts.key is gone and made anew: no token of before holds any more");
    }
    let key = certificates::signing_key()?;
    folder.write(FILE, key.as_bytes())?;
    Ok(key)
}

fn continue_key(folder: &Folder, seams: &Seams) -> Result<Vec<u8>, ConfigError> {
    const FILE: &str = "pki/continue.key";
    match folder.bytes(FILE)? {
        Some(key) if key.len() == CONTINUE_KEY_BYTES => Ok(key),
        Some(key) => {
            let what = format!(
                "holds {} bytes where {CONTINUE_KEY_BYTES} are expected; put it back, or remove it: then lists that are read in \
                 pages begin anew",
                key.len()
            );
            Err(folder.wrong(FILE, what))
        }
        None => {
            let key = random_key(seams);
            folder.write(FILE, &key)?;
            Ok(key)
        }
    }
}

/// An address that clients on this machine can use: listening everywhere is no destination.
pub(crate) fn reachable(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        ip if !ip.is_unspecified() => ip,
        IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::LOCALHOST),
    };
    SocketAddr::new(ip, address.port())
}

fn made(folder: &Folder, name: &str, pair: CertifiedKey) -> Result<CertifiedKey, ConfigError> {
    folder.write_pair(name, &pair)?;
    Ok(pair)
}

fn random_key(seams: &Seams) -> Vec<u8> {
    let mut key = vec![0; CONTINUE_KEY_BYTES];
    seams.entropy.fill(&mut key);
    key
}

fn server_names(config: &ApiServerConfig) -> Vec<String> {
    let address = config.bind_address.ip();
    let mut names: Vec<String> = ["localhost", "127.0.0.1", "::1", "kubernetes.default.svc"].map(str::to_owned).into();
    if !address.is_unspecified() {
        names.push(address.to_string());
    }
    names.extend(config.tls_sans.iter().cloned());
    names.sort();
    names.dedup();
    names
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn keys_are_made_once_and_kept_from_others() {
        let dir = tempfile::tempdir().unwrap();
        let config = ApiServerConfig::in_directory(dir.path().join("data"), Seams::system());
        let first = Pki::open(&config).unwrap();
        let second = Pki::open(&config).unwrap();
        assert_eq!(
            (&first.ca, &first.server.key, &first.continue_key),
            (&second.ca, &second.server.key, &second.continue_key)
        );
        let mode =
            |name: &str| std::fs::metadata(dir.path().join("data").join(name)).unwrap().permissions().mode() & 0o777;
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
        assert!(
            text.contains("current-context: root@prod\n") && text.contains("user: portolan-admin@prod\n"),
            "{text}"
        );
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
    fn a_directory_that_is_empty_is_made_private_and_one_with_content_is_refused() {
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
        let folder = Folder::open(config.data_dir.as_deref()).unwrap();
        for half in ["pki/ca.key", "pki/ca.crt"] {
            let path = dir.path().join("data").join(half);
            let kept = std::fs::read(&path).unwrap();
            std::fs::remove_file(&path).unwrap();
            assert!(matches!(Pki::open(&config), Err(ConfigError::Content { path: missing, .. }) if missing == path));
            folder.write(half, &kept).unwrap();
            assert_eq!(Pki::open(&config).unwrap().ca, first.ca);
        }
        let crashed = ApiServerConfig::in_directory(dir.path().join("crashed"), Seams::system());
        let folder = Folder::open(crashed.data_dir.as_deref()).unwrap();
        folder.write("pki/ca.key", b"what a crash of the first start leaves").unwrap();
        Pki::open(&crashed).expect("nobody has anything of it");
    }

    #[test]
    fn what_has_not_changed_is_not_written() {
        let dir = tempfile::tempdir().unwrap();
        let config = ApiServerConfig::in_directory(dir.path().join("data"), Seams::system());
        Pki::open(&config).unwrap();
        // Whatever is written anew is put in place by a file beside it.
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
    fn a_file_of_garbage_is_named_with_what_was_expected_and_left_as_it_is() {
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
            assert!(
                refused.contains(&file(name).display().to_string()) && refused.contains(words),
                "{name}: {refused}"
            );
            assert_eq!(std::fs::read(file(name)).unwrap(), content, "{name}");
            std::fs::write(file(name), kept).unwrap();
        }
        let before = Pki::open(&config).unwrap();
        std::fs::write(file("server.key"), other).unwrap();
        let after = Pki::open(&config).expect("a crash between writing key and certificate leaves this");
        assert_eq!((&after.ca, after.server.certificate == before.server.certificate), (&before.ca, false));
    }

    #[test]
    fn the_administrators_certificate_is_made_anew_when_it_is_old_lives_too_long_or_is_revoked() {
        let dir = tempfile::tempdir().unwrap();
        let config = |day: i64| {
            let start: jiff::Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
            let seams = Seams::seeded(u64::try_from(day).unwrap(), start + jiff::SignedDuration::from_hours(day * 24));
            ApiServerConfig::in_directory(dir.path().join("data"), seams)
        };
        let first = Pki::open(&config(0)).unwrap();
        let folder = Folder::open(config(0).data_dir.as_deref()).unwrap();
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
    fn what_soon_ends_is_made_anew_by_a_running_server() {
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
}
