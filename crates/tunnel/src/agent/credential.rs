//! Credential of an agent: its private key, the certificate for it, and the authority of the server.

use std::{
    fs,
    io::{ErrorKind, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::PathBuf,
    time::Duration,
};

use jiff::Timestamp;
use portolan_types::BoxFuture;
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};
use rustls_pki_types::{CertificateDer, pem::PemObject as _};
use serde::{Deserialize, Serialize};
use x509_parser::prelude::{FromDer as _, X509Certificate};

use super::AgentError;

/// Credential of an agent. Its parts are PEM.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AgentCredential {
    /// Private key, PKCS#8.
    pub key: String,
    /// Certificate; empty until the server has issued one.
    pub certificate: String,
    /// Certificate of the server's authority; empty until the server has issued a certificate.
    pub authority: String,
    /// Private key for which a certificate is requested by a bootstrap token; empty otherwise.
    pub next_key: String,
}

/// Validity of a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Validity {
    /// Start.
    pub from: Timestamp,
    /// End.
    pub until: Timestamp,
}

impl Validity {
    /// Returns the time of the renewal: after two thirds of the life.
    pub fn renewal(&self) -> Timestamp {
        let life = self.until.duration_since(self.from);
        self.from.saturating_add(life * 2 / 3).unwrap_or(self.until)
    }

    /// Returns true if the certificate has ended, or ends within a second.
    pub fn is_over(&self, now: Timestamp) -> bool {
        self.until.duration_since(now) < jiff::SignedDuration::from_secs(1)
    }
}

impl AgentCredential {
    /// Creates a key, without a certificate yet.
    ///
    /// # Errors
    /// The system has no randomness.
    pub fn generate() -> Result<Self, AgentError> {
        let key = KeyPair::generate().map_err(AgentError::credential)?;
        Ok(Self { key: key.serialize_pem(), ..Self::default() })
    }

    /// Returns a certificate signing request (PEM) for its key. The subject is that of the certificate in `current`;
    /// without one it is empty, and the server sets it.
    ///
    /// # Errors
    /// A key or certificate that cannot be read.
    pub fn request(&self, current: Option<&Self>) -> Result<String, AgentError> {
        let key = KeyPair::from_pem(&self.key).map_err(AgentError::credential)?;
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        if let Some(current) = current {
            let der = certificate_der(&current.certificate)?;
            let (_, parsed) = X509Certificate::from_der(&der).map_err(AgentError::credential)?;
            let text = |attribute: &x509_parser::x509::AttributeTypeAndValue<'_>| {
                attribute.as_str().map(str::to_owned).map_err(AgentError::credential)
            };
            for name in parsed.subject().iter_common_name() {
                params.distinguished_name.push(DnType::CommonName, text(name)?);
            }
            for group in parsed.subject().iter_organization() {
                params.distinguished_name.push(DnType::OrganizationName, text(group)?);
            }
        }
        params.serialize_request(&key).and_then(|request| request.pem()).map_err(AgentError::credential)
    }

    /// Returns the validity of the certificate; `None` without one.
    ///
    /// # Errors
    /// A certificate that cannot be read.
    pub fn validity(&self) -> Result<Option<Validity>, AgentError> {
        if self.certificate.is_empty() {
            return Ok(None);
        }
        let der = certificate_der(&self.certificate)?;
        let (_, parsed) = X509Certificate::from_der(&der).map_err(AgentError::credential)?;
        let time = |time: x509_parser::time::ASN1Time| Timestamp::from_second(time.timestamp());
        let (from, until) = (time(parsed.validity().not_before), time(parsed.validity().not_after));
        let from = from.map_err(AgentError::credential)?;
        Ok(Some(Validity { from, until: until.map_err(AgentError::credential)? }))
    }
}

impl std::fmt::Debug for AgentCredential {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AgentCredential").field("certificate", &self.certificate).finish_non_exhaustive()
    }
}

/// Parses a certificate in PEM.
pub(super) fn certificate_der(pem: &str) -> Result<CertificateDer<'static>, AgentError> {
    CertificateDer::from_pem_slice(pem.as_bytes()).map_err(AgentError::credential)
}

/// Place that keeps the credential across restarts.
pub trait CredentialStore: Send + Sync {
    /// Reads the credential; `None` if none was saved.
    ///
    /// # Errors
    /// A reason for people.
    fn load(&self) -> BoxFuture<'_, Result<Option<AgentCredential>, String>>;

    /// Saves the credential, in place of an earlier one.
    ///
    /// # Errors
    /// A reason for people.
    fn save<'a>(&'a self, credential: &'a AgentCredential) -> BoxFuture<'a, Result<(), String>>;
}

/// Credential in a file with mode 0600.
pub struct CredentialFile(PathBuf);

impl CredentialFile {
    /// Names the file. Its directory must exist.
    pub fn new(path: PathBuf) -> Self {
        Self(path)
    }

    fn read(&self) -> Result<Option<AgentCredential>, String> {
        let shown = self.0.display();
        match fs::read(&self.0) {
            Ok(bytes) => serde_json::from_slice(&bytes).map(Some).map_err(|error| format!("{shown}: {error}")),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(format!("{shown}: {error}")),
        }
    }

    /// Writes a file beside and renames it, so that a crash leaves the old or the new credential.
    fn write(&self, credential: &AgentCredential) -> std::io::Result<()> {
        let beside = self.0.with_extension("new");
        let mut file = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&beside)?;
        file.write_all(&serde_json::to_vec(credential)?)?;
        file.sync_all()?;
        fs::rename(&beside, &self.0)
    }
}

impl CredentialStore for CredentialFile {
    fn load(&self) -> BoxFuture<'_, Result<Option<AgentCredential>, String>> {
        Box::pin(std::future::ready(self.read()))
    }

    fn save<'a>(&'a self, credential: &'a AgentCredential) -> BoxFuture<'a, Result<(), String>> {
        let saved = self.write(credential).map_err(|error| format!("{}: {error}", self.0.display()));
        Box::pin(std::future::ready(saved))
    }
}

/// Waits until the wall clock of `seams` shows `at`, in steps: clocks are set.
pub(super) async fn sleep_until(seams: &portolan_types::Seams, at: Timestamp) {
    const STEP: Duration = Duration::from_secs(60);
    loop {
        let rest = at.duration_since(seams.clock.now());
        let Ok(rest) = Duration::try_from(rest) else { return };
        if rest.is_zero() {
            return;
        }
        tokio::time::sleep(rest.min(STEP)).await;
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[tokio::test]
    async fn a_file_keeps_the_credential_for_its_owner() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("credential.json");
        let store = CredentialFile::new(path.clone());
        assert_eq!(store.load().await.unwrap(), None);
        let first = AgentCredential::generate().unwrap();
        store.save(&first).await.unwrap();
        let second = AgentCredential::generate().unwrap();
        store.save(&second).await.unwrap();
        assert_eq!(store.load().await.unwrap(), Some(second));
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(!format!("{first:?}").contains("PRIVATE"));
        fs::write(&path, b"{").unwrap();
        assert!(store.load().await.unwrap_err().contains("credential.json"));
    }

    #[test]
    fn a_certificate_is_renewed_after_two_thirds_of_its_life() {
        let time = |text: &str| text.parse::<Timestamp>().unwrap();
        let validity = Validity { from: time("2026-01-01T00:00:00Z"), until: time("2026-01-31T00:00:00Z") };
        assert_eq!(validity.renewal(), time("2026-01-21T00:00:00Z"));
        assert!(!validity.is_over(time("2026-01-30T23:59:58Z")) && validity.is_over(time("2026-01-31T00:00:00Z")));
    }

    #[test]
    fn a_request_has_the_subject_of_the_certificate() {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, "system:portolan:agent:root:east");
        params.distinguished_name.push(DnType::OrganizationName, "system:portolan:agents");
        let key = KeyPair::generate().unwrap();
        let current = AgentCredential {
            key: key.serialize_pem(),
            certificate: params.self_signed(&key).unwrap().pem(),
            ..AgentCredential::default()
        };
        let new = AgentCredential::generate().unwrap();
        assert_eq!(new.validity().unwrap(), None);
        assert!(current.validity().unwrap().is_some());
        for (current, expected) in
            [(None, ""), (Some(&current), "CN=system:portolan:agent:root:east, O=system:portolan:agents")]
        {
            let pem = new.request(current).unwrap();
            let der = rustls_pki_types::CertificateSigningRequestDer::from_pem_slice(pem.as_bytes()).unwrap();
            let (_, parsed) = x509_parser::certification_request::X509CertificationRequest::from_der(&der).unwrap();
            assert_eq!(parsed.certification_request_info.subject.to_string(), expected);
        }
    }
}
