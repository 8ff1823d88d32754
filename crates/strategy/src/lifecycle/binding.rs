//! Binding a pod to a node (the `binding` subresource).

use portolan_types::{
    GroupResource, Reason, Status,
    object::{self, child_mut},
    quoted::go_quoted,
};
use serde_json::{Value, json};

use super::{WriteContext, pods};
use portolan_merge::preconditions::failed_precondition;

/// Validates a `Binding`.
///
/// # Errors
/// 500 without a reason, as in kube-apiserver, if the target is missing or not a node.
pub fn check_binding(binding: &Value) -> Result<(), Status> {
    let target = |key: &str| binding.pointer(&format!("/target/{key}")).and_then(Value::as_str).unwrap_or_default();
    let kind = target("kind");
    let mut wrong = Vec::new();
    if !matches!(kind, "" | "Node") {
        wrong.push(format!(
            "target.kind: Unsupported value: {}: supported values: \"Node\", \"<empty>\"",
            go_quoted(kind)
        ));
    }
    if target("name").is_empty() {
        wrong.push("target.name: Required value".to_owned());
    }
    match wrong.as_slice() {
        [] => Ok(()),
        [one] => Err(Status::new(Reason::Unknown, one.as_str())),
        several => Err(Status::new(Reason::Unknown, format!("[{}]", several.join(", ")))),
    }
}

/// Returns the pod, bound to the node that `binding` (core/v1 `Binding`) names. The caller continues with
/// [`super::prepare_update`] for the subresource `binding`. The binding's uid and resourceVersion are preconditions.
///
/// # Errors
/// 409 when the pod is bound, gated or deleting, or not the one that is meant; the errors of [`check_binding`].
pub fn bind(ctx: &WriteContext<'_>, pod: &Value, binding: &Value) -> Result<Value, Status> {
    check_binding(binding)?;
    check_preconditions(ctx, pod, binding)?;
    let name = object::name(pod);
    let conflict = |why: String| Err(Status::conflict(&GroupResource::new("", "pods/binding"), name, why));
    if object::is_deleting(pod) {
        return conflict(format!("pod {name} is being deleted, cannot be assigned to a host"));
    }
    if let Some(node) = pod.pointer("/spec/nodeName").and_then(Value::as_str).filter(|node| !node.is_empty()) {
        return conflict(format!("pod {name} is already assigned to node {}", go_quoted(node)));
    }
    let gates = pod.pointer("/spec/schedulingGates").and_then(Value::as_array);
    if gates.is_some_and(|gates| !gates.is_empty()) {
        return conflict(format!("pod {name} has non-empty .spec.schedulingGates"));
    }
    let node = binding.pointer("/target/name").and_then(Value::as_str).unwrap_or_default();
    Ok(bound_pod(ctx, pod, binding, node))
}

fn check_preconditions(ctx: &WriteContext<'_>, pod: &Value, binding: &Value) -> Result<(), Status> {
    let kind = ctx.table.resource("", "v1", "pods").ok_or_else(Status::no_such_path)?;
    for (key, word) in [("uid", "UID"), ("resourceVersion", "ResourceVersion")] {
        let (own, asked) = (object::meta_text(pod, key), object::meta_text(binding, key));
        if !asked.is_empty() && own != asked {
            return Err(failed_precondition(kind, pod, (word, asked, own)));
        }
    }
    Ok(())
}

fn bound_pod(ctx: &WriteContext<'_>, pod: &Value, binding: &Value, node: &str) -> Value {
    let mut bound = pod.clone();
    let extra = object::metadata(binding).get("annotations").and_then(Value::as_object);
    for (key, value) in extra.into_iter().flatten() {
        object::set_annotation(&mut bound, key, value.as_str().map(str::to_owned));
    }
    let labels = object::metadata(binding).get("labels").and_then(Value::as_object).filter(|labels| !labels.is_empty());
    if let Some(labels) = labels {
        child_mut(object::metadata_mut(&mut bound), "labels").extend(labels.clone());
    }
    if let Some(fields) = bound.as_object_mut() {
        child_mut(fields, "spec").insert("nodeName".into(), node.into());
        let status = child_mut(fields, "status");
        status.remove("nominatedNodeName");
        let scheduled = json!({"type": "PodScheduled", "status": "True", "lastProbeTime": null});
        pods::put_condition(status, scheduled, &ctx.seams.now_text());
    }
    bound
}
