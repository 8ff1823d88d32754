//! TLS: our certificate, client certificates where they are shown, HTTP/2 and HTTP/1.1.

use std::sync::Arc;

use parking_lot::RwLock;
use rustls::{
    RootCertStore, ServerConfig,
    crypto::{CryptoProvider, ring},
    server::{ClientHello, ResolvesServerCert, WebPkiClientVerifier},
    sign,
};
use rustls_pki_types::{CertificateDer, pem::PemObject as _};

use crate::{
    ConfigError,
    pki::{CertifiedKey, Pki, Unusable, certified},
};

/// What the server shows to who connects. It can be replaced; connections that there are go on.
pub(super) struct Shown {
    authority: CertificateDer<'static>,
    now: RwLock<(CertifiedKey, Arc<sign::CertifiedKey>)>,
}

impl Shown {
    fn new(pki: &Pki) -> Result<Self, ConfigError> {
        let authority = certificate(&pki.ca)?;
        let ready = ready(&authority, &pki.server)?;
        Ok(Self { authority, now: RwLock::new((pki.server.clone(), ready)) })
    }

    /// The certificate and its key.
    pub(super) fn pair(&self) -> CertifiedKey {
        self.now.read().0.clone()
    }

    /// # Errors
    /// When it cannot be shown: what was before still is.
    pub(super) fn replace(&self, pair: CertifiedKey) -> Result<(), ConfigError> {
        let ready = ready(&self.authority, &pair)?;
        *self.now.write() = (pair, ready);
        Ok(())
    }
}

impl std::fmt::Debug for Shown {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Shown")
    }
}

impl ResolvesServerCert for Shown {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<sign::CertifiedKey>> {
        Some(self.now.read().1.clone())
    }
}

/// A certificate with that of the authority behind it.
fn ready(authority: &CertificateDer<'static>, pair: &CertifiedKey) -> Result<Arc<sign::CertifiedKey>, ConfigError> {
    let unusable = |(Unusable::Certificate(what) | Unusable::Key(what) | Unusable::Together(what))| {
        crypto(format!("the server's {what}"))
    };
    let mut ready = certified(&pair.certificate, &pair.key).map_err(unusable)?;
    ready.cert.push(authority.clone());
    Ok(Arc::new(ready))
}

/// The TLS side of the server, and what it shows. A client may show a certificate of our authority, or none.
///
/// # Errors
/// When keys and certificates cannot be used.
pub(super) fn server_config(pki: &Pki) -> Result<(ServerConfig, Arc<Shown>), ConfigError> {
    let provider: Arc<CryptoProvider> = Arc::new(ring::default_provider());
    let mut roots = RootCertStore::empty();
    roots.add(certificate(&pki.ca)?).map_err(crypto)?;
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone())
        .allow_unauthenticated()
        .build()
        .map_err(crypto)?;
    let shown = Arc::new(Shown::new(pki)?);
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(crypto)?
        .with_client_cert_verifier(verifier)
        .with_cert_resolver(shown.clone());
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok((config, shown))
}

fn certificate(pem: &str) -> Result<CertificateDer<'static>, ConfigError> {
    CertificateDer::from_pem_slice(pem.as_bytes()).map_err(crypto)
}

fn crypto(error: impl std::fmt::Display) -> ConfigError {
    ConfigError::Crypto(error.to_string())
}
