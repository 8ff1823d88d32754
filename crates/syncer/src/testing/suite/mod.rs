//! Suite of what every physical cluster must let a syncer do, simulated or real. Give [`run`] a connector to one with
//! nothing in it that matters. Times are real unless the runtime's are paused.

mod handed_down;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use kube::client::Body;
use portolan_types::{
    BoxFuture, GroupResource, GroupVersionKind, LogicalClusterId, ObjectKey, Seams, Uid, annotations, object,
    placement::{CopyPhase, NamespaceMapping, PhysicalClusterSpec},
    upstream::CopyState,
};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::{MemoryUpstream, SharedUpstream};
use crate::{
    ConnectError, Connector, SyncLimits, SyncMemoryBudget, Syncer, SyncerConfig, SyncerHandle, TaskWrapper,
    client::{DownstreamClient, ServedResource},
    downstream_namespace,
    plan::{CopyDeletion, Proof},
};

/// Longest wait for an expected state.
const PATIENCE: Duration = Duration::from_secs(30);

/// Outcome of a test; the error is a sentence.
pub type SuiteResult = Result<(), String>;

/// One worker between an upstream in memory and a physical cluster.
pub struct SyncStage {
    /// The logical side.
    pub upstream: Arc<MemoryUpstream>,
    /// The worker.
    pub handle: SyncerHandle,
    cluster: LogicalClusterId,
    api: DownstreamClient,
    switch: Arc<Switch>,
    config: SyncerConfig,
}

/// A connection that can be cut.
struct Switch {
    inner: Arc<dyn Connector>,
    is_cut: Arc<AtomicBool>,
    tries: Arc<AtomicUsize>,
}

impl Connector for Switch {
    fn connect(&self) -> BoxFuture<'_, Result<kube::Client, ConnectError>> {
        Box::pin(async move {
            let client = self.inner.connect().await?;
            let (is_cut, tries) = (self.is_cut.clone(), self.tries.clone());
            let service = tower::service_fn(move |request: http::Request<Body>| {
                let (client, is_cut) = (client.clone(), is_cut.clone());
                tries.fetch_add(1, Ordering::Relaxed);
                async move {
                    if is_cut.load(Ordering::Relaxed) {
                        return Err(tower::BoxError::from("the line is cut"));
                    }
                    client.send(request).await.map_err(tower::BoxError::from)
                }
            });
            Ok(kube::Client::new(service, "default"))
        })
    }
}

impl SyncStage {
    /// Starts a worker for the physical cluster `uid` with the quick times of tests. Stages of different numbers do not
    /// meet.
    ///
    /// # Errors
    /// Fails if there is no connection.
    pub async fn start(connector: Arc<dyn Connector>, number: u64) -> Result<Self, String> {
        let uid: Uid = format!("physical-{number}").parse().map_err(|error| format!("{error}"))?;
        let upstream = MemoryUpstream::new(uid.clone());
        let config = SyncerConfig {
            heartbeat: Duration::from_millis(200),
            unreachable_after: Duration::from_millis(500),
            deletion_timeout: Duration::from_secs(1),
            namespace_linger: Duration::from_millis(200),
            ..SyncerConfig::new("member", uid, PhysicalClusterSpec::default(), 1)
        };
        let client = connector.connect().await.map_err(|error| error.to_string())?;
        let switch = Arc::new(Switch { inner: connector, is_cut: Arc::default(), tries: Arc::default() });
        let handle = spawn(&config, &upstream, &switch);
        let api = DownstreamClient::new(client, Duration::from_secs(10));
        Ok(Self { upstream, handle, cluster: LogicalClusterId::new(1000 + number), api, switch, config })
    }

    /// Stops the worker, and starts the next one.
    #[must_use]
    pub async fn restarted(self) -> Self {
        self.handle.stop().await;
        let deletions_held = self.upstream.cluster().is_some_and(|report| report.deletions_held > 0);
        let config = SyncerConfig { syncer_epoch: self.config.syncer_epoch + 1, deletions_held, ..self.config };
        let handle = spawn(&config, &self.upstream, &self.switch);
        Self { handle, config, ..self }
    }

    /// Stops the worker, and starts that of another registration of the same physical cluster, of which upstream knows
    /// nothing yet.
    ///
    /// # Errors
    /// A number that makes no uid.
    pub async fn registered_anew(self, number: u64) -> Result<Self, String> {
        self.handle.stop().await;
        let uid: Uid = format!("physical-{number}").parse().map_err(|error| format!("{error}"))?;
        let upstream = MemoryUpstream::new(uid.clone());
        let config = SyncerConfig { uid, ..self.config };
        let handle = spawn(&config, &upstream, &self.switch);
        Ok(Self { upstream, handle, config, ..self })
    }

    /// As [`Self::restarted`], with other synced resources.
    #[must_use]
    pub async fn restarted_with(mut self, synced: &[&str]) -> Self {
        self.config.spec.synced_resources = synced.iter().map(|text| (*text).to_owned()).collect();
        self.restarted().await
    }

    /// Works like [`Self::restarted`], with other limits for the cache of the physical cluster.
    #[must_use]
    pub async fn restarted_within(mut self, limits: SyncLimits) -> Self {
        self.config.limits = limits;
        self.restarted().await
    }

    /// As [`Self::restarted`], with a share of `memory` that the registrations of `workspace` have.
    #[must_use]
    pub async fn restarted_sharing(mut self, memory: &Arc<SyncMemoryBudget>, workspace: LogicalClusterId) -> Self {
        (self.config.memory, self.config.workspace) = (memory.clone(), workspace);
        self.restarted().await
    }

    /// As [`Self::restarted`], with a wrapper of the worker's tasks.
    #[must_use]
    pub async fn restarted_wrapping(mut self, tasks: TaskWrapper) -> Self {
        self.config.tasks = tasks;
        self.restarted().await
    }

    /// Cuts the connection, or joins it again.
    pub fn set_cut(&self, is_cut: bool) {
        self.switch.is_cut.store(is_cut, Ordering::Relaxed);
    }

    /// Requests that the worker has sent so far, into a cut connection too.
    pub fn tries(&self) -> usize {
        self.switch.tries.load(Ordering::Relaxed)
    }

    /// The address of an object upstream.
    pub fn key(&self, resource: &str, name: &str) -> ObjectKey {
        ObjectKey {
            cluster: self.cluster,
            resource: GroupResource::new(kind_of(resource).group, resource),
            scope: "shop".parse().ok().into(),
            name: name.parse().unwrap_or_else(|_| unreachable!("names in this suite are plain")),
        }
    }

    /// The namespace downstream.
    pub fn namespace(&self) -> String {
        let shop = "shop".parse().map(|shop| {
            downstream_namespace(NamespaceMapping::Hashed, Some(MemoryUpstream::PLANE), self.cluster, &shop)
        });
        shop.ok().and_then(Result::ok).map(|name| name.to_string()).unwrap_or_default()
    }

    fn path(&self, resource: &str, name: Option<&str>) -> String {
        let key = self.key(resource, "any");
        let kind = kind_of(resource);
        ServedResource::new(key.resource, kind, true).path(Some(&self.namespace()), name)
    }

    /// Places an object.
    pub fn place(&self, resource: &str, name: &str, object: Value, phase: CopyPhase) -> ObjectKey {
        let key = self.key(resource, name);
        self.upstream.place(&key, &kind_of(resource), object, phase, 1);
        key
    }

    /// Reads a downstream object; `None` when the API server says that there is none.
    pub async fn downstream(&self, resource: &str, name: &str) -> Option<Value> {
        self.api.get(&self.path(resource, Some(name))).await.ok()
    }

    /// Makes an object downstream as somebody else.
    pub async fn intrude(&self, resource: &str, object: &Value) -> Result<Value, String> {
        self.api.create(&self.path(resource, None), object).await.map_err(|error| error.to_string())
    }

    /// Changes an object downstream as somebody else.
    pub async fn tamper(&self, resource: &str, name: &str, patch: &Value) -> Result<Value, String> {
        self.api.merge_patch(&self.path(resource, Some(name)), patch).await.map_err(|error| error.to_string())
    }

    /// The namespace downstream as it stands.
    async fn downstream_namespace_object(&self) -> Option<Value> {
        self.api.get(&ServedResource::namespaces().path(None, Some(&self.namespace()))).await.ok()
    }

    /// Changes the namespace downstream as somebody else.
    async fn tamper_namespace(&self, patch: &Value) -> Result<Value, String> {
        let path = ServedResource::namespaces().path(None, Some(&self.namespace()));
        self.api.merge_patch(&path, patch).await.map_err(|error| error.to_string())
    }

    /// Takes everything off the physical cluster again, and stops.
    ///
    /// # Errors
    /// Fails if something stays.
    pub async fn finished(self) -> SuiteResult {
        self.upstream.all_keys().iter().for_each(|key| self.upstream.delete(key));
        self.until("nothing is left upstream", async |s| s.upstream.all_keys().is_empty()).await?;
        let namespace = ServedResource::namespaces().path(None, Some(&self.namespace()));
        self.until("the empty namespace ends", async |s| match s.api.get(&namespace).await {
            Ok(found) => object::is_deleting(&found),
            Err(error) => error.is_absent(&s.namespace()),
        })
        .await?;
        self.handle.stop().await;
        Ok(())
    }

    /// Waits until `holds`.
    ///
    /// # Errors
    /// With `what`, after 30 s.
    pub async fn until(&self, what: &str, mut holds: impl AsyncFnMut(&Self) -> bool) -> SuiteResult {
        let waiting = async {
            while !holds(self).await {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(PATIENCE, waiting).await.map_err(|_| format!("waited in vain until {what}"))
    }
}

fn spawn(config: &SyncerConfig, upstream: &Arc<MemoryUpstream>, switch: &Arc<Switch>) -> SyncerHandle {
    upstream.start_syncer(config.syncer_epoch);
    let shared = Arc::new(SharedUpstream(upstream.clone()));
    Syncer::spawn(config.clone(), shared, switch.clone(), Seams::system(), &CancellationToken::new())
}

fn kind_of(resource: &str) -> GroupVersionKind {
    match resource {
        "deployments" => GroupVersionKind::new("apps", "v1", "Deployment"),
        "statefulsets" => GroupVersionKind::new("apps", "v1", "StatefulSet"),
        "replicasets" => GroupVersionKind::new("apps", "v1", "ReplicaSet"),
        "jobs" => GroupVersionKind::new("batch", "v1", "Job"),
        "pods" => GroupVersionKind::new("", "v1", "Pod"),
        "services" => GroupVersionKind::new("", "v1", "Service"),
        "widgets" => GroupVersionKind::new("example.com", "v1", "Widget"),
        _ => GroupVersionKind::new("", "v1", "ConfigMap"),
    }
}

fn config_map(value: &str) -> Value {
    json!({"metadata": {"labels": {"app": "shop"}}, "data": {"color": value}})
}

/// A Deployment with `replicas`, as a client writes it upstream.
pub fn deployment(replicas: i64, image: &str) -> Value {
    json!({"metadata": {}, "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": "web"}}, "template": {
        "metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "web", "image": image}]}}}})
}

fn ensure(holds: bool, what: &str) -> SuiteResult {
    if holds { Ok(()) } else { Err(what.to_owned()) }
}

/// Everything that does not need workload controllers downstream.
///
/// # Errors
/// The first thing that went wrong.
pub async fn run(connector: Arc<dyn Connector>) -> SuiteResult {
    life_of_a_copy(connector.clone()).await?;
    foreign_objects(connector.clone()).await?;
    leaving(connector.clone()).await?;
    blind(connector.clone()).await?;
    handed_down::drift(connector.clone()).await?;
    out_of_reach(connector).await
}

/// A copy is made, follows, is repaired, and goes; so does its namespace.
async fn life_of_a_copy(connector: Arc<dyn Connector>) -> SuiteResult {
    let stage = SyncStage::start(connector, 1).await?;
    let key = stage.place("configmaps", "settings", config_map("red"), CopyPhase::Active);
    stage.until("the copy is there", async |s| s.downstream("configmaps", "settings").await.is_some()).await?;
    stage
        .until("it is reported", async |s| matches!(s.upstream.last_report(&key), Some(CopyState::Synced { .. })))
        .await?;
    stage.place("configmaps", "settings", json!({"data": {"color": "blue", "size": "s"}}), CopyPhase::Active);
    stage
        .until("the change is there and the label gone", async |s| {
            let copy = s.downstream("configmaps", "settings").await.unwrap_or_default();
            copy["data"] == json!({"color": "blue", "size": "s"}) && object::label(&copy, "app").is_none()
        })
        .await?;
    stage.place("configmaps", "settings", json!({"data": {"color": "blue"}}), CopyPhase::Active);
    stage
        .until("the field taken off is gone", async |s| {
            s.downstream("configmaps", "settings").await.unwrap_or_default()["data"] == json!({"color": "blue"})
        })
        .await?;
    stage.tamper("configmaps", "settings", &json!({"data": {"color": "drifted"}})).await?;
    stage
        .until("drift is repaired", async |s| {
            s.downstream("configmaps", "settings").await.unwrap_or_default()["data"]["color"] == "blue"
        })
        .await?;
    // A write downstream is visible there before the worker gets its event.
    stage.until("a repair is counted", async |s| s.handle.stats().repairs >= 1).await?;
    let stage = stage.restarted().await;
    stage
        .tamper("configmaps", "settings", &json!({"metadata": {"labels": {(annotations::DOWN_CLUSTER): null}}}))
        .await?;
    stage
        .until("a label that was taken off is back", async |s| {
            let copy = s.downstream("configmaps", "settings").await.unwrap_or_default();
            object::label(&copy, annotations::DOWN_CLUSTER).is_some()
        })
        .await?;
    stage.upstream.delete(&key);
    stage.until("the object is gone upstream", async |s| s.upstream.object(&key).is_none()).await?;
    ensure(stage.downstream("configmaps", "settings").await.is_none(), "and its copy downstream")?;
    stage.finished().await
}

/// An object without our identity is neither changed nor deleted, and its owner upstream gets a condition.
async fn foreign_objects(connector: Arc<dyn Connector>) -> SuiteResult {
    let stage = SyncStage::start(connector, 2).await?;
    stage.place("configmaps", "first", config_map("red"), CopyPhase::Active);
    stage.until("the namespace is there", async |s| s.downstream("configmaps", "first").await.is_some()).await?;
    let foreign = stage
        .intrude(
            "configmaps",
            &json!({"apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "taken"}, "data": {"theirs": "1"}}),
        )
        .await?;
    let key = stage.place("configmaps", "taken", config_map("red"), CopyPhase::Active);
    stage.until("the conflict is told", async |s| {
        matches!(s.upstream.last_report(&key), Some(CopyState::Failed { reason, .. }) if reason == "Conflict")
    }).await?;
    stage.upstream.delete(&key);
    stage.until("the object upstream may go", async |s| s.upstream.object(&key).is_none()).await?;
    let now = stage.downstream("configmaps", "taken").await.unwrap_or_default();
    ensure(
        object::meta_text(&now, "resourceVersion") == object::meta_text(&foreign, "resourceVersion"),
        "it was not touched",
    )?;
    let theirs = CopyDeletion {
        uid: object::meta_text(&now, "uid").to_owned(),
        resource_version: object::meta_text(&now, "resourceVersion").to_owned(),
        proof: Proof::Debt,
        grace: None,
    };
    let gone = stage.api.delete(&stage.path("configmaps", Some("taken")), &theirs, "Background").await;
    gone.map_err(|error| error.to_string())?;
    stage.finished().await
}

/// The record says that the copy leaves: it goes, and the object stays upstream.
async fn leaving(connector: Arc<dyn Connector>) -> SuiteResult {
    let stage = SyncStage::start(connector, 3).await?;
    let key = stage.place("deployments", "web", deployment(0, "registry.example.com/web:1"), CopyPhase::Active);
    stage.until("the copy is there", async |s| s.downstream("deployments", "web").await.is_some()).await?;
    stage.place("deployments", "web", deployment(0, "registry.example.com/web:1"), CopyPhase::Leaving);
    stage
        .until("the entry is off the record", async |s| {
            s.upstream.object(&key).is_some_and(|object| object::annotation(&object, annotations::PLACEMENT).is_none())
        })
        .await?;
    ensure(stage.downstream("deployments", "web").await.is_none(), "the copy is gone before that")?;
    stage.finished().await
}

/// An upstream that fails, or shows nothing, deletes nothing.
async fn blind(connector: Arc<dyn Connector>) -> SuiteResult {
    let stage = SyncStage::start(connector, 4).await?;
    for name in ["a", "b", "c"] {
        stage.place("configmaps", name, config_map("red"), CopyPhase::Active);
    }
    for name in ["a", "b", "c"] {
        stage.until("the copies are there", async |s| s.downstream("configmaps", name).await.is_some()).await?;
    }
    stage.upstream.set_failing(true);
    let stage = stage.restarted().await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    ensure(stage.handle.stats().deletes == 0, "an upstream that fails deletes nothing")?;
    stage.upstream.set_empty(true);
    stage.upstream.set_failing(false);
    let stage = stage.restarted().await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    ensure(stage.handle.stats().deletes == 0, "an empty view deletes nothing")?;
    for name in ["a", "b", "c"] {
        ensure(stage.downstream("configmaps", name).await.is_some(), "every copy is there")?;
    }
    stage.finished().await
}

/// Checks that a deletion while the physical cluster is unreachable becomes a debt, which is paid on return.
async fn out_of_reach(connector: Arc<dyn Connector>) -> SuiteResult {
    let stage = SyncStage::start(connector, 5).await?;
    let goes = stage.place("configmaps", "goes", config_map("red"), CopyPhase::Active);
    let stays = stage.place("configmaps", "stays", config_map("red"), CopyPhase::Active);
    stage
        .until("the copies are there", async |s| {
            s.downstream("configmaps", "goes").await.is_some() && s.downstream("configmaps", "stays").await.is_some()
        })
        .await?;
    stage.set_cut(true);
    stage.upstream.delete(&goes);
    stage
        .until("the debt is recorded and the object gone", async |s| {
            s.upstream.object(&goes).is_none() && s.upstream.recorded_debts().len() == 1
        })
        .await?;
    stage.until("the other is told to be out of reach", async |s| {
        matches!(s.upstream.last_report(&stays), Some(CopyState::Failed { reason, .. }) if reason == "Unreachable")
    }).await?;
    ensure(stage.upstream.cluster().is_some_and(|report| report.ready.is_err()), "the physical cluster is not ready")?;
    stage.set_cut(false);
    stage.until("the debt is paid", async |s| s.upstream.recorded_debts().is_empty()).await?;
    ensure(stage.downstream("configmaps", "goes").await.is_none(), "the copy is gone")?;
    stage
        .until("the other is synced again", async |s| {
            matches!(s.upstream.last_report(&stays), Some(CopyState::Synced { .. }))
        })
        .await?;
    ensure(stage.downstream("configmaps", "stays").await.is_some(), "and was there all the time")?;
    stage.finished().await
}

/// Needs workload controllers downstream: a Deployment runs, and its ReplicaSet and Pods are seen upstream.
///
/// # Errors
/// The first thing that went wrong.
pub async fn run_workloads(connector: Arc<dyn Connector>) -> SuiteResult {
    handed_down::orphans(connector.clone()).await?;
    let stage = SyncStage::start(connector, 6).await?;
    let key = stage.place("deployments", "web", deployment(2, "registry.example.com/web:1"), CopyPhase::Active);
    stage
        .until("both replicas are ready upstream", async |s| {
            s.upstream.object(&key).is_some_and(|object| object["status"]["readyReplicas"] == 2)
        })
        .await?;
    stage.until("its Pods are seen upstream", async |s| s.upstream.keys("pods").len() == 2).await?;
    ensure(stage.upstream.keys("replicasets").len() == 1, "one ReplicaSet owns them")?;
    let pod = stage.upstream.keys("pods").pop().ok_or("a pod")?;
    stage.upstream.delete(&pod);
    stage.until("a delete upstream is handed down", async |s| s.upstream.object(&pod).is_none()).await?;
    stage.until("and another Pod takes its place", async |s| s.upstream.keys("pods").len() == 2).await?;
    stage.upstream.delete(&key);
    stage
        .until("all of it ends", async |s| {
            s.upstream.object(&key).is_none()
                && s.upstream.keys("pods").is_empty()
                && s.upstream.keys("replicasets").is_empty()
        })
        .await?;
    stage.finished().await
}

/// Measures fifty times the milliseconds from a write upstream until the report of its copy. Returns them sorted.
///
/// # Errors
/// Fails if a copy is not reported.
pub async fn latencies(connector: Arc<dyn Connector>) -> Result<Vec<u128>, String> {
    let stage = SyncStage::start(connector, 7).await?;
    let mut taken = Vec::new();
    for n in 0..50 {
        let start = tokio::time::Instant::now();
        let key = stage.place("configmaps", &format!("c{n}"), config_map("red"), CopyPhase::Active);
        while stage.upstream.last_report(&key).is_none() {
            tokio::time::sleep(Duration::from_millis(1)).await;
            ensure(start.elapsed() < PATIENCE, "a copy is not reported")?;
        }
        taken.push(start.elapsed().as_millis());
    }
    stage.finished().await?;
    taken.sort_unstable();
    Ok(taken)
}
