//! Autoscalers and scales.

use serde_json::Value;

use super::{
    column::{AGE, CLUSTERS, Column, NAME, Row, UNKNOWN, UNSET, number, text},
    format,
};

pub(super) const AUTOSCALER: &[Column] = &[
    NAME,
    text("Reference", "Target of the autoscaler.", |row| {
        format!("{}/{}", row.text("/spec/scaleTargetRef/kind"), row.text("/spec/scaleTargetRef/name")).into()
    }),
    text("Targets", "Metrics, and their targets.", |row| targets(row).into()),
    text("MinPods", "Fewest replicas.", |row| format::amount(row.at("/spec/minReplicas"), UNSET).into()),
    text("MaxPods", "Most replicas.", |row| row.int("/spec/maxReplicas").into()),
    text("Replicas", "Replicas that there are.", |row| row.int("/status/currentReplicas").into()),
    AGE,
    CLUSTERS,
];

pub(super) const SCALE: &[Column] = &[
    NAME.plain(),
    number("Desired", "Replicas that are wanted.", |row| row.int("/spec/replicas").into()),
    number("Available", "Replicas that there are.", |row| row.int("/status/replicas").into()),
    AGE,
];

fn targets(row: &Row<'_>) -> String {
    let current = row.list("/status/currentMetrics");
    let specs = row.list("/spec/metrics").iter().enumerate();
    let all: Vec<String> = specs.map(|(at, spec)| metric(spec, current.get(at))).collect();
    match all.as_slice() {
        [] => "<none>".into(),
        all => format::first_of(all, 2, ", "),
    }
}

fn percent(value: Option<&Value>) -> String {
    match value.and_then(Value::as_i64) {
        Some(percent) => format!("{percent}%"),
        None => UNKNOWN.into(),
    }
}

/// Returns `<current>/<target>` of one metric.
fn metric(spec: &Value, status: Option<&Value>) -> String {
    let source = match spec["type"].as_str().unwrap_or_default() {
        "External" => "external",
        "Pods" => "pods",
        "Object" => "object",
        "Resource" => "resource",
        "ContainerResource" => "containerResource",
        _ => return "<unknown type>".into(),
    };
    let target = &spec[source]["target"];
    let current = |key: &str| status.and_then(|status| status.get(source)?.get("current")?.get(key));
    let shown = |key: &str| format::amount(current(key), UNKNOWN);
    let wanted = |key: &str| format::amount(target.get(key), "<nil>");
    let is_average = target.get("averageValue").is_some_and(|value| !value.is_null());
    match source {
        "pods" => format!("{}/{}", shown("averageValue"), wanted("averageValue")),
        "external" | "object" if is_average => format!("{}/{} (avg)", shown("averageValue"), wanted("averageValue")),
        "external" | "object" => format!("{}/{}", shown("value"), wanted("value")),
        _ => {
            let name = spec[source]["name"].as_str().unwrap_or_default();
            if is_average {
                format!("{name}: {}/{}", shown("averageValue"), wanted("averageValue"))
            } else {
                let target = target.get("averageUtilization").and_then(Value::as_i64);
                let target = target.map_or("<auto>".into(), |target| format!("{target}%"));
                format!("{name}: {}/{target}", percent(current("averageUtilization")))
            }
        }
    }
}
