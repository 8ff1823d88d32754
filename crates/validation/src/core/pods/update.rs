//! Validation of changes of a pod.

use std::collections::HashSet;

use serde_json::Value;

use super::{
    super::super::{Errors, FieldError, internal, view::At},
    annotations, same,
};

const UPDATABLE: &str = "`spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,\
     `spec.tolerations` (only additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 \
     if it was previously negative)";

/// Images, a shorter deadline, more tolerations, fewer scheduling gates, and while there are gates narrower selectors.
pub(crate) fn update(old: &At<'_>, new: &At<'_>, errors: &mut Errors) {
    annotations::update(old, new, errors);
    let (old, new) = (old.child("spec"), new.child("spec"));
    for list in ["containers", "initContainers"] {
        if old.count(list) != new.count(list) {
            errors.forbidden(new.path(list), "pod updates may not add or remove containers");
            return;
        }
        for container in new.items(list) {
            container.needs("image", errors);
            super::padded_image(&container, errors);
        }
    }
    if !deadline(&old, &new, errors) {
        return;
    }
    tolerations(&old, &new, errors);
    scheduling_gates(&old, &new, errors);
    let mut frozen = new.value.clone();
    freeze(&old, &mut frozen);
    if old.count("schedulingGates") > 0 {
        gated(&old, &new, &mut frozen, errors);
    }
    if frozen != *old.value {
        let diff = internal::diff("PodSpec", old.value, &frozen);
        errors.forbidden(&new.path, &format!("pod updates may not change fields other than {UPDATABLE}\n{diff}"));
    }
}

/// Validates `activeDeadlineSeconds`. Returns false if the remaining checks are to be skipped.
fn deadline(old: &At<'_>, new: &At<'_>, errors: &mut Errors) -> bool {
    let (name, path) = ("activeDeadlineSeconds", new.path("activeDeadlineSeconds"));
    let from = errors.len();
    match (old.int(name), new.int(name)) {
        (_, Some(after)) if !(0..=i64::from(i32::MAX)).contains(&after) => {
            errors.invalid(path, &after.into(), "must be between 0 and 2147483647, inclusive");
        }
        (Some(before), Some(after)) if before < after => {
            errors.invalid(path, &after.into(), "must be less than or equal to previous value");
        }
        (Some(_), None) => {
            errors.invalid(path, &Value::Null, "must not update from a positive integer to nil value");
            return true;
        }
        _ => {}
    }
    errors.len() == from
}

fn tolerations(old: &At<'_>, new: &At<'_>, errors: &mut Errors) {
    let lasting = |toleration: At<'_>| without(toleration.value, "tolerationSeconds");
    let after: HashSet<Value> = new.items("tolerations").map(lasting).collect();
    if old.items("tolerations").map(lasting).all(|before| after.contains(&before)) {
        super::tolerations(new, errors);
    } else {
        let why = "existing toleration can not be modified except its tolerationSeconds";
        errors.forbidden(new.path("tolerations"), why);
    }
}

fn scheduling_gates(old: &At<'_>, new: &At<'_>, errors: &mut Errors) {
    let before: HashSet<&str> = old.items("schedulingGates").map(|gate| gate.text("name")).collect();
    for gate in new.items("schedulingGates") {
        if !before.contains(gate.text("name")) {
            let why = format!("only deletion is allowed, but found new scheduling gate '{}'", gate.text("name"));
            errors.forbidden(gate.path("name"), &why);
        }
    }
}

fn without(value: &Value, name: &str) -> Value {
    let mut value = value.clone();
    if let Some(fields) = value.as_object_mut() {
        fields.remove(name);
    }
    value
}

/// Restores the mutable fields, so that the rest can be compared.
fn freeze(old: &At<'_>, spec: &mut Value) {
    let negative = old.number("terminationGracePeriodSeconds") < 0;
    if negative && spec.get("terminationGracePeriodSeconds").and_then(Value::as_i64) == Some(1) {
        put_back(spec, old.value, "terminationGracePeriodSeconds");
    }
    for name in ["activeDeadlineSeconds", "schedulingGates", "tolerations"] {
        put_back(spec, old.value, name);
    }
    for list in ["containers", "initContainers"] {
        let containers = spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten();
        for (container, before) in containers.zip(old.items(list)) {
            put_back(container, before.value, "image");
        }
    }
}

/// Restores one field to its old value.
pub(super) fn put_back(value: &mut Value, old: &Value, name: &str) {
    let Some(fields) = value.as_object_mut() else { return };
    match old.get(name) {
        Some(before) => drop(fields.insert(name.to_owned(), before.clone())),
        None => drop(fields.remove(name)),
    }
}

fn gated(old: &At<'_>, new: &At<'_>, frozen: &mut Value, errors: &mut Errors) {
    if !same(new.get("nodeSelector"), old.get("nodeSelector")) {
        let kept =
            old.entries("nodeSelector").all(|(key, value)| new.get("nodeSelector").get(key) == Some(value.value));
        if !kept {
            let why = "only additions to spec.nodeSelector are allowed (no mutations or deletions)";
            errors.invalid(new.path("nodeSelector"), new.get("nodeSelector"), why);
        }
        put_back(frozen, old.value, "nodeSelector");
    }
    let (before, after) = (old.child("affinity").child("nodeAffinity"), new.child("affinity").child("nodeAffinity"));
    if before.value == after.value {
        return;
    }
    node_affinity(&before, &after, errors);
    match (old.has("affinity"), frozen.get_mut("affinity")) {
        (_, None) => frozen["affinity"] = serde_json::json!({"nodeAffinity": before.value}),
        (false, Some(affinity))
            if ["podAffinity", "podAntiAffinity"].iter().all(|name| affinity.get(name).is_none()) =>
        {
            put_back(frozen, old.value, "affinity");
        }
        (_, Some(affinity)) => put_back(affinity, old.get("affinity"), "nodeAffinity"),
    }
}

fn node_affinity(old: &At<'_>, new: &At<'_>, errors: &mut Errors) {
    let required = "requiredDuringSchedulingIgnoredDuringExecution";
    let (old, new) = (old.child(required), new.child(required));
    let terms = "nodeSelectorTerms";
    if old.is_missing() {
        return;
    }
    if old.count(terms) > 0 && old.count(terms) != new.count(terms) {
        let shown = internal::printed_value("[]NodeSelectorTerm", new.get(terms));
        let why = "no additions/deletions to non-empty NodeSelectorTerms list are allowed";
        errors.push(FieldError::invalid_shown(new.path(terms), &shown, why));
        return;
    }
    for (before, after) in old.items(terms).zip(new.items(terms)) {
        if !only_added(&before, &after) {
            let shown = internal::printed_value("NodeSelectorTerm", after.value);
            let why = "only additions are allowed (no mutations or deletions)";
            errors.push(FieldError::invalid_shown(&after.path, &shown, why));
        }
    }
}

fn only_added(old: &At<'_>, new: &At<'_>) -> bool {
    let lists = ["matchExpressions", "matchFields"];
    let empty = |term: &At<'_>| lists.iter().all(|list| term.count(list) == 0);
    let starts = |list: &&str| {
        old.count(list) <= new.count(list)
            && old.items(list).zip(new.items(list)).all(|(before, after)| before.value == after.value)
    };
    (!empty(old) || empty(new)) && lists.iter().all(starts)
}
