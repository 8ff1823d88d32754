//! Controller of `PhysicalCluster` objects: starts a set of syncer workers for each, restarts them when the connection
//! changes, and stops them when the object is deleted.
//!
//! The workers also run without a usable connection, with a connector that always fails. The physical cluster then
//! counts as unreachable: waiting objects report it, and deletions become debts.

mod clients;
mod connection_facts;
mod connectors;
mod failover_metrics;
mod metrics;
mod retirement;
#[cfg(test)]
mod tests;
mod worker_leases;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use portolan_controllers::{Controller, Plane, PlaneError, WorkOutcome, plane::PlaneObject};
use portolan_kinds::{Kind, custom};
use portolan_store::{Event, Expect, Transaction};
use portolan_syncer::{Connector, LeftBehindOrder, SyncLimits, SyncMemoryBudget, Syncer, SyncerConfig, SyncerHandle};
use portolan_types::{
    BoxFuture, GroupResource, GroupVersionKind, LogicalClusterId, ObjectKey, Record, Uid, annotations,
    event_draft::EventDraft,
    object,
    placement::{Connection, NamespaceMapping, PhysicalClusterSpec, PhysicalClusterStatus, PodAccess},
    upstream::{ClusterReport, Upstream as _},
};
use serde::Deserialize as _;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use connection_facts::ConnectionFacts;

pub(crate) use clients::{ClusterClient, ClusterClientError, ClusterClients};
pub use connectors::ClusterAddresses;
pub(crate) use connectors::{ConnectorFactory, SimulationRules};
pub(crate) use failover_metrics::FailoverMetrics;
pub(crate) use metrics::SyncerMetrics;
pub(crate) use retirement::RetirementController;
pub(crate) use worker_leases::WorkerLeases;

use crate::upstream::{DELETIONS_HELD, StoreUpstream, observe};

/// Delay before the next look at a physical cluster without a usable connection, or with workers on another server.
const RECHECK: Duration = Duration::from_secs(2);

/// Interval of checks on running workers. Failed ones are started again.
const CHECK_INTERVAL: Duration = Duration::from_secs(30);

/// Controller of physical clusters.
pub(crate) struct PhysicalClusterController {
    plane: Arc<Plane>,
    upstream: Arc<StoreUpstream>,
    connections: Arc<ConnectorFactory>,
    clients: Arc<ClusterClients>,
    leases: WorkerLeases,
    kind: &'static Kind,
    running: Arc<Mutex<HashMap<ObjectKey, RunningSyncer>>>,
    limits: SyncLimits,
    memory: Arc<SyncMemoryBudget>,
    shutdown: CancellationToken,
}

/// Running workers of one physical cluster.
struct RunningSyncer {
    name: String,
    inputs: SyncerInputs,
    handle: SyncerHandle,
}

/// Inputs of a set of workers. A change restarts them.
#[derive(PartialEq)]
struct SyncerInputs {
    uid: Uid,
    connection: Connection,
    namespace_mapping: NamespaceMapping,
    synced_resources: Vec<String>,
    pod_access: Option<PodAccess>,
    kubeconfig: Option<String>,
    /// Reason that there is no usable connection.
    problem: Option<String>,
}

/// Returns the kind `PhysicalCluster`.
fn physical_cluster_kind(plane: &Plane) -> &'static Kind {
    let gvk = GroupVersionKind::new(portolan_types::placement::GROUP, "v1alpha1", "PhysicalCluster");
    plane.table().kind(&gvk).expect("the table has Portolan's own kinds")
}

impl PhysicalClusterController {
    pub(crate) fn new(
        plane: Arc<Plane>,
        upstream: Arc<StoreUpstream>,
        connections: Arc<ConnectorFactory>,
        leases: WorkerLeases,
        shutdown: CancellationToken,
    ) -> Self {
        let kind = physical_cluster_kind(&plane);
        let clients = Arc::new(ClusterClients::new(plane.clone(), connections.clone(), shutdown.clone()));
        let (limits, memory) = (SyncLimits::default(), Arc::default());
        Self { plane, upstream, connections, clients, leases, kind, running: Arc::default(), limits, memory, shutdown }
    }

    /// Bounds the memory for one physical cluster by `limits`, and for all of them by `memory`.
    pub(crate) fn within(self, limits: SyncLimits, memory: Arc<SyncMemoryBudget>) -> Self {
        Self { limits, memory, ..self }
    }

    /// Returns the cache of clients for pod streams.
    pub(crate) fn clients(&self) -> Arc<ClusterClients> {
        self.clients.clone()
    }

    /// Returns a collector of the workers' metrics.
    pub(crate) fn metrics(&self) -> SyncerMetrics {
        SyncerMetrics::new(self.running.clone())
    }

    fn running(&self) -> MutexGuard<'_, HashMap<ObjectKey, RunningSyncer>> {
        self.running.lock().expect("no code panics under this lock")
    }

    /// Stops the workers at `key`. Their state is kept if the uid is `stays`, for which new workers start.
    async fn stop(&self, key: &ObjectKey, stays: Option<&Uid>) {
        let running = self.running().remove(key);
        let Some(running) = running else { return };
        running.handle.stop().await;
        let uid = &running.inputs.uid;
        if stays != Some(uid) {
            self.connections.forget(uid).await;
            self.upstream.unregister(uid);
            self.leases.release(uid);
        }
    }

    async fn ensure_running(&self, found: &PlaneObject, uid: Uid, spec: PhysicalClusterSpec) -> Result<(), PlaneError> {
        let name = object::name(&found.object);
        let (kubeconfig, connector) = self.connector(found, &uid, &spec.connection).await?;
        self.note_connection(found, &uid, kubeconfig.as_deref()).await?;
        let inputs = SyncerInputs {
            uid: uid.clone(),
            connection: spec.connection.clone(),
            namespace_mapping: spec.namespace_mapping,
            synced_resources: spec.synced_resources.clone(),
            pod_access: spec.pod_access.clone(),
            kubeconfig,
            problem: connector.as_ref().err().cloned(),
        };
        let is_same = |running: &RunningSyncer| running.inputs == inputs && !running.handle.has_failed();
        let generation = found.object.pointer("/metadata/generation").and_then(Value::as_i64).unwrap_or_default();
        if self.running().get(&found.key).is_some_and(is_same) {
            self.upstream.observe_generation(&uid, generation);
            return self.observe_generation(found, generation).await;
        }
        self.stop(&found.key, Some(&uid)).await;
        let Some(end) = self.leases.end_of(&uid, &self.shutdown) else { return Ok(()) };
        self.upstream.register(uid.clone(), found.key.clone());
        self.upstream.observe_generation(&uid, generation);
        let mut config = SyncerConfig::new(name, uid.clone(), spec, self.upstream.next_syncer(&uid).await?);
        config.deletions_held = are_deletions_held(&found.object);
        config.limits = self.limits;
        config.memory = self.memory.clone();
        config.workspace = self.connections.tenant_of(found.key.cluster);
        config.tasks = self.connections.tasks_of(&uid, found.key.cluster);
        let upstream: Arc<dyn portolan_types::upstream::Upstream> = self.upstream.clone();
        let connector = connector.unwrap_or_else(connectors::unusable);
        let handle = Syncer::spawn(config, upstream, connector, self.plane.seams().clone(), &end);
        self.running().insert(found.key.clone(), RunningSyncer { name: name.to_owned(), inputs, handle });
        Ok(())
    }

    /// Records in annotations which agent is connected, and when the credentials end.
    async fn note_connection(
        &self,
        found: &PlaneObject,
        uid: &Uid,
        kubeconfig: Option<&str>,
    ) -> Result<(), PlaneError> {
        let now = self.plane.seams().clock.now();
        let facts = ConnectionFacts {
            agent_version: self.connections.agent_version(uid, &found.key),
            expiry: kubeconfig.and_then(|text| connection_facts::expiry(text, now)),
        };
        if facts.annotate(&mut found.object.clone()) {
            let annotate = |object: &mut Value| object::uid(object).as_ref() == Some(uid) && facts.annotate(object);
            self.plane.force(&found.key, annotate).await?;
        }
        Ok(())
    }

    /// Records in `Ready` that it is about the current generation: the change did not concern the connection.
    async fn observe_generation(&self, found: &PlaneObject, generation: i64) -> Result<(), PlaneError> {
        let observe = |object: &mut Value| {
            let status = object.get("status").and_then(|status| PhysicalClusterStatus::deserialize(status).ok());
            let Some(mut status) = status.filter(|_| object::generation(object) == generation) else { return false };
            let is_changed = observe(&mut status, generation);
            object["status"] = serde_json::to_value(status).unwrap_or_default();
            is_changed
        };
        let mut seen = found.object.clone();
        if observe(&mut seen) {
            self.plane.force(&found.key, observe).await?;
        }
        Ok(())
    }

    /// Returns the kubeconfig, if any, and the connector or the reason that there is none.
    async fn connector(
        &self,
        found: &PlaneObject,
        uid: &Uid,
        connection: &Connection,
    ) -> Result<(Option<String>, Result<Arc<dyn Connector>, String>), PlaneError> {
        Ok(match connectors::kubeconfig(&self.plane, found.key.cluster, connection).await? {
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
            custom_kinds: None,
            definition_conflicts: Vec::new(),
            pods: None,
        };
        let reported = self.upstream.report_cluster(uid, report).await;
        reported.map_err(|error| portolan_types::Status::internal(error).into())
    }

    /// Releases held deletions as the annotation requests. Removes the annotation first, so that it cannot release
    /// later ones.
    async fn release_deletions(&self, found: &PlaneObject) -> Result<(), PlaneError> {
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
                tracing::info!(cluster, count, "held deletions are released");
                if let Some(running) = self.running().get(&found.key) {
                    running.handle.release_deletions(count);
                }
            }
            _ => tracing::warn!(cluster, asked, "the annotation that releases deletions is not a positive number"),
        }
        Ok(())
    }

    /// Writes an Event when a physical cluster was removed without draining, by taking its finalizer off: its copies
    /// are written off.
    async fn note_written_off(&self, key: &ObjectKey) -> Result<(), PlaneError> {
        let uid = self.running().get(key).map(|running| running.inputs.uid.clone());
        let Some(uid) = uid else { return Ok(()) };
        let count = self.upstream.count_copies(&uid).await.map_err(portolan_types::Status::internal)?;
        if count == 0 {
            return Ok(());
        }
        tracing::warn!(cluster = %key.name, %uid, count, "a physical cluster was removed by force; its copies are written off");
        let message = format!(
            "removed by force: the copies of objects there are written off ({count}), and go on until somebody ends them; once the \
             physical cluster is registered again, its condition LeftBehind tells of them"
        );
        let (component, reason) = ("portolan-syncer", "CopiesWrittenOff");
        let note = EventDraft { component, name: "copies-written-off", is_warning: true, reason, message: &message };
        let physical = serde_json::json!({
            "apiVersion": self.kind.gvk.group_version().to_string(), "kind": &*self.kind.gvk.kind,
            "metadata": {"name": &*key.name, "uid": uid},
        });
        let Some((at, mut event)) = note.about(self.plane.seams(), key, &physical) else { return Ok(()) };
        // The Event outlives its subject, but not the workspace.
        object::metadata_mut(&mut event).remove("ownerReferences");
        let Some(name) = at.namespace().and_then(|namespace| namespace.as_str().parse().ok()) else { return Ok(()) };
        let namespace = ObjectKey::cluster_scoped(key.cluster, GroupResource::new("", "namespaces"), name);
        let is_ending = |found: &PlaneObject| object::is_deleting(&found.object);
        if self.plane.get(&namespace).await?.is_none_or(|found| is_ending(&found)) {
            return Ok(());
        }
        let write = Transaction::one(at, Expect::Anything, Some(Record::of(&event)));
        self.plane.store().commit(write).await.map(drop).map_err(PlaneError::Store)
    }

    /// Passes the annotation's order about copies of former registrations to the workers, once.
    async fn settle_left_behind(&self, found: &PlaneObject) -> Result<(), PlaneError> {
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
                tracing::info!(cluster, asked, "copies of former registrations are settled");
                running.handle.settle_left_behind(order);
            }
            (None, _) => {
                tracing::warn!(
                    cluster,
                    asked,
                    "the annotation about copies of former registrations is neither adopt nor delete"
                )
            }
            (Some(_), None) => {
                tracing::warn!(cluster, asked, "copies of former registrations cannot be settled: no syncer runs")
            }
        }
        Ok(())
    }

    /// Returns the physical clusters whose kubeconfig is in this Secret.
    fn users_of(&self, secret: &ObjectKey) -> Vec<ObjectKey> {
        let uses = |key: &ObjectKey, running: &RunningSyncer| {
            let Some(direct) = &running.inputs.connection.direct else { return false };
            let reference = &direct.kubeconfig_secret_ref;
            key.cluster == secret.cluster
                && reference.name == *secret.name
                && Some(reference.namespace.as_str()) == secret.namespace().map(|n| n.as_str())
        };
        self.running().iter().filter(|(key, running)| uses(key, running)).map(|(key, _)| key.clone()).collect()
    }

    /// Lets the workers of the physical clusters that are registered in a workspace read soon which custom kinds and
    /// definitions go there.
    fn refresh_custom_kinds(&self, home: LogicalClusterId) {
        let running = self.running();
        let here = running.iter().filter(|(key, _)| key.cluster == home);
        here.for_each(|(_, running)| running.handle.refresh_custom_kinds());
    }

    fn is_connectable(&self, key: &ObjectKey) -> bool {
        self.running().get(key).is_some_and(|running| running.inputs.problem.is_none())
    }
}

/// Returns true if the last workers held deletions.
fn are_deletions_held(physical: &Value) -> bool {
    let status = physical.get("status").and_then(|status| PhysicalClusterStatus::deserialize(status).ok());
    let conditions = status.unwrap_or_default().conditions;
    conditions.iter().any(|condition| condition.kind == DELETIONS_HELD && condition.status == "True")
}

impl Controller for PhysicalClusterController {
    type Key = ObjectKey;

    fn name(&self) -> &'static str {
        "physical-clusters"
    }

    fn resources(&self) -> Vec<GroupResource> {
        vec![
            self.kind.group_resource(),
            GroupResource::new("", "secrets"),
            GroupResource::new(portolan_types::placement::GROUP, "clusterplacementpolicies"),
            GroupResource::new(custom::GROUP, custom::RESOURCE),
        ]
    }

    fn keys(&self, event: &Event) -> Vec<ObjectKey> {
        match &*event.key.resource.resource {
            "secrets" => self.users_of(&event.key),
            "clusterplacementpolicies" | "customresourcedefinitions" => {
                self.refresh_custom_kinds(event.key.cluster);
                Vec::new()
            }
            _ => vec![event.key.clone()],
        }
    }

    fn reconcile<'a>(&'a self, key: &'a ObjectKey) -> BoxFuture<'a, Result<WorkOutcome, PlaneError>> {
        Box::pin(async move {
            let Some(found) = self.plane.get(key).await? else {
                self.clients.disconnect(key, None);
                self.connections.revoke_agents(key, None);
                self.note_written_off(key).await?;
                self.stop(key, None).await;
                return Ok(WorkOutcome::Done);
            };
            let Some(uid) = object::uid(&found.object) else { return Ok(WorkOutcome::Done) };
            self.clients.disconnect(key, Some(&uid));
            self.connections.revoke_agents(key, Some(&uid));
            let spec: PhysicalClusterSpec = match serde_json::from_value(found.object["spec"].clone()) {
                Ok(spec) => spec,
                Err(error) => {
                    self.report_invalid(&uid, error.to_string()).await?;
                    return Ok(WorkOutcome::Done);
                }
            };
            if !self.leases.holds(&uid) {
                // Another server holds the lease.
                self.stop(key, Some(&uid)).await;
                return Ok(WorkOutcome::RequeueAfter(RECHECK));
            }
            self.ensure_running(&found, uid, spec).await?;
            self.release_deletions(&found).await?;
            self.settle_left_behind(&found).await?;
            // Without a usable connection, its Secret may be created soon.
            let delay = if self.is_connectable(key) { CHECK_INTERVAL } else { RECHECK };
            Ok(WorkOutcome::RequeueAfter(delay))
        })
    }
}
