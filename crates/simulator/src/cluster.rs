//! Simulated cluster: its API server, and all its loops.

use std::{sync::Arc, time::Duration};

use portolan_apiserver::{ApiServer, ApiServerConfig, FairShare, InProcess, User, hooks::PodStreams};
use portolan_controllers::{Loops, Plane};
use portolan_kinds::KindTable;
use portolan_store::{DynStore, HistoryBounds, HistoryMetrics, run_history_retention};
use portolan_types::Seams;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::{
    autoscaling::AutoscalingController,
    custom_resources::CustomResourceOperator,
    disruption::DisruptionController,
    endpoints::EndpointsController,
    index::{NodeFeed, PodFeed, PodIndex},
    kubelet::Kubelet,
    logs::CannedLogs,
    network, nodes, storage,
    usage::SimulatedUsage,
    workloads,
    yielding::YieldingStore,
};

/// Configuration of a simulated cluster.
#[derive(Clone)]
pub struct SimulationConfig {
    /// Name of the physical cluster; nodes are named after it.
    pub name: String,
    /// Number of nodes.
    pub nodes: u32,
    /// From bound to running.
    pub pod_start: Duration,
    /// Grace period of a deleted pod.
    pub pod_stop: Duration,
    /// Running time of a container of a Job.
    pub job_run: Duration,
    /// Source of pod streams; canned logs by default.
    pub streams: Arc<dyn PodStreams>,
    /// Time slices for all work of the cluster; `None` runs work immediately.
    pub share: Option<FairShare>,
}

/// History that a simulated cluster keeps: enough for a syncer to resume its watches.
const HISTORY: HistoryBounds = HistoryBounds { time: Duration::from_secs(60), revisions: 50_000, bytes: 64 << 20 };

impl SimulationConfig {
    /// Defaults: two nodes with short delays.
    pub fn named(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            nodes: 2,
            pod_start: Duration::from_millis(150),
            pod_stop: Duration::from_millis(100),
            job_run: Duration::from_millis(300),
            streams: Arc::new(CannedLogs),
            share: None,
        }
    }
}

/// Reason that a simulated cluster did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Its API server failed to start.
    #[error("the API server of the simulated cluster did not start")]
    ApiServer(#[from] portolan_apiserver::StartError),
    /// Its first objects could not be written.
    #[error("the nodes of the simulated cluster could not be made")]
    Nodes(#[from] portolan_controllers::PlaneError),
    /// Its metrics could not be registered.
    #[error("the metrics of the simulated cluster could not be made")]
    Metrics(#[from] prometheus::Error),
}

/// A running simulated cluster. Its loops end after the token it was started with, or when it is dropped.
pub struct SimulatedCluster {
    api: Arc<ApiServer>,
    share: Option<FairShare>,
    _tasks: JoinSet<()>,
}

impl SimulatedCluster {
    /// Starts one. Ready when this returns: its nodes are.
    ///
    /// # Errors
    /// Fails if the API server does not start.
    pub async fn start(
        config: SimulationConfig,
        seams: Seams,
        shutdown: &CancellationToken,
    ) -> Result<Self, StartError> {
        Self::start_on(portolan_store::memory(), config, seams, shutdown).await
    }

    /// Starts one on an empty store, which only it writes to.
    ///
    /// # Errors
    /// Returns the errors of [`Self::start`].
    pub async fn start_on(
        store: DynStore,
        config: SimulationConfig,
        seams: Seams,
        shutdown: &CancellationToken,
    ) -> Result<Self, StartError> {
        let store: DynStore = Arc::new(YieldingStore(store));
        let mut config_of_api =
            ApiServerConfig { build: "simulated".into(), ..ApiServerConfig::in_memory(seams.clone()) };
        config_of_api.hooks.streams = config.streams.clone();
        let pods = Arc::new(PodIndex::default());
        let usage = SimulatedUsage { pods: pods.clone(), seams: seams.clone() };
        config_of_api.hooks.usage = Some(Arc::new(usage));
        let api = ApiServer::new(store.clone(), config_of_api).await?;
        let plane = Arc::new(Plane::new(store.clone(), KindTable::builtin(), seams).with_kinds(api.kinds()));
        nodes::create(&plane, &config).await?;
        storage::create_classes(&plane).await?;
        let history = HistoryMetrics::register(api.registry())?;
        let mut tasks = JoinSet::new();
        let share = config.share.clone();
        tasks.spawn(loops(&plane, &api, pods, config).run(shutdown.clone()));
        let keeping = async move { match run_history_retention(store, HISTORY, history).await {} };
        match &share {
            Some(share) => drop(tasks.spawn(share.run(keeping))),
            None => drop(tasks.spawn(keeping)),
        }
        Ok(Self { api, share, _tasks: tasks })
    }

    /// A client's end of its API, in the time slices of the cluster.
    pub fn service_as(&self, user: User) -> InProcess {
        let service = self.api.service_as(user);
        match &self.share {
            Some(share) => service.charged_to(share.clone()),
            None => service,
        }
    }

    /// Its API, reached without a socket.
    pub fn api(&self) -> &Arc<ApiServer> {
        &self.api
    }
}

/// All loops. Those that maintain the index come first, so that the others find each event in it.
fn loops(plane: &Arc<Plane>, api: &ApiServer, pods: Arc<PodIndex>, config: SimulationConfig) -> Loops {
    let loops = portolan_controllers::common(plane, &api.pki().ca);
    let loops = loops.with(PodFeed(pods.clone())).with(NodeFeed(pods.clone()));
    let loops = network::add(workloads::add(loops, &pods)).with(EndpointsController::new(plane.clone(), pods.clone()));
    let loops = loops
        .with(DisruptionController::new(plane.clone(), pods.clone()))
        .with(AutoscalingController { plane: plane.clone() })
        .with(CustomResourceOperator { plane: plane.clone() });
    let share = config.share.clone();
    let loops = loops.with(storage::ClaimBinder::new(plane.clone())).with(Kubelet::new(plane.clone(), pods, config));
    match share {
        Some(share) => loops.wrapped(Arc::new(move |task| Box::pin(share.run(task)))),
        None => loops,
    }
}
