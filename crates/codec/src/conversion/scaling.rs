//! autoscaling/v1 has one metric, the utilization of CPU. The other fields of autoscaling/v2 travel in annotations.

use portolan_types::object::child_mut;
use serde_json::{Value, json};

use super::{
    Fields,
    metrics::{self, Side},
};
use crate::decode;
use portolan_kinds::KindTable;

const STATUSES: &str = "autoscaling.alpha.kubernetes.io/current-metrics";
const CONDITIONS: &str = "autoscaling.alpha.kubernetes.io/conditions";
const BEHAVIOR: &str = "autoscaling.alpha.kubernetes.io/behavior";
const METRICS: &str = "autoscaling.alpha.kubernetes.io/metrics";

/// All of these annotations. Values from clients are dropped, except those that the old version reads first.
const ANNOTATIONS: [&str; 6] = [
    METRICS,
    STATUSES,
    BEHAVIOR,
    CONDITIONS,
    "autoscaling.alpha.kubernetes.io/scale-down-tolerance",
    "autoscaling.alpha.kubernetes.io/scale-up-tolerance",
];

/// Takes the annotations off.
pub(super) fn drop_annotations(fields: &mut Fields) {
    for annotation in ANNOTATIONS {
        take_annotation(fields, annotation);
    }
}

fn cpu(percent: Value) -> Value {
    json!({"type": "Resource", "resource": {
        "name": "cpu", "target": {"type": "Utilization", "averageUtilization": percent},
    }})
}

/// Returns true for a wanted or measured metric of CPU.
fn is_cpu(metric: &Value) -> bool {
    let is = |pointer, text| metric.pointer(pointer).and_then(Value::as_str) == Some(text);
    is("/type", "Resource") && is("/resource/name", "cpu")
}

fn cpu_percent(metric: &Value) -> Option<&Value> {
    metric.pointer("/resource/target/averageUtilization").filter(|_| is_cpu(metric))
}

pub(super) fn to_v2(fields: &mut Fields) {
    let all = list_of(fields, METRICS, "MetricSpec", |metrics| metrics::read(metrics, Side::Wanted));
    let mut all = all.unwrap_or_default();
    let spec = child_mut(fields, "spec");
    if let Some(percent) = spec.remove("targetCPUUtilizationPercentage") {
        all.push(cpu(percent));
    }
    if all.is_empty() {
        all.push(cpu(json!(80)));
    }
    spec.insert("metrics".into(), all.into());
    let measured = list_of(fields, STATUSES, "MetricStatus", |metrics| metrics::read(metrics, Side::Measured));
    let conditions = list_of(fields, CONDITIONS, "HorizontalPodAutoscalerCondition", |conditions| conditions);
    // An empty behavior counts as none.
    if let Some(behavior @ Value::Object(_)) = take_annotation(fields, BEHAVIOR)
        && let Some(behavior) = fitted("HorizontalPodAutoscalerBehavior", renamed(&behavior))
        && behavior.as_object().is_some_and(|behavior| !behavior.is_empty())
    {
        child_mut(fields, "spec").insert("behavior".into(), behavior);
    }
    status_to_v2(child_mut(fields, "status"), measured, conditions.unwrap_or_default());
    drop_annotations(fields);
}

/// Converts a status to autoscaling/v2, which leaves out zero replicas and always has a list of metrics.
fn status_to_v2(status: &mut Fields, measured: Option<Vec<Value>>, conditions: Vec<Value>) {
    let percent = status.remove("currentCPUUtilizationPercentage");
    let cpu = percent.map(
        |percent| json!({"type": "Resource", "resource": {"name": "cpu", "current": {"averageUtilization": percent}}}),
    );
    // The annotation takes precedence over the field, even if it holds no metrics.
    let metrics = measured.or_else(|| cpu.map(|cpu| vec![cpu]));
    status.insert("currentMetrics".into(), metrics.map_or(Value::Null, Value::from));
    if !conditions.is_empty() {
        status.insert("conditions".into(), conditions.into());
    }
    if status.get("currentReplicas").and_then(Value::as_i64) == Some(0) {
        status.remove("currentReplicas");
    }
}

/// Reads a list of autoscaling/v2 elements from an annotation: all of it or, like kube-apiserver, nothing.
fn list_of(
    fields: &mut Fields,
    key: &str,
    name: &str,
    read: impl FnOnce(Vec<Value>) -> Vec<Value>,
) -> Option<Vec<Value>> {
    match take_annotation(fields, key)? {
        Value::Array(list) => read(list).into_iter().map(|item| fitted(name, item)).collect(),
        // Go reads nothing into a list without elements.
        Value::Null => Some(Vec::new()),
        _ => None,
    }
}

/// Returns a value in the form of a type of autoscaling/v2, or `None` if it does not fit.
fn fitted(name: &str, value: Value) -> Option<Value> {
    let table = KindTable::builtin();
    let schema = table.type_named(&format!("io.k8s.api.autoscaling.v2.{name}"))?;
    decode::canonical(table, schema, value).ok().map(|(value, _)| value)
}

/// Fields of a behavior. kube-apiserver's internal types spell them with other capitals, and Go reads any.
const BEHAVIORAL: [&str; 9] = [
    "scaleUp",
    "scaleDown",
    "stabilizationWindowSeconds",
    "selectPolicy",
    "policies",
    "tolerance",
    "type",
    "value",
    "periodSeconds",
];

/// Returns a behavior under the names of autoscaling/v2, without empty ones.
fn renamed(value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            let known = |name: &String| BEHAVIORAL.into_iter().find(|known| known.eq_ignore_ascii_case(name));
            let there = map.iter().filter(|(_, value)| !value.is_null());
            there.filter_map(|(name, value)| Some((known(name)?.to_owned(), renamed(value)))).collect()
        }
        Value::Array(list) => list.iter().map(renamed).collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value.clone(),
    }
}

/// Returns the behavior in the text form of kube-apiserver's internal type.
fn behavior_text(behavior: &Value) -> String {
    let get = |at: &Value, name: &str| at.get(name).map_or_else(|| "null".to_owned(), Value::to_string);
    let rules = |name: &str| {
        let Some(rules) = behavior.get(name) else { return "null".to_owned() };
        let policy = |policy: &Value| {
            let parts = ["type", "value", "periodSeconds"].map(|name| get(policy, name));
            format!("{{\"Type\":{},\"Value\":{},\"PeriodSeconds\":{}}}", parts[0], parts[1], parts[2])
        };
        let policies = rules.get("policies").and_then(Value::as_array);
        let policies = policies.map_or_else(
            || "null".to_owned(),
            |all| format!("[{}]", all.iter().map(policy).collect::<Vec<_>>().join(",")),
        );
        format!(
            "{{\"StabilizationWindowSeconds\":{},\"SelectPolicy\":{},\"Policies\":{policies},\"Tolerance\":{}}}",
            get(rules, "stabilizationWindowSeconds"),
            get(rules, "selectPolicy"),
            get(rules, "tolerance")
        )
    };
    format!("{{\"ScaleUp\":{},\"ScaleDown\":{}}}", rules("scaleUp"), rules("scaleDown"))
}

pub(super) fn from_v2(fields: &mut Fields) {
    drop_annotations(fields);
    let spec = child_mut(fields, "spec");
    let metrics = match spec.remove("metrics") {
        Some(Value::Array(metrics)) => metrics,
        _ => Vec::new(),
    };
    let behavior = spec.remove("behavior");
    if let Some(percent) = metrics.iter().find_map(cpu_percent).cloned() {
        spec.insert("targetCPUUtilizationPercentage".into(), percent);
    }
    let others: Vec<Value> = metrics.into_iter().filter(|metric| cpu_percent(metric).is_none()).collect();
    if !others.is_empty() {
        put_annotation(fields, METRICS, metrics::written(&others, Side::Wanted));
    }
    if let Some(behavior) = behavior {
        put_annotation(fields, BEHAVIOR, behavior_text(&behavior));
    }
    let mut status = |name: &str| match fields.get_mut("status").and_then(Value::as_object_mut)?.remove(name) {
        Some(Value::Array(list)) if !list.is_empty() => Some(list),
        _ => None,
    };
    let (current, conditions) = (status("currentMetrics"), status("conditions"));
    if let Some(current) = current {
        // kube-apiserver lets the last one win.
        let percent = current.iter().rev().find_map(|metric| {
            metric.pointer("/resource/current/averageUtilization").filter(|_| is_cpu(metric)).cloned()
        });
        if let Some(percent) = percent {
            child_mut(fields, "status").insert("currentCPUUtilizationPercentage".into(), percent);
        }
        put_annotation(fields, STATUSES, metrics::written(&current, Side::Measured));
    }
    if let Some(conditions) = conditions {
        put_annotation(fields, CONDITIONS, metrics::conditions(&conditions));
    }
    if let Some(Value::Object(status)) = fields.get_mut("status") {
        status.entry("currentReplicas").or_insert_with(|| 0.into());
    }
}

fn put_annotation(fields: &mut Fields, key: &str, text: String) {
    child_mut(child_mut(fields, "metadata"), "annotations").insert(key.to_owned(), text.into());
}

/// Removes an annotation and parses it; text that is not JSON is dropped.
fn take_annotation(fields: &mut Fields, key: &str) -> Option<Value> {
    let metadata = fields.get_mut("metadata")?.as_object_mut()?;
    let annotations = metadata.get_mut("annotations")?.as_object_mut()?;
    let text = annotations.remove(key)?;
    if annotations.is_empty() {
        metadata.remove("annotations");
    }
    serde_json::from_str(text.as_str()?).ok()
}
