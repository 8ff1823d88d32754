//! Tests of trust in webhooks.

use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, GeneralSubtree, IsCa,
    KeyPair, NameConstraints, date_time_ymd,
};

use super::*;

type Change = fn(&mut CertificateParams);

fn params(name: &str, change: Change) -> CertificateParams {
    let mut params = CertificateParams::new(vec!["hook.example".to_owned()]).unwrap();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    (params.not_before, params.not_after) = (date_time_ymd(2026, 1, 1), date_time_ymd(2027, 1, 1));
    change(&mut params);
    params
}

/// Returns true if a CA certificate is accepted as the server's when another one that signed it is trusted.
fn is_good(root: Change, leaf: Change, host: &str, trusted: &str) -> bool {
    let issuer = |name| CertifiedIssuer::self_signed(params(name, root), KeyPair::generate().unwrap()).unwrap();
    let (own, namesake) = (issuer("root"), issuer("root"));
    let other = issuer("other");
    let leaf = params("leaf", leaf).signed_by(&KeyPair::generate().unwrap(), &own).unwrap();
    let bundle = match trusted {
        "its issuer" => own.pem(),
        "a namesake of its issuer" => namesake.pem(),
        _ => other.pem(),
    };
    let trusted: Vec<_> = CertificateDer::pem_slice_iter(bundle.as_bytes()).flatten().collect();
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(trusted.iter().cloned());
    let provider = Arc::new(ring::default_provider());
    let usual = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build().unwrap();
    // A time in the middle of 2026.
    let now = UnixTime::since_unix_epoch(Duration::from_secs(1_782_000_000));
    let name = ServerName::try_from(host).unwrap();
    BundleVerifier { usual, trusted }.verify_server_cert(leaf.der(), &[], &name, &[], now).is_ok()
}

#[test]
fn ca_certificates_are_accepted_if_their_issuer_is_trusted() {
    let (same, host, own): (Change, _, _) = (|_| {}, "hook.example", "its issuer");
    assert!(is_good(same, same, host, own));
    assert!(is_good(same, |leaf| leaf.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth], host, own));
    let cases: [(&str, Change, Change, &str, &str); 8] = [
        ("another name", same, same, "other.example", own),
        ("another issuer", same, same, host, "another"),
        ("a namesake", same, same, host, "a namesake of its issuer"),
        ("ended", same, |leaf| leaf.not_after = date_time_ymd(2026, 2, 1), host, own),
        ("of an issuer that ended", |root| root.not_after = date_time_ymd(2026, 2, 1), same, host, own),
        ("for clients", same, |leaf| leaf.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth], host, own),
        (
            "of an issuer for clients",
            |root| root.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth],
            same,
            host,
            own,
        ),
        (
            "of an issuer that is kept to names",
            |root| {
                let permitted = vec![GeneralSubtree::DnsName("elsewhere.example".to_owned())];
                root.name_constraints =
                    Some(NameConstraints { permitted_subtrees: permitted, excluded_subtrees: Vec::new() });
            },
            same,
            host,
            own,
        ),
    ];
    for (case, root, leaf, host, trusted) in cases {
        assert!(!is_good(root, leaf, host, trusted), "{case}");
    }
}
