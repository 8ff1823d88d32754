//! What the server is told at its start.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use portolan_types::Seams;

use crate::{authn::StaticToken, hooks::Hooks, webhooks::WebhookAddresses};

/// Default of the longest life of a service account's token.
pub const TOKEN_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// Configuration of an [`crate::ApiServer`].
#[derive(Clone)]
pub struct ApiServerConfig {
    /// Where keys, certificates and `admin.kubeconfig` are kept. `None` keeps them in memory, for simulated physical clusters.
    pub data_dir: Option<PathBuf>,
    /// Where clients reach the server: the address in `admin.kubeconfig` and in URLs of workspaces.
    pub bind_address: SocketAddr,
    /// Name of the server in kubeconfigs; its address if there is none.
    pub name: Option<String>,
    /// Further names and addresses for the server's certificate.
    pub tls_sans: Vec<String>,
    /// Time and randomness.
    pub seams: Seams,
    /// Bearer tokens that are known from the start.
    pub static_tokens: Vec<StaticToken>,
    /// `iss` and the default audience of service account tokens.
    pub issuer: String,
    /// Longest life of a token of a service account; zero for none but that of Kubernetes. Longer requests are shortened.
    pub token_max: Duration,
    /// File of the key that signs such tokens; `pki/service-accounts.key` in the data directory unless given.
    pub token_signing_key: Option<PathBuf>,
    /// Files of further keys that verify such tokens.
    pub token_keys: Vec<PathBuf>,
    /// Suffix of the version, after `+`.
    pub build: String,
    /// Bounds.
    pub limits: Limits,
    /// The share of requests over HTTP/2, from 0 to 1, behind which a client is asked to make a new connection.
    pub goaway_chance: f64,
    /// Where webhooks may be.
    pub webhooks: WebhookAddresses,
    /// Seams of the binary.
    pub hooks: Hooks,
    /// Show a Node for each physical cluster within reach, and store none. Otherwise nodes are stored like any other object.
    pub computes_nodes: bool,
    /// Where series are registered, those of the parts around the server too.
    pub registry: prometheus::Registry,
}

impl ApiServerConfig {
    /// Everything at its default, keys in memory.
    pub fn in_memory(seams: Seams) -> Self {
        Self {
            data_dir: None,
            bind_address: SocketAddr::from(([127, 0, 0, 1], 6443)),
            name: None,
            tls_sans: Vec::new(),
            seams,
            static_tokens: Vec::new(),
            issuer: "https://kubernetes.default.svc".into(),
            token_max: TOKEN_MAX,
            token_signing_key: None,
            token_keys: Vec::new(),
            build: "portolan".into(),
            limits: Limits::default(),
            goaway_chance: 0.0,
            webhooks: WebhookAddresses::default(),
            hooks: Hooks::default(),
            computes_nodes: false,
            registry: prometheus::Registry::new(),
        }
    }

    /// Everything at its default, keys in `data_dir`.
    pub fn in_directory(data_dir: PathBuf, seams: Seams) -> Self {
        Self { data_dir: Some(data_dir), ..Self::in_memory(seams) }
    }
}

/// Bounds on what clients may take.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Reads under way at once; one tenant, a workspace below `root`, may have three quarters of them.
    pub reads: usize,
    /// Writes under way at once, and as many whose bodies are being sent; one tenant may have three quarters of each.
    pub writes: usize,
    /// Reads, and as many writes, that wait for their turn; the longest line is cut when they are full.
    pub waiting: usize,
    /// How long a request waits for its turn.
    pub patience: Duration,
    /// Watches at once, in all; one tenant may have three quarters of them.
    pub watches: usize,
    /// Watches at once in one logical cluster; a user may have half of them.
    pub watches_per_cluster: usize,
    /// Logs and streams in and out of pods at once, in all; one tenant may have three quarters of them.
    pub streams: usize,
    /// Logs and streams at once in one logical cluster; a user may have half of them.
    pub streams_per_cluster: usize,
    /// Writes at once that wait for webhooks, in all: fewer than writes, so that slow webhooks leave some to others.
    pub webhooks: usize,
    /// Writes at once that wait for webhooks of one tenant, a workspace below `root` and all in it; and as many conversions.
    pub webhooks_per_tenant: usize,
    /// Bytes of bodies and answers that are held at once, in all, but for those of 64 KiB and less. One tenant may have three quarters
    /// of them, a user half. An object is held as a tree as well, of several times its bytes, while a request is looked at.
    pub bytes: usize,
    /// Time for a webhook that converts custom resources.
    pub conversion: Duration,
    /// Definitions of custom resources in one logical cluster.
    pub definitions: usize,
    /// Bytes of all definitions of one logical cluster: what it takes to serve them is a multiple of this.
    pub definition_bytes: usize,
    /// Names of resources that a workspace in root and all below it define.
    pub defined_names: usize,
    /// Objects that a workspace with all below it may store, unless it has a limit of its own.
    pub workspace_objects: u64,
    /// Bytes of objects, as they are stored, in the same.
    pub workspace_bytes: u64,
    /// Admission policies, their bindings and configurations of webhooks in one logical cluster, together; and as many LimitRanges
    /// and PriorityClasses.
    pub admission_objects: usize,
    /// Bytes of all of each of these without their statuses: they are read, and looked at, with each write. So much is kept in memory of
    /// one logical cluster. Their statuses have as many bytes of their own.
    pub admission_bytes: usize,
    /// Webhooks in all configurations of one logical cluster.
    pub admission_webhooks: usize,
    /// TLS connections at once. A newcomer replaces the one that is idle for the longest time.
    pub connections: usize,
    /// Connections at once whose handshake is not done. A newcomer replaces one of them, silent ones first.
    pub handshakes: usize,
    /// Time for a read.
    pub read_timeout: Duration,
    /// Time for a write.
    pub write_timeout: Duration,
    /// Time in which a body must be sent.
    pub body_timeout: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            reads: 400,
            writes: 200,
            waiting: 2_000,
            patience: Duration::from_secs(15),
            watches: 100_000,
            watches_per_cluster: 10_000,
            streams: 4_000,
            streams_per_cluster: 400,
            webhooks: 150,
            webhooks_per_tenant: 50,
            bytes: 128 * 1024 * 1024,
            conversion: Duration::from_secs(30),
            definitions: 1024,
            definition_bytes: 64 * 1024 * 1024,
            defined_names: 2048,
            workspace_objects: 1_000_000,
            workspace_bytes: 4 << 30,
            admission_objects: 2048,
            admission_bytes: 4 * 1024 * 1024,
            admission_webhooks: 1024,
            connections: 10_000,
            handshakes: 512,
            read_timeout: Duration::from_secs(60),
            write_timeout: Duration::from_secs(34),
            body_timeout: Duration::from_secs(10),
        }
    }
}

/// Why a server cannot be configured as told.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// A file cannot be read or written.
    #[error("{path}: {source}")]
    File {
        /// Which one.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A secret can be read by others.
    #[error("{path} is open to other users (mode {mode:o}); allow only its owner, with: chmod {wanted:o} {path}")]
    TooOpen {
        /// Which file or directory.
        path: PathBuf,
        /// What its mode is.
        mode: u32,
        /// What it should be.
        wanted: u32,
    },
    /// A file does not hold what it should.
    #[error("{path}: {what}")]
    Content {
        /// Which one.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// A key or certificate cannot be made.
    #[error("cannot make a key or certificate: {0}")]
    Crypto(String),
}
