//! Scheduler and kubelet of the simulated nodes in one: pods are bound, start, get ready, end, and go.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use portolan_controllers::{Controller, Outcome, Plane, PlaneError};
use portolan_machinery::{
    kinds::Kind,
    lifecycle::{DeleteOptions, Propagation},
};
use portolan_store::{Event, RangeScope};
use portolan_types::{BoxFuture, GroupResource, GroupVersionKind, LogicalClusterId, ObjectKey, object};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::{
    cluster::SimulationConfig,
    fields::{list, set_condition, text},
};

/// An image whose name holds this cannot be pulled.
const UNPULLABLE: &str = "does-not-exist";

/// The loop of pods.
pub(crate) struct Kubelet {
    plane: Arc<Plane>,
    pods: &'static Kind,
    config: SimulationConfig,
    /// When a pod entered the step it is in; forgotten with the pod.
    since: Mutex<HashMap<ObjectKey, Instant>>,
    /// Addresses given to pods so far.
    addresses: AtomicU32,
}

impl Kubelet {
    pub(crate) fn new(plane: Arc<Plane>, config: SimulationConfig) -> Self {
        let pods = plane.table().kind(&GroupVersionKind::new("", "v1", "Pod")).expect("the table has core/v1");
        Self { plane, pods, config, since: Mutex::new(HashMap::new()), addresses: AtomicU32::new(0) }
    }

    /// What is left of `span` since the step began; `None` when it is over, and the next step begins.
    fn left(&self, key: &ObjectKey, span: Duration) -> Option<Duration> {
        let mut since = self.since.lock().expect("no code panics under this lock");
        let begun = *since.entry(key.clone()).or_insert_with(Instant::now);
        let left = span.checked_sub(begun.elapsed()).filter(|left| !left.is_zero());
        if left.is_none() {
            since.remove(key);
        }
        left
    }

    /// An address of its own for a pod, from a range that depends on the cluster's name.
    fn next_address(&self) -> String {
        let n = self.addresses.fetch_add(1, Ordering::Relaxed);
        let cluster = self.config.name.bytes().fold(7_u8, |n, b| n.wrapping_mul(31).wrapping_add(b));
        format!("10.{cluster}.{}.{}", n / 254 % 256, n % 254 + 1)
    }

    async fn bind(&self, key: &ObjectKey, pod: &Value) -> Result<Outcome, PlaneError> {
        let node = match text(pod, "/spec/nodeName") {
            "" => self.choose_node(pod).await?,
            name => Some(name.to_owned()),
        };
        let now = self.plane.seams().now_text();
        self.plane
            .force(key, |pod| {
                let Some(node) = &node else { return mark_unschedulable(pod, &now) };
                pod["spec"]["nodeName"] = node.as_str().into();
                pod["status"] = pending_status(pod, &now);
                true
            })
            .await?;
        Ok(if node.is_some() { Outcome::Done } else { Outcome::CheckAgainIn(Duration::from_secs(5)) })
    }

    /// The node with the fewest pods among those that the pod's `nodeSelector` allows.
    async fn choose_node(&self, pod: &Value) -> Result<Option<String>, PlaneError> {
        let all = |resource| RangeScope::Cluster(LogicalClusterId::ROOT, GroupResource::new("", resource));
        let nodes = self.plane.list(all("nodes")).await?;
        let pods = self.plane.list(all("pods")).await?;
        let selector = pod.pointer("/spec/nodeSelector").and_then(Value::as_object);
        let fits = |node: &Value| {
            let wanted = selector.into_iter().flatten();
            let labels = wanted.into_iter().all(|(key, value)| object::label(node, key) == value.as_str());
            labels && node.pointer("/spec/unschedulable").and_then(Value::as_bool) != Some(true)
        };
        let load = |name: &str| pods.iter().filter(|pod| text(&pod.object, "/spec/nodeName") == name).count();
        let names = nodes.iter().filter(|node| fits(&node.object)).map(|node| object::name(&node.object).to_owned());
        Ok(names.min_by_key(|name| (load(name), name.clone())))
    }

    async fn start(&self, key: &ObjectKey, pod: &Value) -> Result<Outcome, PlaneError> {
        if let Some(left) = self.left(key, self.config.pod_start) {
            return Ok(Outcome::CheckAgainIn(left));
        }
        if !text(pod, "/status/message").is_empty() {
            return Ok(Outcome::Done);
        }
        let (now, address) = (self.plane.seams().now_text(), self.next_address());
        self.plane
            .force(key, |pod| {
                pod["status"] = match unpullable(pod) {
                    true => back_off_status(pod),
                    false => running_status(pod, &address, &now),
                };
                true
            })
            .await?;
        Ok(Outcome::Done)
    }

    async fn run_to_end(&self, key: &ObjectKey) -> Result<Outcome, PlaneError> {
        if let Some(left) = self.left(key, self.config.job_run) {
            return Ok(Outcome::CheckAgainIn(left));
        }
        let now = self.plane.seams().now_text();
        self.plane
            .force(key, |pod| {
                pod["status"] = ended_status(pod, &now);
                true
            })
            .await?;
        Ok(Outcome::Done)
    }

    async fn stop(&self, key: &ObjectKey, pod: &Value) -> Result<Outcome, PlaneError> {
        let bound = !text(pod, "/spec/nodeName").is_empty();
        if bound && let Some(left) = self.left(key, self.config.pod_stop) {
            return Ok(Outcome::CheckAgainIn(left));
        }
        let options = DeleteOptions {
            grace_period_seconds: Some(0),
            uid: Some(object::meta_text(pod, "uid").to_owned()),
            propagation: Some(Propagation::Background),
            ..DeleteOptions::default()
        };
        self.plane.delete(self.pods, key, &options).await?;
        Ok(Outcome::Done)
    }
}

impl Controller for Kubelet {
    type Key = ObjectKey;

    fn name(&self) -> &'static str {
        "simulated-kubelet"
    }

    fn resources(&self) -> Vec<GroupResource> {
        vec![self.pods.group_resource()]
    }

    fn keys(&self, event: &Event) -> Vec<ObjectKey> {
        vec![event.key.clone()]
    }

    fn reconcile<'a>(&'a self, key: &'a ObjectKey) -> BoxFuture<'a, Result<Outcome, PlaneError>> {
        Box::pin(async move {
            let Some(found) = self.plane.get(key).await? else {
                self.since.lock().expect("no code panics under this lock").remove(key);
                return Ok(Outcome::Done);
            };
            let pod = &found.object;
            if object::is_deleting(pod) {
                return self.stop(key, pod).await;
            }
            let waiting = !list(pod, "/status/containerStatuses").is_empty();
            let ends = text(pod, "/spec/restartPolicy") != "Always" && !text(pod, "/spec/restartPolicy").is_empty();
            match text(pod, "/status/phase") {
                "Running" if ends => self.run_to_end(key).await,
                "Running" | "Succeeded" | "Failed" => Ok(Outcome::Done),
                _ if waiting => self.start(key, pod).await,
                _ => self.bind(key, pod).await,
            }
        })
    }
}

fn unpullable(pod: &Value) -> bool {
    list(pod, "/spec/containers").iter().any(|c| text(c, "/image").contains(UNPULLABLE))
}

fn mark_unschedulable(pod: &mut Value, now: &str) -> bool {
    if list(pod, "/status/conditions").iter().any(|c| text(c, "/reason") == "Unschedulable") {
        return false;
    }
    let mut conditions = Vec::new();
    let message = "0 simulated nodes are available: none matches the Pod's node selector";
    set_condition(&mut conditions, "PodScheduled", false, "Unschedulable", message, now);
    pod["status"] = json!({"phase": "Pending", "conditions": conditions, "qosClass": qos(pod)});
    true
}

fn qos(pod: &Value) -> Value {
    pod.pointer("/status/qosClass").cloned().unwrap_or_else(|| "BestEffort".into())
}

/// One status per container of a list in `spec`, all in `state`.
fn container_statuses(pod: &Value, of: &str, ready: bool, state: impl Fn(&Value) -> Value) -> Vec<Value> {
    let status = |container: &Value| {
        let name = text(container, "/name");
        let image = text(container, "/image");
        let mut status = json!({
            "name": name, "image": image, "imageID": "", "ready": ready, "started": ready, "restartCount": 0,
            "state": state(container), "lastState": {},
        });
        if ready {
            status["imageID"] = format!("simulated://{image}").into();
            status["containerID"] = format!("simulated://{}-{name}", object::meta_text(pod, "uid")).into();
        }
        status
    };
    list(pod, of).iter().map(status).collect()
}

fn pending_status(pod: &Value, now: &str) -> Value {
    let mut conditions = Vec::new();
    set_condition(&mut conditions, "PodScheduled", true, "", "", now);
    set_condition(&mut conditions, "Initialized", true, "", "", now);
    set_condition(&mut conditions, "ContainersReady", false, "ContainersNotReady", "containers are starting", now);
    set_condition(&mut conditions, "Ready", false, "ContainersNotReady", "containers are starting", now);
    let waiting = |_: &Value| json!({"waiting": {"reason": "ContainerCreating"}});
    json!({
        "phase": "Pending", "qosClass": qos(pod), "startTime": now, "conditions": conditions, "hostIP": "198.18.0.1",
        "containerStatuses": container_statuses(pod, "/spec/containers", false, waiting),
    })
}

fn back_off_status(pod: &Value) -> Value {
    let mut status = pod["status"].clone();
    let waiting = |container: &Value| {
        let image = text(container, "/image");
        match image.contains(UNPULLABLE) {
            true => json!({"waiting": {
                "reason": "ImagePullBackOff",
                "message": format!("Back-off pulling image {image:?}: simulated: no such image"),
            }}),
            false => json!({"waiting": {"reason": "ContainerCreating"}}),
        }
    };
    status["containerStatuses"] = container_statuses(pod, "/spec/containers", false, waiting).into();
    status["message"] = "simulated: an image cannot be pulled".into();
    status
}

fn running_status(pod: &Value, ip: &str, now: &str) -> Value {
    let mut status = pod["status"].clone();
    let running = |_: &Value| json!({"running": {"startedAt": now}});
    let finished =
        |_: &Value| json!({"terminated": {"exitCode": 0, "reason": "Completed", "startedAt": now, "finishedAt": now}});
    let mut conditions = list(pod, "/status/conditions").to_vec();
    for kind in ["PodReadyToStartContainers", "Initialized", "ContainersReady", "Ready"] {
        set_condition(&mut conditions, kind, true, "", "", now);
    }
    status["phase"] = "Running".into();
    status["conditions"] = conditions.into();
    status["podIP"] = ip.into();
    status["podIPs"] = json!([{"ip": ip}]);
    status["containerStatuses"] = container_statuses(pod, "/spec/containers", true, running).into();
    if !list(pod, "/spec/initContainers").is_empty() {
        status["initContainerStatuses"] = container_statuses(pod, "/spec/initContainers", true, finished).into();
    }
    status
}

/// A container whose command is `false`, or ends in `exit 1`, fails; every other one succeeds.
fn fails(container: &Value) -> bool {
    let mut words = list(container, "/command").iter().chain(list(container, "/args")).filter_map(Value::as_str);
    words.next_back().is_some_and(|word| word == "false" || word.trim_end().ends_with("exit 1"))
}

fn ended_status(pod: &Value, now: &str) -> Value {
    let failed = list(pod, "/spec/containers").iter().any(fails);
    let mut status = pod["status"].clone();
    let terminated = |container: &Value| {
        let (code, reason) = if fails(container) { (1, "Error") } else { (0, "Completed") };
        json!({"terminated": {"exitCode": code, "reason": reason, "startedAt": now, "finishedAt": now}})
    };
    let mut conditions = list(pod, "/status/conditions").to_vec();
    let reason = if failed { "PodFailed" } else { "PodCompleted" };
    set_condition(&mut conditions, "Ready", false, reason, "", now);
    set_condition(&mut conditions, "ContainersReady", false, reason, "", now);
    status["phase"] = if failed { "Failed" } else { "Succeeded" }.into();
    status["conditions"] = conditions.into();
    status["containerStatuses"] = container_statuses(pod, "/spec/containers", false, terminated).into();
    status
}
