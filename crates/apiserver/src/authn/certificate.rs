//! User of a verified client certificate: name from the CN, groups from the O, uid from Kubernetes' own OID.

use jiff::Timestamp;
use portolan_strategy::rbac::User;
use sha2::{Digest as _, Sha256};
use x509_parser::{
    oid_registry::{Oid, asn1_rs::oid},
    prelude::{FromDer as _, X509Certificate},
};

use super::with_authenticated;

/// Extra key with the credential of a user, as kube-apiserver sets it.
const CREDENTIAL: &str = "authentication.kubernetes.io/credential-id";

/// OID of the uid in a subject.
const UID: Oid<'static> = oid!(1.3.6.1.4.1.57683.2);

/// Returns the expiry of a certificate; `None` if it cannot be parsed.
pub(crate) fn end_of_certificate(der: &[u8]) -> Option<Timestamp> {
    let (_, certificate) = X509Certificate::from_der(der).ok()?;
    Timestamp::from_second(certificate.validity().not_after.timestamp()).ok()
}

/// Returns the user of a certificate that TLS has verified; `None` if it has no name, several uids, or cannot be
/// parsed.
pub fn user_of_certificate(der: &[u8]) -> Option<User> {
    let (_, certificate) = X509Certificate::from_der(der).ok()?;
    let subject = certificate.subject();
    let text = |attribute: &x509_parser::x509::AttributeTypeAndValue<'_>| attribute.as_str().ok().map(str::to_owned);
    // Go takes the last of several names.
    let name = subject.iter_common_name().last().and_then(text).filter(|name| !name.is_empty())?;
    let uids: Vec<_> = subject.iter_by_oid(&UID).collect();
    let uid = match uids.as_slice() {
        [] => String::new(),
        [uid] => text(uid).filter(|uid| !uid.is_empty())?,
        _ => return None,
    };
    let groups = subject.iter_organization().filter_map(text).collect();
    let print: String = Sha256::digest(der).iter().map(|byte| format!("{byte:02x}")).collect();
    let extra = [(CREDENTIAL.to_owned(), vec![format!("X509SHA256={print}")])].into();
    Some(User { name, uid, groups: with_authenticated(groups), extra })
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};

    use super::*;

    fn certificate(subject: &[(DnType, &str)]) -> Vec<u8> {
        let mut name = DistinguishedName::new();
        for (part, text) in subject {
            name.push(part.clone(), *text);
        }
        let mut params = CertificateParams::default();
        params.distinguished_name = name;
        params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().to_vec()
    }

    fn uid() -> DnType {
        DnType::CustomDnType(vec![1, 3, 6, 1, 4, 1, 57683, 2])
    }

    #[test]
    fn a_subject_names_a_user_its_groups_and_its_uid() {
        let named = [(DnType::CommonName, "ann"), (DnType::OrganizationName, "dev"), (uid(), "7")];
        let user = user_of_certificate(&certificate(&named)).unwrap();
        assert_eq!((user.name.as_str(), user.uid.as_str()), ("ann", "7"));
        assert_eq!(user.groups, ["dev", "system:authenticated"]);
        assert_eq!(user.extra[CREDENTIAL][0].len(), "X509SHA256=".len() + 64);
        assert_eq!(user_of_certificate(&certificate(&named[..2])).unwrap().uid, "");
        for (case, subject) in [
            ("no name", &named[1..]),
            ("an empty name", &[(DnType::CommonName, "")][..]),
            ("an empty uid", &[(DnType::CommonName, "ann"), (uid(), "")]),
        ] {
            assert!(user_of_certificate(&certificate(subject)).is_none(), "{case}");
        }
    }
}
