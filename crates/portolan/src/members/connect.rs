//! How physical clusters are reached. The one place that looks at which kind of connection it is.

use std::{collections::HashMap, sync::Arc};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use portolan_apiserver::{ApiServer, User};
use portolan_controllers::{Plane, PlaneError};
use portolan_simulator::{SimulatedCluster, SimulationConfig};
use portolan_syncer::{Addresses, ConnectError, Connector, DirectConnector, TaskWrapper};
use portolan_types::{
    BoxFuture, GroupResource, LogicalClusterId, ObjectKey, Seams, Uid,
    placement::{Connection, SecretKeyRef},
};
use serde_json::Value;
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;

/// The key of a Secret that is taken when none is named.
const DEFAULT_KEY: &str = "kubeconfig";
const DEFAULT_NODES: u32 = 2;
/// Each is an object in memory.
const MAX_NODES: u32 = 1_000;

/// The kubeconfig of a direct connection, `None` for the others; the inner error says what is wrong with the reference.
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

/// Addresses that physical clusters may have, by the workspace that they are registered in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ClusterAddresses {
    /// In root, by the administrator.
    pub(crate) root: Addresses,
    /// In all other workspaces, whose users name the addresses.
    pub(crate) tenants: Addresses,
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

/// Permission to simulate physical clusters, and the server whose processors the work of tenants' physical clusters is shared with.
#[derive(Clone, Default)]
pub(crate) struct Simulation {
    /// Also those that are registered in other workspaces than root.
    pub(crate) for_tenants: bool,
    /// Without it, simulated clusters take what they get, as in tests.
    pub(crate) api: Option<Arc<ApiServer>>,
}

impl Simulation {
    /// Checks whether a physical cluster that is registered in `home` may be simulated.
    fn check(&self, home: LogicalClusterId) -> Result<(), String> {
        if self.for_tenants || home == LogicalClusterId::ROOT {
            return Ok(());
        }
        Err("simulated physical clusters need the administrator's permission outside the workspace root: start the server with \
             --allow-simulated-tenant-clusters, or register the physical cluster in root"
            .into())
    }
}

/// How physical clusters are reached: by which addresses, and the simulated ones of this process.
pub(crate) struct Connections {
    addresses: ClusterAddresses,
    /// By the uid of their `PhysicalCluster`.
    simulated: Mutex<HashMap<Uid, Arc<SimulatedCluster>>>,
    simulation: Simulation,
    seams: Seams,
    shutdown: CancellationToken,
}

impl Connections {
    pub(crate) fn new(addresses: ClusterAddresses, seams: Seams, shutdown: CancellationToken) -> Self {
        Self { addresses, simulated: Mutex::default(), simulation: Simulation::default(), seams, shutdown }
    }

    /// Simulates physical clusters by these rules.
    #[must_use]
    pub(crate) fn simulating(self, simulation: Simulation) -> Self {
        Self { simulation, ..self }
    }

    /// The connector of a physical cluster; an error is a sentence for its `Ready` condition.
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
                // The work is the tenant's, in a line of its own beside those of the users.
                let user = format!("simulated physical cluster {uid}");
                let share = self.simulation.api.as_ref().map(|api| api.fair_share(key.cluster, &user));
                let config = SimulationConfig { nodes, share, ..SimulationConfig::named(&key.name) };
                Ok(Arc::new(InProcessConnector(self.start(uid, config).await?)))
            }
            (Connection { tunnel: Some(_), .. }, _) => Err("connection.tunnel is not served by this version: use \
                                                             connection.direct or connection.simulated"
                .into()),
            _ => Err("the connection names neither a kubeconfig nor a simulated cluster".into()),
        }
    }

    /// Returns the wrapper of a worker's tasks: they are polled in the name of the tenant that has registered the physical cluster. What is
    /// registered in root is for all, and worked on as it comes.
    pub(super) fn tasks_of(&self, uid: &Uid, home: LogicalClusterId) -> TaskWrapper {
        match &self.simulation.api {
            Some(api) if home != LogicalClusterId::ROOT => {
                let share = api.fair_share(home, &format!("syncer of physical cluster {uid}"));
                TaskWrapper::new(move |task| Box::pin(share.run(task)))
            }
            _ => TaskWrapper::default(),
        }
    }

    /// Whether the physical cluster is simulated in this process.
    pub(super) async fn simulates(&self, uid: &Uid) -> bool {
        self.simulated.lock().await.contains_key(uid)
    }

    /// Ends the simulated cluster of a `PhysicalCluster` that is gone.
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

/// A connector for as long as there is no usable connection, for this reason.
pub(super) fn unusable(reason: String) -> Arc<dyn Connector> {
    Arc::new(UnusableConnector(reason))
}

struct UnusableConnector(String);

impl Connector for UnusableConnector {
    fn connect(&self) -> BoxFuture<'_, Result<kube::Client, ConnectError>> {
        Box::pin(async move { Err(ConnectError::Refused(self.0.clone())) })
    }
}

/// Reaches an API server in this process, without a socket.
struct InProcessConnector(Arc<SimulatedCluster>);

impl Connector for InProcessConnector {
    fn connect(&self) -> BoxFuture<'_, Result<kube::Client, ConnectError>> {
        let user = User {
            name: "portolan-syncer".into(),
            groups: vec![portolan_machinery::rbac::MASTERS.into()],
            ..User::default()
        };
        let service = self.0.service_as(user);
        Box::pin(async move { Ok(kube::Client::new(service, "default")) })
    }
}
