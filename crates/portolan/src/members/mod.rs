//! One set of syncer workers per `PhysicalCluster`: started, restarted when its connection changes, stopped when it goes.
//!
//! It also runs while there is no usable connection, by a connector that always fails: then the physical cluster is out of
//! reach like any other, what waits for it is told so, and what ends becomes a debt.

mod connect;
mod lines;
#[cfg(test)]
mod manifest;
mod metrics;
#[cfg(test)]
mod names;
mod posts;
mod retired;
#[cfg(test)]
mod tests;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use portolan_controllers::{Controller, Outcome, Plane, PlaneError, plane::Found};
use portolan_machinery::kinds::Kind;
use portolan_store::Event;
use portolan_syncer::{Connector, SyncLimits, Syncer, SyncerConfig, SyncerHandle};
use portolan_types::{
    BoxFuture, GroupResource, GroupVersionKind, ObjectKey, Uid, annotations, object,
    placement::{Connection, NamespaceMapping, PhysicalClusterSpec, PhysicalClusterStatus},
    upstream::{ClusterReport, Upstream as _},
};
use serde::Deserialize as _;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

pub(crate) use connect::{ClusterAddresses, Connections, Simulation};
pub(crate) use lines::{Line, LineError, Lines};
pub(crate) use metrics::SyncerMetrics;
pub(crate) use posts::Posts;
pub(crate) use retired::Retired;

use crate::upstream::{DELETIONS_HELD, StoreUpstream};

/// How soon one without a usable connection is looked at again.
const RECHECK: Duration = Duration::from_secs(2);

/// How often workers that run are looked at: ones that failed are started again.
const LOOK: Duration = Duration::from_secs(30);

/// The loop over physical clusters.
pub(crate) struct Members {
    plane: Arc<Plane>,
    upstream: Arc<StoreUpstream>,
    connections: Arc<Connections>,
    lines: Arc<Lines>,
    posts: Posts,
    kind: &'static Kind,
    running: Arc<Mutex<HashMap<ObjectKey, Running>>>,
    limits: SyncLimits,
    shutdown: CancellationToken,
}

/// The workers of one physical cluster, and what they were started with.
struct Running {
    name: String,
    basis: Basis,
    handle: SyncerHandle,
}

/// What workers are made from: when it changes, new ones are started.
#[derive(PartialEq)]
struct Basis {
    uid: Uid,
    connection: Connection,
    namespace_mapping: NamespaceMapping,
    synced_resources: Vec<String>,
    kubeconfig: Option<String>,
    /// Why there is no usable connection.
    problem: Option<String>,
}

/// The kind `PhysicalCluster`.
fn physical_clusters(plane: &Plane) -> &'static Kind {
    let gvk = GroupVersionKind::new(portolan_types::placement::GROUP, "v1alpha1", "PhysicalCluster");
    plane.table().kind(&gvk).expect("the table has Portolan's own kinds")
}

impl Members {
    pub(crate) fn new(
        plane: Arc<Plane>,
        upstream: Arc<StoreUpstream>,
        connections: Arc<Connections>,
        posts: Posts,
        shutdown: CancellationToken,
    ) -> Self {
        let kind = physical_clusters(&plane);
        let lines = Arc::new(Lines::new(plane.clone(), connections.clone(), shutdown.clone()));
        let limits = SyncLimits::default();
        Self { plane, upstream, connections, lines, posts, kind, running: Arc::default(), limits, shutdown }
    }

    /// With other limits of what is held in memory of one physical cluster.
    pub(crate) fn within(self, limits: SyncLimits) -> Self {
        Self { limits, ..self }
    }

    /// The lines to physical clusters besides those of the workers.
    pub(crate) fn lines(&self) -> Arc<Lines> {
        self.lines.clone()
    }

    /// What the workers do, as series of the metrics.
    pub(crate) fn metrics(&self) -> SyncerMetrics {
        SyncerMetrics::new(self.running.clone())
    }

    fn running(&self) -> MutexGuard<'_, HashMap<ObjectKey, Running>> {
        self.running.lock().expect("no code panics under this lock")
    }

    /// Stops the workers at `key`, unless they are for `stays`, of which new ones are to be started.
    async fn stop(&self, key: &ObjectKey, stays: Option<&Uid>) {
        let running = self.running().remove(key);
        let Some(running) = running else { return };
        running.handle.stop().await;
        let uid = &running.basis.uid;
        if stays != Some(uid) {
            self.connections.forget(uid).await;
            self.upstream.unregister(uid);
            self.posts.leave(uid);
        }
    }

    async fn ensure_running(&self, found: &Found, uid: Uid, spec: PhysicalClusterSpec) -> Result<(), PlaneError> {
        let name = object::name(&found.object);
        let (kubeconfig, connector) = self.connector(found, &uid, &spec.connection).await?;
        let basis = Basis {
            uid: uid.clone(),
            connection: spec.connection.clone(),
            namespace_mapping: spec.namespace_mapping,
            synced_resources: spec.synced_resources.clone(),
            kubeconfig,
            problem: connector.as_ref().err().cloned(),
        };
        let is_same = |running: &Running| running.basis == basis && !running.handle.has_failed();
        if self.running().get(&found.key).is_some_and(is_same) {
            return Ok(());
        }
        self.stop(&found.key, Some(&uid)).await;
        let Some(end) = self.posts.term(&uid, &self.shutdown) else { return Ok(()) };
        self.upstream.register(uid.clone(), found.key.clone());
        let mut config = SyncerConfig::new(name, uid.clone(), spec, self.upstream.next_syncer(&uid).await?);
        config.deletions_held = are_deletions_held(&found.object);
        config.limits = self.limits;
        config.tasks = self.connections.tasks_of(&uid, found.key.cluster);
        let upstream: Arc<dyn portolan_types::upstream::Upstream> = self.upstream.clone();
        let connector = connector.unwrap_or_else(connect::unusable);
        let handle = Syncer::spawn(config, upstream, connector, self.plane.seams().clone(), &end);
        self.running().insert(found.key.clone(), Running { name: name.to_owned(), basis, handle });
        Ok(())
    }

    /// The kubeconfig, where there is one, and the connector or why there is none.
    async fn connector(
        &self,
        found: &Found,
        uid: &Uid,
        connection: &Connection,
    ) -> Result<(Option<String>, Result<Arc<dyn Connector>, String>), PlaneError> {
        Ok(match connect::kubeconfig(&self.plane, found.key.cluster, connection).await? {
            Ok(text) => {
                let connector = self.connections.connector(uid, &found.key, connection, text.as_deref()).await;
                (text, connector)
            }
            Err(reason) => (None, Err(reason)),
        })
    }

    async fn report_invalid(&self, uid: &Uid, message: String) -> Result<(), PlaneError> {
        let ready = Err(("InvalidConnection".to_owned(), message));
        let report = ClusterReport {
            ready,
            version: None,
            capacity: None,
            allocatable: None,
            deletions_held: 0,
            forged: 0,
            namespace_conflicts: Vec::new(),
        };
        let reported = self.upstream.report_cluster(uid, report).await;
        reported.map_err(|error| portolan_types::Status::internal(error).into())
    }

    /// Does what the annotation asks for, once: it is taken off first, so that it cannot let go what comes later.
    async fn release_deletions(&self, found: &Found) -> Result<(), PlaneError> {
        let Some(asked) = object::annotation(&found.object, annotations::RELEASE_DELETIONS) else { return Ok(()) };
        let take_off = |object: &mut Value| {
            let is_same = object::annotation(object, annotations::RELEASE_DELETIONS) == Some(asked);
            object::set_annotation(object, annotations::RELEASE_DELETIONS, None);
            is_same
        };
        self.plane.force(&found.key, take_off).await?;
        let cluster = object::name(&found.object);
        match asked.trim().parse::<usize>() {
            Ok(count) if count > 0 => {
                tracing::info!(cluster, count, "deletions that were held back are let go");
                if let Some(running) = self.running().get(&found.key) {
                    running.handle.release_deletions(count);
                }
            }
            _ => tracing::warn!(cluster, asked, "the annotation that lets deletions go is no number of them"),
        }
        Ok(())
    }

    /// The physical clusters whose kubeconfig is in this Secret.
    fn users_of(&self, secret: &ObjectKey) -> Vec<ObjectKey> {
        let uses = |key: &ObjectKey, running: &Running| {
            let Some(direct) = &running.basis.connection.direct else { return false };
            let reference = &direct.kubeconfig_secret_ref;
            key.cluster == secret.cluster
                && reference.name == *secret.name
                && Some(reference.namespace.as_str()) == secret.namespace().map(|n| n.as_str())
        };
        self.running().iter().filter(|(key, running)| uses(key, running)).map(|(key, _)| key.clone()).collect()
    }

    fn is_connectable(&self, key: &ObjectKey) -> bool {
        self.running().get(key).is_some_and(|running| running.basis.problem.is_none())
    }
}

/// Whether the last workers were holding deletions back.
fn are_deletions_held(physical: &Value) -> bool {
    let status = physical.get("status").and_then(|status| PhysicalClusterStatus::deserialize(status).ok());
    let conditions = status.unwrap_or_default().conditions;
    conditions.iter().any(|condition| condition.kind == DELETIONS_HELD && condition.status == "True")
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
            "secrets" => self.users_of(&event.key),
            _ => vec![event.key.clone()],
        }
    }

    fn reconcile<'a>(&'a self, key: &'a ObjectKey) -> BoxFuture<'a, Result<Outcome, PlaneError>> {
        Box::pin(async move {
            let Some(found) = self.plane.get(key).await? else {
                self.lines.hang_up(key, None);
                self.stop(key, None).await;
                return Ok(Outcome::Done);
            };
            let Some(uid) = object::uid(&found.object) else { return Ok(Outcome::Done) };
            self.lines.hang_up(key, Some(&uid));
            let spec: PhysicalClusterSpec = match serde_json::from_value(found.object["spec"].clone()) {
                Ok(spec) => spec,
                Err(error) => {
                    self.report_invalid(&uid, error.to_string()).await?;
                    return Ok(Outcome::Done);
                }
            };
            if !self.posts.has(&uid) {
                // Another server's workers are there for it.
                self.stop(key, Some(&uid)).await;
                return Ok(Outcome::CheckAgainIn(RECHECK));
            }
            self.ensure_running(&found, uid, spec).await?;
            self.release_deletions(&found).await?;
            match self.is_connectable(key) {
                true => Ok(Outcome::CheckAgainIn(LOOK)),
                // Its Secret may come later.
                false => Ok(Outcome::CheckAgainIn(RECHECK)),
            }
        })
    }
}
