//! `status` of a pod, made of its judgement. Pure, and equal for equal states, so that nothing is written that does not
//! change.

use portolan_types::object;
use serde_json::{Value, json};

use super::{
    judge::{self, ContainerFault, ContainerState, fails, is_sidecar},
    references::MissingReferences,
};
use crate::fields::{list, set_condition, text};

/// Address of every node.
pub(super) const HOST_ADDRESS: &str = "198.18.0.1";

/// Parts of a status that do not come from the pod.
pub(super) struct PodStart<'a> {
    pub(super) missing: &'a MissingReferences,
    /// Address that the pod gets when it has none.
    pub(super) address: &'a str,
    pub(super) now: &'a str,
    /// Containers that crash are started once more.
    pub(super) restarts: bool,
}

/// Status with its Events.
pub(super) struct PodOutlook {
    pub(super) status: Value,
    /// Reason and message of Events.
    pub(super) warnings: Vec<(&'static str, String)>,
}

fn qos(pod: &Value) -> Value {
    pod.pointer("/status/qosClass").cloned().unwrap_or_else(|| "BestEffort".into())
}

/// Status of a pod for which there is no node.
pub(super) fn unscheduled(pod: &Value, reason: &str, message: &str, now: &str) -> Value {
    let mut conditions = list(pod, "/status/conditions").to_vec();
    set_condition(&mut conditions, "PodScheduled", false, reason, message, now);
    json!({"phase": "Pending", "conditions": conditions, "qosClass": qos(pod)})
}

/// Status of a pod that has just been bound.
pub(super) fn bound(pod: &Value, now: &str) -> Value {
    let mut conditions = list(pod, "/status/conditions").to_vec();
    let init = list(pod, "/spec/initContainers");
    set_condition(&mut conditions, "PodScheduled", true, "", "", now);
    let names = |containers: &[Value]| containers.iter().map(|c| text(c, "/name")).collect::<Vec<_>>().join(" ");
    let not_initialized = format!("containers with incomplete status: [{}]", names(init));
    if init.is_empty() {
        set_condition(&mut conditions, "Initialized", true, "", "", now)
    } else {
        set_condition(&mut conditions, "Initialized", false, "ContainersNotInitialized", &not_initialized, now);
    }
    let unready = format!("containers with unready status: [{}]", names(list(pod, "/spec/containers")));
    for kind in ["ContainersReady", "Ready"] {
        set_condition(&mut conditions, kind, false, "ContainersNotReady", &unready, now);
    }
    let reason = if init.is_empty() { "ContainerCreating" } else { "PodInitializing" };
    let waiting = json!({"waiting": {"reason": reason}});
    let mut status = json!({
        "phase": "Pending", "qosClass": qos(pod), "startTime": now, "conditions": conditions, "hostIP": HOST_ADDRESS,
        "hostIPs": [{"ip": HOST_ADDRESS}],
        "containerStatuses": all(pod, "containers", |_| waiting.clone()),
    });
    if !init.is_empty() {
        status["initContainerStatuses"] = all(pod, "initContainers", |_| waiting.clone()).into();
    }
    status
}

/// Status of every container of a list that has not started.
fn all(pod: &Value, of: &str, state: impl Fn(&Value) -> Value) -> Vec<Value> {
    list(&pod["spec"], &format!("/{of}")).iter().map(|container| idle(pod, container, state(container))).collect()
}

fn before<'a>(pod: &'a Value, container: &Value) -> Option<&'a Value> {
    let statuses = list(pod, "/status/initContainerStatuses").iter().chain(list(pod, "/status/containerStatuses"));
    statuses.into_iter().find(|own| text(own, "/name") == text(container, "/name"))
}

fn idle(pod: &Value, container: &Value, state: Value) -> Value {
    let restarts = before(pod, container).and_then(|own| own["restartCount"].as_i64()).unwrap_or(0);
    let last = before(pod, container).map(|own| own["lastState"].clone()).filter(Value::is_object);
    json!({
        "name": text(container, "/name"), "image": text(container, "/image"), "imageID": "", "ready": false, "started": false,
        "restartCount": restarts, "state": state, "lastState": last.unwrap_or_else(|| json!({})),
    })
}

fn started(pod: &Value, container: &Value, state: Value, ready: bool) -> Value {
    let mut status = idle(pod, container, state);
    let (name, image) = (text(container, "/name"), text(container, "/image"));
    status["imageID"] = format!("simulated://{image}").into();
    status["containerID"] = format!("simulated://{}-{name}", object::meta_text(pod, "uid")).into();
    status["ready"] = ready.into();
    status["started"] = (status["state"].get("running").is_some()).into();
    status
}

fn running(pod: &Value, container: &Value, now: &str) -> Value {
    let since = before(pod, container).map_or("", |own| text(own, "/state/running/startedAt"));
    json!({"running": {"startedAt": if since.is_empty() { now } else { since }}})
}

fn terminated(pod: &Value, container: &Value, now: &str, code: i64) -> Value {
    let known = before(pod, container).and_then(|own| own.pointer("/state/terminated"));
    if let Some(known) = known.filter(|known| known["exitCode"] == code) {
        return json!({"terminated": known});
    }
    let since = before(pod, container).map_or("", |own| text(own, "/state/running/startedAt"));
    let (since, reason) = (if since.is_empty() { now } else { since }, if code == 0 { "Completed" } else { "Error" });
    json!({"terminated": {"exitCode": code, "reason": reason, "startedAt": since, "finishedAt": now}})
}

/// Returns the status of a container that fails repeatedly.
fn crashing(pod: &Value, container: &Value, start: &PodStart<'_>) -> Value {
    let mut status = idle(pod, container, json!({}));
    let count = status["restartCount"].as_i64().unwrap_or(0);
    if count == 0 || start.restarts {
        status["restartCount"] = (count + 1).into();
        status["lastState"] = json!({"terminated": {
            "exitCode": 1, "reason": "Error", "startedAt": start.now, "finishedAt": start.now,
        }});
    }
    let seconds = back_off(status["restartCount"].as_i64().unwrap_or(1)).as_secs();
    let (name, uid) = (text(container, "/name"), object::meta_text(pod, "uid"));
    let message = format!(
        "back-off {seconds}s restarting failed container={name} pod={}_{}({uid})",
        object::name(pod),
        object::namespace(pod)
    );
    status["state"] = json!({"waiting": {"reason": "CrashLoopBackOff", "message": message}});
    status["imageID"] = format!("simulated://{}", text(container, "/image")).into();
    status
}

/// Backoff of kubelet before it restarts a container: 10 s, doubled each time, at most 5 min.
pub(super) fn back_off(restarts: i64) -> std::time::Duration {
    const FIRST: u64 = 10;
    const MOST: u64 = 300;
    let doublings = u32::try_from(restarts.clamp(1, 10) - 1).unwrap_or(0);
    std::time::Duration::from_secs((FIRST << doublings).min(MOST))
}

/// Returns the fault of a container that cannot be created. A container that was created keeps running, even if the
/// objects that it refers to are deleted.
fn fault(pod: &Value, container: &Value, missing: &MissingReferences) -> Option<ContainerFault> {
    if before(pod, container).is_some_and(|own| own.pointer("/state/waiting").is_none()) {
        return None;
    }
    let environment = missing.environments.iter().find(|(name, _)| name == text(container, "/name"));
    judge::image_fault(container).or_else(|| environment.map(|(_, why)| ContainerFault::unconfigured(why)))
}

/// Container statuses, and their effect on the pod.
#[derive(Default)]
struct ContainerStatuses {
    init: Vec<Value>,
    main: Vec<Value>,
    /// All init containers have succeeded.
    is_initialized: bool,
    warnings: Vec<(&'static str, String)>,
}

impl ContainerStatuses {
    fn of(pod: &Value, start: &PodStart<'_>) -> Self {
        let mut own = Self { is_initialized: true, ..Self::default() };
        for container in list(pod, "/spec/initContainers") {
            let status = own.init_status(pod, container, start);
            own.init.push(status);
        }
        for container in list(pod, "/spec/containers") {
            let status = if own.is_initialized {
                own.status(pod, container, start)
            } else {
                idle(pod, container, json!({"waiting": {"reason": "PodInitializing"}}))
            };
            own.main.push(status);
        }
        own
    }

    fn init_status(&mut self, pod: &Value, container: &Value, start: &PodStart<'_>) -> Value {
        if !self.is_initialized {
            return idle(pod, container, json!({"waiting": {"reason": "PodInitializing"}}));
        }
        if is_sidecar(container) {
            let status = self.status(pod, container, start);
            self.is_initialized = status.pointer("/state/running").is_some();
            return status;
        }
        if let Some(fault) = fault(pod, container, start.missing) {
            self.is_initialized = false;
            return self.waiting(pod, container, fault);
        }
        if fails(container) {
            self.is_initialized = false;
            return match text(pod, "/spec/restartPolicy") {
                "Never" => started(pod, container, terminated(pod, container, start.now, 1), false),
                _ => self.crash(pod, container, start),
            };
        }
        started(pod, container, terminated(pod, container, start.now, 0), true)
    }

    fn status(&mut self, pod: &Value, container: &Value, start: &PodStart<'_>) -> Value {
        let verdict = match fault(pod, container, start.missing) {
            Some(fault) => ContainerState::Waits(fault),
            None => judge::judge(pod, container),
        };
        match verdict {
            ContainerState::Waits(fault) => self.waiting(pod, container, fault),
            ContainerState::Crashes => self.crash(pod, container, start),
            ContainerState::Runs(ready) => {
                let is_ready = ready.is_ok();
                self.warnings.extend(ready.err().map(|why| ("Unhealthy", why)));
                started(pod, container, running(pod, container, start.now), is_ready)
            }
        }
    }

    fn waiting(&mut self, pod: &Value, container: &Value, fault: ContainerFault) -> Value {
        self.warnings.push((fault.event, fault.event_message));
        idle(pod, container, json!({"waiting": {"reason": fault.reason, "message": fault.message}}))
    }

    fn crash(&mut self, pod: &Value, container: &Value, start: &PodStart<'_>) -> Value {
        let message = format!(
            "Back-off restarting failed container {} in pod {}_{}({})",
            text(container, "/name"),
            object::name(pod),
            object::namespace(pod),
            object::meta_text(pod, "uid")
        );
        self.warnings.push(("BackOff", message));
        crashing(pod, container, start)
    }

    fn names(statuses: &[Value], test: impl Fn(&Value) -> bool) -> String {
        let names = statuses.iter().filter(|own| test(own)).map(|own| text(own, "/name"));
        format!("[{}]", names.collect::<Vec<_>>().join(" "))
    }

    /// Phase as kubelet makes it of the states: a container that never started keeps the pod pending.
    fn phase(&self, pod: &Value) -> &'static str {
        let failed = |own: &Value| own.pointer("/state/terminated/exitCode").is_some_and(|code| *code != 0);
        if self.init.iter().any(failed) && text(pod, "/spec/restartPolicy") == "Never" {
            return "Failed";
        }
        let never_started =
            |own: &Value| own.pointer("/state/waiting").is_some() && own.pointer("/lastState/terminated").is_none();
        if !self.is_initialized || self.main.iter().any(never_started) { "Pending" } else { "Running" }
    }

    fn set_conditions(&self, pod: &Value, conditions: &mut Vec<Value>, now: &str) {
        let unready = |own: &Value| own["ready"] != true;
        set_condition(conditions, "PodReadyToStartContainers", true, "", "", now);
        if self.is_initialized {
            set_condition(conditions, "Initialized", true, "", "", now)
        } else {
            let why = format!("containers with incomplete status: {}", Self::names(&self.init, unready));
            set_condition(conditions, "Initialized", false, "ContainersNotInitialized", &why, now);
        }
        let all_ready = !self.main.iter().any(unready) && self.is_initialized;
        let why = format!("containers with unready status: {}", Self::names(&self.main, unready));
        let gates = judge::open_gates(pod);
        if all_ready {
            set_condition(conditions, "ContainersReady", true, "", "", now)
        } else {
            set_condition(conditions, "ContainersReady", false, "ContainersNotReady", &why, now)
        }
        match (all_ready, gates.first()) {
            (false, _) => set_condition(conditions, "Ready", false, "ContainersNotReady", &why, now),
            (true, None) => set_condition(conditions, "Ready", true, "", "", now),
            (true, Some(gate)) => {
                let why = format!("corresponding condition of pod readiness gate {gate:?} does not exist.");
                set_condition(conditions, "Ready", false, "ReadinessGatesNotReady", &why, now);
            }
        }
    }
}

/// Status of a bound pod whose containers are to run.
pub(super) fn outlook(pod: &Value, start: &PodStart<'_>) -> PodOutlook {
    let mut status = pod["status"].clone();
    if !start.missing.volumes.is_empty() && text(pod, "/status/podIP").is_empty() {
        let mounts = start.missing.volumes.iter();
        let warnings = mounts
            .map(|(volume, why)| ("FailedMount", format!("MountVolume.SetUp failed for volume {volume:?} : {why}")))
            .collect();
        return PodOutlook { status, warnings };
    }
    let containers = ContainerStatuses::of(pod, start);
    let mut conditions = list(pod, "/status/conditions").to_vec();
    containers.set_conditions(pod, &mut conditions, start.now);
    let address = match text(pod, "/status/podIP") {
        "" if pod.pointer("/spec/hostNetwork").and_then(Value::as_bool) == Some(true) => HOST_ADDRESS,
        "" => start.address,
        known => known,
    };
    status["phase"] = containers.phase(pod).into();
    status["conditions"] = conditions.into();
    status["podIP"] = address.into();
    status["podIPs"] = json!([{"ip": address}]);
    status["containerStatuses"] = containers.main.into();
    if !containers.init.is_empty() {
        status["initContainerStatuses"] = containers.init.into();
    }
    PodOutlook { status, warnings: containers.warnings }
}

/// Status of a pod whose containers have ended.
pub(super) fn ended(pod: &Value, now: &str) -> Value {
    let failed = list(pod, "/spec/containers").iter().any(fails);
    let mut status = pod["status"].clone();
    let state = |container: &Value| terminated(pod, container, now, i64::from(fails(container)));
    let mut conditions = list(pod, "/status/conditions").to_vec();
    let reason = if failed { "PodFailed" } else { "PodCompleted" };
    set_condition(&mut conditions, "Ready", false, reason, "", now);
    set_condition(&mut conditions, "ContainersReady", false, reason, "", now);
    let containers = list(pod, "/spec/containers").iter();
    let statuses: Vec<Value> = containers.map(|own| started(pod, own, state(own), false)).collect();
    let sidecars = list(pod, "/spec/initContainers").iter();
    let sidecars: Vec<Value> =
        sidecars.map(|own| started(pod, own, terminated(pod, own, now, 0), !is_sidecar(own))).collect();
    status["phase"] = if failed { "Failed" } else { "Succeeded" }.into();
    status["conditions"] = conditions.into();
    status["containerStatuses"] = statuses.into();
    if !sidecars.is_empty() {
        status["initContainerStatuses"] = sidecars.into();
    }
    status
}

/// Returns the number of restarts of the container that crashes; `None` when none does.
pub(super) fn crash_count(pod: &Value) -> Option<i64> {
    let statuses = list(pod, "/status/initContainerStatuses").iter().chain(list(pod, "/status/containerStatuses"));
    let crashing = statuses.filter(|own| text(own, "/state/waiting/reason") == "CrashLoopBackOff");
    crashing.filter_map(|own| own["restartCount"].as_i64()).max()
}

/// Returns true for a pod of which a container has not started.
pub(super) fn has_waiting(pod: &Value) -> bool {
    let mut statuses = list(pod, "/status/initContainerStatuses").iter().chain(list(pod, "/status/containerStatuses"));
    statuses.any(|own| own.pointer("/state/waiting").is_some())
}
