//! Opening of a control plane: the socket, the data directory and the store.

use std::{fs::File, sync::Arc, time::Duration};

use anyhow::Context as _;
use portolan_apiserver::{ApiServerConfig, hooks::ReadyCheck, http::serve_starting, pki::check_private};
use portolan_scheduler::FailoverTiming;
use portolan_store::{DynStore, Engine, HistoryBounds, LeaderElection, OpenError, StoreConfig, open_etcd};
use portolan_syncer::SyncLimits;
use portolan_types::Seams;
use prometheus::{IntGauge, Opts};
use tokio::{
    net::TcpListener,
    task::{JoinError, JoinHandle},
};
use tokio_util::sync::CancellationToken;

use crate::{
    Config, ControlPlane, Storage, data_dir,
    physical_clusters::ClusterAddresses,
    readiness::{EtcdHealthCheck, EtcdOpeningCheck, StoreHealthCheck, StoreOpeningCheck},
    security::encrypted,
    shared_keys,
};

/// Time for opening the store before clients see its progress.
const QUIET_OPENING: Duration = Duration::from_millis(100);

/// Control plane with an open store and a bound socket, before anything runs.
pub struct OpenedControlPlane {
    pub(crate) store: DynStore,
    pub(crate) roles: Arc<LeaderElection>,
    pub(crate) listener: TcpListener,
    pub(crate) api_config: ApiServerConfig,
    pub(crate) addresses: ClusterAddresses,
    pub(crate) simulate_for_tenants: bool,
    pub(crate) sync_limits: SyncLimits,
    pub(crate) sync_memory: u64,
    pub(crate) history: HistoryBounds,
    pub(crate) failover: FailoverTiming,
    /// True if other servers may share the store.
    pub(crate) is_shared: bool,
    pub(crate) lock: Option<File>,
}

impl OpenedControlPlane {
    /// Starts all parts. The API serves requests when this returns.
    pub async fn start(self) -> anyhow::Result<ControlPlane> {
        ControlPlane::start(self).await
    }
}

/// Binds the socket and opens the store. While a slow store opens, the socket reports its progress.
pub async fn open(config: Config) -> anyhow::Result<OpenedControlPlane> {
    let seams = Seams::system();
    let listener = TcpListener::bind(config.bind_address)
        .await
        .with_context(|| format!("cannot listen on {}; fix: another --bind-address", config.bind_address))?;
    let mut api_config = api_config(&config, &listener, &seams)?;
    register_engine_metric(&config.storage, &api_config.registry).context("the metric of the engine")?;
    // The directory is checked before anything is made in it.
    check_private(&config.data_dir)?;
    let lock = lock_data_dir(&config)?;
    let (engine, failed) = match &config.storage {
        Storage::Embedded(engine) => (*engine, format!("the store in {} cannot be opened", config.data_dir.display())),
        Storage::Etcd(_) => (Engine::Memory, "the store in etcd cannot be opened".to_owned()),
    };
    let mut store_config = StoreConfig::new(engine, Some(config.data_dir.join("store")));
    store_config.registry = Some(api_config.registry.clone());
    let is_shared = matches!(config.storage, Storage::Etcd(_));
    let check: Arc<dyn ReadyCheck> =
        if is_shared { Arc::new(EtcdOpeningCheck) } else { Arc::new(StoreOpeningCheck(store_config.opening.clone())) };
    let keyring = config.security.keyring()?;
    let opening = tokio::spawn(open_store(config.storage, store_config, seams.clone()));
    // Responses need keys: those of an earlier start, or those of the store.
    let opened = if shared_keys::are_there(&config.data_dir) {
        serve_progress(opening, &listener, &api_config, check).await
    } else {
        opening.await
    };
    let (stored, roles) = opened.context("opening the store panicked")?.context(failed)?;
    let store = encrypted(stored, keyring, &mut api_config, &seams).await?;
    api_config.hooks.ready.push(Arc::new(StoreHealthCheck(store.clone())));
    if is_shared {
        shared_keys::share(&store, &api_config).await.context("the keys that all servers on one etcd share")?;
        data_dir::mark_etcd(&config.data_dir)?;
        api_config.hooks.ready.push(Arc::new(EtcdHealthCheck(store.clone())));
    } else {
        shared_keys::settle(&store, &api_config).await.context("the keys that came with the store")?;
    }
    Ok(OpenedControlPlane {
        store,
        roles,
        listener,
        api_config,
        addresses: config.addresses,
        simulate_for_tenants: config.simulate_for_tenants,
        sync_limits: config.sync_limits,
        sync_memory: config.sync_memory,
        history: config.history,
        failover: config.failover,
        is_shared,
        lock,
    })
}

/// Returns the configuration of the API server.
fn api_config(config: &Config, listener: &TcpListener, seams: &Seams) -> anyhow::Result<ApiServerConfig> {
    let mut api_config = ApiServerConfig::in_directory(config.data_dir.clone(), seams.clone());
    api_config.bind_address = listener.local_addr().context("the listening address is unknown")?;
    api_config.name.clone_from(&config.name);
    api_config.tls_sans.clone_from(&config.tls_sans);
    api_config.webhooks = config.webhooks;
    api_config.goaway_chance = config.goaway_chance;
    api_config.limits.workspace_objects = config.workspace_limits.objects;
    api_config.limits.workspace_bytes = config.workspace_limits.bytes;
    api_config.computes_nodes = config.computes_nodes;
    api_config.makes_default_objects = true;
    api_config.static_tokens.clone_from(&config.tokens);
    api_config.authentication.clone_from(&config.authentication);
    api_config.token_max = config.token_max;
    api_config.token_signing_key.clone_from(&config.token_signing_key);
    api_config.token_keys.clone_from(&config.token_keys);
    api_config.hooks.console.clone_from(&config.console);
    config.security.apply(&mut api_config);
    Ok(api_config)
}

/// Checks that the data directory fits the storage, and locks it if no embedded store does.
fn lock_data_dir(config: &Config) -> anyhow::Result<Option<File>> {
    match &config.storage {
        Storage::Etcd(_) => {
            data_dir::refuse_embedded_store(&config.data_dir)?;
            Ok(Some(data_dir::lock(&config.data_dir)?))
        }
        Storage::Embedded(engine) => {
            data_dir::refuse_etcd_data_dir(&config.data_dir)?;
            data_dir::refuse_memory_engine(*engine, &config.data_dir)?;
            Ok(None)
        }
    }
}

/// Registers the metric that names the storage engine.
fn register_engine_metric(storage: &Storage, registry: &prometheus::Registry) -> prometheus::Result<()> {
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

async fn open_store(
    storage: Storage,
    config: StoreConfig,
    seams: Seams,
) -> Result<(DynStore, Arc<LeaderElection>), OpenError> {
    match storage {
        Storage::Etcd(etcd) => open_etcd(&etcd, &config, &seams).await,
        Storage::Embedded(_) => {
            let opening = tokio::task::spawn_blocking(move || portolan_store::open(config, seams));
            let store = opening.await.unwrap_or_else(|panicked| std::panic::resume_unwind(panicked.into_panic()))?;
            Ok((store, Arc::new(LeaderElection::standalone())))
        }
    }
}

/// Waits for a task, and serves the progress on the socket if it takes long.
async fn serve_progress<T>(
    mut task: JoinHandle<T>,
    listener: &TcpListener,
    config: &ApiServerConfig,
    check: Arc<dyn ReadyCheck>,
) -> Result<T, JoinError> {
    if let Ok(done) = tokio::time::timeout(QUIET_OPENING, &mut task).await {
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
        tracing::warn!(%error, "the progress of opening the store could not be served");
    }
    ended
}
