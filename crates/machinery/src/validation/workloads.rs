//! Deployments, replica sets, stateful sets, daemon sets, replication controllers.

use std::collections::HashSet;

use serde_json::Value;

use super::{
    Errors, metadata, names, pods, selectors, storage,
    view::{At, IMMUTABLE},
};

pub(super) const MISMATCH: &str = "`selector` does not match template `labels`";

/// `spec.selector` of a workload whose kind is called `name` in texts, and whether the template has its labels.
fn selector(spec: &At<'_>, name: &str, errors: &mut Errors) {
    let selector = spec.child("selector");
    let labels = spec.get("template").pointer("/metadata/labels").unwrap_or(&Value::Null);
    let labels_path = spec.path("template").child("metadata").child("labels");
    if selector.is_missing() {
        if name != "daemonset" {
            errors.required(&selector.path, "");
        }
        errors.invalid(labels_path, labels, MISMATCH);
        return;
    }
    selectors::selector(&selector, errors);
    if selectors::is_empty(&selector) {
        errors.invalid(&selector.path, selector.value, &format!("empty selector is invalid for {name}"));
        return;
    }
    match selectors::matches(selector.value, labels) {
        Some(false) => errors.invalid(labels_path, labels, MISMATCH),
        Some(true) => {}
        None => errors.invalid(&selector.path, selector.value, "invalid label selector"),
    }
}

/// The template of a workload that keeps its pods running.
fn template(spec: &At<'_>, name: &str, more_volumes: &HashSet<&str>, errors: &mut Errors) {
    let template = spec.child("template");
    pods::template(&template, more_volumes, errors);
    let pod = template.child("spec");
    if pod.text("restartPolicy") != "Always" {
        errors.not_supported(pod.path("restartPolicy"), &pod.text("restartPolicy").into(), &["Always"]);
    }
    if pod.has("activeDeadlineSeconds") {
        let why = format!("activeDeadlineSeconds in {name} is not Supported");
        errors.forbidden(pod.path("activeDeadlineSeconds"), &why);
    }
}

pub(super) fn deployment(object: &At<'_>, errors: &mut Errors) {
    let spec = object.child("spec");
    spec.nonnegative("replicas", errors);
    selector(&spec, "deployment", errors);
    template(&spec, "ReplicaSet", &HashSet::new(), errors);
    let strategy = spec.child("strategy");
    let rolling = strategy.child("rollingUpdate");
    match strategy.text("type") {
        "Recreate" if !rolling.is_missing() => {
            errors.forbidden(&rolling.path, "may not be specified when strategy `type` is 'Recreate'");
        }
        "RollingUpdate" => {
            selectors::int_or_percent(&rolling.child("maxUnavailable"), errors);
            selectors::int_or_percent(&rolling.child("maxSurge"), errors);
            if selectors::is_zero(rolling.get("maxUnavailable")) && selectors::is_zero(rolling.get("maxSurge")) {
                let path = rolling.path("maxUnavailable");
                errors.invalid(path, rolling.get("maxUnavailable"), "may not be 0 when `maxSurge` is 0");
            }
            selectors::at_most_100_percent(&rolling.child("maxUnavailable"), errors);
        }
        "Recreate" => {}
        _ => errors.not_supported(&strategy.path, strategy.value, &["Recreate", "RollingUpdate"]),
    }
    for name in ["minReadySeconds", "revisionHistoryLimit", "progressDeadlineSeconds"] {
        spec.nonnegative(name, errors);
    }
    if let Some(deadline) = spec.int("progressDeadlineSeconds")
        && deadline <= spec.int("minReadySeconds").unwrap_or(0)
    {
        errors.invalid(spec.path("progressDeadlineSeconds"), &deadline.into(), "must be greater than minReadySeconds");
    }
}

pub(super) fn replica_set(object: &At<'_>, errors: &mut Errors) {
    let spec = object.child("spec");
    spec.nonnegative("replicas", errors);
    spec.nonnegative("minReadySeconds", errors);
    selector(&spec, "deployment", errors);
    template(&spec, "ReplicaSet", &HashSet::new(), errors);
}

pub(super) fn daemon_set(object: &At<'_>, errors: &mut Errors) {
    let spec = object.child("spec");
    selector(&spec, "daemonset", errors);
    template(&spec, "DaemonSet", &HashSet::new(), errors);
    spec.nonnegative("minReadySeconds", errors);
    let strategy = spec.child("updateStrategy");
    match strategy.text("type") {
        "OnDelete" => {}
        "RollingUpdate" => daemon_set_rolling(&strategy.child("rollingUpdate"), errors),
        _ => errors.not_supported(&strategy.path, strategy.value, &["RollingUpdate", "OnDelete"]),
    }
    spec.nonnegative("revisionHistoryLimit", errors);
}

fn daemon_set_rolling(rolling: &At<'_>, errors: &mut Errors) {
    let (unavailable, surge) = (rolling.child("maxUnavailable"), rolling.child("maxSurge"));
    for part in [&unavailable, &surge] {
        selectors::int_or_percent(part, errors);
        selectors::at_most_100_percent(part, errors);
    }
    match (selectors::is_zero(unavailable.value), selectors::is_zero(surge.value)) {
        (true, true) => errors.required(&unavailable.path, "cannot be 0 when maxSurge is 0"),
        (false, false) => errors.invalid(&surge.path, surge.value, "may not be set when maxUnavailable is non-zero"),
        _ => {}
    }
}

pub(super) fn stateful_set(object: &At<'_>, errors: &mut Errors) {
    let spec = object.child("spec");
    if spec.needs("podManagementPolicy", errors)
        && !matches!(spec.text("podManagementPolicy"), "OrderedReady" | "Parallel")
    {
        let why = "must be 'OrderedReady' or 'Parallel'";
        errors.invalid(spec.path("podManagementPolicy"), spec.get("podManagementPolicy"), why);
    }
    let strategy = spec.child("updateStrategy");
    match strategy.text("type") {
        "" => errors.required(&strategy.path, ""),
        "OnDelete" if strategy.has("rollingUpdate") => {
            let why = "only allowed for updateStrategy 'RollingUpdate'";
            errors.invalid(strategy.path("rollingUpdate"), strategy.get("rollingUpdate"), why);
        }
        "RollingUpdate" => {
            let rolling = strategy.child("rollingUpdate");
            rolling.nonnegative("partition", errors);
            selectors::int_or_percent(&rolling.child("maxUnavailable"), errors);
        }
        "OnDelete" => {}
        _ => errors.invalid(&strategy.path, strategy.value, "must be 'RollingUpdate' or 'OnDelete'"),
    }
    let retention = spec.child("persistentVolumeClaimRetentionPolicy");
    for name in ["whenDeleted", "whenScaled"] {
        retention.one_of_if_set(name, &["Retain", "Delete"], errors);
    }
    let mut volumes = HashSet::new();
    for claim in spec.items("volumeClaimTemplates") {
        volumes.insert(claim.get("metadata").get("name").and_then(Value::as_str).unwrap_or_default());
        storage::claim_spec(&claim.child("spec"), errors);
    }
    spec.nonnegative("replicas", errors);
    spec.nonnegative("minReadySeconds", errors);
    spec.child("ordinals").nonnegative("start", errors);
    selector(&spec, "statefulset", errors);
    template(&spec, "StatefulSet", &volumes, errors);
}

/// Rules for new stateful sets only: existing ones may break them.
pub(super) fn new_stateful_set(object: &At<'_>, errors: &mut Errors) {
    stateful_set(object, errors);
    let spec = object.child("spec");
    if !spec.text("serviceName").is_empty() {
        spec.follows("serviceName", names::dns_label, errors);
    }
}

const MUTABLE: [&str; 7] = [
    "replicas",
    "ordinals",
    "template",
    "updateStrategy",
    "revisionHistoryLimit",
    "persistentVolumeClaimRetentionPolicy",
    "minReadySeconds",
];

pub(super) fn stateful_set_update(old: &At<'_>, new: &At<'_>, errors: &mut Errors) {
    if !equal_but(old.get("spec"), new.get("spec"), &MUTABLE) {
        let (last, others) = MUTABLE.split_last().expect("the list is not empty");
        let others: Vec<String> = others.iter().map(|name| format!("'{name}'")).collect();
        let others = others.join(", ");
        let why = format!("updates to statefulset spec for fields other than {others} and '{last}' are forbidden");
        errors.forbidden("spec", &why);
    }
}

/// Whether two objects are equal, apart from these fields.
pub(super) fn equal_but(old: &Value, new: &Value, names: &[&str]) -> bool {
    let rest = |value: &Value| -> Vec<(String, Value)> {
        let fields = value.as_object().into_iter().flatten();
        fields
            .filter(|(name, _)| !names.contains(&name.as_str()))
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect()
    };
    rest(old) == rest(new)
}

/// A selector never changes.
pub(super) fn same_selector(old: &At<'_>, new: &At<'_>, errors: &mut Errors) {
    new.child("spec").immutable(&old.child("spec"), "selector", errors);
}

pub(super) fn replication_controller(object: &At<'_>, errors: &mut Errors) {
    let spec = object.child("spec");
    spec.nonnegative("minReadySeconds", errors);
    let selector = spec.child("selector");
    if spec.count("selector") == 0 {
        errors.required(&selector.path, "");
    }
    metadata::labels(&selector.path, Some(selector.value), errors);
    spec.nonnegative("replicas", errors);
    if !spec.has("template") {
        errors.required(spec.path("template"), "");
        return;
    }
    let labels = spec.get("template").pointer("/metadata/labels").unwrap_or(&Value::Null);
    let wanted = selector.value.as_object().into_iter().flatten();
    if wanted.into_iter().any(|(key, value)| labels.get(key) != Some(value)) {
        errors.invalid(spec.path("template").child("metadata").child("labels"), labels, MISMATCH);
    }
    template(&spec, "ReplicationController", &HashSet::new(), errors);
}

pub(super) fn controller_revision_update(old: &At<'_>, new: &At<'_>, errors: &mut Errors) {
    if old.get("data") != new.get("data") {
        errors.invalid("data", new.get("data"), IMMUTABLE);
    }
}
