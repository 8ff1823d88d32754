//! Scheduler and kubelet of the simulated nodes: pods are bound, start, become ready, end, and are removed.

mod judge;
mod references;
mod status;

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use portolan_controllers::{Controller, Plane, PlaneError, WorkOutcome};
use portolan_kinds::Kind;
use portolan_store::{ChangeKind, Event};
use portolan_strategy::lifecycle::{DeleteOptions, Propagation};
use portolan_types::{
    BoxFuture, GroupResource, GroupVersionKind, LogicalClusterId, NamespaceName, ObjectKey, event_draft::EventDraft,
    object,
};
use serde_json::Value;
use tokio::time::Instant;

use crate::{
    cluster::SimulationConfig,
    events,
    fields::{list, text},
    index::{PodIndex, PodNeeds},
};
use status::{PodOutlook, PodStart};

/// Time after which a pod without a node is looked at again though nothing made room.
const RESCHEDULE: Duration = Duration::from_secs(60);
/// Pods without a node that are retried when a pod or a node frees room.
const RESCHEDULED_AT_ONCE: usize = 16;
/// Time after which a pod that lacks an object is checked again, even without an event.
const RECHECK: Duration = Duration::from_secs(60);

/// Loop of pods.
pub(crate) struct Kubelet {
    plane: Arc<Plane>,
    pods: &'static Kind,
    index: Arc<PodIndex>,
    config: SimulationConfig,
    /// Start of the present step of each pod; removed with the pod.
    since: Mutex<HashMap<ObjectKey, Instant>>,
    /// Pods that lack a Secret, a ConfigMap or a claim, by namespace.
    lacking: Mutex<HashMap<(LogicalClusterId, NamespaceName), HashSet<ObjectKey>>>,
    /// Number of addresses assigned to pods so far.
    addresses: AtomicU32,
}

impl Kubelet {
    pub(crate) fn new(plane: Arc<Plane>, index: Arc<PodIndex>, config: SimulationConfig) -> Self {
        let pods = plane.table().kind(&GroupVersionKind::new("", "v1", "Pod")).expect("the table has core/v1");
        let (since, lacking, addresses) = (Mutex::default(), Mutex::default(), AtomicU32::new(0));
        Self { plane, pods, index, config, since, lacking, addresses }
    }

    fn since(&self) -> MutexGuard<'_, HashMap<ObjectKey, Instant>> {
        self.since.lock().expect("no code panics under this lock")
    }

    fn lacking(&self) -> MutexGuard<'_, HashMap<(LogicalClusterId, NamespaceName), HashSet<ObjectKey>>> {
        self.lacking.lock().expect("no code panics under this lock")
    }

    /// Returns the rest of `span` since the step began; `None` when it is over, and the next step begins.
    fn remaining_time(&self, key: &ObjectKey, span: Duration) -> Option<Duration> {
        let mut since = self.since();
        let begun = *since.entry(key.clone()).or_insert_with(Instant::now);
        let left = span.checked_sub(begun.elapsed()).filter(|left| !left.is_zero());
        if left.is_none() {
            since.remove(key);
        }
        left
    }

    /// Records that a pod waits for an object of its namespace, or stops waiting.
    fn note_lacking(&self, key: &ObjectKey, lacks: bool) {
        let Some(namespace) = key.namespace() else { return };
        let (mut all, place) = (self.lacking(), (key.cluster, namespace.clone()));
        if lacks {
            all.entry(place).or_default().insert(key.clone());
        } else if let Some(pods) = all.get_mut(&place) {
            pods.remove(key);
            if pods.is_empty() {
                all.remove(&place);
            }
        }
    }

    /// Returns a unique address for a pod, from a range that depends on the cluster's name.
    fn next_address(&self) -> String {
        let n = self.addresses.fetch_add(1, Ordering::Relaxed);
        let cluster = self.config.name.bytes().fold(7_u8, |n, b| n.wrapping_mul(31).wrapping_add(b));
        format!("10.{cluster}.{}.{}", n / 254 % 256, n % 254 + 1)
    }

    /// Writes a status when it differs, and puts the result in the index.
    async fn write(&self, key: &ObjectKey, change: impl Fn(&mut Value) + Send + Sync) -> Result<bool, PlaneError> {
        let mut differs = false;
        let written = self.plane.force(key, |pod| {
            let before = pod.clone();
            change(pod);
            differs = *pod != before;
            differs
        });
        if let Some(pod) = written.await? {
            self.index.observe(key, &pod);
        }
        Ok(differs)
    }

    async fn warn(
        &self,
        (key, pod): (&ObjectKey, &Value),
        component: &str,
        (reason, message): (&str, &str),
    ) -> Result<(), PlaneError> {
        let name = reason.to_lowercase();
        events::write(&self.plane, key, pod, EventDraft { component, name: &name, is_warning: true, reason, message })
            .await
    }

    /// Binds a pod to a node, if one fits.
    async fn bind(&self, key: &ObjectKey, pod: &Value) -> Result<WorkOutcome, PlaneError> {
        let now = self.plane.seams().now_text();
        if !list(pod, "/spec/schedulingGates").is_empty() {
            let why = "Scheduling is blocked due to non-empty scheduling gates";
            self.write(key, |pod| pod["status"] = status::unscheduled(pod, "SchedulingGated", why, &now)).await?;
            return Ok(WorkOutcome::Done);
        }
        let node = match text(pod, "/spec/nodeName") {
            "" => self.choose(key, pod).await?,
            name if !self.index.has_node(name) => return Ok(WorkOutcome::Done),
            name => Ok(name.to_owned()),
        };
        match node {
            Ok(node) => {
                self.note_lacking(key, false);
                let bind = |pod: &mut Value| {
                    pod["spec"]["nodeName"] = node.as_str().into();
                    pod["status"] = status::bound(pod, &now);
                };
                self.write(key, bind).await?;
                Ok(WorkOutcome::Done)
            }
            Err(why) => {
                let mark = |pod: &mut Value| pod["status"] = status::unscheduled(pod, "Unschedulable", &why, &now);
                if self.write(key, mark).await? {
                    self.warn((key, pod), "default-scheduler", ("FailedScheduling", &why)).await?;
                }
                Ok(WorkOutcome::RequeueAfter(RESCHEDULE))
            }
        }
    }

    async fn choose(&self, key: &ObjectKey, pod: &Value) -> Result<Result<String, String>, PlaneError> {
        // Registers first, so that a claim that is created meanwhile is not missed.
        self.note_lacking(key, true);
        if let Some(claim) = references::missing_claim(&self.plane, key, pod).await? {
            let nodes = self.index.node_count();
            return Ok(Err(format!(
                "0/{nodes} nodes are available: persistentvolumeclaim {claim:?} not found. preemption: 0/{nodes} nodes are \
                 available: {nodes} Preemption is not helpful for scheduling."
            )));
        }
        self.note_lacking(key, false);
        Ok(self.index.choose_node(key, &PodNeeds::of(pod)))
    }

    /// Starts the containers of a bound pod that can start.
    async fn start(&self, key: &ObjectKey, pod: &Value) -> Result<WorkOutcome, PlaneError> {
        let has_started = !text(pod, "/status/podIP").is_empty();
        if !has_started && let Some(left) = self.remaining_time(key, self.config.pod_start) {
            return Ok(WorkOutcome::RequeueAfter(left));
        }
        if text(pod, "/status/phase") == "Running" && !judge::restarts(pod) {
            return self.run_to_end(key).await;
        }
        let missing = self.missing(key, pod).await?;
        let lacks = missing != references::MissingReferences::default();
        self.note_lacking(key, lacks);
        let crashes = status::crash_count(pod);
        let wait = crashes.map(status::back_off).and_then(|span| self.remaining_time(key, span));
        let now = self.plane.seams().now_text();
        let address = if has_started { String::new() } else { self.next_address() };
        let start =
            PodStart { missing: &missing, address: &address, now: &now, restarts: crashes.is_some() && wait.is_none() };
        let PodOutlook { warnings, .. } = status::outlook(pod, &start);
        let differs = self.write(key, |pod| pod["status"] = status::outlook(pod, &start).status).await?;
        if differs || (!has_started && !missing.volumes.is_empty()) {
            for (reason, message) in warnings {
                self.warn((key, pod), "kubelet", (reason, &message)).await?;
            }
        }
        Ok(match (wait, lacks) {
            (Some(left), _) => WorkOutcome::RequeueAfter(left),
            (None, true) => WorkOutcome::RequeueAfter(RECHECK),
            (None, false) => WorkOutcome::Done,
        })
    }

    /// Looks up the references of a pod while one of its containers has yet to start.
    async fn missing(&self, key: &ObjectKey, pod: &Value) -> Result<references::MissingReferences, PlaneError> {
        if !status::has_waiting(pod) {
            return Ok(references::MissingReferences::default());
        }
        // Registers first, so that an object that is created meanwhile is not missed.
        self.note_lacking(key, true);
        references::missing(&self.plane, key, pod).await
    }

    async fn run_to_end(&self, key: &ObjectKey) -> Result<WorkOutcome, PlaneError> {
        if let Some(left) = self.remaining_time(key, self.config.job_run) {
            return Ok(WorkOutcome::RequeueAfter(left));
        }
        let now = self.plane.seams().now_text();
        self.write(key, |pod| pod["status"] = status::ended(pod, &now)).await?;
        Ok(WorkOutcome::Done)
    }

    async fn stop(&self, key: &ObjectKey, pod: &Value) -> Result<WorkOutcome, PlaneError> {
        let bound = !text(pod, "/spec/nodeName").is_empty();
        if bound && let Some(left) = self.remaining_time(key, self.config.pod_stop) {
            return Ok(WorkOutcome::RequeueAfter(left));
        }
        let options = DeleteOptions {
            grace_period_seconds: Some(0),
            uid: Some(object::meta_text(pod, "uid").to_owned()),
            propagation: Some(Propagation::Background),
            ..DeleteOptions::default()
        };
        self.plane.delete(self.pods, key, &options).await?;
        Ok(WorkOutcome::Done)
    }

    /// Removes the state of a deleted pod.
    fn forget(&self, key: &ObjectKey) {
        self.since().remove(key);
        self.note_lacking(key, false);
    }

    /// Returns the pods that may wait for an object of their namespace.
    fn waiting_for(&self, event: &Event) -> Vec<ObjectKey> {
        let Some(namespace) = event.key.namespace() else { return Vec::new() };
        let lacking = self.lacking();
        lacking.get(&(event.key.cluster, namespace.clone())).into_iter().flatten().cloned().collect()
    }
}

/// Returns true for an event that may make room on a node.
fn makes_room(event: &Event) -> bool {
    &*event.key.resource.resource == "nodes" || event.change == ChangeKind::Deleted
}

impl Controller for Kubelet {
    type Key = ObjectKey;

    fn name(&self) -> &'static str {
        "simulated-kubelet"
    }

    fn resources(&self) -> Vec<GroupResource> {
        ["pods", "nodes", "secrets", "configmaps", "persistentvolumeclaims"]
            .map(|name| GroupResource::new("", name))
            .into()
    }

    fn keys(&self, event: &Event) -> Vec<ObjectKey> {
        let mut keys = match &*event.key.resource.resource {
            "pods" => vec![event.key.clone()],
            "nodes" => Vec::new(),
            _ => return self.waiting_for(event),
        };
        if makes_room(event) {
            keys.extend(self.index.take_unscheduled(RESCHEDULED_AT_ONCE));
        }
        keys
    }

    fn reconcile<'a>(&'a self, key: &'a ObjectKey) -> BoxFuture<'a, Result<WorkOutcome, PlaneError>> {
        Box::pin(async move {
            let Some(found) = self.plane.get(key).await? else {
                self.forget(key);
                return Ok(WorkOutcome::Done);
            };
            let pod = &found.object;
            if object::is_deleting(pod) {
                return self.stop(key, pod).await;
            }
            let is_bound = !list(pod, "/status/containerStatuses").is_empty();
            match text(pod, "/status/phase") {
                "Succeeded" | "Failed" => Ok(WorkOutcome::Done),
                _ if is_bound => self.start(key, pod).await,
                _ => self.bind(key, pod).await,
            }
        })
    }
}
