//! Fields by kind that the physical cluster decides for itself, and those that reach too far.

use portolan_types::GroupVersionKind;
use serde_json::{Map, Value};

use super::GENERATED_JOB_LABELS;
use crate::rules::Refusal;

/// Refuses what a logical cluster must not ask of a shared physical cluster.
pub(super) fn check(kind: &GroupVersionKind, copy: &Value) -> Result<(), Refusal> {
    match (&*kind.group, &*kind.kind) {
        ("", "Service") => check_service(copy),
        _ => Ok(()),
    }
}

fn check_service(copy: &Value) -> Result<(), Refusal> {
    let spec = &copy["spec"];
    if spec["externalIPs"].as_array().is_some_and(|ips| !ips.is_empty()) {
        return Err(Refusal::not_syncable("spec.externalIPs would take over addresses of others"));
    }
    let target = spec["externalName"].as_str().unwrap_or_default().trim_end_matches('.');
    let is_external = spec["type"].as_str() == Some("ExternalName");
    match is_external && (target.ends_with(".svc") || target.contains(".svc.") || target.ends_with(".local")) {
        true => {
            Err(Refusal::not_syncable("spec.externalName would reach services of others inside the physical cluster"))
        }
        false => Ok(()),
    }
}

/// Takes out what the physical cluster gives by itself.
pub(super) fn strip(kind: &GroupVersionKind, copy: &mut Value) {
    let Some(spec) = copy.get_mut("spec").and_then(Value::as_object_mut) else { return };
    match (&*kind.group, &*kind.kind) {
        ("", "Service") => strip_service(spec),
        ("", "PersistentVolumeClaim") => drop(spec.remove("volumeName")),
        ("batch", "Job") => {
            // Upstream ends the Job when its time is over, and its copy with it. Below the copy alone would go.
            spec.remove("ttlSecondsAfterFinished");
            strip_job(spec);
        }
        ("batch", "CronJob") => {
            if let Some(job) =
                spec.get_mut("jobTemplate").and_then(|t| t.get_mut("spec")).and_then(Value::as_object_mut)
            {
                strip_job(job);
            }
        }
        _ => {}
    }
}

fn strip_service(spec: &mut Map<String, Value>) {
    if spec.get("clusterIP").and_then(Value::as_str) != Some("None") {
        ["clusterIP", "clusterIPs", "ipFamilies"].iter().for_each(|key| drop(spec.remove(*key)));
    }
    ["healthCheckNodePort", "loadBalancerIP"].iter().for_each(|key| drop(spec.remove(*key)));
    for port in spec.get_mut("ports").and_then(Value::as_array_mut).into_iter().flatten() {
        if let Some(port) = port.as_object_mut() {
            port.remove("nodePort");
        }
    }
}

/// A selector that upstream generated names an upstream uid; the physical cluster generates its own.
fn strip_job(spec: &mut Map<String, Value>) {
    if spec.get("manualSelector").and_then(Value::as_bool) == Some(true) {
        return;
    }
    spec.remove("selector");
    let labels = spec.get_mut("template").and_then(|t| t.get_mut("metadata")).and_then(|m| m.get_mut("labels"));
    if let Some(labels) = labels.and_then(Value::as_object_mut) {
        GENERATED_JOB_LABELS.iter().for_each(|key| drop(labels.remove(*key)));
    }
}

/// Whether everything in `wanted` stands equally in `actual`; what `actual` has besides is the physical cluster's. Items of
/// lists are compared by place, or by `name` where all have one.
pub(crate) fn covers(actual: &Value, wanted: &Value) -> bool {
    match (actual, wanted) {
        (Value::Object(actual), Value::Object(wanted)) => {
            wanted.iter().all(|(key, value)| actual.get(key).map_or_else(|| is_nothing(value), |a| covers(a, value)))
        }
        (Value::Array(actual), Value::Array(wanted)) => list_covers(actual, wanted),
        _ => actual == wanted,
    }
}

fn list_covers(actual: &[Value], wanted: &[Value]) -> bool {
    let names = |items: &[Value]| {
        items.iter().map(|item| item.get("name").and_then(Value::as_str).map(str::to_owned)).collect()
    };
    let (theirs, ours): (Option<Vec<_>>, Option<Vec<_>>) = (names(actual), names(wanted));
    match (theirs, ours) {
        (Some(theirs), Some(ours)) if !ours.is_empty() => wanted.iter().zip(ours).all(|(item, name)| {
            theirs.iter().position(|n| *n == name).and_then(|at| actual.get(at)).is_some_and(|a| covers(a, item))
        }),
        _ => actual.len() == wanted.len() && actual.iter().zip(wanted).all(|(a, w)| covers(a, w)),
    }
}

fn is_nothing(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Object(map) => map.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    }
}
