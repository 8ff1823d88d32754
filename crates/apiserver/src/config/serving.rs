//! Configuration of the TLS floor.

use std::path::PathBuf;

/// Certificate of the administrator, and the TLS versions and cipher suites that are served.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServingConfig {
    /// Certificate chain and key, PEM. It is presented for the names that it has, except those of `tls_sans`.
    pub files: Option<CertificateFiles>,
    /// True to refuse TLS 1.2.
    pub only_tls13: bool,
    /// Names of the cipher suites of TLS 1.2 that are served; all safe ones if empty.
    pub cipher_suites: Vec<String>,
}

/// Files of a certificate chain and its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateFiles {
    /// Certificate chain.
    pub certificate: PathBuf,
    /// Private key.
    pub key: PathBuf,
}
