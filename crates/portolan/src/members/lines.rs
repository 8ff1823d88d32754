//! Lines to physical clusters besides those of their workers: whichever server is asked for a stream of a pod opens its own.

use std::{
    collections::{HashMap, hash_map},
    sync::Arc,
};

use parking_lot::Mutex;
use portolan_controllers::{Plane, PlaneError};
use portolan_types::{
    GroupResource, LogicalClusterId, ObjectKey, ObjectName, Uid, object,
    placement::{Connection, GROUP, NamespaceMapping, PhysicalClusterSpec},
};
use serde::Deserialize as _;
use tokio_util::sync::CancellationToken;

use super::connect::{self, Connections};

/// A way to a physical cluster.
#[derive(Clone)]
pub(crate) struct Line {
    pub(crate) client: kube::Client,
    pub(crate) namespace_mapping: NamespaceMapping,
    /// Cancelled when the physical cluster is none of ours any more, and when the server stops.
    pub(crate) end: CancellationToken,
}

/// Why there is none.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LineError {
    /// It is not registered, or no more.
    #[error("it is not registered")]
    Unknown,
    /// Its connection cannot be used; why is for those who run it.
    #[error("{0}")]
    Unusable(String),
    #[error(transparent)]
    Failed(#[from] PlaneError),
}

/// All lines: one to a physical cluster, made when it is first asked for and kept while its kubeconfig stays.
pub(crate) struct Lines {
    plane: Arc<Plane>,
    connections: Arc<Connections>,
    kept: Mutex<HashMap<ObjectKey, Kept>>,
    shutdown: CancellationToken,
}

struct Kept {
    uid: Uid,
    kubeconfig: Option<String>,
    client: kube::Client,
    end: CancellationToken,
}

impl Lines {
    pub(crate) fn new(plane: Arc<Plane>, connections: Arc<Connections>, shutdown: CancellationToken) -> Self {
        Self { plane, connections, kept: Mutex::default(), shutdown }
    }

    /// A line to the physical cluster `uid`, which is registered under `name` in one of `homes`.
    pub(crate) async fn to(
        &self,
        uid: &Uid,
        name: &ObjectName,
        homes: impl IntoIterator<Item = LogicalClusterId>,
    ) -> Result<Line, LineError> {
        for home in homes {
            let resource = GroupResource::new(GROUP, "physicalclusters");
            let key = ObjectKey::cluster_scoped(home, resource, name.clone());
            let Some(found) = self.plane.get(&key).await? else { continue };
            if object::uid(&found.object).as_ref() != Some(uid) {
                continue;
            }
            let spec = PhysicalClusterSpec::deserialize(&found.object["spec"]);
            return self.line(&key, uid, spec.map_err(|error| LineError::Unusable(error.to_string()))?).await;
        }
        Err(LineError::Unknown)
    }

    /// The kubeconfig is read each time: one that has been taken away is used no more.
    async fn line(&self, key: &ObjectKey, uid: &Uid, spec: PhysicalClusterSpec) -> Result<Line, LineError> {
        let kubeconfig = connect::kubeconfig(&self.plane, key.cluster, &spec.connection).await?;
        let kubeconfig = kubeconfig.map_err(LineError::Unusable)?;
        let of = |kept: &Kept| Line {
            client: kept.client.clone(),
            namespace_mapping: spec.namespace_mapping,
            end: kept.end.clone(),
        };
        let is_same = |kept: &&Kept| kept.uid == *uid && kept.kubeconfig == kubeconfig;
        if let Some(line) = self.kept.lock().get(key).filter(is_same).map(of) {
            return Ok(line);
        }
        let client = self.connect(uid, key, &spec.connection, kubeconfig.as_deref()).await?;
        let line = {
            let mut kept = self.kept.lock();
            // What goes on over an earlier client of the same physical cluster ends with this one.
            let end = kept.get(key).filter(|kept| kept.uid == *uid).map(|kept| kept.end.clone());
            let end = end.unwrap_or_else(|| self.shutdown.child_token());
            let new = Kept { uid: uid.clone(), kubeconfig, client, end };
            let line = of(&new);
            kept.insert(key.clone(), new);
            line
        };
        // Nobody hangs up any more on one that went before its line was there.
        let stays = self.plane.get(key).await?.and_then(|found| object::uid(&found.object));
        self.hang_up(key, stays.as_ref());
        Ok(line)
    }

    async fn connect(
        &self,
        uid: &Uid,
        key: &ObjectKey,
        connection: &Connection,
        kubeconfig: Option<&str>,
    ) -> Result<kube::Client, LineError> {
        if connection.simulated.is_some() && !self.connections.simulates(uid).await {
            return Err(LineError::Unusable("it is simulated in another server".into()));
        }
        let connector = self.connections.connector(uid, key, connection, kubeconfig).await;
        let connector = connector.map_err(LineError::Unusable)?;
        connector.connect().await.map_err(|error| LineError::Unusable(error.to_string()))
    }

    /// Ends what goes on over the line to the physical cluster at `key`, unless it is `stays`.
    pub(super) fn hang_up(&self, key: &ObjectKey, stays: Option<&Uid>) {
        let mut kept = self.kept.lock();
        if let hash_map::Entry::Occupied(line) = kept.entry(key.clone())
            && Some(&line.get().uid) != stays
        {
            line.remove().end.cancel();
        }
    }
}
