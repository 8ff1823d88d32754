//! Whom webhooks are trusted by: their own bundle of certificates, else those of the system.

use std::{io, path::PathBuf, sync::Arc};

use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
    client::{
        WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
        verify_server_name,
    },
    crypto::{CryptoProvider, ring},
    server::ParsedCertificate,
};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime, pem::PemObject as _};
use x509_parser::prelude::{FromDer as _, X509Certificate};

/// Where systems keep the certificates that they trust.
const SYSTEM: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// A client's side of TLS that trusts a bundle in PEM; an empty one stands for the system's.
///
/// # Errors
/// When there is nothing to trust.
pub(super) fn config(bundle: &[u8]) -> Result<ClientConfig, String> {
    let provider: Arc<CryptoProvider> = Arc::new(ring::default_provider());
    let trusted: Vec<CertificateDer<'static>> = match bundle.is_empty() {
        false => CertificateDer::pem_slice_iter(bundle).flatten().collect(),
        true => CertificateDer::pem_slice_iter(&of_system()).flatten().collect(),
    };
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(trusted.iter().cloned());
    if roots.is_empty() {
        return Err("tls: failed to verify certificate: x509: certificate signed by unknown authority".into());
    }
    let usual = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider.clone());
    let usual = usual.build().map_err(|e| e.to_string())?;
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|e| e.to_string())?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Verifier { usual, trusted }))
        .with_no_client_auth();
    Ok(config)
}

fn of_system() -> Vec<u8> {
    let told = std::env::var_os("SSL_CERT_FILE").map(PathBuf::from);
    let files = told.into_iter().chain(SYSTEM.iter().map(PathBuf::from));
    files.filter_map(|file| std::fs::read(file).ok()).find(|bytes| !bytes.is_empty()).unwrap_or_default()
}

/// As usual, and as Go does, a certificate that is itself in the bundle is good, also when it could sign others: webhooks
/// that make their own certificate have such ones.
#[derive(Debug)]
struct Verifier {
    usual: Arc<WebPkiServerVerifier>,
    trusted: Vec<CertificateDer<'static>>,
}

impl Verifier {
    fn is_trusted_itself(
        &self,
        certificate: &CertificateDer<'_>,
        name: &ServerName<'_>,
        now: UnixTime,
    ) -> Result<(), rustls::Error> {
        if !self.trusted.iter().any(|own| own.as_ref() == certificate.as_ref()) {
            return Err(CertificateError::UnknownIssuer.into());
        }
        verify_server_name(&ParsedCertificate::try_from(certificate)?, name)?;
        let (_, parsed) = X509Certificate::from_der(certificate).map_err(|_| CertificateError::BadEncoding)?;
        let now = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
        let validity = parsed.validity();
        match (validity.not_before.timestamp()..=validity.not_after.timestamp()).contains(&now) {
            true => Ok(()),
            false => Err(CertificateError::Expired.into()),
        }
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let usual = self.usual.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now);
        usual.or_else(|failure| match self.is_trusted_itself(end_entity, server_name, now) {
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

/// A failed handshake in Go's words.
pub(super) fn told(error: &io::Error) -> String {
    let cause = error.get_ref().and_then(|cause| cause.downcast_ref::<rustls::Error>());
    let Some(rustls::Error::InvalidCertificate(why)) = cause else {
        return match error.kind() {
            io::ErrorKind::UnexpectedEof => "EOF".into(),
            _ => format!("tls: {error}"),
        };
    };
    let why = match why {
        // A bad signature is that of somebody whose namesake is trusted.
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
