//! Configuration of a control plane.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use portolan_apiserver::{
    authn::{AuthenticationSource, StaticToken},
    hooks::ConsoleFile,
    webhooks::WebhookAddresses,
};
use portolan_scheduler::FailoverTiming;
use portolan_store::{Engine, EtcdConfig, HistoryBounds, StoredUsage};
use portolan_syncer::SyncLimits;

use crate::{physical_clusters::ClusterAddresses, security::SecurityConfig};

/// Default storage limits of a workspace with all its descendants.
pub const WORKSPACE_LIMITS: StoredUsage = StoredUsage { objects: 1_000_000, bytes: 4 << 30 };
/// Default history, from which watches resume: with objects of 2 KiB, at most about 1 GiB.
pub const HISTORY: HistoryBounds =
    HistoryBounds { time: Duration::from_secs(5 * 60), revisions: 500_000, bytes: u64::MAX };
/// Configuration of a control plane.
pub struct Config {
    /// Data directory: store, keys and `admin.kubeconfig`.
    pub data_dir: PathBuf,
    /// Address to listen on.
    pub bind_address: SocketAddr,
    /// Storage of the objects.
    pub storage: Storage,
    /// Name of the server in kubeconfigs; its address if `None`.
    pub name: Option<String>,
    /// Further names and addresses in the server's certificate.
    pub tls_sans: Vec<String>,
    /// Allowed addresses of physical clusters.
    pub addresses: ClusterAddresses,
    /// True if workspaces other than root may register simulated physical clusters.
    pub simulate_for_tenants: bool,
    /// Allowed addresses of admission webhooks.
    pub webhooks: WebhookAddresses,
    /// Probability, from 0 to 1, that an HTTP/2 request makes the client reconnect.
    pub goaway_chance: f64,
    /// Storage limits of a workspace with all its descendants, unless it has limits of its own.
    pub workspace_limits: StoredUsage,
    /// True to show a Node per reachable physical cluster, and store none.
    pub computes_nodes: bool,
    /// Memory limits per physical cluster.
    pub sync_limits: SyncLimits,
    /// Most bytes of memory for the objects of all physical clusters.
    pub sync_memory: u64,
    /// Bearer tokens of users of the whole control plane.
    pub tokens: Vec<StaticToken>,
    /// Issuers of JSON Web Tokens, and anonymous requests.
    pub authentication: AuthenticationSource,
    /// Longest life of a service account token; zero for Kubernetes' own bound.
    pub token_max: Duration,
    /// Key that signs these tokens, if not the data directory's.
    pub token_signing_key: Option<PathBuf>,
    /// Further keys that verify these tokens.
    pub token_keys: Vec<PathBuf>,
    /// Bounds of the history, from which watches and pages resume.
    pub history: HistoryBounds,
    /// Times of failover.
    pub failover: FailoverTiming,
    /// Files of the web console; empty if the server has no console.
    pub console: Vec<ConsoleFile>,
    /// Audit, encryption, identities and certificates.
    pub security: SecurityConfig,
}

/// Storage of the objects.
#[derive(Clone, Debug)]
pub enum Storage {
    /// Embedded store in the data directory, for this server alone.
    Embedded(Engine),
    /// An etcd, which several servers may share.
    Etcd(Box<EtcdConfig>),
}
