//! Status of objects that run nothing: without a copy, with an unreachable copy, or with a refused update.

use portolan_types::{GroupKind, object};
use serde_json::{Map, Value, json};

use super::{CopyStatus, conditions, kinds, wanted};

/// Reason of the conditions of an object that has no copy.
const NO_COPY: &str = "NoCopy";
const NO_COPY_MESSAGE: &str = "no physical cluster has a copy of it";

/// Returns `.status` of an object without copies: no replica is ready or available. Ended objects keep their status.
/// Conditions of the `former` copies are removed. `now` is in RFC 3339.
pub fn without_copies(kind: &GroupKind, upstream: &Value, former: &[CopyStatus], now: &str) -> Value {
    let before = upstream.get("status").cloned().unwrap_or(Value::Null);
    if !before.is_object() || object::has_ended(&kind.group, &kind.kind, upstream) {
        return before;
    }
    let (mut status, own) = match (&*kind.group, &*kind.kind) {
        ("apps", "Deployment") => {
            let mut status = kinds::zero_counts(kind, &before);
            if wanted(upstream) > 0 {
                status["unavailableReplicas"] = wanted(upstream).into();
            }
            (status, vec![("Available", "MinimumReplicasUnavailable")])
        }
        ("batch", "Job") => (without(&before, &["active", "ready", "terminating", "uncountedTerminatedPods"]), vec![]),
        ("batch", "CronJob") => (without(&before, &["active"]), vec![]),
        ("", "Pod") => {
            let class = before.get("qosClass").cloned().unwrap_or(Value::Null);
            (json!({"phase": "Pending", "qosClass": class}), vec![("Ready", NO_COPY), ("PodScheduled", NO_COPY)])
        }
        ("", "PersistentVolumeClaim") => (json!({"phase": "Pending"}), vec![]),
        ("policy", "PodDisruptionBudget") => {
            (kinds::zero_counts(kind, &before), vec![("DisruptionAllowed", "InsufficientPods")])
        }
        _ if kinds::is_counted(kind) || matches!(&*kind.group, "" | "networking.k8s.io") => {
            (kinds::zero_counts(kind, &before), vec![])
        }
        _ => (without(&json!({"observedGeneration": before.get("observedGeneration")}), &[]), vec![]),
    };
    let is_job = &*kind.kind == "Job" && &*kind.group == "batch";
    let kept: Vec<Value> =
        if is_job { conditions::all(&before).collect() } else { conditions::foreign(kind, &before).collect() };
    let own = own.into_iter().map(|(name, reason)| false_since(name, reason, &before, now));
    let is_former = |condition: &Value| {
        !is_job
            && former.iter().flat_map(|copy| conditions::all(&copy.status)).any(|own| own["type"] == condition["type"])
    };
    let listed: Vec<Value> = own.chain(kept.into_iter().filter(|condition| !is_former(condition))).collect();
    if let Some(fields) = status.as_object_mut() {
        fields.retain(|_, value| !value.is_null());
        if listed.is_empty() {
            drop(fields.remove("conditions"))
        } else {
            drop(fields.insert("conditions".into(), listed.into()))
        }
    }
    status
}

fn without(before: &Value, fields: &[&str]) -> Value {
    let mut status = before.clone();
    if let Some(all) = status.as_object_mut() {
        all.retain(|name, _| !fields.contains(&name.as_str()));
    }
    status
}

/// Returns a condition that is `False`, with the time since when it is so.
fn false_since(name: &str, reason: &str, before: &Value, now: &str) -> Value {
    let known = conditions::all(before).find(|known| known["type"] == name && known["status"] == "False");
    let since = known.and_then(|known| known["lastTransitionTime"].as_str().map(str::to_owned));
    json!({"type": name, "status": "False", "reason": reason, "message": NO_COPY_MESSAGE,
        "lastTransitionTime": since.unwrap_or_else(|| now.to_owned())})
}

/// Counts of one kind that change when its copy cannot be seen or updated.
struct UncertainCounts {
    /// Pods that are ready or available.
    ready: &'static [&'static str],
    /// Pods that are not, and the count that they all are in.
    missing: Option<(&'static str, &'static str)>,
    /// Pods of the newest template.
    updated: &'static str,
}

fn uncertain_counts(kind: &GroupKind) -> Option<UncertainCounts> {
    let of = |ready, missing, updated| Some(UncertainCounts { ready, missing, updated });
    match (&*kind.group, &*kind.kind) {
        ("apps", "Deployment") => {
            of(&["readyReplicas", "availableReplicas"], Some(("unavailableReplicas", "replicas")), "updatedReplicas")
        }
        ("apps", "StatefulSet") => of(&["readyReplicas", "availableReplicas"], None, "updatedReplicas"),
        ("apps", "ReplicaSet") | ("", "ReplicationController") => of(&["readyReplicas", "availableReplicas"], None, ""),
        ("apps", "DaemonSet") => of(
            &["numberReady", "numberAvailable"],
            Some(("numberUnavailable", "desiredNumberScheduled")),
            "updatedNumberScheduled",
        ),
        ("batch", "Job") => of(&["ready"], None, ""),
        ("policy", "PodDisruptionBudget") => of(&["currentHealthy", "disruptionsAllowed"], None, ""),
        _ => None,
    }
}

/// Returns the copy as it counts: on an unreachable physical cluster nothing is ready, and no pod has a template that
/// was refused.
pub(super) fn effective_copy(kind: &GroupKind, copy: CopyStatus) -> CopyStatus {
    let Some(doubtful) = uncertain_counts(kind) else { return copy };
    let mut copy = copy;
    if copy.is_unreachable() {
        let all = doubtful.missing.map(|(missing, all)| (missing, copy.count(all)));
        if let Some(status) = copy.status.as_object_mut() {
            doubtful.ready.iter().for_each(|field| set(status, field, 0));
            all.into_iter().for_each(|(missing, all)| set(status, missing, all));
        }
    } else if copy.refused > copy.stamp {
        match copy.status.as_object_mut() {
            Some(status) if !doubtful.updated.is_empty() => set(status, doubtful.updated, 0),
            // Without a pod that is wanted it would look like one that is done.
            None if &*kind.kind == "DaemonSet" => {
                copy.status = json!({"desiredNumberScheduled": 1, "numberUnavailable": 1});
            }
            _ => {}
        }
    }
    copy
}

fn set(status: &mut Map<String, Value>, field: &str, number: i64) {
    status.insert(field.to_owned(), number.into());
}

#[cfg(test)]
mod tests {
    use super::{
        super::{STALLED, UNREACHABLE, merge},
        *,
    };

    fn kind(text: &str) -> GroupKind {
        let (kind, group) = text.split_once('.').unwrap_or((text, ""));
        GroupKind { group: group.into(), kind: kind.into() }
    }

    fn condition(status: &Value, name: &str) -> Option<Value> {
        conditions::all(status).find(|condition| condition["type"] == name)
    }

    #[test]
    fn an_object_without_a_copy_has_an_empty_status() {
        let available = json!({"type": "Available", "status": "True", "lastTransitionTime": "T0"});
        let foreign = json!({"type": "example.com/Own", "status": "True"});
        for (text, before, expected) in [
            (
                "Deployment.apps",
                json!({"observedGeneration": 3, "replicas": 2, "readyReplicas": 2, "availableReplicas": 2, "updatedReplicas": 2,
                    "conditions": [available, foreign]}),
                json!({"observedGeneration": 3, "unavailableReplicas": 2, "conditions": [
                    {"type": "Available", "status": "False", "reason": "MinimumReplicasUnavailable",
                        "message": NO_COPY_MESSAGE, "lastTransitionTime": "T1"}, foreign]}),
            ),
            (
                "StatefulSet.apps",
                json!({"observedGeneration": 3, "replicas": 2, "readyReplicas": 2, "availableReplicas": 2, "currentRevision": "a"}),
                json!({"observedGeneration": 3, "replicas": 0, "availableReplicas": 0}),
            ),
            ("ReplicaSet.apps", json!({"replicas": 2, "readyReplicas": 2}), json!({"replicas": 0})),
            (
                "DaemonSet.apps",
                json!({"desiredNumberScheduled": 2, "numberReady": 2, "numberAvailable": 2, "currentNumberScheduled": 2}),
                json!({"desiredNumberScheduled": 0, "numberReady": 0, "numberMisscheduled": 0, "currentNumberScheduled": 0}),
            ),
            (
                "Job.batch",
                json!({"active": 1, "ready": 1, "startTime": "T0", "succeeded": 2}),
                json!({"startTime": "T0", "succeeded": 2}),
            ),
            (
                "Job.batch",
                json!({"succeeded": 1, "ready": 0, "conditions": [{"type": "Complete", "status": "True"}]}),
                json!({"succeeded": 1, "ready": 0, "conditions": [{"type": "Complete", "status": "True"}]}),
            ),
            ("CronJob.batch", json!({"active": [{}], "lastScheduleTime": "T0"}), json!({"lastScheduleTime": "T0"})),
            (
                "Service",
                json!({"loadBalancer": {"ingress": [{"ip": "10.0.0.1"}]}, "conditions": [available]}),
                json!({"loadBalancer": {}}),
            ),
            ("Ingress.networking.k8s.io", json!({"loadBalancer": {"ingress": [{}]}}), json!({"loadBalancer": {}})),
            ("PersistentVolumeClaim", json!({"phase": "Bound", "capacity": {}}), json!({"phase": "Pending"})),
            (
                "HorizontalPodAutoscaler.autoscaling",
                json!({"currentReplicas": 3, "desiredReplicas": 3, "conditions": [available]}),
                json!({"desiredReplicas": 0}),
            ),
            (
                "Database.example.com",
                json!({"phase": "Ready", "observedGeneration": 2}),
                json!({"observedGeneration": 2}),
            ),
        ] {
            let upstream = json!({"spec": {"replicas": 2}, "status": before});
            assert_eq!(without_copies(&kind(text), &upstream, &[], "T1"), expected, "{text}");
        }
        let budget = json!({"status": {"disruptionsAllowed": 1, "currentHealthy": 3, "expectedPods": 3, "conditions": [available]}});
        let budget = without_copies(&kind("PodDisruptionBudget.policy"), &budget, &[], "T1");
        assert_eq!((&budget["disruptionsAllowed"], &budget["currentHealthy"]), (&json!(0), &json!(0)));
        assert_eq!(condition(&budget, "DisruptionAllowed").unwrap()["status"], "False");
        let pod = json!({"status": {"phase": "Running", "qosClass": "Burstable", "podIP": "10.0.0.1", "containerStatuses": [{}]}});
        let pod = without_copies(&kind("Pod"), &pod, &[], "T1");
        assert_eq!((&pod["phase"], &pod["qosClass"], pod.get("podIP")), (&json!("Pending"), &json!("Burstable"), None));
        assert_eq!(condition(&pod, "Ready").unwrap()["status"], "False");
    }

    fn east(stamp: i64, status: Value) -> CopyStatus {
        let uid = "east".parse().unwrap();
        CopyStatus { stamp, is_current: true, status, ..CopyStatus::unreported("east", uid, None) }
    }

    #[test]
    fn nothing_is_ready_where_a_physical_cluster_cannot_be_reached() {
        let failed = |status: Value| CopyStatus {
            failed: Some((UNREACHABLE.into(), "no answer".into())),
            since: "T1".into(),
            ..east(1, status)
        };
        for (text, status, ready, missing) in [
            (
                "Deployment.apps",
                json!({"replicas": 3, "readyReplicas": 3, "availableReplicas": 3}),
                "readyReplicas",
                "unavailableReplicas",
            ),
            ("StatefulSet.apps", json!({"replicas": 3, "readyReplicas": 3}), "readyReplicas", ""),
            (
                "DaemonSet.apps",
                json!({"desiredNumberScheduled": 3, "numberReady": 3}),
                "numberReady",
                "numberUnavailable",
            ),
            ("Job.batch", json!({"active": 3, "ready": 3}), "ready", ""),
            (
                "PodDisruptionBudget.policy",
                json!({"disruptionsAllowed": 2, "currentHealthy": 3}),
                "disruptionsAllowed",
                "",
            ),
        ] {
            let shown = merge(&kind(text), &json!({"spec": {"replicas": 3}, "status": {}}), &[failed(status)]);
            assert_eq!(shown[ready].as_i64().unwrap_or(0), 0, "{text}");
            if !missing.is_empty() {
                assert_eq!(shown[missing], 3, "{text}");
            }
        }
    }

    #[test]
    fn a_refusal_is_an_answer_to_its_generation_and_looks_like_no_success() {
        let refused = |copy: CopyStatus| CopyStatus {
            failed: Some(("NotSyncable".into(), "no".into())),
            refused: 4,
            since: "T1".into(),
            ..copy
        };
        let upstream = json!({"spec": {"replicas": 3}, "status": {}});
        let daemons = merge(&kind("DaemonSet.apps"), &upstream, &[refused(east(0, Value::Null))]);
        assert_eq!((&daemons["observedGeneration"], &daemons["desiredNumberScheduled"]), (&json!(4), &json!(1)));
        let stalled = condition(&daemons, STALLED).unwrap();
        assert_eq!((&stalled["status"], &stalled["reason"]), (&json!("True"), &json!("NotSyncable")));
        let counts = json!({"observedGeneration": 3, "replicas": 3, "updatedReplicas": 3, "readyReplicas": 3, "availableReplicas": 3});
        for text in ["Deployment.apps", "StatefulSet.apps"] {
            let status = merge(&kind(text), &upstream, &[refused(east(3, counts.clone()))]);
            assert_eq!((&status["observedGeneration"], &status["readyReplicas"]), (&json!(4), &json!(3)), "{text}");
            assert_eq!(status["updatedReplicas"].as_i64().unwrap_or(0), 0, "{text}: what runs is of another template");
        }
        for text in ["Deployment.apps", "ReplicaSet.apps", "DaemonSet.apps", "PodDisruptionBudget.policy"] {
            let status = merge(&kind(text), &upstream, &[refused(east(0, Value::Null))]);
            assert_eq!(status["observedGeneration"], 4, "{text}");
        }
        let healed = json!({"status": daemons, "spec": {}});
        let status = merge(&kind("DaemonSet.apps"), &healed, &[east(5, json!({"desiredNumberScheduled": 2}))]);
        assert_eq!((condition(&status, STALLED), &status["observedGeneration"]), (None, &json!(5)));
    }
}
