//! Scopes that restrict the objects of a quota.

use portolan_types::{GroupResource, placement::ChargedPods};
use serde_json::{Value, json};

use portolan_validation::qos::class_of as qos_class;

/// Returns true if all scopes of a quota match an object. Only pods and volume claims have scopes: a quota with one
/// counts nothing else.
pub(super) fn matches(quota: &Value, resource: &GroupResource, object: &Value) -> bool {
    if resource.group.is_empty() && *resource.resource == *"pods" {
        let is_scoped = !selectors(quota).is_empty();
        return !is_scoped || match_pods(quota, &seen_in(object));
    }
    selectors(quota).iter().all(|selector| holds(selector, resource, object))
}

/// Returns true if all scopes match the pods of a template.
pub(super) fn match_pods(quota: &Value, pods: &ChargedPods) -> bool {
    let class = Some(pods.priority_class_name.as_str()).filter(|name| !name.is_empty());
    selectors(quota).iter().all(|selector| match text(selector, "scopeName") {
        "Terminating" => pods.terminating,
        "NotTerminating" => !pods.terminating,
        "BestEffort" => pods.best_effort,
        "NotBestEffort" => !pods.best_effort,
        "PriorityClass" => selects(selector, class.as_slice()),
        "CrossNamespacePodAffinity" => pods.cross_namespace_affinity,
        _ => false,
    })
}

/// Returns the attributes of a pod that scopes compare, without number or usage.
pub(super) fn seen_in(pod: &Value) -> ChargedPods {
    let class = pod.pointer("/spec/priorityClassName").and_then(Value::as_str).unwrap_or_default();
    ChargedPods {
        priority_class_name: class.to_owned(),
        terminating: is_terminating(pod),
        best_effort: qos_class(pod) == "BestEffort",
        cross_namespace_affinity: looks_across_namespaces(pod),
        ..ChargedPods::default()
    }
}

/// Returns `spec.scopes` and `spec.scopeSelector` in one form.
fn selectors(quota: &Value) -> Vec<Value> {
    let list = |pointer| quota.pointer(pointer).and_then(Value::as_array).into_iter().flatten();
    let plain = list("/spec/scopes").map(|scope| json!({"scopeName": scope, "operator": "Exists"}));
    plain.chain(list("/spec/scopeSelector/matchExpressions").cloned()).collect()
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value.get(key).and_then(Value::as_str).unwrap_or_default()
}

fn holds(selector: &Value, resource: &GroupResource, object: &Value) -> bool {
    let scope = text(selector, "scopeName");
    match (&*resource.group, &*resource.resource) {
        ("", "persistentvolumeclaims") if scope == "VolumeAttributesClass" => {
            let classes: Vec<&str> = ["/spec/volumeAttributesClassName", "/status/currentVolumeAttributesClassName"]
                .iter()
                .chain(&["/status/modifyVolumeStatus/targetVolumeAttributesClassName"])
                .filter_map(|pointer| object.pointer(pointer)?.as_str())
                .filter(|name| !name.is_empty())
                .collect();
            selects(selector, &classes)
        }
        _ => false,
    }
}

/// Returns true for a pod that ends by itself.
pub(super) fn is_terminating(pod: &Value) -> bool {
    pod.pointer("/spec/activeDeadlineSeconds").and_then(Value::as_i64).is_some_and(|seconds| seconds >= 0)
}

/// Returns true if one of `names` is selected; a selector that excludes names selects no missing name.
fn selects(selector: &Value, names: &[&str]) -> bool {
    let values: Vec<&str> =
        selector.get("values").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).collect();
    match text(selector, "operator") {
        "Exists" => !names.is_empty(),
        "DoesNotExist" => names.is_empty(),
        "In" => names.iter().any(|name| values.contains(name)),
        "NotIn" => names.is_empty() || names.iter().any(|name| !values.contains(name)),
        _ => false,
    }
}

fn looks_across_namespaces(pod: &Value) -> bool {
    ["podAffinity", "podAntiAffinity"].iter().any(|kind| {
        let Some(affinity) = pod.pointer(&format!("/spec/affinity/{kind}")) else { return false };
        let list = |key: &str| affinity.get(key).and_then(Value::as_array).into_iter().flatten();
        let required = list("requiredDuringSchedulingIgnoredDuringExecution");
        let preferred =
            list("preferredDuringSchedulingIgnoredDuringExecution").filter_map(|term| term.get("podAffinityTerm"));
        required.chain(preferred).any(|term| {
            let named = term.get("namespaces").and_then(Value::as_array).is_some_and(|names| !names.is_empty());
            named || term.get("namespaceSelector").is_some_and(|selector| !selector.is_null())
        })
    })
}
