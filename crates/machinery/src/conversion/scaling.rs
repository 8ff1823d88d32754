//! autoscaling/v1 knows one metric, the utilization of CPU. What else autoscaling/v2 says travels in annotations.

use portolan_types::object::child_mut;
use serde_json::{Value, json};

use super::Fields;

/// Annotation, and the field of autoscaling/v2 that it carries.
const CARRIED: [(&str, &str, &str); 3] = [
    ("autoscaling.alpha.kubernetes.io/current-metrics", "status", "currentMetrics"),
    ("autoscaling.alpha.kubernetes.io/conditions", "status", "conditions"),
    ("autoscaling.alpha.kubernetes.io/behavior", "spec", "behavior"),
];
const METRICS: &str = "autoscaling.alpha.kubernetes.io/metrics";

fn cpu(percent: Value) -> Value {
    json!({"type": "Resource", "resource": {
        "name": "cpu", "target": {"type": "Utilization", "averageUtilization": percent},
    }})
}

fn cpu_percent(metric: &Value) -> Option<&Value> {
    let is_cpu = metric.pointer("/resource/name").and_then(Value::as_str) == Some("cpu");
    metric.pointer("/resource/target/averageUtilization").filter(|_| is_cpu)
}

pub(super) fn to_v2(fields: &mut Fields) {
    let mut metrics = match take_annotation(fields, METRICS) {
        Some(Value::Array(metrics)) => metrics,
        _ => Vec::new(),
    };
    let spec = child_mut(fields, "spec");
    if let Some(percent) = spec.remove("targetCPUUtilizationPercentage") {
        metrics.push(cpu(percent));
    }
    if metrics.is_empty() {
        metrics.push(cpu(json!(80)));
    }
    spec.insert("metrics".into(), metrics.into());
    let status = child_mut(fields, "status");
    if let Some(percent) = status.remove("currentCPUUtilizationPercentage") {
        let current =
            json!({"type": "Resource", "resource": {"name": "cpu", "current": {"averageUtilization": percent}}});
        status.insert("currentMetrics".into(), json!([current]));
    }
    for (annotation, part, field) in CARRIED {
        if let Some(value) = take_annotation(fields, annotation) {
            child_mut(fields, part).insert(field.into(), value);
        }
    }
}

pub(super) fn from_v2(fields: &mut Fields) {
    let spec = child_mut(fields, "spec");
    let metrics = match spec.remove("metrics") {
        Some(Value::Array(metrics)) => metrics,
        _ => Vec::new(),
    };
    if let Some(percent) = metrics.iter().find_map(cpu_percent).cloned() {
        spec.insert("targetCPUUtilizationPercentage".into(), percent);
    }
    let others: Vec<Value> = metrics.into_iter().filter(|metric| cpu_percent(metric).is_none()).collect();
    if !others.is_empty() {
        put_annotation(fields, METRICS, &others.into());
    }
    let current = fields.get("status").and_then(|status| status.get("currentMetrics")).and_then(Value::as_array);
    let percent = current.into_iter().flatten().find_map(|metric| {
        let is_cpu = metric.pointer("/resource/name").and_then(Value::as_str) == Some("cpu");
        metric.pointer("/resource/current/averageUtilization").filter(|_| is_cpu).cloned()
    });
    for (annotation, part, field) in CARRIED {
        let value = fields.get_mut(part).and_then(Value::as_object_mut).and_then(|part| part.remove(field));
        if let Some(value) = value.filter(|value| !value.as_array().is_some_and(Vec::is_empty)) {
            put_annotation(fields, annotation, &value);
        }
    }
    if let Some(percent) = percent {
        child_mut(fields, "status").insert("currentCPUUtilizationPercentage".into(), percent);
    }
}

fn put_annotation(fields: &mut Fields, key: &str, value: &Value) {
    child_mut(child_mut(fields, "metadata"), "annotations").insert(key.to_owned(), value.to_string().into());
}

/// Takes an annotation off and reads it; what is no JSON is dropped.
fn take_annotation(fields: &mut Fields, key: &str) -> Option<Value> {
    let metadata = fields.get_mut("metadata")?.as_object_mut()?;
    let annotations = metadata.get_mut("annotations")?.as_object_mut()?;
    let text = annotations.remove(key)?;
    if annotations.is_empty() {
        metadata.remove("annotations");
    }
    serde_json::from_str(text.as_str()?).ok()
}
