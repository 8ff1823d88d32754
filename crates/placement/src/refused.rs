//! The status of a workload whose pods are not let in: what the controllers of its kind would leave there if every pod that
//! they make were refused. No controller below has seen such an object, or what it says now.

mod shown;

use jiff::{SignedDuration, Timestamp};
use portolan_types::{GroupKind, object, seams::seconds_text};
use serde_json::{Value, json};

use shown::Shown;

const FAILURE: &str = "ReplicaFailure";
const PROGRESSING: &str = "Progressing";
/// Reasons of `Progressing`, as kube-controller-manager has them.
const UPDATED: &str = "ReplicaSetUpdated";
const TIMED_OUT: &str = "ProgressDeadlineExceeded";
/// A deadline of so many seconds is none.
const NO_DEADLINE: i64 = i32::MAX as i64;

/// What is known of a refusal.
#[derive(Clone, Copy, Debug)]
pub struct Told<'a> {
    /// The sentence that the API answers with.
    pub message: &'a str,
    /// No copy of the object is anywhere.
    pub nowhere: bool,
    /// The template is another one than that of what runs.
    pub new_template: bool,
    /// The present moment.
    pub now: Timestamp,
}

/// The status of an object whose pods are refused; `None` for kinds whose status does not tell of it.
///
/// `observedGeneration` is that of the object, as somebody has acted on it. Not so for a DaemonSet, as what is shown of one
/// without pods looks like one that is done; nor for a StatefulSet of which something runs.
pub fn refused_status(kind: &GroupKind, object: &Value, told: &Told<'_>) -> Option<Value> {
    let mut shown = Shown::of(object.get("status"));
    match (&*kind.group, &*kind.kind) {
        ("apps", "Deployment") => refuse_deployment(&mut shown, object, told),
        ("apps", "ReplicaSet") | ("", "ReplicationController") => {
            if told.nowhere {
                shown.forget_counts();
                shown.count("replicas", 0);
            }
            shown.set(failure(told));
        }
        ("apps", "StatefulSet") if told.nowhere => {
            shown.forget_counts();
            ["replicas", "availableReplicas"].into_iter().for_each(|field| shown.count(field, 0));
        }
        _ => return None,
    }
    shown.observe(object::generation(object));
    Some(shown.into_value())
}

/// `merged` is what the copies of `object` report. While what it says now is refused, what was told of that stays.
pub fn still_refused_status(kind: &GroupKind, object: &Value, merged: Value) -> Value {
    let kept: &[&str] = match (&*kind.group, &*kind.kind) {
        ("apps", "Deployment") => &[FAILURE, PROGRESSING],
        ("apps", "ReplicaSet") | ("", "ReplicationController") => &[FAILURE],
        _ => return merged,
    };
    let (before, mut shown) = (Shown::of(object.get("status")), Shown::of(Some(&merged)));
    kept.iter().filter_map(|name| before.condition(name)).for_each(|condition| shown.put(condition.clone()));
    if &*kind.kind == "Deployment" {
        count_missing(&mut shown, object);
    }
    shown.into_value()
}

/// The status of an object whose pods were refused, and are not any more.
pub fn let_in_status(kind: &GroupKind, object: &Value, now: Timestamp) -> Option<Value> {
    let mut shown = Shown::of(object.get("status"));
    match (&*kind.group, &*kind.kind) {
        ("apps", "Deployment") if shown.reason(PROGRESSING) == TIMED_OUT => shown.set(progressing(object, now)),
        ("apps", "Deployment" | "ReplicaSet") | ("", "ReplicationController") => {}
        _ => return None,
    }
    shown.remove(FAILURE);
    Some(shown.into_value())
}

/// How long a Deployment of this status still has until it is told that it does not progress.
pub fn left_to_progress(deployment: &Value, status: &Value, now: Timestamp) -> Option<SignedDuration> {
    let shown = Shown::of(Some(status));
    let waits = shown.reason(PROGRESSING) == UPDATED;
    Some(until(deadline(deployment).filter(|_| waits)?, &shown)?.duration_since(now))
}

fn refuse_deployment(shown: &mut Shown, deployment: &Value, told: &Told<'_>) {
    if told.nowhere {
        shown.forget_counts();
        shown.set(available(deployment, told.now));
    }
    if told.nowhere || told.new_template {
        shown.forget_count("updatedReplicas");
        progress(shown, deployment, told.now);
    }
    count_missing(shown, deployment);
    shown.set(updated(failure(told), told.now));
}

/// As upstream: a rollout that is new progresses, until its deadline has passed.
fn progress(shown: &mut Shown, deployment: &Value, now: Timestamp) {
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

/// Seconds that a rollout has; `None` for as many as it takes.
fn deadline(deployment: &Value) -> Option<i64> {
    let seconds = deployment.pointer("/spec/progressDeadlineSeconds").and_then(Value::as_i64);
    seconds.filter(|seconds| (0..NO_DEADLINE).contains(seconds))
}

/// When a rollout that waits has to have progressed.
fn until(deadline: i64, shown: &Shown) -> Option<Timestamp> {
    let since: Timestamp = shown.condition(PROGRESSING)?["lastUpdateTime"].as_str()?.parse().ok()?;
    since.checked_add(SignedDuration::from_secs(deadline)).ok()
}

/// Whether enough of none at all are available: not so, unless all may be missing.
fn available(deployment: &Value, now: Timestamp) -> Value {
    let (status, reason, message) = match replicas(deployment) <= may_be_missing(deployment) {
        true => ("True", "MinimumReplicasAvailable", "Deployment has minimum availability."),
        false => ("False", "MinimumReplicasUnavailable", "Deployment does not have minimum availability."),
    };
    updated(condition("Available", status, reason, message, now), now)
}

/// Of how many pods a rolling Deployment can do without, as upstream resolves it.
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

fn count_missing(shown: &mut Shown, deployment: &Value) {
    match replicas(deployment) - shown.number("availableReplicas") {
        missing @ 1.. => shown.count("unavailableReplicas", missing),
        _ => shown.forget_count("unavailableReplicas"),
    }
}

fn failure(told: &Told<'_>) -> Value {
    condition(FAILURE, "True", "FailedCreate", told.message, told.now)
}

fn condition(kind: &str, status: &str, reason: &str, message: &str, now: Timestamp) -> Value {
    json!({"type": kind, "status": status, "lastTransitionTime": seconds_text(now), "reason": reason, "message": message})
}

/// As conditions of Deployments are.
fn updated(mut condition: Value, now: Timestamp) -> Value {
    condition["lastUpdateTime"] = seconds_text(now).into();
    condition
}

#[cfg(test)]
mod tests;
