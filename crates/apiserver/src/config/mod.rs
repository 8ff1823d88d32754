//! Configuration of the server.

mod access;
mod audit;
mod authentication;
mod encryption;
mod serving;

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    path::PathBuf,
    time::Duration,
};

use portolan_store::DynStore;
use portolan_strategy::rbac::User;
use portolan_types::Seams;

use crate::{
    hooks::Hooks,
    webhooks::{WebhookAddresses, WebhookConfigError},
};

pub use crate::limits::Limits;
pub use access::{AccessConfig, RequestHeaderConfig, TokenWebhookConfig};
pub use audit::{AuditConfig, AuditLogConfig, AuditWebhookConfig};
pub(crate) use authentication::lines as field_lines;
pub use authentication::{
    AnonymousCondition, AnonymousConfiguration, AuthenticationConfiguration, AuthenticationSource, ClaimConfiguration,
    ClaimMappingsConfiguration, ClaimRuleConfiguration, ExtraConfiguration, IssuerConfiguration, JwtConfiguration,
    PrefixedClaimConfiguration, UserRuleConfiguration,
};
pub use encryption::read_encryption_config;
pub use serving::{CertificateFiles, ExternalUrl, ServingConfig};

/// Default of the longest lifetime of service account tokens.
pub const TOKEN_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// Static bearer token and its user.
#[derive(Clone)]
pub struct StaticToken {
    /// Token.
    pub token: String,
    /// User.
    pub user: User,
}

/// Configuration of an [`crate::ApiServer`].
#[derive(Clone)]
pub struct ApiServerConfig {
    /// Directory of keys, certificates and `admin.kubeconfig`. `None` holds them in memory, for simulated physical
    /// clusters.
    pub data_dir: Option<PathBuf>,
    /// Address that the server listens on. Clients reach the server there unless [`ServingConfig`] has another URL.
    pub bind_address: SocketAddr,
    /// Name of the server in kubeconfigs; its address if unset.
    pub name: Option<String>,
    /// Further names and addresses for the server's certificate.
    pub tls_sans: Vec<String>,
    /// Time and randomness.
    pub seams: Seams,
    /// Static bearer tokens.
    pub static_tokens: Vec<StaticToken>,
    /// Issuers of JSON Web Tokens, and anonymous requests.
    pub authentication: AuthenticationSource,
    /// `iss` and the default audience of service account tokens.
    pub issuer: String,
    /// Longest lifetime of a service account token; longer requests are shortened. Zero means Kubernetes' own limit.
    pub token_max: Duration,
    /// File of the key that signs such tokens; `pki/service-accounts.key` in the data directory unless given.
    pub token_signing_key: Option<PathBuf>,
    /// Files of further keys that verify such tokens.
    pub token_keys: Vec<PathBuf>,
    /// Store that snapshots are read from, if the server's own store decrypts it.
    pub stored: Option<DynStore>,
    /// Identities and authorization from outside.
    pub access: AccessConfig,
    /// Certificate files and TLS.
    pub serving: ServingConfig,
    /// Audit; `None` writes no events.
    pub audit: Option<AuditConfig>,
    /// Suffix of the version, after `+`.
    pub build: String,
    /// Limits on clients.
    pub limits: Limits,
    /// Fraction of HTTP/2 requests, from 0 to 1, after which the client is asked to open a new connection.
    pub goaway_chance: f64,
    /// Addresses that webhooks may have.
    pub webhooks: WebhookAddresses,
    /// Seams of the binary.
    pub hooks: Hooks,
    /// Computes a Node for each physical cluster in reach, instead of storing nodes like other objects.
    pub computes_nodes: bool,
    /// Creates a logical cluster with the objects that the controllers add to each namespace, so that it is ready at
    /// once. Without it, and in other namespaces, they add them later.
    pub makes_default_objects: bool,
    /// Registry for metrics, also of other parts of the process.
    pub registry: prometheus::Registry,
}

impl ApiServerConfig {
    /// Returns the defaults, with keys in memory.
    pub fn in_memory(seams: Seams) -> Self {
        Self {
            data_dir: None,
            bind_address: SocketAddr::from(([127, 0, 0, 1], 6443)),
            name: None,
            tls_sans: Vec::new(),
            seams,
            static_tokens: Vec::new(),
            authentication: AuthenticationSource::None,
            issuer: "https://kubernetes.default.svc".into(),
            token_max: TOKEN_MAX,
            token_signing_key: None,
            token_keys: Vec::new(),
            access: AccessConfig::default(),
            serving: ServingConfig::default(),
            stored: None,
            audit: None,
            build: "portolan".into(),
            limits: Limits::default(),
            goaway_chance: 0.0,
            webhooks: WebhookAddresses::default(),
            hooks: Hooks::default(),
            computes_nodes: false,
            makes_default_objects: false,
            registry: prometheus::Registry::new(),
        }
    }

    /// Returns the host and port at which clients reach the server.
    pub(crate) fn public_authority(&self) -> String {
        let external = self.serving.external_url.as_ref().map(|url| url.authority().to_owned());
        external.unwrap_or_else(|| reachable(self.bind_address).to_string())
    }

    /// Returns the URL at which clients reach the server, without a path.
    pub(crate) fn public_url(&self) -> String {
        format!("https://{}", self.public_authority())
    }

    /// Returns the defaults, with keys in `data_dir`.
    pub fn in_directory(data_dir: PathBuf, seams: Seams) -> Self {
        Self { data_dir: Some(data_dir), ..Self::in_memory(seams) }
    }
}

/// Returns an address that clients on this machine can use: a wildcard address is no destination.
pub(crate) fn reachable(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        ip if !ip.is_unspecified() => ip,
        IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::LOCALHOST),
    };
    SocketAddr::new(ip, address.port())
}

/// Error in the configuration of a server.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// A file cannot be read or written.
    #[error("{path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// Others can read a secret.
    #[error("{path} is open to other users (mode {mode:o}); allow only its owner, with: chmod {wanted:o} {path}")]
    TooOpen {
        /// The file or directory.
        path: PathBuf,
        /// Its mode.
        mode: u32,
        /// The expected mode.
        wanted: u32,
    },
    /// A file has invalid content.
    #[error("{path}: {what}")]
    Content {
        /// The file.
        path: PathBuf,
        /// The error.
        what: String,
    },
    /// A key or certificate cannot be created.
    #[error("cannot make a key or certificate: {0}")]
    Crypto(String),
}

impl From<WebhookConfigError> for ConfigError {
    fn from(error: WebhookConfigError) -> Self {
        match error {
            WebhookConfigError::File { path, source } => Self::File { path, source },
            WebhookConfigError::Content { path, what } => Self::Content { path, what },
        }
    }
}
