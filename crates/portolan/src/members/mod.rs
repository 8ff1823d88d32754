//! One set of syncer workers per `PhysicalCluster`: started, restarted when its connection changes, stopped when it goes.

mod connect;
mod epoch;
#[cfg(test)]
mod tests;

use std::{collections::HashMap, sync::Arc, sync::Mutex, time::Duration};

use portolan_controllers::{Controller, Outcome, Plane, PlaneError, plane::Found};
use portolan_machinery::kinds::Kind;
use portolan_store::{Change, Event};
use portolan_syncer::{Syncer, SyncerConfig, SyncerHandle};
use portolan_types::{
    BoxFuture, GroupResource, GroupVersionKind, ObjectKey, Uid, object,
    placement::PhysicalClusterSpec,
    upstream::{ClusterReport, Upstream as _},
};
use tokio_util::sync::CancellationToken;

pub(crate) use connect::Simulations;

use crate::upstream::StoreUpstream;

/// How soon one without a usable connection is looked at again.
const RECHECK: Duration = Duration::from_secs(2);

/// How often workers that run are looked at: ones that failed are started again.
const LOOK: Duration = Duration::from_secs(30);

/// The loop over physical clusters.
pub(crate) struct Members {
    plane: Arc<Plane>,
    upstream: Arc<StoreUpstream>,
    simulations: Arc<Simulations>,
    kind: &'static Kind,
    running: Mutex<HashMap<ObjectKey, Running>>,
    shutdown: CancellationToken,
}

/// The workers of one physical cluster, and what they were started with.
struct Running {
    uid: Uid,
    spec: PhysicalClusterSpec,
    kubeconfig: Option<String>,
    handle: SyncerHandle,
}

impl Members {
    pub(crate) fn new(
        plane: Arc<Plane>,
        upstream: Arc<StoreUpstream>,
        simulations: Arc<Simulations>,
        shutdown: CancellationToken,
    ) -> Self {
        let gvk = GroupVersionKind::new(portolan_types::placement::GROUP, "v1alpha1", "PhysicalCluster");
        let kind = plane.table().kind(&gvk).expect("the table has Portolan's own kinds");
        Self { plane, upstream, simulations, kind, running: Mutex::default(), shutdown }
    }

    fn take(&self, key: &ObjectKey) -> Option<Running> {
        self.running.lock().expect("no code panics under this lock").remove(key)
    }

    /// Stops the workers; the uid of the `PhysicalCluster` that they were for.
    async fn stop(&self, key: &ObjectKey) -> Option<Uid> {
        let running = self.take(key)?;
        running.handle.stop().await;
        Some(running.uid)
    }

    async fn ensure_running(&self, found: &Found, uid: Uid, spec: PhysicalClusterSpec) -> Result<(), PlaneError> {
        let kubeconfig = connect::kubeconfig(&self.plane, found.key.cluster, &spec.connection).await?;
        {
            let running = self.running.lock().expect("no code panics under this lock");
            let same = |r: &Running| {
                r.uid == uid && r.spec == spec && Ok(r.kubeconfig.clone()) == kubeconfig && !r.handle.has_failed()
            };
            if running.get(&found.key).is_some_and(same) {
                return Ok(());
            }
        }
        self.stop(&found.key).await;
        self.upstream.register(uid.clone(), found.key.clone());
        let name = object::name(&found.object);
        let connector = match &kubeconfig {
            Ok(text) => self.simulations.connector(&uid, name, &spec.connection, text.as_deref()).await,
            Err(reason) => Err(reason.clone()),
        };
        let connector = match connector {
            Ok(connector) => connector,
            Err(message) => return self.report_invalid(&uid, message).await,
        };
        let syncer_epoch = epoch::next(&self.plane, &uid).await?;
        let config = SyncerConfig::new(name, uid.clone(), spec.clone(), syncer_epoch);
        let upstream: Arc<dyn portolan_types::upstream::Upstream> = self.upstream.clone();
        let seams = self.plane.seams().clone();
        let handle = Syncer::spawn(config, upstream, connector, seams, &self.shutdown);
        let kubeconfig = kubeconfig.unwrap_or_default();
        let running = Running { uid, spec, kubeconfig, handle };
        self.running.lock().expect("no code panics under this lock").insert(found.key.clone(), running);
        Ok(())
    }

    async fn report_invalid(&self, uid: &Uid, message: String) -> Result<(), PlaneError> {
        let ready = Err(("InvalidConnection".to_owned(), message));
        let report = ClusterReport { ready, version: None, capacity: None, allocatable: None };
        let reported = self.upstream.report_cluster(uid, report).await;
        reported.map_err(|error| portolan_types::Status::internal(error).into())
    }

    /// The physical clusters whose kubeconfig is in this Secret.
    fn users_of(&self, secret: &ObjectKey) -> Vec<ObjectKey> {
        let running = self.running.lock().expect("no code panics under this lock");
        let uses = |key: &ObjectKey, running: &Running| {
            let Some(direct) = &running.spec.connection.direct else { return false };
            let reference = &direct.kubeconfig_secret_ref;
            key.cluster == secret.cluster
                && reference.name == *secret.name
                && Some(reference.namespace.as_str()) == secret.namespace().map(|n| n.as_str())
        };
        running.iter().filter(|(key, running)| uses(key, running)).map(|(key, _)| key.clone()).collect()
    }
}

impl Controller for Members {
    type Key = ObjectKey;

    fn name(&self) -> &'static str {
        "physical-clusters"
    }

    fn resources(&self) -> Vec<GroupResource> {
        vec![self.kind.group_resource(), GroupResource::new("", "secrets")]
    }

    fn keys(&self, event: &Event) -> Vec<ObjectKey> {
        match &*event.key.resource.resource {
            "secrets" if event.change == Change::Deleted => Vec::new(),
            "secrets" => self.users_of(&event.key),
            _ => vec![event.key.clone()],
        }
    }

    fn reconcile<'a>(&'a self, key: &'a ObjectKey) -> BoxFuture<'a, Result<Outcome, PlaneError>> {
        Box::pin(async move {
            let Some(found) = self.plane.get(key).await? else {
                if let Some(gone) = self.stop(key).await {
                    self.simulations.forget(&gone).await;
                }
                return Ok(Outcome::Done);
            };
            let Some(uid) = object::uid(&found.object) else { return Ok(Outcome::Done) };
            let spec: PhysicalClusterSpec = match serde_json::from_value(found.object["spec"].clone()) {
                Ok(spec) => spec,
                Err(error) => {
                    self.report_invalid(&uid, error.to_string()).await?;
                    return Ok(Outcome::Done);
                }
            };
            self.ensure_running(&found, uid, spec).await?;
            match self.is_running(key) {
                true => Ok(Outcome::CheckAgainIn(LOOK)),
                // Its Secret may come later.
                false => Ok(Outcome::CheckAgainIn(RECHECK)),
            }
        })
    }
}

impl Members {
    fn is_running(&self, key: &ObjectKey) -> bool {
        self.running.lock().expect("no code panics under this lock").contains_key(key)
    }
}
