//! Trust in webhooks' certificates: their own CA bundle, or else the system's.

#[cfg(test)]
mod tests;

use std::{io, path::PathBuf, sync::Arc};

use rustls::{
    CertificateError, ClientConfig, ConfigBuilder, DigitallySignedStruct, RootCertStore, SignatureScheme,
    client::{
        WantsClientCert, WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
        verify_server_name,
    },
    crypto::{CryptoProvider, ring},
    server::ParsedCertificate,
};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime, pem::PemObject as _};
use x509_parser::{
    oid_registry::{
        OID_PKCS1_SHA256WITHRSA, OID_PKCS1_SHA384WITHRSA, OID_PKCS1_SHA512WITHRSA, OID_SIG_ECDSA_WITH_SHA256,
        OID_SIG_ECDSA_WITH_SHA384, OID_SIG_ED25519,
    },
    prelude::{FromDer as _, ParsedExtension, X509Certificate},
};

/// Files in which systems keep trusted certificates.
const SYSTEM: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// Builds the TLS client configuration for a CA bundle in PEM; an empty one means the bundle of the system.
///
/// # Errors
/// A bundle without a usable certificate.
pub(crate) fn config(bundle: &[u8]) -> Result<ClientConfig, String> {
    Ok(verified(bundle)?.with_no_client_auth())
}

/// Builds the TLS client configuration as [`config`] does, with a client certificate.
///
/// # Errors
/// A bundle without a usable certificate, or a certificate and key that do not belong together.
pub(super) fn config_with_identity(
    bundle: &[u8],
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<ClientConfig, String> {
    verified(bundle)?.with_client_auth_cert(chain, key).map_err(|error| format!("client certificate: {error}"))
}

/// Begins a TLS client configuration that verifies servers.
fn verified(bundle: &[u8]) -> Result<ConfigBuilder<ClientConfig, WantsClientCert>, String> {
    let provider: Arc<CryptoProvider> = Arc::new(ring::default_provider());
    let trusted: Vec<CertificateDer<'static>> = if bundle.is_empty() {
        CertificateDer::pem_slice_iter(&system_bundle()).flatten().collect()
    } else {
        CertificateDer::pem_slice_iter(bundle).flatten().collect()
    };
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(trusted.iter().cloned());
    if roots.is_empty() {
        return Err("tls: failed to verify certificate: x509: certificate signed by unknown authority".into());
    }
    let usual = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider.clone());
    let usual = usual.build().map_err(|e| e.to_string())?;
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|e| e.to_string())?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(BundleVerifier { usual, trusted }));
    Ok(builder)
}

fn system_bundle() -> Vec<u8> {
    let handshake_error = std::env::var_os("SSL_CERT_FILE").map(PathBuf::from);
    let files = handshake_error.into_iter().chain(SYSTEM.iter().map(PathBuf::from));
    files.filter_map(|file| std::fs::read(file).ok()).find(|bytes| !bytes.is_empty()).unwrap_or_default()
}

/// Verifier that, like Go, also accepts a CA certificate as the server's if the bundle contains it or its issuer:
/// this is common for self-signed webhook certificates and those of `openssl req -x509 -CA`.
#[derive(Debug)]
struct BundleVerifier {
    usual: Arc<WebPkiServerVerifier>,
    trusted: Vec<CertificateDer<'static>>,
}

impl BundleVerifier {
    fn is_good_though_it_could_sign(
        &self,
        certificate: &CertificateDer<'_>,
        name: &ServerName<'_>,
        now: UnixTime,
    ) -> Result<(), rustls::Error> {
        let itself = self.trusted.iter().any(|own| own.as_ref() == certificate.as_ref());
        let parsed = parsed(certificate)?;
        if !itself && !issuers(&self.trusted, &parsed).any(|issuer| has_signed(&issuer, &parsed, now)) {
            return Err(CertificateError::UnknownIssuer.into());
        }
        verify_server_name(&ParsedCertificate::try_from(certificate)?, name)?;
        if is_valid(&parsed, now) { Ok(()) } else { Err(CertificateError::Expired.into()) }
    }
}

fn parsed<'a>(certificate: &'a CertificateDer<'_>) -> Result<X509Certificate<'a>, rustls::Error> {
    let (_, parsed) = X509Certificate::from_der(certificate).map_err(|_| CertificateError::BadEncoding)?;
    Ok(parsed)
}

fn is_valid(certificate: &X509Certificate<'_>, now: UnixTime) -> bool {
    let now = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
    let validity = certificate.validity();
    (validity.not_before.timestamp()..=validity.not_after.timestamp()).contains(&now)
}

/// Limit of issuers tried per signature, as in rustls.
const MAX_ISSUERS: usize = 100;

/// Returns the trusted certificates that may have issued the server's.
fn issuers<'a>(
    trusted: &'a [CertificateDer<'_>],
    of: &X509Certificate<'_>,
) -> impl Iterator<Item = X509Certificate<'a>> {
    let is_of_name = |issuer: &X509Certificate<'_>| issuer.subject().as_raw() == of.issuer().as_raw();
    trusted.iter().filter_map(|issuer| parsed(issuer).ok()).filter(is_of_name).take(MAX_ISSUERS)
}

/// Returns true if a trusted certificate has signed a server certificate that is itself a CA, which rustls refuses.
/// An unknown critical extension counts as a refusal.
fn has_signed(issuer: &X509Certificate<'_>, certificate: &X509Certificate<'_>, now: UnixTime) -> bool {
    let signs = issuer.key_usage().is_ok_and(|usage| usage.is_none_or(|usage| usage.value.key_cert_sign()));
    certificate.is_ca()
        && issuer.is_ca()
        && signs
        && is_valid(issuer, now)
        && [certificate, issuer].into_iter().all(|each| is_for_servers(each) && is_understood(each))
        && is_strong(certificate)
        && certificate.verify_signature(Some(issuer.public_key())).is_ok()
}

fn is_for_servers(certificate: &X509Certificate<'_>) -> bool {
    match certificate.extended_key_usage() {
        Ok(None) => true,
        Ok(Some(usage)) => usage.value.server_auth || usage.value.any,
        Err(_) => false,
    }
}

/// Returns true for signature algorithms that Go's `crypto/x509` accepts, which excludes SHA-1.
fn is_strong(certificate: &X509Certificate<'_>) -> bool {
    let strong = [
        OID_PKCS1_SHA256WITHRSA,
        OID_PKCS1_SHA384WITHRSA,
        OID_PKCS1_SHA512WITHRSA,
        OID_SIG_ECDSA_WITH_SHA256,
        OID_SIG_ECDSA_WITH_SHA384,
        OID_SIG_ED25519,
    ];
    strong.contains(&certificate.signature_algorithm.algorithm)
}

/// Returns true if all critical extensions are understood.
fn is_understood(certificate: &X509Certificate<'_>) -> bool {
    let is_heeded = |parsed: &ParsedExtension<'_>| {
        use ParsedExtension::{BasicConstraints, ExtendedKeyUsage, KeyUsage, SubjectAlternativeName};
        matches!(parsed, BasicConstraints(_) | KeyUsage(_) | ExtendedKeyUsage(_) | SubjectAlternativeName(_))
    };
    certificate.extensions().iter().all(|extension| {
        // Name constraints bind even if they are not marked critical.
        let binds = extension.critical || matches!(extension.parsed_extension(), ParsedExtension::NameConstraints(_));
        !binds || is_heeded(extension.parsed_extension())
    })
}

impl ServerCertVerifier for BundleVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let usual = self.usual.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now);
        usual.or_else(|failure| match self.is_good_though_it_could_sign(end_entity, server_name, now) {
            Ok(()) => Ok(ServerCertVerified::assertion()),
            Err(_) => Err(failure),
        })
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.usual.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.usual.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.usual.supported_verify_schemes()
    }
}

/// Describes a failed handshake in Go's words.
pub(super) fn handshake_error(error: &io::Error) -> String {
    let cause = error.get_ref().and_then(|cause| cause.downcast_ref::<rustls::Error>());
    let Some(rustls::Error::InvalidCertificate(why)) = cause else {
        return match error.kind() {
            io::ErrorKind::UnexpectedEof => "EOF".into(),
            _ => format!("tls: {error}"),
        };
    };
    let why = match why {
        // A bad signature comes from an issuer with the name of a trusted one.
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            "x509: certificate signed by unknown authority".to_owned()
        }
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            "x509: certificate has expired or is not yet valid".to_owned()
        }
        other => format!("x509: {other}"),
    };
    format!("tls: failed to verify certificate: {why}")
}
