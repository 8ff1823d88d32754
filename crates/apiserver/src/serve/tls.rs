//! TLS: our certificate, client certificates where they are shown, HTTP/2 and HTTP/1.1.

use std::sync::Arc;

use rustls::{
    RootCertStore, ServerConfig,
    crypto::{CryptoProvider, ring},
    server::WebPkiClientVerifier,
};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _};

use crate::{ConfigError, pki::Pki};

/// The TLS side of the server. A client may show a certificate of our authority, or none.
///
/// # Errors
/// When keys and certificates cannot be used.
pub fn server_config(pki: &Pki) -> Result<ServerConfig, ConfigError> {
    let provider: Arc<CryptoProvider> = Arc::new(ring::default_provider());
    let authority = certificate(&pki.ca)?;
    let mut roots = RootCertStore::empty();
    roots.add(authority.clone()).map_err(crypto)?;
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone())
        .allow_unauthenticated()
        .build()
        .map_err(crypto)?;
    let chain = vec![certificate(&pki.server.certificate)?, authority];
    let key = PrivateKeyDer::from_pem_slice(pki.server.key.as_bytes()).map_err(crypto)?;
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(crypto)?
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain, key)
        .map_err(crypto)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}

fn certificate(pem: &str) -> Result<CertificateDer<'static>, ConfigError> {
    CertificateDer::from_pem_slice(pem.as_bytes()).map_err(crypto)
}

fn crypto(error: impl std::fmt::Display) -> ConfigError {
    ConfigError::Crypto(error.to_string())
}
