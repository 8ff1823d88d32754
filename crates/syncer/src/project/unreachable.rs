//! Projected objects of a physical cluster that cannot be reached, as objects on a Node that does not answer.

use serde_json::Value;

/// Reason of the condition `Ready` of a Pod whose physical cluster cannot be reached.
const CLUSTER_UNREACHABLE: &str = "ClusterUnreachable";

/// The object without anything ready: the condition `Ready` of a Pod, the endpoints of an EndpointSlice, the ready Pods
/// of a Job. `None` if nothing of it was ready, or its kind has no such state. `now` is in RFC 3339.
pub fn without_ready(shown: &Value, message: &str, now: &str) -> Option<Value> {
    let mut changed = shown.clone();
    match shown["kind"].as_str()? {
        "Pod" => pod_is_not_ready(&mut changed, message, now),
        "EndpointSlice" => endpoints_are_not_ready(&mut changed),
        "Job" if changed["status"]["ready"].as_i64() > Some(0) => changed["status"]["ready"] = 0.into(),
        _ => {}
    }
    (changed != *shown).then_some(changed)
}

fn pod_is_not_ready(pod: &mut Value, message: &str, now: &str) {
    let conditions = pod.pointer_mut("/status/conditions").and_then(Value::as_array_mut);
    for condition in conditions.into_iter().flatten() {
        if condition["type"] == "Ready" && condition["status"] == "True" {
            condition["status"] = "False".into();
            condition["reason"] = CLUSTER_UNREACHABLE.into();
            condition["message"] = message.into();
            condition["lastTransitionTime"] = now.into();
        }
    }
}

fn endpoints_are_not_ready(slice: &mut Value) {
    let endpoints = slice.get_mut("endpoints").and_then(Value::as_array_mut);
    endpoints.into_iter().flatten().filter(|endpoint| endpoint.is_object()).for_each(super::slices::set_not_ready);
}
