//! Client certificates of users, issued from the keys in a data directory, also beside a running server.

use std::{path::Path, time::Duration};

use portolan_types::Seams;

use super::{
    certificates::{CertificateAuthority, CertifiedKey},
    files::KeyFolder,
};
use crate::config::ConfigError;

/// User of a client certificate.
pub struct CertificateUser<'a> {
    /// User name: the common name.
    pub name: &'a str,
    /// Groups: the organizations.
    pub groups: &'a [String],
    /// Validity from now on.
    pub lifetime: Duration,
}

/// Certificate of a user, with the other contents of a kubeconfig.
pub struct IssuedUserCertificate {
    /// The certificate and its key.
    pub client: CertifiedKey,
    /// Certificate of the server's authority, PEM.
    pub ca: String,
    /// Serial number in hexadecimal digits, by which the certificate can be revoked.
    pub serial: String,
}

/// Issues a client certificate with the authority in a data directory.
///
/// # Errors
/// A directory without an authority, keys that are unusable or open to others, or a failure to sign.
pub fn issue_user_certificate(
    data_dir: &Path,
    user: &CertificateUser<'_>,
    seams: &Seams,
) -> Result<IssuedUserCertificate, ConfigError> {
    let missing = || ConfigError::Content {
        path: data_dir.join("pki/ca.crt"),
        what: "is missing: no server has been started with this data directory".into(),
    };
    if !data_dir.join("pki").is_dir() {
        return Err(missing());
    }
    let folder = KeyFolder::open(Some(data_dir))?;
    let authority = CertificateAuthority::load(folder.pair("pki/ca")?.ok_or_else(missing)?)?;
    let seconds = i64::try_from(user.lifetime.as_secs()).unwrap_or(i64::MAX);
    let client = authority.user((user.name, user.groups), seconds, seams)?;
    let serial = serial(&client.certificate).unwrap_or_default();
    Ok(IssuedUserCertificate { client, ca: authority.pair.certificate, serial })
}

fn serial(pem: &str) -> Option<String> {
    use x509_parser::prelude::FromDer as _;
    let ders = super::certificates(pem).ok()?;
    let (_, certificate) = x509_parser::certificate::X509Certificate::from_der(ders.first()?).ok()?;
    Some(certificate.raw_serial().iter().map(|byte| format!("{byte:02X}")).collect())
}

#[cfg(test)]
mod tests {
    use x509_parser::prelude::FromDer as _;

    use super::*;
    use crate::{ApiServerConfig, pki::Pki};

    #[test]
    fn a_user_gets_a_certificate_of_her_own_for_her_time() {
        let (folder, seams) = (tempfile::tempdir().unwrap(), Seams::system());
        let data_dir = folder.path().join("data");
        let groups = ["dev".to_owned(), "ops".to_owned(), "a".repeat(200)];
        let user = CertificateUser { name: "ann", groups: &groups, lifetime: Duration::from_secs(3600) };
        let missing = issue_user_certificate(&data_dir, &user, &seams).err().unwrap().to_string();
        assert!(missing.contains("no server has been started") && !data_dir.exists(), "{missing}");

        let pki = Pki::open(&ApiServerConfig::in_directory(data_dir.clone(), seams.clone())).unwrap();
        let issued = issue_user_certificate(&data_dir, &user, &seams).unwrap();
        assert_eq!(issued.ca, pki.ca);
        let [ders, authority] =
            [&issued.client.certificate, &issued.ca].map(|pem| super::super::certificates(pem).unwrap());
        let (_, certificate) = x509_parser::certificate::X509Certificate::from_der(&ders[0]).unwrap();
        let subject = certificate.subject().to_string();
        assert!(subject.starts_with("CN=ann, O=dev, O=ops, O=aaa"), "{subject}");
        let (_, authority) = x509_parser::certificate::X509Certificate::from_der(&authority[0]).unwrap();
        certificate.verify_signature(Some(authority.public_key())).unwrap();
        let known = crate::authn::user_of_certificate(&ders[0]).unwrap();
        assert_eq!((known.name.as_str(), &known.groups[..3]), ("ann", &groups[..]));
        let (from, until) =
            (certificate.validity().not_before.timestamp(), certificate.validity().not_after.timestamp());
        let now = seams.clock.now().as_second();
        assert!((now - 310..now).contains(&from) && (now + 3590..=now + 3610).contains(&until), "{from} {until} {now}");
        assert!(issued.serial.len() > 20 && issued.serial.bytes().all(|b| b.is_ascii_hexdigit()), "{}", issued.serial);
    }
}
