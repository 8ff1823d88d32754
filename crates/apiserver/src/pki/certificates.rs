//! Making certificates: an authority of our own, a server certificate, client certificates.

use portolan_types::Seams;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    SerialNumber,
};
use rustls_pki_types::{CertificateDer, pem::PemObject as _};
use x509_parser::{extensions::GeneralName, prelude::FromDer as _};

use crate::config::ConfigError;

/// How long the authority is valid, in days.
const AUTHORITY_DAYS: i64 = 3650;
/// Days that the administrator's certificate is valid for: whoever has it may do everything everywhere.
const ADMIN_DAYS: i64 = 30;
const DAY_SECONDS: i64 = 86_400;

/// Lifetime of certificates of one sort, in days.
#[derive(Clone, Copy)]
pub(super) struct Lifetime {
    /// From the day on which one is made.
    days: i64,
    /// One that is valid for less is made anew.
    renewed_below: i64,
}

impl Lifetime {
    /// Renewed in the last third.
    pub(super) const LEAF: Self = Self { days: 365, renewed_below: 120 };
    /// Renewed in the last two thirds, at a start and while the server runs: a copy of the kubeconfig holds for 20 days at least.
    pub(super) const ADMIN: Self = Self { days: ADMIN_DAYS, renewed_below: 20 };
}

/// A certificate with its private key, both PEM.
#[derive(Clone)]
pub struct CertifiedKey {
    /// The certificate.
    pub certificate: String,
    /// Its private key, PKCS#8.
    pub key: String,
}

impl CertifiedKey {
    /// Whether the certificate is signed by `authority`, has all `names` and is valid for a while.
    pub(super) fn is_valid(
        &self,
        authority: &CertifiedKey,
        names: &[String],
        lifetime: Lifetime,
        seams: &Seams,
    ) -> bool {
        self.check(authority, names, lifetime, seams).unwrap_or(false)
    }

    fn check(&self, authority: &CertifiedKey, names: &[String], lifetime: Lifetime, seams: &Seams) -> Option<bool> {
        let (own, above) = (der(&self.certificate)?, der(&authority.certificate)?);
        let (_, own) = x509_parser::certificate::X509Certificate::from_der(&own).ok()?;
        let (_, above) = x509_parser::certificate::X509Certificate::from_der(&above).ok()?;
        let rest = own.validity().not_after.timestamp() - seams.clock.now().as_second();
        // One of an earlier version may be valid for longer than it should; a clock may be set back by less than a day.
        let lasts = (lifetime.renewed_below * DAY_SECONDS + 1..=(lifetime.days + 1) * DAY_SECONDS).contains(&rest);
        let san = own.subject_alternative_name().ok()?;
        let held: Vec<String> =
            san.iter().flat_map(|san| san.value.general_names.iter().filter_map(name_text)).collect();
        Some(
            lasts
                && own.issuer() == above.subject()
                && own.verify_signature_of(&above)
                && names.iter().all(|n| held.contains(n)),
        )
    }
}

/// Comparing key identifiers is enough here: both files are our own, and TLS checks the signature itself.
trait IssuedBy {
    fn verify_signature_of(&self, above: &Self) -> bool;
}

impl IssuedBy for x509_parser::certificate::X509Certificate<'_> {
    fn verify_signature_of(&self, above: &Self) -> bool {
        use x509_parser::extensions::ParsedExtension;
        let identifier = |wanted_authority: bool, certificate: &Self| {
            certificate.extensions().iter().find_map(|extension| match extension.parsed_extension() {
                ParsedExtension::AuthorityKeyIdentifier(id) if wanted_authority => {
                    id.key_identifier.as_ref().map(|k| k.0.to_vec())
                }
                ParsedExtension::SubjectKeyIdentifier(id) if !wanted_authority => Some(id.0.to_vec()),
                _ => None,
            })
        };
        identifier(true, self).is_some_and(|id| identifier(false, above) == Some(id))
    }
}

fn name_text(name: &GeneralName<'_>) -> Option<String> {
    match name {
        GeneralName::DNSName(name) => Some((*name).to_owned()),
        GeneralName::IPAddress(bytes) => match bytes.len() {
            4 => <[u8; 4]>::try_from(*bytes).ok().map(|b| std::net::Ipv4Addr::from(b).to_string()),
            16 => <[u8; 16]>::try_from(*bytes).ok().map(|b| std::net::Ipv6Addr::from(b).to_string()),
            _ => None,
        },
        _ => None,
    }
}

fn der(pem: &str) -> Option<Vec<u8>> {
    CertificateDer::from_pem_slice(pem.as_bytes()).ok().map(|der| der.to_vec())
}

/// The authority, ready to sign.
pub(super) struct Authority {
    pub(super) pair: CertifiedKey,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    pub(super) fn create(seams: &Seams) -> Result<Self, ConfigError> {
        let key = KeyPair::generate().map_err(crypto)?;
        let mut params = params("portolan-ca", &[], AUTHORITY_DAYS, seams)?;
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages =
            vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign, KeyUsagePurpose::DigitalSignature];
        params.use_authority_key_identifier_extension = false;
        let certificate = params.self_signed(&key).map_err(crypto)?.pem();
        Self::load(CertifiedKey { certificate, key: key.serialize_pem() })
    }

    pub(super) fn load(pair: CertifiedKey) -> Result<Self, ConfigError> {
        let key = KeyPair::from_pem(&pair.key).map_err(crypto)?;
        let issuer = Issuer::from_ca_cert_pem(&pair.certificate, key).map_err(crypto)?;
        Ok(Self { pair, issuer })
    }

    pub(super) fn server(&self, names: &[String], seams: &Seams) -> Result<CertifiedKey, ConfigError> {
        let mut params = params("portolan-server", names, Lifetime::LEAF.days, seams)?;
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        self.sign(params)
    }

    /// Makes a certificate for a user in some groups.
    pub(super) fn client(
        &self,
        (name, groups): (&str, &[&str]),
        lifetime: Lifetime,
        seams: &Seams,
    ) -> Result<CertifiedKey, ConfigError> {
        let mut params = params(name, &[], lifetime.days, seams)?;
        groups.iter().for_each(|group| params.distinguished_name.push(DnType::OrganizationName, *group));
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.sign(params)
    }

    fn sign(&self, mut params: CertificateParams) -> Result<CertifiedKey, ConfigError> {
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate().map_err(crypto)?;
        let certificate = params.signed_by(&key, &self.issuer).map_err(crypto)?.pem();
        Ok(CertifiedKey { certificate, key: key.serialize_pem() })
    }
}

fn params(name: &str, names: &[String], days: i64, seams: &Seams) -> Result<CertificateParams, ConfigError> {
    let mut params = CertificateParams::new(names).map_err(crypto)?;
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    let start = date(seams, -1);
    params.not_before = rcgen::date_time_ymd(start.0, start.1, start.2);
    let end = date(seams, days);
    params.not_after = rcgen::date_time_ymd(end.0, end.1, end.2);
    let mut serial = [0; 16];
    seams.entropy.fill(&mut serial);
    serial[0] &= 0x7f;
    params.serial_number = Some(SerialNumber::from_slice(&serial));
    Ok(params)
}

fn date(seams: &Seams, days: i64) -> (i32, u8, u8) {
    let moved = seams.clock.now() + jiff::SignedDuration::from_hours(days * 24);
    let date = jiff::tz::Offset::UTC.to_datetime(moved).date();
    (i32::from(date.year()), u8::try_from(date.month()).unwrap_or(1), u8::try_from(date.day()).unwrap_or(1))
}

/// A key for service account tokens: ECDSA P-256, PKCS#8 PEM.
pub(super) fn signing_key() -> Result<String, ConfigError> {
    KeyPair::generate().map(|key| key.serialize_pem()).map_err(crypto)
}

/// # Errors
/// When a text is not such a key: what was expected.
pub(super) fn check_signing_key(text: &str) -> Result<(), String> {
    let is_point = |key: KeyPair| matches!(key.public_key_raw(), [4, rest @ ..] if rest.len() == 64);
    match KeyPair::from_pem(text).is_ok_and(is_point) {
        true => Ok(()),
        false => Err("holds no key for tokens: PEM of an ECDSA P-256 key is expected, PKCS#8".into()),
    }
}

fn crypto(error: impl std::fmt::Display) -> ConfigError {
    ConfigError::Crypto(error.to_string())
}
