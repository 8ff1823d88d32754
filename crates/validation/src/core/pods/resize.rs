//! Changing the resources of a pod that runs (the subresource `resize`).

use crate::qos::class_of as qos_class;
use serde_json::Value;

use super::{
    super::super::{Errors, view::At},
    annotations, resources,
    update::put_back,
};

pub(crate) fn update(old: &At<'_>, new: &At<'_>, errors: &mut Errors) {
    let refused = match () {
        () if annotations::is_mirror(old.get("metadata")) => Some("static pods cannot be resized"),
        () if old.child("spec").child("os").text("name") == "windows" => Some("windows pods cannot be resized"),
        () => None,
    };
    if let Some(why) = refused {
        *errors = Errors::default();
        errors.forbidden("[]", why);
        return;
    }
    let from = errors.len();
    let class = old.child("status").text("qosClass");
    if class != qos_class(new.value) {
        let why = "Pod QOS Class may not change as a result of resizing";
        errors.invalid(new.path("spec"), &new.child("status").text("qosClass").into(), why);
    }
    let running = |status: &At<'_>| status.child("state").has("running");
    if old.child("status").items("containerStatuses").find(running).is_some_and(|status| !status.has("resources")) {
        errors.forbidden(new.path("spec"), "Pod running on node without support for resize");
    }
    if old.child("status").count("nodeAllocatableResourceClaimStatuses") > 0 {
        errors.forbidden(new.path("spec"), "pods with node allocatable resource claims cannot be resized");
    }
    let (old, new) = (old.child("spec"), new.child("spec"));
    let mut frozen = new.value.clone();
    of_pod(&old, &new, &mut frozen, errors);
    if !same_containers(&old, &new, errors) {
        return;
    }
    for list in ["initContainers", "containers"] {
        for (before, after) in old.items(list).zip(new.items(list)) {
            removed(&before.child("resources"), &after.child("resources"), "resource", errors);
        }
    }
    containers(&old, &new, &mut frozen, errors);
    init_containers(&old, &new, &mut frozen, errors);
    if errors.len() == from && frozen != *old.value {
        errors.forbidden(&new.path, "only cpu and memory resources are mutable");
    }
}

fn removed(old: &At<'_>, new: &At<'_>, word: &str, errors: &mut Errors) {
    for (list, what) in [("requests", "requests"), ("limits", "limits")] {
        if resources::is_removed(new.get(list), old.get(list)) {
            errors.forbidden(new.path(list), &format!("{word} {what} cannot be removed"));
        }
    }
}

fn of_pod(old: &At<'_>, new: &At<'_>, frozen: &mut Value, errors: &mut Errors) {
    let set = |spec: &At<'_>| {
        let own = spec.child("resources");
        own.count("requests") + own.count("limits") > 0
    };
    if !set(old) && !set(new) {
        return;
    }
    if old.has("resources") {
        if !new.has("resources") {
            errors.forbidden(new.path("resources"), "pod-level resources cannot be removed");
            return;
        }
        removed(&old.child("resources"), &new.child("resources"), "pod-level resource", errors);
    }
    put_back_compute(frozen, old.value);
    if frozen.get("resources") != old.value.get("resources") {
        errors.forbidden(&new.path, "only cpu and memory resources are mutable at pod-level");
    }
}

/// Restores the old CPU and memory of a container. As in kube-apiserver, this drops the claims of its devices, so no
/// container with such claims can be resized.
fn put_back_compute_of_container(container: &mut Value, old: &Value) {
    put_back_compute(container, old);
    if let Some(resources) = container.get_mut("resources").and_then(Value::as_object_mut) {
        resources.remove("claims");
    }
}

/// Restores the old CPU and memory of `resources`.
fn put_back_compute(holder: &mut Value, old: &Value) {
    let empty = Value::Null;
    let before = old.get("resources").unwrap_or(&empty);
    let mut resources = holder.get("resources").cloned().unwrap_or_else(|| serde_json::json!({}));
    for list in ["limits", "requests"] {
        let had = before.get(list).unwrap_or(&empty);
        let mut amounts = resources.get(list).cloned().unwrap_or_else(|| serde_json::json!({}));
        for name in ["cpu", "memory"] {
            put_back(&mut amounts, had, name);
        }
        let Some(fields) = resources.as_object_mut() else { return };
        if amounts.as_object().is_some_and(|amounts| amounts.is_empty()) {
            drop(fields.remove(list))
        } else {
            drop(fields.insert(list.to_owned(), amounts))
        }
    }
    let gone = old.get("resources").is_none() && resources.as_object().is_some_and(|fields| fields.is_empty());
    let Some(fields) = holder.as_object_mut() else { return };
    if gone { drop(fields.remove("resources")) } else { drop(fields.insert("resources".to_owned(), resources)) }
}

fn same_containers(old: &At<'_>, new: &At<'_>, errors: &mut Errors) -> bool {
    let from = errors.len();
    for list in ["containers", "initContainers"] {
        if old.count(list) != new.count(list) {
            errors.forbidden(new.path(list), &format!("{list} may not be added or removed on resize"));
            continue;
        }
        for (_, after) in
            old.items(list).zip(new.items(list)).filter(|(before, after)| before.text("name") != after.text("name"))
        {
            errors.forbidden(after.path("name"), &format!("{list} may not be renamed or reordered on resize"));
        }
    }
    errors.len() == from
}

fn containers(old: &At<'_>, new: &At<'_>, frozen: &mut Value, errors: &mut Errors) {
    let list = frozen.get_mut("containers").and_then(Value::as_array_mut).into_iter().flatten();
    for (container, before) in list.zip(old.items("containers")) {
        put_back_compute_of_container(container, before.value);
        if container != before.value {
            errors.forbidden(&new.path, "only cpu and memory resources are mutable");
        }
    }
}

fn init_containers(old: &At<'_>, new: &At<'_>, frozen: &mut Value, errors: &mut Errors) {
    let list = frozen.get_mut("initContainers").and_then(Value::as_array_mut).into_iter().flatten();
    for ((container, before), after) in list.zip(old.items("initContainers")).zip(new.items("initContainers")) {
        let changed = container != before.value;
        put_back_compute_of_container(container, before.value);
        if container != before.value {
            let why = "only cpu and memory resources for init or sidecar containers are mutable";
            errors.forbidden(&after.path, why);
        }
        if changed && after.text("restartPolicy") != "Always" {
            let why = "non-sidecar init containers with a resize policy of RestartContainer cannot be resized";
            for _ in after.items("resizePolicy").filter(|policy| policy.text("restartPolicy") == "RestartContainer") {
                errors.forbidden(&after.path, why);
            }
        }
    }
}
