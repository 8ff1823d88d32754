//! All parts of a control plane, put together.

use std::{
    fs::File,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, bail};
use portolan_apiserver::{
    ApiServer, ApiServerConfig,
    authn::{SecretClaims, StaticToken},
    hooks::ReadyCheck,
    pki::check_private,
    serve::serve_starting,
    webhooks::WebhookAddresses,
};
use portolan_controllers::{
    LoopMetrics, Loops, Plane,
    token_secrets::{Sign, TokenSecrets},
    workspaces,
};
use portolan_machinery::kinds::KindTable;
use portolan_store::{
    DynStore, Engine, EtcdConfig, HistoryBounds, HistoryMetrics, OpenError, Roles, StoreConfig, StoreError, Usage,
    keep_history, open_etcd,
};
use portolan_syncer::SyncLimits;
use portolan_types::{BoxFuture, LogicalClusterId, Seams, Status};
use prometheus::{IntGauge, Opts};
use tokio::{
    net::TcpListener,
    task::{JoinError, JoinHandle, JoinSet},
};
use tokio_util::sync::CancellationToken;

use crate::{
    members::{ClusterAddresses, Connections, Members, Posts, Retired, Simulation},
    placements::Placing,
    plane_name::plane_name,
    readiness::{EtcdAnswers, EtcdOpening, StoreOpening, StoreReady},
    shared_keys,
    streams::Streams,
    texts::KubernetesTexts,
    upstream::StoreUpstream,
};

/// Most that a workspace stores with all workspaces below it, when nothing else is said.
pub(crate) const WORKSPACE_LIMITS: Usage = Usage { objects: 1_000_000, bytes: 4 << 30 };
/// History that is kept when nothing else is said, so that watches can be resumed: of objects of 2 KiB, about 1 GiB at most.
pub(crate) const HISTORY: HistoryBounds = HistoryBounds { time: Duration::from_secs(5 * 60), revisions: 500_000 };
/// How long requests under way may take when the server stops.
const DRAIN: Duration = Duration::from_secs(8);
/// How long the store may take to open before clients are told that it goes on.
const QUIET: Duration = Duration::from_millis(100);

/// What a control plane is told at its start.
pub(crate) struct Config {
    /// Where the store, keys and `admin.kubeconfig` are.
    pub(crate) data_dir: PathBuf,
    /// Where it listens.
    pub(crate) bind_address: SocketAddr,
    /// Where objects are.
    pub(crate) storage: Storage,
    /// Name of the server in kubeconfigs; its address if there is none.
    pub(crate) name: Option<String>,
    /// Further names and addresses for the server's certificate.
    pub(crate) tls_sans: Vec<String>,
    /// Where kubeconfigs of physical clusters may lead.
    pub(crate) addresses: ClusterAddresses,
    /// True where physical clusters may be simulated that are registered in other workspaces than root.
    pub(crate) simulate_for_tenants: bool,
    /// Where admission webhooks may be.
    pub(crate) webhooks: WebhookAddresses,
    /// The share of requests over HTTP/2, from 0 to 1, behind which a client is asked to make a new connection.
    pub(crate) goaway_chance: f64,
    /// Most that a workspace stores with all below it, unless it has limits of its own.
    pub(crate) workspace_limits: Usage,
    /// Show a Node per physical cluster within reach, and store none.
    pub(crate) computes_nodes: bool,
    /// The most that is held in memory of one physical cluster.
    pub(crate) sync_limits: SyncLimits,
    /// Bearer tokens of users of the whole plane.
    pub(crate) tokens: Vec<StaticToken>,
    /// Longest life of a token of a service account; zero for Kubernetes' own bound.
    pub(crate) token_max: Duration,
    /// Key that signs such tokens, unless it is that of the data directory, and further ones that verify them.
    pub(crate) token_keys: (Option<PathBuf>, Vec<PathBuf>),
    /// How much of changes is kept: what watches resume from and pages go on at.
    pub(crate) history: HistoryBounds,
}

/// Where objects are.
#[derive(Clone, Debug)]
pub(crate) enum Storage {
    /// In the data directory, for this server alone.
    Embedded(Engine),
    /// In an etcd, which other servers may use too.
    Etcd(Box<EtcdConfig>),
}

/// A running control plane.
pub(crate) struct ControlPlane {
    pub(crate) api: Arc<ApiServer>,
    pub(crate) address: SocketAddr,
    store: DynStore,
    shutdown: CancellationToken,
    tasks: JoinSet<()>,
    /// Keeps others from the data directory where no store does.
    _claim: Option<File>,
}

/// A store that is open, and a bound socket, before anything runs on them.
pub(crate) struct Opened {
    store: DynStore,
    roles: Arc<Roles>,
    listener: TcpListener,
    api_config: ApiServerConfig,
    addresses: ClusterAddresses,
    simulate_for_tenants: bool,
    sync_limits: SyncLimits,
    history: HistoryBounds,
    claim: Option<File>,
}

/// Binds the socket and opens the store: the first step, apart so that its time can be told. While opening takes its time, the
/// socket answers that it goes on, and how far it is.
pub(crate) async fn open(config: Config) -> anyhow::Result<Opened> {
    let seams = Seams::system();
    let listener = TcpListener::bind(config.bind_address)
        .await
        .with_context(|| format!("cannot listen on {}; fix: another --bind-address", config.bind_address))?;
    let mut api_config = ApiServerConfig::in_directory(config.data_dir.clone(), seams.clone());
    api_config.bind_address = listener.local_addr().context("the listening address is unknown")?;
    api_config.name = config.name;
    api_config.tls_sans = config.tls_sans;
    api_config.webhooks = config.webhooks;
    api_config.goaway_chance = config.goaway_chance;
    api_config.limits.workspace_objects = config.workspace_limits.objects;
    api_config.limits.workspace_bytes = config.workspace_limits.bytes;
    api_config.computes_nodes = config.computes_nodes;
    api_config.static_tokens = config.tokens;
    api_config.token_max = config.token_max;
    (api_config.token_signing_key, api_config.token_keys) = config.token_keys;
    let (engine, failed) = match &config.storage {
        Storage::Embedded(engine) => (*engine, format!("the store in {} cannot be opened", config.data_dir.display())),
        Storage::Etcd(_) => (Engine::Memory, "the store in etcd cannot be opened".to_owned()),
    };
    let mut store_config = StoreConfig::new(engine, Some(config.data_dir.join("store")));
    store_config.registry = Some(api_config.registry.clone());
    let is_shared = matches!(config.storage, Storage::Etcd(_));
    tell_engine(&config.storage, &api_config.registry).context("the metric of the engine")?;
    // Before anything is made in it.
    check_private(&config.data_dir)?;
    let claim = match &config.storage {
        Storage::Etcd(_) => {
            shared_keys::check_unused(&config.data_dir)?;
            Some(shared_keys::claim(&config.data_dir)?)
        }
        Storage::Embedded(engine) => {
            shared_keys::refuse_marked(&config.data_dir)?;
            refuse_to_forget(*engine, &config.data_dir)?;
            None
        }
    };
    let check: Arc<dyn ReadyCheck> = match is_shared {
        true => Arc::new(EtcdOpening),
        false => Arc::new(StoreOpening(store_config.opening.clone())),
    };
    let opening = tokio::spawn(open_store(config.storage, store_config, seams));
    // Who answers needs keys: those of an earlier start, or they may come out of the store.
    let opened = match !shared_keys::are_there(&config.data_dir) {
        true => opening.await,
        false => answer_while(opening, &listener, &api_config, check).await,
    };
    let (store, roles) = opened.context("opening the store panicked")?.context(failed)?;
    match is_shared {
        true => {
            shared_keys::share(&store, &api_config).await.context("the keys that all servers on one etcd share")?;
            shared_keys::mark(&config.data_dir)?;
        }
        false => shared_keys::settle(&store, &api_config).await.context("the keys that came with the store")?,
    }
    api_config.hooks.ready.push(Arc::new(StoreReady(store.clone())));
    if is_shared {
        api_config.hooks.ready.push(Arc::new(EtcdAnswers(store.clone())));
    }
    Ok(Opened {
        store,
        roles,
        listener,
        api_config,
        addresses: config.addresses,
        simulate_for_tenants: config.simulate_for_tenants,
        sync_limits: config.sync_limits,
        history: config.history,
        claim,
    })
}

/// Tells in `/metrics` where objects are.
fn tell_engine(storage: &Storage, registry: &prometheus::Registry) -> prometheus::Result<()> {
    let engine = match storage {
        Storage::Embedded(engine) => engine.to_string(),
        Storage::Etcd(_) => "etcd".to_owned(),
    };
    let info = Opts::new("portolan_store_info", "Is 1; its label names the engine of the store.")
        .const_label("engine", engine);
    let info = IntGauge::with_opts(info)?;
    info.set(1);
    registry.register(Box::new(info))
}

/// Refuses memory where a store lies: its objects would not be there. What keeps nothing is told.
fn refuse_to_forget(engine: Engine, data_dir: &Path) -> anyhow::Result<()> {
    if engine != Engine::Memory {
        return Ok(());
    }
    if let Some(found) = portolan_store::found_in(&data_dir.join("store")) {
        bail!("{} holds a store of the {found} engine: --store {found}", data_dir.display());
    }
    tracing::warn!("--store memory: nothing survives a stop");
    Ok(())
}

async fn open_store(storage: Storage, config: StoreConfig, seams: Seams) -> Result<(DynStore, Arc<Roles>), OpenError> {
    match storage {
        Storage::Etcd(etcd) => open_etcd(&etcd, &config, &seams).await,
        Storage::Embedded(_) => {
            let opening = tokio::task::spawn_blocking(move || portolan_store::open(config, seams));
            let store = opening.await.unwrap_or_else(|panicked| std::panic::resume_unwind(panicked.into_panic()))?;
            Ok((store, Arc::new(Roles::alone())))
        }
    }
}

/// Waits for a task, and after a short while answers on the socket meanwhile.
async fn answer_while<T>(
    mut task: JoinHandle<T>,
    listener: &TcpListener,
    config: &ApiServerConfig,
    check: Arc<dyn ReadyCheck>,
) -> Result<T, JoinError> {
    if let Ok(done) = tokio::time::timeout(QUIET, &mut task).await {
        return done;
    }
    let done = CancellationToken::new();
    let wait = async {
        let ended = task.await;
        done.cancel();
        ended
    };
    let (ended, served) = tokio::join!(wait, serve_starting(listener, config, check, done.clone()));
    if let Err(error) = served {
        tracing::warn!(%error, "nobody could be told that the store is still being opened");
    }
    ended
}

impl Opened {
    /// Starts everything. The API answers when this returns.
    pub(crate) async fn start(self) -> anyhow::Result<ControlPlane> {
        let Self { store, roles, listener, mut api_config, history, claim, .. } = self;
        let (addresses, simulate_for_tenants, sync_limits) =
            (self.addresses, self.simulate_for_tenants, self.sync_limits);
        let (seams, address) = (api_config.seams.clone(), api_config.bind_address);
        let shutdown = CancellationToken::new();
        let mut tasks = JoinSet::new();
        let (placing, streams) = (Placing::default(), Streams::default());
        api_config.hooks.texts = Arc::new(KubernetesTexts);
        placing.hook_into(&mut api_config.hooks);
        api_config.hooks.streams = Arc::new(streams.clone());
        let api = ApiServer::new(store.clone(), api_config).await.context("the API server does not start")?;
        let metrics = LoopMetrics::register(api.registry()).context("the metrics of the loops")?;
        let plane = Plane::new(store.clone(), KindTable::builtin(), seams.clone()).with_kinds(api.kinds());
        let plane = Arc::new(plane.with_metrics(metrics));
        placing.start(&api, &store, &roles, &shutdown, &mut tasks);
        let name = plane_name(&store, &seams).await.context("the name of the control plane")?;
        let limits = api.clone();
        let upstream = StoreUpstream::new(plane.clone(), name.clone());
        let upstream = Arc::new(upstream.charging(Box::new(move |cluster| limits.accounts(cluster))));
        let simulation = Simulation { for_tenants: simulate_for_tenants, api: Some(api.clone()) };
        let connections = Connections::new(addresses, seams.clone(), shutdown.clone()).simulating(simulation);
        let connections = Arc::new(connections);
        let posts = Posts::new(roles.clone());
        let members = Members::new(plane.clone(), upstream.clone(), connections, posts, shutdown.clone());
        let members = members.within(sync_limits);
        streams.start(api.clone(), members.lines(), name);
        tasks.spawn(streams.ended(shutdown.clone()));
        api.registry().register(Box::new(members.metrics())).context("the metrics of the syncers")?;
        tasks.spawn(Loops::new(plane.clone()).with(members).run(shutdown.clone()));
        let compactions = HistoryMetrics::register(api.registry()).context("the metrics of the history")?;
        tasks.spawn(forget_history(store.clone(), (history, compactions), roles.clone(), shutdown.clone()));
        tasks.spawn(run_common(api.clone(), plane, upstream, roles, shutdown.clone()));
        let (server, stop) = (api.clone(), shutdown.clone());
        tasks.spawn(async move {
            if let Err(error) = server.serve(listener, stop).await {
                tracing::error!(%error, "the API server stopped");
            }
        });
        Ok(ControlPlane { api, address, store, shutdown, tasks, _claim: claim })
    }
}

impl ControlPlane {
    /// Ends once any part ended by itself, which none should.
    pub(crate) async fn failed(&mut self) {
        if let Some(ended) = self.tasks.join_next().await {
            let error = ended.err().map_or_else(|| "it ended by itself".to_owned(), |error| error.to_string());
            tracing::error!(error, "a part of the control plane failed");
        }
    }

    /// Stops in order: readiness first, then requests, loops, and last the store.
    pub(crate) async fn stop(mut self) {
        self.shutdown.cancel();
        let drained = tokio::time::timeout(DRAIN, async { while self.tasks.join_next().await.is_some() {} }).await;
        if drained.is_err() {
            tracing::warn!("some parts did not stop in time and were ended");
            self.tasks.shutdown().await;
        }
        self.api.stop().await;
        self.store.close().await;
    }
}

/// Runs the loops that one server runs for all, whenever that one is this server.
async fn run_common(
    api: Arc<ApiServer>,
    plane: Arc<Plane>,
    upstream: Arc<StoreUpstream>,
    roles: Arc<Roles>,
    shutdown: CancellationToken,
) {
    while let Some(term) = shutdown.run_until_cancelled(roles.take("controllers")).await {
        let workspaces = workspaces::Workspaces::new(plane.clone(), Arc::new(ApiDirectory(api.clone())));
        let retired = Retired::new(&plane, upstream.clone());
        let tokens = TokenSecrets::new(plane.clone(), &api.pki().ca, signer(&api));
        let loops = portolan_controllers::common(&plane, &api.pki().ca).with(tokens).with(workspaces).with(retired);
        let (end, lost) = (shutdown.child_token(), term.lost().clone());
        let ending = end.clone();
        tokio::join!(loops.run(end.clone()), async move {
            ending.run_until_cancelled(lost.cancelled()).await;
            ending.cancel();
        });
    }
}

/// Signs what Secrets hold as the API server verifies it.
fn signer(api: &ApiServer) -> Sign {
    let tokens = api.tokens().clone();
    Arc::new(move |token| {
        let claims = SecretClaims::new(token.cluster, token.namespace, token.account, token.uid, token.secret);
        tokens.issue_for_secret(&claims).map_err(Status::internal)
    })
}

/// Compacts until `shutdown`, whenever that is for this server to do.
async fn forget_history(
    store: DynStore,
    (bounds, metrics): (HistoryBounds, HistoryMetrics),
    roles: Arc<Roles>,
    shutdown: CancellationToken,
) {
    while let Some(term) = shutdown.run_until_cancelled(roles.take("history")).await {
        tokio::select! {
            never = keep_history(store.clone(), bounds, metrics.clone()) => match never {},
            () = term.lost().cancelled() => {}
            () = shutdown.cancelled() => return,
        }
    }
}

/// The API server's directory, as the workspace loop needs it.
struct ApiDirectory(Arc<ApiServer>);

impl workspaces::Directory for ApiDirectory {
    fn mark_deleting(&self, cluster: LogicalClusterId) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(self.0.directory().mark_deleting(cluster))
    }

    fn children(&self, parent: LogicalClusterId) -> Vec<LogicalClusterId> {
        self.0.directory().children(parent).iter().map(|child| child.id).collect()
    }

    fn remove(&self, cluster: LogicalClusterId) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(self.0.directory().remove(cluster))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_refused_where_a_store_lies() {
        let folder = tempfile::tempdir().unwrap();
        refuse_to_forget(Engine::Memory, folder.path()).unwrap();
        let config = StoreConfig::new(Engine::Sled, Some(folder.path().join("store")));
        drop(portolan_store::open(config, Seams::system()).unwrap());
        let refused = refuse_to_forget(Engine::Memory, folder.path()).unwrap_err().to_string();
        assert!(refused.ends_with("holds a store of the sled engine: --store sled"), "{refused}");
        refuse_to_forget(Engine::Sled, folder.path()).unwrap();
    }
}
