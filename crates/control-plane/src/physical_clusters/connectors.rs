//! Connectors of physical clusters. Only this module distinguishes the kinds of connection.

use std::{collections::HashMap, sync::Arc};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use portolan_apiserver::{ApiServer, User};
use portolan_controllers::{Plane, PlaneError};
use portolan_simulator::{SimulatedCluster, SimulationConfig};
use portolan_syncer::{Addresses, ConnectError, Connector, DirectConnector, TaskWrapper};
use portolan_tunnel::gateway::{AgentState, TunnelGateway};
use portolan_types::{
    BoxFuture, GroupResource, LogicalClusterId, ObjectKey, Seams, Uid,
    agent::AgentId,
    placement::{Connection, SecretKeyRef},
};
use serde_json::Value;
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;

use crate::tunnels::TunnelledConnector;

/// Key in the Secret, if the reference names none.
const DEFAULT_KEY: &str = "kubeconfig";
const DEFAULT_NODES: u32 = 2;
/// Most nodes of a simulated cluster; each is an object in memory.
const MAX_NODES: u32 = 1_000;

/// Reads the kubeconfig of a direct connection; `None` for other connections. The inner error describes a broken
/// reference.
pub(super) async fn kubeconfig(
    plane: &Plane,
    cluster: LogicalClusterId,
    connection: &Connection,
) -> Result<Result<Option<String>, String>, PlaneError> {
    let Some(direct) = &connection.direct else { return Ok(Ok(None)) };
    let reference = &direct.kubeconfig_secret_ref;
    let place = format!("Secret {}/{}", reference.namespace, reference.name);
    let (Ok(namespace), Ok(name)) = (reference.namespace.parse(), reference.name.parse()) else {
        return Ok(Err(format!("{place} is no name of a Secret")));
    };
    let key = ObjectKey::namespaced(cluster, GroupResource::new("", "secrets"), namespace, name);
    let Some(secret) = plane.get(&key).await? else { return Ok(Err(format!("{place} does not exist"))) };
    Ok(text_of(&secret.object, reference)
        .map(Some)
        .ok_or_else(|| format!("{place} has no text under the key {:?}", key_of(reference))))
}

fn key_of(reference: &SecretKeyRef) -> &str {
    if reference.key.is_empty() { DEFAULT_KEY } else { &reference.key }
}

fn text_of(secret: &Value, reference: &SecretKeyRef) -> Option<String> {
    let encoded = secret.get("data")?.get(key_of(reference))?.as_str()?;
    String::from_utf8(STANDARD.decode(encoded).ok()?).ok()
}

/// Allowed addresses of physical clusters, by the workspace of their registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClusterAddresses {
    /// For registrations in root, made by the administrator.
    pub root: Addresses,
    /// For registrations in all other workspaces, whose users choose the addresses.
    pub tenants: Addresses,
}

impl Default for ClusterAddresses {
    fn default() -> Self {
        Self { root: Addresses { allow_private: true, allow_loopback: false }, tenants: Addresses::default() }
    }
}

impl ClusterAddresses {
    fn of(self, home: LogicalClusterId) -> Addresses {
        if home == LogicalClusterId::ROOT { self.root } else { self.tenants }
    }
}

/// Rules for simulated physical clusters.
#[derive(Clone, Default)]
pub(crate) struct SimulationRules {
    /// True if workspaces other than root may register simulated clusters.
    pub(crate) for_tenants: bool,
    /// Server whose scheduler bounds the processor time of tenants' clusters. Without it, as in tests, their time is
    /// unbounded.
    pub(crate) api: Option<Arc<ApiServer>>,
}

impl SimulationRules {
    /// Checks that a physical cluster registered in `home` may be simulated.
    fn check(&self, home: LogicalClusterId) -> Result<(), String> {
        if self.for_tenants || home == LogicalClusterId::ROOT {
            return Ok(());
        }
        Err("simulated physical clusters need the administrator's permission outside the workspace root: start the server with \
             --allow-simulated-tenant-clusters, or register the physical cluster in root"
            .into())
    }
}

/// Factory of connectors, which also runs the simulated clusters of this process.
pub(crate) struct ConnectorFactory {
    addresses: ClusterAddresses,
    /// Simulated clusters, by the uid of their `PhysicalCluster`.
    simulated: Mutex<HashMap<Uid, Arc<SimulatedCluster>>>,
    simulation: SimulationRules,
    /// Gateway to agents; none in tests without a server.
    tunnels: Option<Arc<TunnelGateway>>,
    seams: Seams,
    shutdown: CancellationToken,
}

impl ConnectorFactory {
    pub(crate) fn new(addresses: ClusterAddresses, seams: Seams, shutdown: CancellationToken) -> Self {
        let (simulated, simulation) = (Mutex::default(), SimulationRules::default());
        Self { addresses, simulated, simulation, tunnels: None, seams, shutdown }
    }

    /// Sets the rules for simulated clusters.
    #[must_use]
    pub(crate) fn simulating(self, simulation: SimulationRules) -> Self {
        Self { simulation, ..self }
    }

    /// Sets the gateway to agents.
    #[must_use]
    pub(crate) fn tunnelling(self, tunnels: Arc<TunnelGateway>) -> Self {
        Self { tunnels: Some(tunnels), ..self }
    }

    /// Ends the sessions of agents at the address `key`, unless the uid is `stays`.
    pub(super) fn revoke_agents(&self, key: &ObjectKey, stays: Option<&Uid>) {
        if let Some(tunnels) = &self.tunnels {
            tunnels.revoke_others(key.cluster, &key.name, stays);
        }
    }

    /// Returns the version of the agent of a physical cluster, if it has a session with this server.
    pub(super) fn agent_version(&self, uid: &Uid, key: &ObjectKey) -> Option<String> {
        let agent = AgentId { workspace: key.cluster, name: key.name.clone(), uid: uid.clone() };
        match self.tunnels.as_ref()?.state(&agent) {
            AgentState::Connected { version, .. } => Some(version),
            AgentState::Disconnected(_) | AgentState::Unknown => None,
        }
    }

    /// Returns the connector of a physical cluster; the error is a sentence for its `Ready` condition.
    pub(super) async fn connector(
        &self,
        uid: &Uid,
        key: &ObjectKey,
        connection: &Connection,
        kubeconfig: Option<&str>,
    ) -> Result<Arc<dyn Connector>, String> {
        match (connection, kubeconfig) {
            (Connection { direct: Some(_), .. }, Some(text)) => {
                match DirectConnector::from_kubeconfig(text, self.addresses.of(key.cluster)) {
                    Ok(direct) => Ok(Arc::new(direct)),
                    Err(ConnectError::Refused(why) | ConnectError::Failed(why)) => Err(why),
                }
            }
            (Connection { simulated: Some(simulated), .. }, _) => {
                let nodes = if simulated.nodes == 0 { DEFAULT_NODES } else { simulated.nodes };
                if nodes > MAX_NODES {
                    return Err(format!("a simulated cluster has at most {MAX_NODES} nodes"));
                }
                self.simulation.check(key.cluster)?;
                // The tenant pays for the work, in a flow of its own beside those of its users.
                let user = format!("simulated physical cluster {uid}");
                let share = self.simulation.api.as_ref().map(|api| api.fair_share(key.cluster, &user));
                let config = SimulationConfig { nodes, share, ..SimulationConfig::named(&key.name) };
                Ok(Arc::new(InProcessConnector(self.start(uid, config).await?)))
            }
            (Connection { tunnel: Some(_), .. }, _) => {
                let tunnels = self.tunnels.clone().ok_or("this server takes no connections of agents")?;
                let agent = AgentId { workspace: key.cluster, name: key.name.clone(), uid: uid.clone() };
                Ok(Arc::new(TunnelledConnector::new(tunnels, agent)))
            }
            _ => Err("the connection names neither a kubeconfig, nor an agent, nor a simulated cluster".into()),
        }
    }

    /// Returns the wrapper of a worker's tasks. They are polled in the share of the tenant that registered the physical
    /// cluster; for registrations in root they are not limited.
    pub(super) fn tasks_of(&self, uid: &Uid, home: LogicalClusterId) -> TaskWrapper {
        match &self.simulation.api {
            Some(api) if home != LogicalClusterId::ROOT => {
                let share = api.fair_share(home, &format!("syncer of physical cluster {uid}"));
                TaskWrapper::new(move |task| Box::pin(share.run(task)))
            }
            _ => TaskWrapper::default(),
        }
    }

    /// Returns the workspace directly below root that `home` is, or is under; root for root itself.
    pub(super) fn tenant_of(&self, home: LogicalClusterId) -> LogicalClusterId {
        let ancestors = self.simulation.api.as_ref().map(|api| api.accounts(home)).unwrap_or_default();
        let topmost =
            ancestors.iter().map(|account| account.cluster).rfind(|cluster| *cluster != LogicalClusterId::ROOT);
        topmost.unwrap_or(home)
    }

    /// Returns true if the physical cluster is simulated in this process.
    pub(super) async fn simulates(&self, uid: &Uid) -> bool {
        self.simulated.lock().await.contains_key(uid)
    }

    /// Stops the simulated cluster of a deleted `PhysicalCluster`.
    pub(super) async fn forget(&self, uid: &Uid) {
        self.simulated.lock().await.remove(uid);
    }

    async fn start(&self, uid: &Uid, config: SimulationConfig) -> Result<Arc<SimulatedCluster>, String> {
        let mut running = self.simulated.lock().await;
        if let Some(cluster) = running.get(uid) {
            return Ok(cluster.clone());
        }
        let started = SimulatedCluster::start(config, self.seams.clone(), &self.shutdown).await;
        let cluster = Arc::new(started.map_err(|error| error.to_string())?);
        running.insert(uid.clone(), cluster.clone());
        Ok(cluster)
    }
}

/// Returns a connector that always fails with `reason`.
pub(super) fn unusable(reason: String) -> Arc<dyn Connector> {
    Arc::new(UnusableConnector(reason))
}

struct UnusableConnector(String);

impl Connector for UnusableConnector {
    fn connect(&self) -> BoxFuture<'_, Result<kube::Client, ConnectError>> {
        Box::pin(async move { Err(ConnectError::Refused(self.0.clone())) })
    }
}

/// Connector of an API server in this process, without a socket.
struct InProcessConnector(Arc<SimulatedCluster>);

impl Connector for InProcessConnector {
    fn connect(&self) -> BoxFuture<'_, Result<kube::Client, ConnectError>> {
        let user = User {
            name: "portolan-syncer".into(),
            groups: vec![portolan_strategy::rbac::MASTERS.into()],
            ..User::default()
        };
        let service = self.0.service_as(user);
        Box::pin(async move { Ok(kube::Client::new(service, "default")) })
    }

    /// The simulated cluster has no accounts; its administrator may impersonate.
    fn connect_for_users(&self) -> BoxFuture<'_, Result<kube::Client, ConnectError>> {
        self.connect()
    }
}
