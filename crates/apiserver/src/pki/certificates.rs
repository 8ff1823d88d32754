//! Issuing of certificates: the server's own authority, server certificates, client certificates.

use portolan_types::Seams;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, SerialNumber,
};
use rustls_pki_types::{CertificateDer, pem::PemObject as _};
use x509_parser::{extensions::GeneralName, prelude::FromDer as _};

use super::{ec::pem, organizations::with_organizations};
use crate::config::ConfigError;

/// Validity of the authority, in days.
const AUTHORITY_DAYS: i64 = 3650;
/// Validity of the administrator's certificate, in days. It is short since its holder may do everything.
const ADMIN_DAYS: i64 = 30;
const DAY_SECONDS: i64 = 86_400;
/// Seconds before its issue from which a user's certificate is valid, for clocks that are behind.
const BACKDATED_SECONDS: i64 = 300;

/// Lifetime of certificates of one sort, in days.
#[derive(Clone, Copy)]
pub(super) struct Lifetime {
    /// Validity in days from the day of issue.
    days: i64,
    /// Remaining days below which it is renewed.
    renewed_below: i64,
}

impl Lifetime {
    /// Lifetime renewed in its last third.
    pub(super) const LEAF: Self = Self { days: 365, renewed_below: 120 };
    /// Lifetime renewed in its last two thirds, at start and at run time: a copy of the kubeconfig works for at least
    /// 20 days.
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
    /// Returns true if the certificate is signed by `authority`, has all `names` and need not be renewed.
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
        // A certificate from an earlier version may be valid for too long. The clock may be set back by less than a
        // day.
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

/// Check of the issuer by key identifiers, which suffices here: both files are the server's own, and TLS checks
/// signatures.
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

/// Certificate authority with its signing key.
pub(super) struct CertificateAuthority {
    pub(super) pair: CertifiedKey,
    issuer: Issuer<'static, KeyPair>,
}

impl CertificateAuthority {
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

    /// Issues a client certificate for a user with groups.
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

    /// Issues a client certificate for a user with groups, which is valid for so many seconds.
    pub(super) fn user(
        &self,
        (name, groups): (&str, &[String]),
        seconds: i64,
        seams: &Seams,
    ) -> Result<CertifiedKey, ConfigError> {
        let mut params = params(name, &[], Lifetime::ADMIN.days, seams)?;
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        set_validity(&mut params, (-BACKDATED_SECONDS, seconds), seams);
        let issued = self.sign(params)?;
        let plain = der(&issued.certificate).unwrap_or_default();
        let certificate = with_organizations(&plain, (name, groups), self.issuer.key())?;
        Ok(CertifiedKey { certificate: pem("CERTIFICATE", &certificate), ..issued })
    }

    /// Signs a request unchanged. Returns PEM.
    pub(super) fn certify(&self, request: &CertificateSigningRequestParams) -> Result<String, ConfigError> {
        let mut request = request.clone();
        request.params.use_authority_key_identifier_extension = true;
        request.signed_by(&self.issuer).map(|certificate| certificate.pem()).map_err(crypto)
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
    set_serial(&mut params, seams);
    Ok(params)
}

fn set_serial(params: &mut CertificateParams, seams: &Seams) {
    let mut serial = [0; 16];
    seams.entropy.fill(&mut serial);
    serial[0] &= 0x7f;
    params.serial_number = Some(SerialNumber::from_slice(&serial));
}

/// Sets a random serial number, and the validity by seconds from now.
pub(super) fn set_validity(params: &mut CertificateParams, (from, until): (i64, i64), seams: &Seams) {
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    let at = |seconds: i64| {
        let second = seams.clock.now().as_second() + seconds;
        epoch + std::time::Duration::from_secs(u64::try_from(second).unwrap_or(0))
    };
    (params.not_before, params.not_after) = (at(from), at(until));
    set_serial(params, seams);
}

fn date(seams: &Seams, days: i64) -> (i32, u8, u8) {
    let moved = seams.clock.now() + jiff::SignedDuration::from_hours(days * 24);
    let date = jiff::tz::Offset::UTC.to_datetime(moved).date();
    (i32::from(date.year()), u8::try_from(date.month()).unwrap_or(1), u8::try_from(date.day()).unwrap_or(1))
}

/// Generates a key for service account tokens: ECDSA P-256, PKCS#8 PEM.
pub(super) fn signing_key() -> Result<String, ConfigError> {
    KeyPair::generate().map(|key| key.serialize_pem()).map_err(crypto)
}

/// # Errors
/// The expected format, if the text is not such a key.
pub(super) fn check_signing_key(text: &str) -> Result<(), String> {
    let is_point = |key: KeyPair| matches!(key.public_key_raw(), [4, rest @ ..] if rest.len() == 64);
    if KeyPair::from_pem(text).is_ok_and(is_point) {
        Ok(())
    } else {
        Err("holds no key for tokens: PEM of an ECDSA P-256 key is expected, PKCS#8".into())
    }
}

fn crypto(error: impl std::fmt::Display) -> ConfigError {
    ConfigError::Crypto(error.to_string())
}
