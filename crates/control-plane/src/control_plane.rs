//! Control plane that runs: all parts, wired together over one store.

use std::{fs::File, net::SocketAddr, sync::Arc, time::Duration};

use anyhow::Context as _;
use portolan_apiserver::ApiServer;
use portolan_controllers::{LoopMetrics, Loops, Plane};
use portolan_kinds::KindTable;
use portolan_store::{DynStore, HistoryMetrics};
use portolan_syncer::SyncMemoryBudget;
use portolan_tunnel::{gateway::TunnelGateway, session::Keepalive};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::{
    OpenedControlPlane,
    elected::{ElectedControllers, HistoryCompactor},
    physical_clusters::{ConnectorFactory, PhysicalClusterController, SimulationRules, WorkerLeases},
    plane_name::plane_name,
    resource_metrics::ClusterUsage,
    scheduler_hooks::SchedulerHooks,
    streams::PodStreamProxy,
    tunnels::{AgentTunnels, ServerPresence, TunnelMetrics, tenant_lookup},
    type_descriptions::KubernetesTexts,
    upstream::{PodTokenIssuer, StoreUpstream},
};

/// Time for requests in progress when the server stops.
const DRAIN: Duration = Duration::from_secs(8);

/// Control plane that runs.
pub struct ControlPlane {
    api: Arc<ApiServer>,
    address: SocketAddr,
    store: DynStore,
    shutdown: CancellationToken,
    tasks: JoinSet<()>,
    /// Lock on the data directory of a server with objects in etcd.
    _lock: Option<File>,
}

impl ControlPlane {
    /// Starts all parts. The API serves requests when this returns.
    pub(crate) async fn start(opened: OpenedControlPlane) -> anyhow::Result<Self> {
        let OpenedControlPlane { store, roles, listener, mut api_config, history, lock, .. } = opened;
        let (addresses, simulate_for_tenants) = (opened.addresses, opened.simulate_for_tenants);
        let (sync_limits, sync_memory) = (opened.sync_limits, Arc::new(SyncMemoryBudget::new(opened.sync_memory)));
        let (seams, address) = (api_config.seams.clone(), api_config.bind_address);
        let shutdown = CancellationToken::new();
        let mut tasks = JoinSet::new();
        let (scheduler, streams) = (SchedulerHooks::timed(opened.failover), PodStreamProxy::default());
        api_config.hooks.texts = Arc::new(KubernetesTexts);
        scheduler.hook_into(&mut api_config.hooks);
        api_config.hooks.streams = Arc::new(streams.clone());
        let usage = ClusterUsage::default();
        // Stored nodes have no physical cluster to ask.
        api_config.hooks.usage = api_config.computes_nodes.then(|| Arc::new(usage.clone()) as _);
        let tunnels = TunnelGateway::new(seams.clone(), Keepalive::default(), shutdown.clone());
        api_config.hooks.agents = Some(Arc::new(AgentTunnels(tunnels.clone())));
        let api = ApiServer::new(store.clone(), api_config).await.context("the API server does not start")?;
        tunnels.set_tenants(tenant_lookup(api.directory().clone()));
        let metrics = LoopMetrics::register(api.registry()).context("the metrics of the loops")?;
        let plane = Plane::new(store.clone(), KindTable::builtin(), seams.clone()).with_kinds(api.kinds());
        let plane = Arc::new(plane.with_metrics(metrics));
        scheduler.start(&api, &store, &roles, &shutdown, &mut tasks);
        let name = plane_name(&store, &seams).await.context("the name of the control plane")?;
        let limits = api.clone();
        let upstream = StoreUpstream::new(plane.clone(), name.clone());
        let upstream = upstream.charging(Box::new(move |cluster| limits.accounts(cluster)));
        let issuer = PodTokenIssuer { tokens: api.tokens().clone(), authority: api.pki().ca.clone() };
        let upstream = upstream.issuing(issuer);
        let upstream = Arc::new(upstream.reached_by(api.url()));
        let simulation = SimulationRules { for_tenants: simulate_for_tenants, api: Some(api.clone()) };
        let connections = ConnectorFactory::new(addresses, seams.clone(), shutdown.clone()).simulating(simulation);
        let connections = Arc::new(connections.tunnelling(tunnels.clone()));
        let leases = WorkerLeases::new(roles.clone());
        let clusters =
            PhysicalClusterController::new(plane.clone(), upstream.clone(), connections, leases, shutdown.clone());
        let clusters = clusters.within(sync_limits, sync_memory);
        usage.start(api.clone(), clusters.clients(), name.clone());
        streams.start(api.clone(), clusters.clients(), name);
        tasks.spawn(streams.ended(shutdown.clone()));
        api.registry().register(Box::new(TunnelMetrics::new(tunnels.clone()))).context("the metrics of tunnels")?;
        if opened.is_shared {
            tasks.spawn(ServerPresence::new(store.clone(), tunnels.clone()).run(shutdown.clone()));
        }
        tasks.spawn(async move { tunnels.ended().await });
        api.registry().register(Box::new(clusters.metrics())).context("the metrics of the syncers")?;
        tasks.spawn(Loops::new(plane.clone()).with(clusters).run(shutdown.clone()));
        api.registry().register(Box::new(scheduler.failover_metrics())).context("the metrics of failover")?;
        if let Some(metrics) = scheduler.metrics() {
            api.registry().register(Box::new(metrics)).context("the metrics of the scheduler")?;
        }
        let compactions = HistoryMetrics::register(api.registry()).context("the metrics of the history")?;
        let compactor = HistoryCompactor { store: store.clone(), bounds: history, metrics: compactions };
        tasks.spawn(compactor.run(roles.clone(), shutdown.clone()));
        let elected = ElectedControllers { api: api.clone(), plane, upstream, usage };
        tasks.spawn(elected.run(roles, shutdown.clone()));
        let (server, stop) = (api.clone(), shutdown.clone());
        tasks.spawn(async move {
            if let Err(error) = server.serve(listener, stop).await {
                tracing::error!(%error, "the API server stopped");
            }
        });
        Ok(Self { api, address, store, shutdown, tasks, _lock: lock })
    }

    /// Returns the API server.
    pub fn api(&self) -> &Arc<ApiServer> {
        &self.api
    }

    /// Returns the address that the API server listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Resolves once a part has ended by itself, which none should.
    pub async fn failed(&mut self) {
        if let Some(ended) = self.tasks.join_next().await {
            let error = ended.err().map_or_else(|| "it ended by itself".to_owned(), |error| error.to_string());
            tracing::error!(error, "a part of the control plane failed");
        }
    }

    /// Stops in order: readiness, requests, controllers, store.
    pub async fn stop(mut self) {
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
