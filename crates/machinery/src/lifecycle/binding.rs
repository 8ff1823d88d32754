//! Binding a pod to a node (the `binding` subresource).

use portolan_types::{
    GroupResource, Reason, Status,
    object::{self, child_mut},
};
use serde_json::{Value, json};

use super::WriteContext;

/// The pod, bound to the node that `binding` (core/v1 `Binding`) names. The caller goes on with [`super::prepare_update`]
/// for the subresource `binding`.
///
/// # Errors
/// 409 when the pod is bound or deleting already or has another uid, 400 when the target is no node.
pub fn bind(ctx: &WriteContext<'_>, pod: &Value, binding: &Value) -> Result<Value, Status> {
    let target = |key: &str| binding.pointer(&format!("/target/{key}")).and_then(Value::as_str).unwrap_or_default();
    if target("name").is_empty() {
        return Err(Status::bad_request("target.name: Required value"));
    }
    if !matches!(target("kind"), "" | "Node") {
        return Err(Status::bad_request("target.kind: must be empty, \"Node\" or \"<empty>\""));
    }
    let conflict = |why: String| {
        let resource = GroupResource::new("", "pods/binding");
        Err(Status::conflict(&resource, object::name(pod), why))
    };
    let (own, asked) = (object::meta_text(pod, "uid"), object::meta_text(binding, "uid"));
    if !asked.is_empty() && own != asked {
        return conflict(format!("Precondition failed: UID in precondition: {asked}, UID in object meta: {own}"));
    }
    if object::is_deleting(pod) {
        return conflict(format!("pod {} is being deleted, cannot be assigned to a host", object::name(pod)));
    }
    if let Some(node) = pod.pointer("/spec/nodeName").and_then(Value::as_str).filter(|node| !node.is_empty()) {
        return conflict(format!("pod {} is already assigned to node {node:?}", object::name(pod)));
    }
    let gates = pod.pointer("/spec/schedulingGates").and_then(Value::as_array);
    if gates.is_some_and(|gates| !gates.is_empty()) {
        return Err(Status::new(Reason::BadRequest, "pod has non-empty .spec.schedulingGates"));
    }
    let mut bound = pod.clone();
    let extra = object::metadata(binding).get("annotations").and_then(Value::as_object);
    for (key, value) in extra.into_iter().flatten() {
        object::set_annotation(&mut bound, key, value.as_str().map(str::to_owned));
    }
    if let Some(fields) = bound.as_object_mut() {
        child_mut(fields, "spec").insert("nodeName".into(), target("name").into());
        let status = child_mut(fields, "status");
        let scheduled = json!({"type": "PodScheduled", "status": "True", "lastTransitionTime": ctx.seams.now_text()});
        match status.get_mut("conditions").and_then(Value::as_array_mut) {
            Some(conditions) => {
                conditions.retain(|condition| condition.get("type") != Some(&json!("PodScheduled")));
                conditions.push(scheduled);
            }
            None => {
                status.insert("conditions".into(), json!([scheduled]));
            }
        }
    }
    Ok(bound)
}
