//! Clients of physical clusters for pod streams. They are separate from the workers' clients, because any server may be
//! asked for a stream.

use std::{
    collections::{HashMap, hash_map},
    sync::Arc,
};

use parking_lot::Mutex;
use portolan_controllers::{Plane, PlaneError};
use portolan_syncer::Connector;
use portolan_types::{
    GroupResource, LogicalClusterId, ObjectKey, ObjectName, Uid, object,
    placement::{Connection, GROUP, NamespaceMapping, PhysicalClusterSpec},
};
use serde::Deserialize as _;
use tokio_util::sync::CancellationToken;

use super::connectors::{self, ConnectorFactory};

/// Account that a client acts as on its physical cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ClientAccount {
    /// The syncer's own.
    Syncer,
    /// The one for users' requests, which may impersonate mapped users.
    Users,
    /// None: requests have the own token of a user.
    Nobody,
}

impl ClientAccount {
    const ALL: [Self; 3] = [Self::Syncer, Self::Users, Self::Nobody];
}

/// Client of one physical cluster.
#[derive(Clone)]
pub(crate) struct ClusterClient {
    pub(crate) client: kube::Client,
    pub(crate) namespace_mapping: NamespaceMapping,
    /// Cancelled when the physical cluster is deregistered, and when the server stops.
    pub(crate) end: CancellationToken,
}

/// Reason that a physical cluster has no client.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ClusterClientError {
    /// The physical cluster is not registered, or no longer.
    #[error("it is not registered")]
    Unknown,
    /// Its connection cannot be used. The text is for administrators only.
    #[error("{0}")]
    Unusable(String),
    #[error(transparent)]
    Failed(#[from] PlaneError),
}

/// Cache of clients, one per physical cluster and account. A client is made on first use and cached while its
/// kubeconfig stays the same.
pub(crate) struct ClusterClients {
    plane: Arc<Plane>,
    connections: Arc<ConnectorFactory>,
    cached: Mutex<HashMap<(ObjectKey, ClientAccount), CachedClient>>,
    shutdown: CancellationToken,
}

struct CachedClient {
    uid: Uid,
    connection: Connection,
    kubeconfig: Option<String>,
    client: kube::Client,
    end: CancellationToken,
}

impl ClusterClients {
    pub(crate) fn new(plane: Arc<Plane>, connections: Arc<ConnectorFactory>, shutdown: CancellationToken) -> Self {
        Self { plane, connections, cached: Mutex::default(), shutdown }
    }

    /// Returns the objects that physical clusters are looked up in.
    pub(crate) fn plane(&self) -> &Plane {
        &self.plane
    }

    /// Returns a client of the physical cluster `uid`, which is registered under `name` in one of `homes`.
    pub(crate) async fn client_of(
        &self,
        uid: &Uid,
        name: &ObjectName,
        homes: impl IntoIterator<Item = LogicalClusterId>,
    ) -> Result<ClusterClient, ClusterClientError> {
        for home in homes {
            let resource = GroupResource::new(GROUP, "physicalclusters");
            let key = ObjectKey::cluster_scoped(home, resource, name.clone());
            let Some(found) = self.plane.get(&key).await? else { continue };
            if object::uid(&found.object).as_ref() != Some(uid) {
                continue;
            }
            let spec = PhysicalClusterSpec::deserialize(&found.object["spec"]);
            let spec = spec.map_err(|error| ClusterClientError::Unusable(error.to_string()))?;
            return self.client((&key, ClientAccount::Syncer), uid, spec).await;
        }
        Err(ClusterClientError::Unknown)
    }

    /// Returns a client of the account for users on the physical cluster at `key`.
    pub(crate) async fn users_client(
        &self,
        key: &ObjectKey,
        uid: &Uid,
        spec: PhysicalClusterSpec,
    ) -> Result<ClusterClient, ClusterClientError> {
        self.client((key, ClientAccount::Users), uid, spec).await
    }

    /// Returns a client without an account on the physical cluster at `key`.
    pub(crate) async fn bare_client(
        &self,
        key: &ObjectKey,
        uid: &Uid,
        spec: PhysicalClusterSpec,
    ) -> Result<ClusterClient, ClusterClientError> {
        self.client((key, ClientAccount::Nobody), uid, spec).await
    }

    /// Returns the cached client, or connects. Reads the kubeconfig each time, so that a revoked one is no longer used.
    async fn client(
        &self,
        (key, account): (&ObjectKey, ClientAccount),
        uid: &Uid,
        spec: PhysicalClusterSpec,
    ) -> Result<ClusterClient, ClusterClientError> {
        let kubeconfig = connectors::kubeconfig(&self.plane, key.cluster, &spec.connection).await?;
        let kubeconfig = kubeconfig.map_err(ClusterClientError::Unusable)?;
        let of = |cached: &CachedClient| ClusterClient {
            client: cached.client.clone(),
            namespace_mapping: spec.namespace_mapping,
            end: cached.end.clone(),
        };
        let is_same = |cached: &&CachedClient| {
            cached.uid == *uid && cached.connection == spec.connection && cached.kubeconfig == kubeconfig
        };
        let place = (key.clone(), account);
        if let Some(client) = self.cached.lock().get(&place).filter(is_same).map(of) {
            return Ok(client);
        }
        let connector = self.connector(uid, key, &spec.connection, kubeconfig.as_deref()).await?;
        let connected = match account {
            ClientAccount::Syncer => connector.connect().await,
            ClientAccount::Users => connector.connect_for_users().await,
            ClientAccount::Nobody => connector.connect_without_account().await,
        };
        let client = connected.map_err(|error| ClusterClientError::Unusable(error.to_string()))?;
        let client = {
            let mut cached = self.cached.lock();
            // Streams over an earlier client of the same physical cluster end together with this one.
            let end = cached.get(&place).filter(|cached| cached.uid == *uid).map(|cached| cached.end.clone());
            let end = end.unwrap_or_else(|| self.shutdown.child_token());
            let new = CachedClient { uid: uid.clone(), connection: spec.connection.clone(), kubeconfig, client, end };
            let client = of(&new);
            cached.insert(place, new);
            client
        };
        // The physical cluster may have been deleted before its client was cached, when there was nothing to
        // disconnect.
        let stays = self.plane.get(key).await?.and_then(|found| object::uid(&found.object));
        self.disconnect(key, stays.as_ref());
        Ok(client)
    }

    async fn connector(
        &self,
        uid: &Uid,
        key: &ObjectKey,
        connection: &Connection,
        kubeconfig: Option<&str>,
    ) -> Result<Arc<dyn Connector>, ClusterClientError> {
        if connection.simulated.is_some() && !self.connections.simulates(uid).await {
            return Err(ClusterClientError::Unusable("it is simulated in another server".into()));
        }
        let connector = self.connections.connector(uid, key, connection, kubeconfig).await;
        connector.map_err(ClusterClientError::Unusable)
    }

    /// Ends all streams to the physical cluster at `key`, unless its uid is `stays`.
    pub(super) fn disconnect(&self, key: &ObjectKey, stays: Option<&Uid>) {
        let mut cached = self.cached.lock();
        for account in ClientAccount::ALL {
            if let hash_map::Entry::Occupied(entry) = cached.entry((key.clone(), account))
                && Some(&entry.get().uid) != stays
            {
                entry.remove().end.cancel();
            }
        }
    }
}
