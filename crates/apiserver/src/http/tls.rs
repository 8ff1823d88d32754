//! TLS configuration: server certificates, optional client certificates, versions, HTTP/2 and HTTP/1.1.

use std::sync::Arc;

use parking_lot::{Mutex, RwLock};
use rustls::{
    CipherSuite, ServerConfig, SupportedCipherSuite, SupportedProtocolVersion,
    crypto::{CryptoProvider, ring},
    server::{ClientHello, ResolvesServerCert, WebPkiClientVerifier},
    sign, version,
};
use rustls_pki_types::{CertificateDer, pem::PemObject as _};

use x509_parser::{extensions::GeneralName, prelude::FromDer as _};

use crate::{
    ApiServerConfig, ConfigError,
    authn::ClientTrust,
    config::{CertificateFiles, ServingConfig},
    pki::{CertifiedKey, FileStamp, Pki, UnusablePair, certified, file_stamp},
};

/// Certificate that the server presents. It can be replaced without ending connections.
pub(super) struct ServerCertificate {
    authority: CertificateDer<'static>,
    now: RwLock<(CertifiedKey, Arc<sign::CertifiedKey>)>,
    named: Option<NamedCertificate>,
}

/// Certificate of the administrator, for the names that it has. Clients that trust the server's own authority use
/// addresses and the names of `tls_sans`, for which the server presents its own.
struct NamedCertificate {
    files: CertificateFiles,
    /// Names for which it is not presented.
    own_names: Vec<String>,
    stamps: Mutex<[FileStamp; 2]>,
    now: RwLock<PresentedChain>,
}

#[derive(Clone)]
struct PresentedChain {
    names: Vec<String>,
    chain: Arc<sign::CertifiedKey>,
}

impl NamedCertificate {
    fn open(files: &CertificateFiles, own_names: &[String]) -> Result<Self, ConfigError> {
        let stamps = Mutex::new(stamps(files)?);
        let now = RwLock::new(read_chain(files)?);
        let own_names = own_names.iter().map(|name| name.to_lowercase()).collect();
        Ok(Self { files: files.clone(), own_names, stamps, now })
    }

    /// Rereads the files if they have changed. Returns true if the certificate was replaced.
    fn reread(&self) -> Result<bool, ConfigError> {
        let seen = stamps(&self.files)?;
        if std::mem::replace(&mut *self.stamps.lock(), seen) == seen {
            return Ok(false);
        }
        *self.now.write() = read_chain(&self.files)?;
        Ok(true)
    }

    fn for_name(&self, name: &str) -> Option<Arc<sign::CertifiedKey>> {
        if self.own_names.iter().any(|own| own == name) {
            return None;
        }
        let now = self.now.read();
        now.names.iter().any(|pattern| covers(pattern, name)).then(|| now.chain.clone())
    }
}

fn stamps(files: &CertificateFiles) -> Result<[FileStamp; 2], ConfigError> {
    Ok([file_stamp(&files.certificate)?, file_stamp(&files.key)?])
}

/// Returns true if a name in a certificate stands for a host name in lower case.
fn covers(pattern: &str, name: &str) -> bool {
    match pattern.strip_prefix("*.") {
        None => pattern == name,
        Some(domain) => name.split_once('.').is_some_and(|(_, rest)| rest == domain),
    }
}

fn read_chain(files: &CertificateFiles) -> Result<PresentedChain, ConfigError> {
    let read = |path: &std::path::PathBuf| {
        std::fs::read_to_string(path).map_err(|source| ConfigError::File { path: path.clone(), source })
    };
    let wrong = |path: &std::path::PathBuf, what| ConfigError::Content { path: path.clone(), what };
    let pair = certified(&read(&files.certificate)?, &read(&files.key)?).map_err(|why| match why {
        UnusablePair::Certificate(what) => wrong(&files.certificate, what),
        UnusablePair::Key(what) | UnusablePair::Together(what) => wrong(&files.key, what),
    })?;
    let names = pair.cert.first().map(|leaf| dns_names(leaf)).unwrap_or_default();
    if names.is_empty() {
        return Err(wrong(&files.certificate, "has no DNS name (subject alternative name)".into()));
    }
    Ok(PresentedChain { names, chain: Arc::new(pair) })
}

fn dns_names(der: &CertificateDer<'_>) -> Vec<String> {
    let Ok((_, certificate)) = x509_parser::certificate::X509Certificate::from_der(der) else { return Vec::new() };
    let names = certificate.subject_alternative_name().ok().flatten().map(|san| &san.value.general_names);
    let dns = names.into_iter().flatten().filter_map(|name| match name {
        GeneralName::DNSName(name) => Some(name.to_lowercase()),
        _ => None,
    });
    dns.collect()
}

impl ServerCertificate {
    fn new(pki: &Pki, config: &ApiServerConfig) -> Result<Self, ConfigError> {
        let authority = certificate(&pki.ca)?;
        let ready = ready(&authority, &pki.server)?;
        let files = config.serving.files.as_ref();
        let named = files.map(|files| NamedCertificate::open(files, &config.tls_sans)).transpose()?;
        Ok(Self { authority, now: RwLock::new((pki.server.clone(), ready)), named })
    }

    /// Rereads the administrator's certificate if its files have changed. Returns true if it was replaced.
    ///
    /// # Errors
    /// Unusable files; the old certificate stays.
    pub(super) fn reread(&self) -> Result<bool, ConfigError> {
        self.named.as_ref().map_or(Ok(false), NamedCertificate::reread)
    }

    /// Returns the certificate and its key.
    pub(super) fn pair(&self) -> CertifiedKey {
        self.now.read().0.clone()
    }

    /// # Errors
    /// An unusable pair; the old one stays.
    pub(super) fn replace(&self, pair: CertifiedKey) -> Result<(), ConfigError> {
        let ready = ready(&self.authority, &pair)?;
        *self.now.write() = (pair, ready);
        Ok(())
    }
}

impl std::fmt::Debug for ServerCertificate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Shown")
    }
}

impl ResolvesServerCert for ServerCertificate {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<sign::CertifiedKey>> {
        let name = hello.server_name().map(str::to_lowercase);
        let named = self.named.as_ref().zip(name).and_then(|(named, name)| named.for_name(&name));
        named.or_else(|| Some(self.now.read().1.clone()))
    }
}

/// Builds the chain of a certificate and its authority.
fn ready(authority: &CertificateDer<'static>, pair: &CertifiedKey) -> Result<Arc<sign::CertifiedKey>, ConfigError> {
    let unusable = |(UnusablePair::Certificate(what) | UnusablePair::Key(what) | UnusablePair::Together(what))| {
        crypto(format!("the server's {what}"))
    };
    let mut ready = certified(&pair.certificate, &pair.key).map_err(unusable)?;
    ready.cert.push(authority.clone());
    Ok(Arc::new(ready))
}

/// Builds the TLS configuration and its replaceable certificate. A client certificate of a trusted authority is
/// optional.
///
/// # Errors
/// Unusable keys, certificates or names of cipher suites.
pub(super) fn server_config(
    pki: &Pki,
    config: &ApiServerConfig,
) -> Result<(ServerConfig, Arc<ServerCertificate>), ConfigError> {
    let provider = Arc::new(provider(&config.serving)?);
    let roots = ClientTrust::open(&pki.ca, &config.access)?.roots();
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone())
        .allow_unauthenticated()
        .build()
        .map_err(crypto)?;
    let certificate = Arc::new(ServerCertificate::new(pki, config)?);
    let all: &[&'static SupportedProtocolVersion] = &[&version::TLS13, &version::TLS12];
    let versions = if config.serving.only_tls13 { &all[..1] } else { all };
    let mut tls = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(versions)
        .map_err(crypto)?
        .with_client_cert_verifier(verifier)
        .with_cert_resolver(certificate.clone());
    tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok((tls, certificate))
}

/// Returns the ciphers: those of TLS 1.3 always, as in kube-apiserver, and the named ones of TLS 1.2.
fn provider(config: &ServingConfig) -> Result<CryptoProvider, ConfigError> {
    let mut provider = ring::default_provider();
    let known: Vec<String> = provider.cipher_suites.iter().map(|suite| suite_name(suite.suite())).collect();
    if let Some(other) = config.cipher_suites.iter().find(|name| !known.contains(name)) {
        let what = format!("{other:?} is not a cipher suite of this server, which has {}", known.join(", "));
        return Err(ConfigError::Content { path: "--tls-cipher-suites".into(), what });
    }
    if !config.cipher_suites.is_empty() {
        let is_wanted = |suite: &SupportedCipherSuite| {
            suite.tls13().is_some() || config.cipher_suites.contains(&suite_name(suite.suite()))
        };
        provider.cipher_suites.retain(is_wanted);
    }
    Ok(provider)
}

/// Returns the name of a cipher suite as the IANA has it.
fn suite_name(suite: CipherSuite) -> String {
    format!("{suite:?}").replace("TLS13_", "TLS_")
}

fn certificate(pem: &str) -> Result<CertificateDer<'static>, ConfigError> {
    CertificateDer::from_pem_slice(pem.as_bytes()).map_err(crypto)
}

fn crypto(error: impl std::fmt::Display) -> ConfigError {
    ConfigError::Crypto(error.to_string())
}
