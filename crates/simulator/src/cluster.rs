//! One simulated cluster: its API server, and all loops on it.

use std::{sync::Arc, time::Duration};

use portolan_apiserver::{ApiServer, ApiServerConfig, hooks::PodStreams};
use portolan_controllers::Plane;
use portolan_machinery::kinds::KindTable;
use portolan_types::Seams;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::{kubelet::Kubelet, logs::CannedLogs, network, nodes, storage, workloads};

/// What a simulated cluster is made of.
#[derive(Clone)]
pub struct SimulationConfig {
    /// Name of the physical cluster; nodes are named after it.
    pub name: String,
    /// Number of nodes.
    pub nodes: u32,
    /// From bound to running.
    pub pod_start: Duration,
    /// From deleted to gone.
    pub pod_stop: Duration,
    /// How long a container of a Job runs.
    pub job_run: Duration,
    /// Answers streams of its pods; canned logs when nothing is said.
    pub streams: Arc<dyn PodStreams>,
}

impl SimulationConfig {
    /// Two nodes that are quick.
    pub fn named(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            nodes: 2,
            pod_start: Duration::from_millis(150),
            pod_stop: Duration::from_millis(100),
            job_run: Duration::from_millis(300),
            streams: Arc::new(CannedLogs),
        }
    }
}

/// Why a simulated cluster did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Its API server did not.
    #[error("the API server of the simulated cluster did not start")]
    ApiServer(#[from] portolan_apiserver::StartError),
    /// Its first objects could not be written.
    #[error("the nodes of the simulated cluster could not be made")]
    Nodes(#[from] portolan_controllers::PlaneError),
}

/// A running simulated cluster. Its loops end after the token it was started with, or when it is dropped.
pub struct SimulatedCluster {
    api: Arc<ApiServer>,
    _tasks: JoinSet<()>,
}

impl SimulatedCluster {
    /// Starts one. Ready when this returns: its nodes are.
    ///
    /// # Errors
    /// When the API server does not start.
    pub async fn start(
        config: SimulationConfig,
        seams: Seams,
        shutdown: &CancellationToken,
    ) -> Result<Self, StartError> {
        let store = portolan_store::memory();
        let mut config_of_api =
            ApiServerConfig { build: "simulated".into(), ..ApiServerConfig::in_memory(seams.clone()) };
        config_of_api.hooks.streams = config.streams.clone();
        let api = ApiServer::new(store.clone(), config_of_api).await?;
        let plane = Arc::new(Plane::new(store, KindTable::builtin(), seams).with_kinds(api.kinds()));
        nodes::create(&plane, &config).await?;
        storage::create_classes(&plane).await?;
        let loops = network::add(workloads::add(portolan_controllers::common(&plane, &api.pki().ca)))
            .with(Kubelet::new(plane.clone(), config))
            .with(storage::Binder::new(plane));
        let mut tasks = JoinSet::new();
        tasks.spawn(loops.run(shutdown.clone()));
        Ok(Self { api, _tasks: tasks })
    }

    /// Its API, reached without a socket.
    pub fn api(&self) -> &Arc<ApiServer> {
        &self.api
    }
}
