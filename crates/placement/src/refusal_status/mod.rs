//! Status of a workload whose pods are refused: as the controllers of its kind would set it if every pod were refused.
//! No downstream controller has seen the object in this state.

mod status_draft;

use jiff::{SignedDuration, Timestamp};
use portolan_types::{GroupKind, object, seams::seconds_text};
use serde_json::{Value, json};

use status_draft::StatusDraft;

const FAILURE: &str = "ReplicaFailure";
const PROGRESSING: &str = "Progressing";
/// Reasons of `Progressing`, as kube-controller-manager sets them.
const UPDATED: &str = "ReplicaSetUpdated";
const TIMED_OUT: &str = "ProgressDeadlineExceeded";
/// Value of a progress deadline that means none.
const NO_DEADLINE: i64 = i32::MAX as i64;

/// Facts of a refusal.
#[derive(Clone, Copy, Debug)]
pub struct RefusalFacts<'a> {
    /// Sentence of the API's answer.
    pub message: &'a str,
    /// True if the object has no copy.
    pub nowhere: bool,
    /// True if the template is not that of the running pods.
    pub new_template: bool,
    /// The present moment.
    pub now: Timestamp,
}

/// Returns the status of an object whose pods are refused; `None` for kinds whose status does not show it.
///
/// `observedGeneration` is that of the object, because it has been acted on. DaemonSets, and StatefulSets with running
/// pods, are left as they are: their status would look complete.
pub fn refused_status(kind: &GroupKind, object: &Value, facts: &RefusalFacts<'_>) -> Option<Value> {
    let mut shown = StatusDraft::of(object.get("status"));
    match (&*kind.group, &*kind.kind) {
        ("apps", "Deployment") => refuse_deployment(&mut shown, object, facts),
        ("apps", "ReplicaSet") | ("", "ReplicationController") => {
            if facts.nowhere {
                shown.forget_counts();
                shown.count("replicas", 0);
            }
            shown.set(failure(facts));
        }
        ("apps", "StatefulSet") if facts.nowhere => {
            shown.forget_counts();
            ["replicas", "availableReplicas"].into_iter().for_each(|field| shown.count(field, 0));
        }
        _ => return None,
    }
    shown.observe(object::generation(object));
    Some(shown.into_value())
}

/// Returns the status of an object with copies while its present state is refused. `merged` is the status from its
/// copies; the conditions of the refusal stay.
pub fn status_while_refused(kind: &GroupKind, object: &Value, merged: Value) -> Value {
    let kept: &[&str] = match (&*kind.group, &*kind.kind) {
        ("apps", "Deployment") => &[FAILURE, PROGRESSING],
        ("apps", "ReplicaSet") | ("", "ReplicationController") => &[FAILURE],
        _ => return merged,
    };
    let (before, mut shown) = (StatusDraft::of(object.get("status")), StatusDraft::of(Some(&merged)));
    kept.iter().filter_map(|name| before.condition(name)).for_each(|condition| shown.put(condition.clone()));
    if &*kind.kind == "Deployment" {
        count_missing(&mut shown, object);
    }
    shown.into_value()
}

/// Returns the status of an object whose pods were refused and are admitted now.
pub fn admitted_status(kind: &GroupKind, object: &Value, now: Timestamp) -> Option<Value> {
    let mut shown = StatusDraft::of(object.get("status"));
    match (&*kind.group, &*kind.kind) {
        ("apps", "Deployment") if shown.reason(PROGRESSING) == TIMED_OUT => shown.set(progressing(object, now)),
        ("apps", "Deployment" | "ReplicaSet") | ("", "ReplicationController") => {}
        _ => return None,
    }
    shown.remove(FAILURE);
    Some(shown.into_value())
}

/// Returns the time until a Deployment exceeds its progress deadline.
pub fn remaining_progress_deadline(deployment: &Value, status: &Value, now: Timestamp) -> Option<SignedDuration> {
    let shown = StatusDraft::of(Some(status));
    let waits = shown.reason(PROGRESSING) == UPDATED;
    Some(until(deadline(deployment).filter(|_| waits)?, &shown)?.duration_since(now))
}

fn refuse_deployment(shown: &mut StatusDraft, deployment: &Value, facts: &RefusalFacts<'_>) {
    if facts.nowhere {
        shown.forget_counts();
        shown.set(available(deployment, facts.now));
    }
    if facts.nowhere || facts.new_template {
        shown.forget_count("updatedReplicas");
        progress(shown, deployment, facts.now);
    }
    count_missing(shown, deployment);
    shown.set(updated(failure(facts), facts.now));
}

/// Updates `Progressing` as kube-controller-manager does: a new rollout progresses until its deadline has passed.
fn progress(shown: &mut StatusDraft, deployment: &Value, now: Timestamp) {
    let Some(deadline) = deadline(deployment) else { return shown.remove(PROGRESSING) };
    let is_known = shown.observed() >= object::generation(deployment) && shown.condition(FAILURE).is_some();
    match shown.reason(PROGRESSING) {
        TIMED_OUT if is_known => {}
        UPDATED if is_known && until(deadline, shown).is_some_and(|until| now <= until) => {}
        UPDATED if is_known => {
            let message = format!("Deployment \"{}\" has timed out progressing.", object::name(deployment));
            shown.set(updated(condition(PROGRESSING, "False", TIMED_OUT, &message, now), now));
        }
        _ => shown.renew(progressing(deployment, now)),
    }
}

fn progressing(deployment: &Value, now: Timestamp) -> Value {
    let message = format!("Deployment \"{}\" is progressing.", object::name(deployment));
    updated(condition(PROGRESSING, "True", UPDATED, &message, now), now)
}

/// Returns the progress deadline in seconds; `None` if there is none.
fn deadline(deployment: &Value) -> Option<i64> {
    let seconds = deployment.pointer("/spec/progressDeadlineSeconds").and_then(Value::as_i64);
    seconds.filter(|seconds| (0..NO_DEADLINE).contains(seconds))
}

/// Returns the end of the progress deadline.
fn until(deadline: i64, shown: &StatusDraft) -> Option<Timestamp> {
    let since: Timestamp = shown.condition(PROGRESSING)?["lastUpdateTime"].as_str()?.parse().ok()?;
    since.checked_add(SignedDuration::from_secs(deadline)).ok()
}

/// Returns the condition `Available` of a Deployment without pods: false, unless all may be missing.
fn available(deployment: &Value, now: Timestamp) -> Value {
    let (status, reason, message) = if replicas(deployment) <= may_be_missing(deployment) {
        ("True", "MinimumReplicasAvailable", "Deployment has minimum availability.")
    } else {
        ("False", "MinimumReplicasUnavailable", "Deployment does not have minimum availability.")
    };
    updated(condition("Available", status, reason, message, now), now)
}

/// Returns the number of pods that a rolling Deployment can do without, as kube-controller-manager resolves it.
fn may_be_missing(deployment: &Value) -> i64 {
    let at = |field: &str| deployment.pointer(&format!("/spec/strategy/{field}"));
    if at("type").and_then(Value::as_str).is_some_and(|kind| kind != "RollingUpdate") {
        return 0;
    }
    let all = replicas(deployment);
    let resolved = |field: &str, round_up: bool| match at(&format!("rollingUpdate/{field}")) {
        Some(Value::String(text)) => {
            let percent: i64 = text.trim_end_matches('%').parse().unwrap_or(0);
            (percent.saturating_mul(all) + if round_up { 99 } else { 0 }) / 100
        }
        value => value.and_then(Value::as_i64).unwrap_or(0),
    };
    match (resolved("maxUnavailable", false), resolved("maxSurge", true)) {
        (0, 0) => 1.min(all),
        (missing, _) => missing.min(all),
    }
}

fn replicas(object: &Value) -> i64 {
    object.pointer("/spec/replicas").and_then(Value::as_i64).unwrap_or(1)
}

fn count_missing(shown: &mut StatusDraft, deployment: &Value) {
    match replicas(deployment) - shown.number("availableReplicas") {
        missing @ 1.. => shown.count("unavailableReplicas", missing),
        _ => shown.forget_count("unavailableReplicas"),
    }
}

fn failure(facts: &RefusalFacts<'_>) -> Value {
    condition(FAILURE, "True", "FailedCreate", facts.message, facts.now)
}

fn condition(kind: &str, status: &str, reason: &str, message: &str, now: Timestamp) -> Value {
    json!({"type": kind, "status": status, "lastTransitionTime": seconds_text(now), "reason": reason, "message": message})
}

/// Adds `lastUpdateTime`, which conditions of Deployments have.
fn updated(mut condition: Value, now: Timestamp) -> Value {
    condition["lastUpdateTime"] = seconds_text(now).into();
    condition
}

#[cfg(test)]
mod tests;
