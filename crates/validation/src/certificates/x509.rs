//! Certificates, and requests for them.

use jiff::Timestamp;
use portolan_gocompat::base64;
use ring::signature::{self, UnparsedPublicKey, VerificationAlgorithm};
use x509_parser::{
    certification_request::X509CertificationRequest,
    oid_registry::{
        OID_PKCS1_SHA256WITHRSA, OID_PKCS1_SHA384WITHRSA, OID_PKCS1_SHA512WITHRSA, OID_SIG_ECDSA_WITH_SHA256,
        OID_SIG_ECDSA_WITH_SHA384, OID_SIG_ED25519,
    },
    prelude::{FromDer, X509Certificate},
    public_key::PublicKey,
    x509::SubjectPublicKeyInfo,
};

use super::pem;

/// Checks a base64-encoded PEM request: there is exactly one, signed by the key that it contains.
pub(super) fn check_request(encoded: &str) -> Result<(), String> {
    with_request(encoded, check_signature)
}

/// Returns the organizations in the subject of a certificate request, given as PEM in base64. They are the client's
/// groups.
///
/// # Errors
/// Fails if it is not a request, or if an organization is in an unsupported encoding.
pub fn requested_organizations(encoded: &str) -> Result<Vec<String>, String> {
    with_request(encoded, |request| {
        let names = request.certification_request_info.subject.iter_organization();
        names.map(|name| name.as_str().map(str::to_owned).map_err(|error| error.to_string())).collect()
    })
}

fn with_request<T>(
    encoded: &str,
    read: impl FnOnce(&X509CertificationRequest<'_>) -> Result<T, String>,
) -> Result<T, String> {
    let blocks = pem::blocks(&text(encoded));
    let block = blocks.first().filter(|block| block.label == "CERTIFICATE REQUEST");
    let Some(block) = block else { return Err("PEM block type must be CERTIFICATE REQUEST".to_owned()) };
    let Ok((rest, request)) = X509CertificationRequest::from_der(&block.data) else {
        return Err("asn1: structure error: tags don't match".to_owned());
    };
    if !rest.is_empty() {
        return Err("asn1: syntax error: trailing data".to_owned());
    }
    read(&request)
}

fn check_signature(request: &X509CertificationRequest<'_>) -> Result<(), String> {
    let info = &request.certification_request_info;
    let Some((algorithm, failed)) = algorithm(request, &info.subject_pki) else {
        return Err("x509: cannot verify signature: algorithm unimplemented".to_owned());
    };
    let key = UnparsedPublicKey::new(algorithm, &info.subject_pki.subject_public_key.data);
    key.verify(info.raw, &request.signature_value.data).map_err(|_| failed.to_owned())
}

type Verification = (&'static dyn VerificationAlgorithm, &'static str);

/// Returns the verification of a signature and the message for a bad one.
fn algorithm(request: &X509CertificationRequest<'_>, key: &SubjectPublicKeyInfo<'_>) -> Option<Verification> {
    let rsa = "crypto/rsa: verification error";
    let ecdsa = "x509: ECDSA verification failure";
    let bits = match key.parsed() {
        Ok(PublicKey::EC(point)) => point.key_size(),
        _ => 0,
    };
    let used = &request.signature_algorithm.algorithm;
    let found: Verification = match bits {
        _ if *used == OID_PKCS1_SHA256WITHRSA => (&signature::RSA_PKCS1_2048_8192_SHA256, rsa),
        _ if *used == OID_PKCS1_SHA384WITHRSA => (&signature::RSA_PKCS1_2048_8192_SHA384, rsa),
        _ if *used == OID_PKCS1_SHA512WITHRSA => (&signature::RSA_PKCS1_2048_8192_SHA512, rsa),
        _ if *used == OID_SIG_ED25519 => (&signature::ED25519, "x509: Ed25519 verification failure"),
        256 if *used == OID_SIG_ECDSA_WITH_SHA256 => (&signature::ECDSA_P256_SHA256_ASN1, ecdsa),
        256 if *used == OID_SIG_ECDSA_WITH_SHA384 => (&signature::ECDSA_P256_SHA384_ASN1, ecdsa),
        384 if *used == OID_SIG_ECDSA_WITH_SHA256 => (&signature::ECDSA_P384_SHA256_ASN1, ecdsa),
        384 if *used == OID_SIG_ECDSA_WITH_SHA384 => (&signature::ECDSA_P384_SHA384_ASN1, ecdsa),
        _ => return None,
    };
    Some(found)
}

/// Checks certificates, given as PEM in base64. An empty value is valid.
pub(super) fn check_certificates(encoded: &str) -> Result<(), String> {
    if encoded.is_empty() {
        return Ok(());
    }
    let blocks = pem::blocks(&text(encoded));
    for block in &blocks {
        if block.label != "CERTIFICATE" {
            return Err(format!("only CERTIFICATE PEM blocks are allowed, found {:?}", block.label));
        }
        if block.has_headers {
            return Err("no PEM block headers are permitted".to_owned());
        }
        if block.data.is_empty() {
            return Err("found CERTIFICATE PEM block containing 0 certificates".to_owned());
        }
        let mut rest = &*block.data;
        while !rest.is_empty() {
            rest = X509Certificate::from_der(rest).map_err(|_| "x509: malformed certificate".to_owned())?.0;
        }
    }
    if blocks.is_empty() { Err("must contain at least one CERTIFICATE PEM block".to_owned()) } else { Ok(()) }
}

/// Returns the end of validity of the first certificate in `encoded`, PEM in base64; `None` if there is none.
pub fn certificate_ends(encoded: &str) -> Option<Timestamp> {
    let blocks = pem::blocks(&text(encoded));
    let (_, certificate) = X509Certificate::from_der(&blocks.first()?.data).ok()?;
    Timestamp::from_second(certificate.validity().not_after.timestamp()).ok()
}

fn text(encoded: &str) -> String {
    let bytes = base64::read(encoded).unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}
