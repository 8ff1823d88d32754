//! Fields by kind that the physical cluster decides for itself, and those that reach too far.

use portolan_types::GroupVersionKind;
use serde_json::{Map, Value};

use super::GENERATED_JOB_LABELS;
use crate::rules::SyncRefusal;

/// Refuses fields that a logical cluster must not use on a shared physical cluster.
pub(super) fn check(kind: &GroupVersionKind, copy: &Value) -> Result<(), SyncRefusal> {
    match (&*kind.group, &*kind.kind) {
        ("", "Service") => check_service(copy),
        _ => Ok(()),
    }
}

fn check_service(copy: &Value) -> Result<(), SyncRefusal> {
    let spec = &copy["spec"];
    if spec["externalIPs"].as_array().is_some_and(|ips| !ips.is_empty()) {
        return Err(SyncRefusal::not_syncable("spec.externalIPs would take over addresses of others"));
    }
    let target = spec["externalName"].as_str().unwrap_or_default().trim_end_matches('.');
    let is_external = spec["type"].as_str() == Some("ExternalName");
    if is_external && (target.ends_with(".svc") || target.contains(".svc.") || target.ends_with(".local")) {
        Err(SyncRefusal::not_syncable("spec.externalName would reach services of others inside the physical cluster"))
    } else {
        Ok(())
    }
}

/// Removes fields that the physical cluster sets by itself.
pub(super) fn strip(kind: &GroupVersionKind, copy: &mut Value) {
    let Some(spec) = copy.get_mut("spec").and_then(Value::as_object_mut) else { return };
    match (&*kind.group, &*kind.kind) {
        ("", "Service") => strip_service(spec),
        ("", "PersistentVolumeClaim") => drop(spec.remove("volumeName")),
        // They are added to running pods alone, by a subresource.
        ("", "Pod") => drop(spec.remove("ephemeralContainers")),
        ("batch", "Job") => {
            // Upstream the TTL controller deletes the Job, and its copy with it. Downstream it would delete only the
            // copy.
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

/// Removes the selector that upstream generated: it names an upstream uid, and the physical cluster generates its own.
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

/// Returns true when everything in `wanted` is equal in `actual`; other fields of `actual` belong to the physical
/// cluster. Items of lists are compared by position, or by `name` where all have one.
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
