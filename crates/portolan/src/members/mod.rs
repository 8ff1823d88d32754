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
use portolan_store::{Event, Expect, Transaction};
use portolan_syncer::{Connector, LeftBehindOrder, SyncLimits, Syncer, SyncerConfig, SyncerHandle};
use portolan_types::{
    BoxFuture, GroupResource, GroupVersionKind, ObjectKey, Record, Uid, annotations,
    note::Note,
    object,
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
            left_behind: 0,
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

    /// Notes that copies are written off by the removal of a physical cluster that has not been drained: its finalizer was taken off.
    async fn note_written_off(&self, key: &ObjectKey) -> Result<(), PlaneError> {
        let uid = self.running().get(key).map(|running| running.basis.uid.clone());
        let Some(uid) = uid else { return Ok(()) };
        let count = self.upstream.count_copies(&uid).await.map_err(portolan_types::Status::internal)?;
        if count == 0 {
            return Ok(());
        }
        tracing::warn!(cluster = %key.name, %uid, count, "a physical cluster was removed by force, copies on it are written off");
        let message = format!(
            "removed by force: the copies of objects there are written off ({count}), and go on until somebody ends them; once the \
             physical cluster is registered again, its condition LeftBehind tells of them"
        );
        let (component, reason) = ("portolan-syncer", "CopiesWrittenOff");
        let note = Note { component, name: "copies-written-off", is_warning: true, reason, message: &message };
        let physical = serde_json::json!({
            "apiVersion": self.kind.gvk.group_version().to_string(), "kind": &*self.kind.gvk.kind,
            "metadata": {"name": &*key.name, "uid": uid},
        });
        let Some((at, mut event)) = note.about(self.plane.seams(), key, &physical) else { return Ok(()) };
        // It outlives what it is about, but not its workspace.
        object::metadata_mut(&mut event).remove("ownerReferences");
        let Some(name) = at.namespace().and_then(|namespace| namespace.as_str().parse().ok()) else { return Ok(()) };
        let namespace = ObjectKey::cluster_scoped(key.cluster, GroupResource::new("", "namespaces"), name);
        let is_ending = |found: &Found| object::is_deleting(&found.object);
        if self.plane.get(&namespace).await?.is_none_or(|found| is_ending(&found)) {
            return Ok(());
        }
        let write = Transaction::one(at, Expect::Anything, Some(Record::of(&event)));
        self.plane.store().commit(write).await.map(drop).map_err(PlaneError::Store)
    }

    /// Hands on what the annotation orders about copies of registrations that are gone, once.
    async fn settle_left_behind(&self, found: &Found) -> Result<(), PlaneError> {
        let Some(asked) = object::annotation(&found.object, annotations::LEFT_BEHIND) else { return Ok(()) };
        let take_off = |object: &mut Value| {
            let is_same = object::annotation(object, annotations::LEFT_BEHIND) == Some(asked);
            object::set_annotation(object, annotations::LEFT_BEHIND, None);
            is_same
        };
        self.plane.force(&found.key, take_off).await?;
        let cluster = object::name(&found.object);
        match (LeftBehindOrder::parse(asked), self.running().get(&found.key)) {
            (Some(order), Some(running)) => {
                tracing::info!(cluster, asked, "what registrations that are gone have left is settled");
                running.handle.settle_left_behind(order);
            }
            (None, _) => {
                tracing::warn!(cluster, asked, "the annotation about what is left behind is neither adopt nor delete")
            }
            (Some(_), None) => tracing::warn!(cluster, asked, "what is left behind cannot be settled: no syncer runs"),
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
                self.note_written_off(key).await?;
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
            self.settle_left_behind(&found).await?;
            match self.is_connectable(key) {
                true => Ok(Outcome::CheckAgainIn(LOOK)),
                // Its Secret may come later.
                false => Ok(Outcome::CheckAgainIn(RECHECK)),
            }
        })
    }
}
