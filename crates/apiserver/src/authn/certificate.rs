//! From a verified client certificate to a user: CN is the name, O are the groups.

use portolan_machinery::rbac::User;
use sha2::{Digest as _, Sha256};
use x509_parser::prelude::{FromDer as _, X509Certificate};

use super::with_authenticated;

/// Which credential a user came with, as kube-apiserver tells it.
const CREDENTIAL: &str = "authentication.kubernetes.io/credential-id";

/// The user that a certificate names; `None` when it names none or cannot be read. TLS has verified it before.
pub fn user_of_certificate(der: &[u8]) -> Option<User> {
    let (_, certificate) = X509Certificate::from_der(der).ok()?;
    let subject = certificate.subject();
    let text = |attribute: &x509_parser::x509::AttributeTypeAndValue<'_>| attribute.as_str().ok().map(str::to_owned);
    let name = subject.iter_common_name().next().and_then(text).filter(|name| !name.is_empty())?;
    let groups = subject.iter_organization().filter_map(text).collect();
    let print: String = Sha256::digest(der).iter().map(|byte| format!("{byte:02x}")).collect();
    let extra = [(CREDENTIAL.to_owned(), vec![format!("X509SHA256={print}")])].into();
    Some(User { name, groups: with_authenticated(groups), extra, ..User::default() })
}
