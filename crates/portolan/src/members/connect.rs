//! How physical clusters are reached. The one place that looks at which kind of connection it is.

use std::{collections::HashMap, sync::Arc};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use portolan_apiserver::{ApiServer, User};
use portolan_controllers::{Plane, PlaneError};
use portolan_simulator::{SimulatedCluster, SimulationConfig};
use portolan_syncer::{Addresses, ConnectError, Connector, DirectConnector};
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

/// How physical clusters are reached: by which addresses, and the simulated ones of this process.
pub(crate) struct Connections {
    addresses: Addresses,
    /// By the uid of their `PhysicalCluster`.
    simulated: Mutex<HashMap<Uid, Arc<SimulatedCluster>>>,
    seams: Seams,
    shutdown: CancellationToken,
}

impl Connections {
    pub(crate) fn new(addresses: Addresses, seams: Seams, shutdown: CancellationToken) -> Self {
        Self { addresses, simulated: Mutex::default(), seams, shutdown }
    }

    /// The connector of a physical cluster; an error is a sentence for its `Ready` condition.
    pub(super) async fn connector(
        &self,
        uid: &Uid,
        name: &str,
        connection: &Connection,
        kubeconfig: Option<&str>,
    ) -> Result<Arc<dyn Connector>, String> {
        match (connection, kubeconfig) {
            (Connection { direct: Some(_), .. }, Some(text)) => {
                match DirectConnector::from_kubeconfig(text, self.addresses) {
                    Ok(direct) => Ok(Arc::new(direct)),
                    Err(ConnectError::Refused(why) | ConnectError::Failed(why)) => Err(why),
                }
            }
            (Connection { simulated: Some(simulated), .. }, _) => {
                let nodes = if simulated.nodes == 0 { DEFAULT_NODES } else { simulated.nodes };
                if nodes > MAX_NODES {
                    return Err(format!("a simulated cluster has at most {MAX_NODES} nodes"));
                }
                let config = SimulationConfig { nodes, ..SimulationConfig::named(name) };
                Ok(Arc::new(InProcessConnector(self.start(uid, config).await?.api().clone())))
            }
            (Connection { tunnel: Some(_), .. }, _) => Err("connection.tunnel is not served by this version: use \
                                                             connection.direct or connection.simulated"
                .into()),
            _ => Err("the connection names neither a kubeconfig nor a simulated cluster".into()),
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
struct InProcessConnector(Arc<ApiServer>);

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
