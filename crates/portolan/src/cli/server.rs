//! `portolan server`.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::Context as _;
use clap::{Args, ValueEnum};
use portolan_apiserver::{
    authn::{StaticToken, parse_token_file},
    webhooks::WebhookAddresses,
};
use portolan_control_plane::{ClusterAddresses, Config, FailoverTiming, HISTORY, Storage, WORKSPACE_LIMITS};
use portolan_store::{Engine, HistoryBounds, StoredUsage};
use portolan_syncer::{Addresses, SyncLimits};
use portolan_types::MonotonicInstant;
use tokio::signal::unix::{SignalKind, signal};

use super::{etcd::EtcdFlags, oidc::AuthenticationArgs, security::SecurityArgs};
use super::{progress::human, values};

/// Default storage limit of a workspace, in the form of the flag.
const WORKSPACE_BYTES: &str = "4Gi";
/// Default of [`SyncLimits`], in the form of the flag.
const SYNC_BYTES: &str = "1Gi";
/// Value of [`portolan_syncer::SyncMemoryBudget::DEFAULT_BYTES`], in the form of the flag.
const SYNC_MEMORY: &str = "4Gi";
/// Default time of the history, in the form of the flag.
pub(super) const HISTORY_TIME: &str = "300";
/// Default for the longest life of tokens, in the form of the flag.
pub(super) const TOKEN_MAX_TIME: &str = "24h";

/// Run the control plane.
#[derive(Args)]
pub(crate) struct ServerArgs {
    /// Directory for objects, keys and admin.kubeconfig; created if missing, readable by its owner only.
    #[arg(long)]
    data_dir: PathBuf,
    /// Address and port to serve on.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:6443", value_parser = values::address)]
    bind_address: SocketAddr,
    /// Storage engine.
    #[arg(long, value_enum, default_value_t = ServerStore::Redb)]
    store: ServerStore,
    #[command(flatten)]
    etcd: EtcdFlags,
    /// Name of this server in kubeconfigs, whose contexts are named <workspace>@<name>; by default its address and
    /// port. Kubeconfigs of servers with different names can be merged.
    #[arg(long, value_name = "NAME", value_parser = values::server_name)]
    name: Option<String>,
    /// Additional DNS name (also *.example.com) or address for the server's certificate; may be repeated.
    #[arg(long = "tls-san", value_name = "NAME", value_parser = values::certificate_name)]
    tls_sans: Vec<String>,
    /// Allow kubeconfigs of physical clusters registered in root to use addresses of this machine (127.0.0.0/8, ::1),
    /// as those of kind and minikube do.
    #[arg(long)]
    allow_loopback_clusters: bool,
    /// Allow kubeconfigs of physical clusters registered in other workspaces to use private addresses and addresses of
    /// this machine. Anybody who may create PhysicalClusters in a workspace can then make the server send requests
    /// there.
    #[arg(long)]
    allow_local_tenant_clusters: bool,
    /// Allow simulated physical clusters in workspaces other than root. Their work counts as the tenant's, but their
    /// objects take memory of the server.
    #[arg(long)]
    allow_simulated_tenant_clusters: bool,
    /// Allow admission webhooks at private addresses and on this machine. Anybody who may configure webhooks in a
    /// workspace can then make the server send requests there.
    #[arg(long)]
    allow_local_webhooks: bool,
    /// Probability that a request over HTTP/2 makes the client reconnect, perhaps through a load balancer to another
    /// server; requests in progress finish. From 0 (never) to 0.02; 0.001 is a good start with several servers.
    #[arg(long, value_name = "SHARE", default_value_t = 0.0, value_parser = values::goaway_chance)]
    goaway_chance: f64,
    /// File of bearer tokens, one `token,user,uid,"group1,group2"` per line, as for kube-apiserver. These users are the
    /// same in every workspace. The file is read at the start.
    #[arg(long, value_name = "FILE")]
    token_auth_file: Option<PathBuf>,
    #[command(flatten)]
    authentication: AuthenticationArgs,
    #[command(flatten)]
    security: SecurityArgs,
    /// Maximum number of objects of a workspace with all its descendants; the annotation core.kcp.io/max-total-objects
    /// overrides it.
    #[arg(long, value_name = "NUMBER", default_value_t = WORKSPACE_LIMITS.objects)]
    max_objects_per_workspace: u64,
    /// Maximum bytes of those objects, as a number or a quantity such as 512Mi or 4Gi; the annotation
    /// core.kcp.io/max-total-bytes overrides it.
    #[arg(long, value_name = "BYTES", default_value = WORKSPACE_BYTES, value_parser = values::bytes)]
    max_bytes_per_workspace: u64,
    /// Maximum number of objects with Portolan's label that are held in memory per physical cluster. A physical cluster
    /// with more is not synced until it has fewer.
    #[arg(long, value_name = "NUMBER", default_value_t = SyncLimits::default().objects)]
    max_objects_per_physical_cluster: u64,
    /// Maximum bytes of memory for those objects, estimated: a number, or a quantity such as 512Mi or 4Gi.
    #[arg(long, value_name = "BYTES", default_value = SYNC_BYTES, value_parser = values::bytes)]
    max_memory_per_physical_cluster: u64,
    /// Maximum bytes of memory for the objects of all physical clusters. Those registered in one workspace below root,
    /// with its descendants, may take a quarter; those registered in root may take the rest.
    #[arg(long, value_name = "BYTES", default_value = SYNC_MEMORY, value_parser = values::bytes)]
    max_memory_of_physical_clusters: u64,
    /// Store Nodes like other objects, as kube-apiserver does, instead of showing one per reachable physical cluster.
    #[arg(long, hide = true)]
    stored_nodes: bool,
    /// Longest life of a service account token: seconds, or with units, as 48h. Longer requests are shortened, with a
    /// warning. From 1h; 0 for Kubernetes' own bound of 2^32 seconds.
    #[arg(long, value_name = "TIME", default_value = TOKEN_MAX_TIME, value_parser = values::token_max)]
    service_account_max_token_expiration: Duration,
    /// Private key (PEM, ECDSA P-256) that signs service account tokens, in place of pki/service-accounts.key in the
    /// data directory. Tokens signed by that one are then refused unless --service-account-key-file names it.
    #[arg(long, value_name = "FILE")]
    service_account_signing_key_file: Option<PathBuf>,
    /// Additional key (PEM, public or private) that verifies service account tokens; may be repeated. docs/access.md
    /// explains how to replace the signing key.
    #[arg(long = "service-account-key-file", value_name = "FILE")]
    service_account_key_files: Vec<PathBuf>,
    /// Time that changes are kept, unless there are too many. Watches and pages resume from them. Seconds, or with
    /// units, as 5m or 1h30m.
    #[arg(long, value_name = "TIME", default_value = HISTORY_TIME, value_parser = values::time)]
    history: Duration,
    /// Maximum number of changes that are kept; with --store etcd, of transactions.
    #[arg(long, value_name = "NUMBER", default_value_t = HISTORY.revisions, value_parser = clap::value_parser!(u64).range(1..))]
    history_revisions: u64,
    /// Maximum bytes of earlier states of objects that are kept: a number, or a quantity such as 512Mi or 4Gi. By
    /// default a quarter of the free disk space beyond the reserve. Not with --store etcd, which keeps them itself.
    #[arg(long, value_name = "BYTES", value_parser = values::bytes)]
    history_bytes: Option<u64>,
}

/// Storage of a server, as named on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ServerStore {
    /// A single durable file; the default.
    Redb,
    /// A log-structured tree in a directory.
    Sled,
    /// Memory: all objects are lost when the server stops.
    Memory,
    /// An etcd, which several servers may share.
    Etcd,
}

impl ServerStore {
    /// Returns the engine of a data directory; `None` for etcd.
    pub(crate) fn embedded(self) -> Option<Engine> {
        match self {
            Self::Redb => Some(Engine::Redb),
            Self::Sled => Some(Engine::Sled),
            Self::Memory => Some(Engine::Memory),
            Self::Etcd => None,
        }
    }

    /// Returns the name on the command line.
    pub(super) fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }
}

impl ServerArgs {
    /// # Errors
    /// Fails if flags contradict each other, or a named file is missing.
    pub(super) fn storage(&self) -> anyhow::Result<Storage> {
        match self.store.embedded() {
            Some(engine) => {
                self.etcd.refuse_for(self.store)?;
                Ok(Storage::Embedded(engine))
            }
            None => Ok(Storage::Etcd(Box::new(self.etcd.read()?))),
        }
    }

    pub(crate) fn run(self) -> anyhow::Result<()> {
        init_logging("info");
        super::runtime()?.block_on(self.serve())
    }

    async fn serve(self) -> anyhow::Result<()> {
        let started = MonotonicInstant::now();
        let storage = self.storage()?;
        let tokens = self.token_auth_file.as_deref().map(tokens).transpose()?.unwrap_or_default();
        let local = self.allow_local_tenant_clusters;
        let addresses = ClusterAddresses {
            root: Addresses { allow_private: true, allow_loopback: self.allow_loopback_clusters },
            tenants: Addresses { allow_private: local, allow_loopback: local },
        };
        let config = Config {
            data_dir: self.data_dir,
            bind_address: self.bind_address,
            storage,
            name: self.name,
            tls_sans: self.tls_sans,
            addresses,
            simulate_for_tenants: self.allow_simulated_tenant_clusters,
            webhooks: WebhookAddresses { allow_local: self.allow_local_webhooks },
            goaway_chance: self.goaway_chance,
            workspace_limits: StoredUsage {
                objects: self.max_objects_per_workspace,
                bytes: self.max_bytes_per_workspace,
            },
            sync_limits: SyncLimits {
                objects: self.max_objects_per_physical_cluster,
                bytes: self.max_memory_per_physical_cluster,
            },
            sync_memory: self.max_memory_of_physical_clusters,
            computes_nodes: !self.stored_nodes,
            tokens,
            authentication: self.authentication.source()?,
            token_max: self.service_account_max_token_expiration,
            token_signing_key: self.service_account_signing_key_file,
            token_keys: self.service_account_key_files,
            history: HistoryBounds {
                time: self.history,
                revisions: self.history_revisions,
                bytes: self.history_bytes.unwrap_or(HISTORY.bytes),
            },
            failover: FailoverTiming::default(),
            console: super::console::files(),
            security: self.security.config()?,
        };
        let kubeconfig = config.data_dir.join("admin.kubeconfig");
        let mut plane = portolan_control_plane::open(config).await?.start().await?;
        tracing::info!(
            address = %plane.address(),
            kubeconfig = %kubeconfig.display(),
            duration = human(started.elapsed()),
            "ready"
        );
        tokio::select! {
            stop = stop_signal() => stop?,
            () = plane.failed() => {
                plane.stop().await;
                anyhow::bail!("a part of the control plane failed, see the log");
            }
        }
        tracing::info!("stopping");
        plane.stop().await;
        Ok(())
    }
}

/// Reads the tokens in a file.
fn tokens(file: &Path) -> anyhow::Result<Vec<StaticToken>> {
    let text = std::fs::read_to_string(file).with_context(|| format!("{} cannot be read", file.display()))?;
    parse_token_file(&text).map_err(|why| anyhow::anyhow!("{}: {why}", file.display()))
}

/// Resolves on the first of SIGINT and SIGTERM.
pub(super) async fn stop_signal() -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate()).context("SIGTERM cannot be handled")?;
    tokio::select! {
        interrupt = tokio::signal::ctrl_c() => interrupt.context("SIGINT cannot be handled"),
        _ = terminate.recv() => Ok(()),
    }
}

/// Starts logging to standard error. `PORTOLAN_LOG` takes the filter syntax of tracing, such as
/// `portolan_syncer=debug,info`. A line that cannot be written (a full disk, a closed pipe) is lost: a complaint on
/// standard error would end the thread that logs.
pub(super) fn init_logging(default: &str) {
    use std::io::IsTerminal as _;
    use tracing_subscriber::EnvFilter;
    let filter = EnvFilter::try_from_env("PORTOLAN_LOG").unwrap_or_else(|_| EnvFilter::new(default));
    let colour = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(colour);
    log.log_internal_errors(false).init();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_read_from_a_file_whose_errors_are_reported() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("tokens.csv");
        assert!(tokens(&file).err().unwrap().to_string().ends_with("tokens.csv cannot be read"));
        std::fs::write(&file, "s3cret,ann,7,\"dev,ops\"\n").unwrap();
        let found = tokens(&file).unwrap();
        assert_eq!((found.len(), found[0].user.name.as_str(), found[0].user.groups.len()), (1, "ann", 2));
        std::fs::write(&file, "s3cret,ann,7\ns3cret\n").unwrap();
        let why = tokens(&file).err().unwrap().to_string();
        assert!(
            why.ends_with("tokens.csv: line 2 does not have the form token,user,uid[,\"groups\"]")
                && !why.contains("s3cret"),
            "{why}"
        );
    }
}
