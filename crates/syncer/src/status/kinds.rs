//! Merge rules for the fields of a status, by kind.

use portolan_types::GroupKind;
use serde_json::{Map, Value, json};

use super::CopyStatus;

/// Rules by which the counts of several copies become one.
struct CountRules {
    /// Fields that count replicas; absent at 0 unless listed in `always`.
    fields: &'static [&'static str],
    /// Fields that are also written if they are 0.
    always: &'static [&'static str],
    /// Always summed, whether or not the copies share replicas.
    summed: bool,
    /// The smaller, the worse: decides which copy is the worst.
    health: &'static [&'static str],
}

const DEPLOYMENT: CountRules = CountRules {
    fields: &[
        "replicas",
        "updatedReplicas",
        "readyReplicas",
        "availableReplicas",
        "unavailableReplicas",
        "terminatingReplicas",
    ],
    always: &[],
    summed: false,
    health: &["availableReplicas", "readyReplicas", "updatedReplicas", "replicas"],
};
const REPLICA_SET: CountRules = CountRules {
    fields: &["replicas", "fullyLabeledReplicas", "readyReplicas", "availableReplicas", "terminatingReplicas"],
    always: &["replicas"],
    summed: false,
    health: &["availableReplicas", "readyReplicas", "replicas"],
};
const STATEFUL_SET: CountRules = CountRules {
    fields: &["replicas", "readyReplicas", "currentReplicas", "updatedReplicas", "availableReplicas"],
    always: &["replicas", "availableReplicas"],
    summed: false,
    health: &["availableReplicas", "readyReplicas", "updatedReplicas", "replicas"],
};
const DAEMON_SET: CountRules = CountRules {
    fields: &[
        "currentNumberScheduled",
        "numberMisscheduled",
        "desiredNumberScheduled",
        "numberReady",
        "updatedNumberScheduled",
        "numberAvailable",
        "numberUnavailable",
    ],
    always: &["currentNumberScheduled", "numberMisscheduled", "desiredNumberScheduled", "numberReady"],
    summed: true,
    health: &["numberAvailable"],
};
const JOB: CountRules = CountRules {
    fields: &["active", "succeeded", "failed", "ready", "terminating"],
    always: &[],
    summed: false,
    health: &["succeeded", "ready", "active"],
};
const AUTOSCALER: CountRules = CountRules {
    fields: &["currentReplicas", "desiredReplicas"],
    always: &["desiredReplicas"],
    summed: true,
    health: &["currentReplicas"],
};
const DISRUPTION_BUDGET: CountRules = CountRules {
    fields: &["disruptionsAllowed", "currentHealthy", "desiredHealthy", "expectedPods"],
    always: &["disruptionsAllowed", "currentHealthy", "desiredHealthy", "expectedPods"],
    summed: true,
    health: &["disruptionsAllowed"],
};

fn counts_of(kind: &GroupKind) -> Option<&'static CountRules> {
    match (&*kind.group, &*kind.kind) {
        ("apps", "Deployment") => Some(&DEPLOYMENT),
        ("apps", "ReplicaSet") | ("", "ReplicationController") => Some(&REPLICA_SET),
        ("apps", "StatefulSet") => Some(&STATEFUL_SET),
        ("apps", "DaemonSet") => Some(&DAEMON_SET),
        ("batch", "Job") => Some(&JOB),
        ("autoscaling", "HorizontalPodAutoscaler") => Some(&AUTOSCALER),
        ("policy", "PodDisruptionBudget") => Some(&DISRUPTION_BUDGET),
        _ => None,
    }
}

/// Returns true for kinds whose status counts pods or replicas.
pub(super) fn is_counted(kind: &GroupKind) -> bool {
    counts_of(kind).is_some()
}

/// Built-in kinds whose status has `observedGeneration` from its controller.
pub(super) fn observes(kind: &GroupKind) -> bool {
    counts_of(kind).is_some() && !matches!(&*kind.kind, "Job" | "HorizontalPodAutoscaler")
}

/// Kinds whose status has no place for conditions.
pub(super) fn has_conditions(kind: &GroupKind) -> bool {
    const WITHOUT: [&str; 6] = ["Ingress", "ConfigMap", "Secret", "ServiceAccount", "NetworkPolicy", "CronJob"];
    let built_in = matches!(&*kind.group, "" | "batch" | "networking.k8s.io");
    !(built_in && WITHOUT.contains(&&*kind.kind))
}

/// Returns the condition types that the controllers of a kind write; all others belong to other writers. `None` if the
/// types are not known beforehand.
pub(super) fn own_conditions(kind: &GroupKind) -> Option<&'static [&'static str]> {
    match (&*kind.group, &*kind.kind) {
        ("apps", "Deployment") => Some(&["Available", "Progressing", "ReplicaFailure"]),
        ("apps", "ReplicaSet") => Some(&["ReplicaFailure"]),
        ("apps", "StatefulSet" | "DaemonSet") => Some(&[]),
        ("batch", "Job") => Some(&["Complete", "Failed", "FailureTarget", "Suspended", "SuccessCriteriaMet"]),
        _ => None,
    }
}

/// Kinds whose copies each run replicas of their own.
pub(super) fn has_replicas(kind: &GroupKind) -> bool {
    matches!((&*kind.group, &*kind.kind), ("apps", "Deployment" | "ReplicaSet" | "StatefulSet"))
}

/// Returns true when a copy of such a kind has as many available replicas as it should: ready for `minReadySeconds`.
pub(super) fn is_whole(kind: &GroupKind, wanted: i64, copy: &CopyStatus) -> bool {
    has_replicas(kind) && copy.count("availableReplicas") >= copy.scaled.or(copy.replicas).unwrap_or(wanted)
}

/// Status of an object without copies: all counts are zero.
pub(super) fn zero_counts(kind: &GroupKind, before: &Value) -> Value {
    let mut status = Map::new();
    if let Some(observed) = before.get("observedGeneration") {
        status.insert("observedGeneration".into(), observed.clone());
    }
    match (&*kind.group, &*kind.kind, counts_of(kind)) {
        (_, "Job", Some(_)) => return before.clone(),
        (_, _, Some(counts)) => counts.always.iter().for_each(|field| drop(status.insert((*field).into(), 0.into()))),
        ("", "Service", _) | ("networking.k8s.io", "Ingress", _) => {
            drop(status.insert("loadBalancer".into(), json!({})))
        }
        _ => return before.clone(),
    }
    Value::Object(status)
}

/// Merges everything but `observedGeneration` and `conditions`. `copies` is not empty. `wanted` is the requested number
/// of replicas. If no copy ever had a status, it stays as `before`.
pub(super) fn merge(kind: &GroupKind, (before, wanted): (&Value, i64), copies: &[CopyStatus]) -> Map<String, Value> {
    let counts = counts_of(kind);
    let worst = worst(counts, copies);
    let shown = match worst {
        _ if copies.iter().all(|copy| copy.status.is_null()) => zero_counts(kind, before),
        Some(copy) => copy.status.clone(),
        None => Value::Null,
    };
    let mut status = shown.as_object().cloned().unwrap_or_default();
    if let (Some(counts), Some(worst)) = (counts, worst) {
        let sum = counts.summed || copies.iter().any(|copy| copy.replicas.is_some());
        set_counts(counts, sum, worst, copies, &mut status);
        let shared = copies.iter().filter_map(|copy| copy.replicas).fold(0_i64, i64::saturating_add);
        if !counts.summed && shared > wanted {
            leave_out_spare(counts, wanted, &mut status);
        }
    }
    match (&*kind.group, &*kind.kind) {
        ("", "Service") | ("networking.k8s.io", "Ingress") => set_addresses(copies, &mut status),
        ("apps", "StatefulSet") => set_revisions(copies, &mut status),
        ("batch", "Job") => set_times(copies, &mut status),
        ("batch", "CronJob") => keep_schedule_times(before, &mut status),
        ("", "PersistentVolumeClaim") => set_phase(copies, &mut status),
        _ => {}
    }
    status
}

/// The copy that is furthest from well: failed, then behind, then least healthy; the first of equals.
fn worst<'a>(counts: Option<&CountRules>, copies: &'a [CopyStatus]) -> Option<&'a CopyStatus> {
    let newest = copies.iter().map(|copy| copy.stamp).max().unwrap_or(0);
    copies.iter().min_by_key(|copy| {
        let is_behind = copy.stamp < newest || !copy.is_current;
        let health: Vec<i64> = match counts {
            Some(counts) => counts.health.iter().map(|field| copy.count(field)).collect(),
            None => vec![i64::from(is_ready(copy))],
        };
        (copy.failed.is_none(), !is_behind, health)
    })
}

fn is_ready(copy: &CopyStatus) -> bool {
    let conditions = copy.status.get("conditions").and_then(Value::as_array).into_iter().flatten();
    conditions.into_iter().all(|c| c["type"] != "Ready" || c["status"] == "True")
}

fn set_counts(
    counts: &CountRules,
    sum: bool,
    worst: &CopyStatus,
    copies: &[CopyStatus],
    status: &mut Map<String, Value>,
) {
    for field in counts.fields {
        let total = if sum {
            copies.iter().fold(0_i64, |total, copy| total.saturating_add(copy.count(field)))
        } else {
            worst.count(field)
        };
        if total == 0 && !counts.always.contains(field) {
            drop(status.remove(*field))
        } else {
            drop(status.insert((*field).into(), total.into()))
        }
    }
    if copies.len() > 1 {
        // Counts of hash collisions, and pods not counted yet, mean something on their own physical cluster only.
        ["collisionCount", "uncountedTerminatedPods", "disruptedPods"]
            .iter()
            .for_each(|field| drop(status.remove(*field)));
    }
}

/// Limits the counts to `wanted` while shares overlap in a move and more pods run than requested: then ready never
/// exceeds it, `rollout status` does not wait for the spare pods, and an autoscaler does not count them. Pods of an
/// older template count first, so that a rollout ends only when the last of them is gone.
fn leave_out_spare(counts: &CountRules, wanted: i64, status: &mut Map<String, Value>) {
    let count = |status: &Map<String, Value>, field: &str| status.get(field).and_then(Value::as_i64).unwrap_or(0);
    let set = |status: &mut Map<String, Value>, field: &str, number: i64| {
        if number == 0 && !counts.always.contains(&field) {
            drop(status.remove(field))
        } else {
            drop(status.insert(field.to_owned(), number.into()))
        }
    };
    let (all, updated) = (count(status, "replicas"), count(status, "updatedReplicas"));
    for field in ["replicas", "readyReplicas", "availableReplicas", "currentReplicas", "fullyLabeledReplicas"] {
        let shown = count(status, field).min(wanted);
        set(status, field, shown);
    }
    if counts.fields.contains(&"updatedReplicas") {
        let old = all.saturating_sub(updated).max(0);
        set(status, "updatedReplicas", updated.min(wanted.saturating_sub(old)).max(0));
    }
    if counts.fields.contains(&"unavailableReplicas") {
        let missing = wanted.saturating_sub(count(status, "availableReplicas"));
        set(status, "unavailableReplicas", missing);
    }
}

/// Sets the addresses of the object on all physical clusters that can be reached.
fn set_addresses(copies: &[CopyStatus], status: &mut Map<String, Value>) {
    let mut all: Vec<Value> = Vec::new();
    for copy in copies.iter().filter(|copy| !copy.is_unreachable()) {
        let list =
            copy.status.get("loadBalancer").and_then(|balancer| balancer.get("ingress")).and_then(Value::as_array);
        for address in list.into_iter().flatten() {
            if !all.contains(address) {
                all.push(address.clone());
            }
        }
    }
    let balancer = if all.is_empty() { json!({}) } else { json!({"ingress": all}) };
    status.insert("loadBalancer".into(), balancer);
}

/// Keeps the times of a CronJob that has moved: the copy on its new physical cluster has not been scheduled yet.
/// RFC 3339 in UTC sorts as text.
fn keep_schedule_times(before: &Value, status: &mut Map<String, Value>) {
    for field in ["lastScheduleTime", "lastSuccessfulTime"] {
        let earlier = before.get(field).and_then(Value::as_str);
        let now = status.get(field).and_then(Value::as_str);
        if let Some(latest) = earlier.max(now).map(str::to_owned) {
            status.insert(field.into(), latest.into());
        }
    }
}

/// Sets the revisions of a copy that is still being rolled out, so that a rollout ends with the last copy. A copy that
/// has none of the replicas ends at once.
fn set_revisions(copies: &[CopyStatus], status: &mut Map<String, Value>) {
    let is_rolling = |copy: &&CopyStatus| copy.status.get("currentRevision") != copy.status.get("updateRevision");
    let has_pods = |copy: &&CopyStatus| copy.replicas != Some(0) && copy.status.is_object();
    let shown = copies.iter().filter(has_pods).find(is_rolling).or_else(|| {
        let has_any = |copy: &&CopyStatus| copy.replicas.is_some() && has_pods(copy);
        copies.iter().find(has_any)
    });
    let Some(shown) = shown else { return };
    for field in ["currentRevision", "updateRevision"] {
        match shown.status.get(field) {
            Some(revision) => drop(status.insert(field.into(), revision.clone())),
            None => drop(status.remove(field)),
        }
    }
}

/// A Job started when the first copy did, and is complete when the last one is.
fn set_times(copies: &[CopyStatus], status: &mut Map<String, Value>) {
    let times =
        |field: &'static str| copies.iter().filter_map(move |copy| copy.status.get(field)).filter_map(Value::as_str);
    if let Some(start) = times("startTime").min() {
        status.insert("startTime".into(), Value::String(start.to_owned()));
    }
    let ends: Vec<&str> = times("completionTime").collect();
    match ends.iter().max().filter(|_| ends.len() == copies.len()) {
        Some(end) => drop(status.insert("completionTime".into(), Value::String((*end).to_owned()))),
        None => drop(status.remove("completionTime")),
    }
}

/// `Lost` before `Pending` before `Bound`.
fn set_phase(copies: &[CopyStatus], status: &mut Map<String, Value>) {
    let phases = || copies.iter().map(|copy| copy.status.get("phase").and_then(Value::as_str).unwrap_or("Pending"));
    let worst = ["Lost", "Pending"].into_iter().find(|bad| phases().any(|phase| phase == *bad)).unwrap_or("Bound");
    status.insert("phase".into(), Value::String(worst.to_owned()));
}
