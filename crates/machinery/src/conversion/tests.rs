use serde_json::json;

use super::*;
use crate::kinds::KindTable;

fn there_and_back(group: &str, version: &str, kind: &str, served: Value, stored: Value) {
    let kind = KindTable::builtin().kind_named(group, version, kind).unwrap();
    assert!(is_needed(kind));
    assert_eq!(to_storage(kind, served.clone()), stored);
    assert_eq!(from_storage(kind, stored), served);
}

#[test]
fn events_have_other_names_in_core() {
    there_and_back(
        "events.k8s.io",
        "v1",
        "Event",
        json!({"apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"name": "e"}, "note": "n", "reason": "r",
            "regarding": {"kind": "Pod"}, "reportingController": "c", "deprecatedCount": 2, "deprecatedSource": {}}),
        json!({"apiVersion": "v1", "kind": "Event", "metadata": {"name": "e"}, "message": "n", "reason": "r",
            "involvedObject": {"kind": "Pod"}, "reportingComponent": "c", "count": 2, "source": {}}),
    );
}

#[test]
fn further_metrics_travel_in_annotations() {
    let pods = json!({"type": "Pods", "pods": {"metric": {"name": "m"}, "target": {"type": "AverageValue", "averageValue": "1"}}});
    let behavior = json!({"scaleUp": {"selectPolicy": "Max"}});
    there_and_back(
        "autoscaling",
        "v1",
        "HorizontalPodAutoscaler",
        json!({"apiVersion": "autoscaling/v1", "kind": "HorizontalPodAutoscaler",
            "metadata": {"name": "h", "annotations": {
                "autoscaling.alpha.kubernetes.io/metrics": json!([pods]).to_string(),
                "autoscaling.alpha.kubernetes.io/behavior": behavior.to_string(),
            }},
            "spec": {"maxReplicas": 3, "targetCPUUtilizationPercentage": 50}, "status": {"currentReplicas": 1}}),
        json!({"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": {"name": "h"},
            "spec": {"maxReplicas": 3, "behavior": behavior, "metrics": [pods, {"type": "Resource", "resource": {
                "name": "cpu", "target": {"type": "Utilization", "averageUtilization": 50}}}]},
            "status": {"currentReplicas": 1}}),
    );
}

#[test]
fn other_kinds_are_stored_as_they_are_served() {
    let kind = KindTable::builtin().kind_named("", "v1", "ConfigMap").unwrap();
    assert!(!is_needed(kind));
    assert_eq!(to_storage(kind, json!({"a": 1})), json!({"a": 1}));
}
