//! `portolan server`.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::Context as _;
use clap::{Args, ValueEnum};
use portolan_apiserver::{
    authn::{StaticToken, parse_token_file},
    webhooks::WebhookAddresses,
};
use portolan_store::{Engine, HistoryBounds, Usage};
use portolan_syncer::{Addresses, SyncLimits};
use tokio::signal::unix::{SignalKind, signal};

use super::etcd::EtcdFlags;
use super::{progress::human, values};
use crate::{
    control_plane::{self, Config, HISTORY, Storage, WORKSPACE_LIMITS},
    members::ClusterAddresses,
};

/// Bytes that a workspace may store when nothing else is said, as on the command line.
const WORKSPACE_BYTES: &str = "4Gi";
/// The same number of bytes as the default of [`SyncLimits`].
const SYNC_BYTES: &str = "1Gi";
/// How long history is kept when nothing else is said.
pub(super) const HISTORY_TIME: &str = "300";
/// Longest life of tokens when nothing else is said.
pub(super) const TOKEN_MAX_TIME: &str = "24h";

/// Run the control plane.
#[derive(Args)]
pub(crate) struct Server {
    /// Where objects, keys and admin.kubeconfig are kept; made when missing, readable by its owner only.
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
    /// Name of this server in kubeconfigs, whose contexts are named <workspace>@<name>; its address and port unless given. Servers with
    /// names of their own can be merged into one kubeconfig.
    #[arg(long, value_name = "NAME", value_parser = values::server_name)]
    name: Option<String>,
    /// Further DNS name (also *.example.com) or address for the server's certificate; may be repeated.
    #[arg(long = "tls-san", value_name = "NAME", value_parser = values::certificate_name)]
    tls_sans: Vec<String>,
    /// Let kubeconfigs of physical clusters that are registered in root lead to this machine itself (127.0.0.0/8, ::1), as those of kind
    /// and minikube do.
    #[arg(long)]
    allow_loopback_clusters: bool,
    /// Let kubeconfigs of physical clusters that are registered in other workspaces than root lead to private addresses and to this machine
    /// itself. Anybody who may create PhysicalClusters in a workspace can then make the server send requests there.
    #[arg(long)]
    allow_local_tenant_clusters: bool,
    /// Let physical clusters be simulated that are registered in other workspaces than root. Their work is the tenant's, but their
    /// objects take memory of the server.
    #[arg(long)]
    allow_simulated_tenant_clusters: bool,
    /// Let admission webhooks be at private addresses and on this machine itself. Anybody who may configure webhooks in a
    /// workspace can then make the server send requests there.
    #[arg(long)]
    allow_local_webhooks: bool,
    /// The share of requests over HTTP/2 behind which a client is asked to make a new connection, which a load balancer may
    /// lead to another server; what is under way goes on. From 0 (never) to 0.02; 0.001 is a good start with several servers.
    #[arg(long, value_name = "SHARE", default_value_t = 0.0, value_parser = values::goaway_chance)]
    goaway_chance: f64,
    /// Bearer tokens and whose they are, a line each: `token,user,uid,"group1,group2"`, as kube-apiserver has it. These users are the same
    /// in every workspace. The file is read at the start.
    #[arg(long, value_name = "FILE")]
    token_auth_file: Option<PathBuf>,
    /// Most objects that a workspace stores with all workspaces below it, unless its annotation core.kcp.io/max-total-objects says
    /// otherwise.
    #[arg(long, value_name = "NUMBER", default_value_t = WORKSPACE_LIMITS.objects)]
    max_objects_per_workspace: u64,
    /// Most bytes of them, unless its annotation core.kcp.io/max-total-bytes says otherwise: a number, or a quantity as 512Mi or 4Gi.
    #[arg(long, value_name = "BYTES", default_value = WORKSPACE_BYTES, value_parser = values::bytes)]
    max_bytes_per_workspace: u64,
    /// Most objects with Portolan's label that are held in memory of one physical cluster. One that has more is not synced until it
    /// has fewer.
    #[arg(long, value_name = "NUMBER", default_value_t = SyncLimits::default().objects)]
    max_objects_per_physical_cluster: u64,
    /// Most bytes of memory that they may take, estimated: a number, or a quantity as 512Mi or 4Gi.
    #[arg(long, value_name = "BYTES", default_value = SYNC_BYTES, value_parser = values::bytes)]
    max_memory_per_physical_cluster: u64,
    /// Store nodes as any other object, as kube-apiserver does, instead of showing one for each physical cluster within reach.
    #[arg(long, hide = true)]
    stored_nodes: bool,
    /// Longest life of a token of a service account: seconds, or with units, as 48h. Longer requests are shortened to it, with a warning.
    /// From 1h; 0 for no bound but Kubernetes' own of 2^32 seconds.
    #[arg(long, value_name = "TIME", default_value = TOKEN_MAX_TIME, value_parser = values::token_max)]
    service_account_max_token_expiration: Duration,
    /// Private key (PEM, ECDSA P-256) that signs tokens of service accounts, in place of pki/service-accounts.key in the data directory,
    /// whose tokens are then refused unless --service-account-key-file names it.
    #[arg(long, value_name = "FILE")]
    service_account_signing_key_file: Option<PathBuf>,
    /// Further key (PEM, public or private) by which tokens of service accounts are verified; may be repeated. docs/access.md tells how to
    /// replace the key that signs.
    #[arg(long = "service-account-key-file", value_name = "FILE")]
    service_account_key_files: Vec<PathBuf>,
    /// For how long changes are kept at least, unless they are too many: what watches resume from and pages go on at. Seconds, or
    /// with units, as 5m or 1h30m.
    #[arg(long, value_name = "TIME", default_value = HISTORY_TIME, value_parser = values::time)]
    history: Duration,
    /// How many changes are kept at most, whatever their age; with --store etcd, how many transactions.
    #[arg(long, value_name = "NUMBER", default_value_t = HISTORY.revisions, value_parser = clap::value_parser!(u64).range(1..))]
    history_revisions: u64,
}

/// Where a server keeps its objects, as named on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ServerStore {
    /// One file, durable, small; the default.
    Redb,
    /// A log-structured tree in a folder.
    Sled,
    /// Nothing survives a stop.
    Memory,
    /// An etcd, which any number of servers use together.
    Etcd,
}

impl ServerStore {
    /// The engine of a data directory; `None` for etcd.
    pub(crate) fn embedded(self) -> Option<Engine> {
        match self {
            Self::Redb => Some(Engine::Redb),
            Self::Sled => Some(Engine::Sled),
            Self::Memory => Some(Engine::Memory),
            Self::Etcd => None,
        }
    }

    /// As it is told on the command line.
    pub(super) fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }
}

impl Server {
    /// # Errors
    /// For flags that do not belong together, or name what is not there.
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
        let started = Instant::now();
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
            workspace_limits: Usage { objects: self.max_objects_per_workspace, bytes: self.max_bytes_per_workspace },
            sync_limits: SyncLimits {
                objects: self.max_objects_per_physical_cluster,
                bytes: self.max_memory_per_physical_cluster,
            },
            computes_nodes: !self.stored_nodes,
            tokens,
            token_max: self.service_account_max_token_expiration,
            token_keys: (self.service_account_signing_key_file, self.service_account_key_files),
            history: HistoryBounds { time: self.history, revisions: self.history_revisions },
        };
        let kubeconfig = config.data_dir.join("admin.kubeconfig");
        let mut plane = control_plane::open(config).await?.start().await?;
        tracing::info!(
            address = %plane.address,
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

/// Whose tokens are in a file.
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

/// Logs to standard error; `PORTOLAN_LOG` takes the filter syntax of tracing, such as `portolan_syncer=debug,info`. A line that cannot
/// be written (a full disk, a reader that is gone) is lost: to complain about it on standard error would end the thread that logs.
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
    fn tokens_come_from_a_file_and_what_is_wrong_with_it_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("tokens.csv");
        assert!(tokens(&file).err().unwrap().to_string().ends_with("tokens.csv cannot be read"));
        std::fs::write(&file, "s3cret,ann,7,\"dev,ops\"\n").unwrap();
        let found = tokens(&file).unwrap();
        assert_eq!((found.len(), found[0].user.name.as_str(), found[0].user.groups.len()), (1, "ann", 2));
        std::fs::write(&file, "s3cret,ann,7\ns3cret\n").unwrap();
        let why = tokens(&file).err().unwrap().to_string();
        assert!(
            why.ends_with("tokens.csv: line 2 is no token,user,uid[,\"groups\"]") && !why.contains("s3cret"),
            "{why}"
        );
    }
}
