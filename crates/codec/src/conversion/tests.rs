use serde_json::json;

use super::*;
use crate::decode::kept_number::settle_number;
use portolan_kinds::KindTable;

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
            "involvedObject": {"kind": "Pod"}, "reportingComponent": "c", "reportingInstance": "", "count": 2, "source": {}}),
    );
}

#[test]
fn further_metrics_travel_in_annotations() {
    let pods = json!({"type": "Pods", "pods": {"metric": {"name": "m"}, "target": {"type": "AverageValue", "averageValue": "1"}}});
    let behavior =
        json!({"scaleUp": {"selectPolicy": "Max", "policies": [{"type": "Pods", "value": 4, "periodSeconds": 15}]}});
    let flat = r#"[{"type":"Pods","pods":{"metricName":"m","targetAverageValue":"1"}}]"#;
    let internal = r#"{"ScaleUp":{"StabilizationWindowSeconds":null,"SelectPolicy":"Max","Policies":[{"Type":"Pods","Value":4,"PeriodSeconds":15}],"Tolerance":null},"ScaleDown":null}"#;
    there_and_back(
        "autoscaling",
        "v1",
        "HorizontalPodAutoscaler",
        json!({"apiVersion": "autoscaling/v1", "kind": "HorizontalPodAutoscaler",
            "metadata": {"name": "h", "annotations": {
                "autoscaling.alpha.kubernetes.io/metrics": flat,
                "autoscaling.alpha.kubernetes.io/behavior": internal,
            }},
            "spec": {"maxReplicas": 3, "targetCPUUtilizationPercentage": 50}, "status": {"currentReplicas": 1}}),
        json!({"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": {"name": "h"},
            "spec": {"maxReplicas": 3, "behavior": behavior, "metrics": [pods, {"type": "Resource", "resource": {
                "name": "cpu", "target": {"type": "Utilization", "averageUtilization": 50}}}]},
            "status": {"currentReplicas": 1, "currentMetrics": null}}),
    );
}

const ANNOTATIONS: &str = "autoscaling.alpha.kubernetes.io";

fn scaler() -> &'static Kind {
    KindTable::builtin().kind_named("autoscaling", "v1", "HorizontalPodAutoscaler").unwrap()
}

fn with_annotation(name: &str, text: &str) -> Value {
    json!({"apiVersion": "autoscaling/v1", "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "h", "annotations": {format!("{ANNOTATIONS}/{name}"): text}},
        "spec": {"maxReplicas": 3}, "status": {"currentReplicas": 0, "desiredReplicas": 0}})
}

#[test]
fn annotations_that_do_not_fit_are_dropped() {
    let plain = to_storage(scaler(), with_annotation("other", ""));
    for (name, text) in [
        ("behavior", r#"{"ScaleDown":{"StabilizationWindowSeconds":"x","Policies":[]}}"#),
        ("behavior", r#"{"ScaleDown":{"SelectPolicy":5}}"#),
        ("behavior", r#"{"ScaleUp":{"Policies":[{"Type":5,"Value":1,"PeriodSeconds":1}]}}"#),
        ("behavior", r#"{"ScaleUp":{"Policies":[{"Type":"Pods","Value":1.5,"PeriodSeconds":1}]}}"#),
        ("behavior", r#"{"ScaleUp":{"Policies":{}}}"#),
        ("behavior", r#"{"ScaleUp":[]}"#),
        ("behavior", r#"[]"#),
        ("behavior", r#"{"#),
        ("conditions", r#"[{"type":5}]"#),
        ("conditions", r#"[{"type":"A","status":"True","lastTransitionTime":"then"}]"#),
        ("conditions", r#"[5]"#),
        ("conditions", r#"{}"#),
        ("metrics", r#"[{"type":5}]"#),
        ("metrics", r#"[{"type":"Pods","pods":5}]"#),
        ("metrics", r#"[{"type":"Pods","pods":{"metricName":5}}]"#),
        ("metrics", r#"[{"type":"Pods","pods":{"metricName":"m","targetAverageValue":"much"}}]"#),
        ("metrics", r#"[{"type":"Pods","pods":{"metricName":"m","selector":"a=b"}}]"#),
        ("metrics", r#"[{"type":"Object","object":{"target":"that"}}]"#),
        ("metrics", r#"[{"type":"Resource","resource":{"name":"cpu","targetAverageUtilization":"x"}}]"#),
        ("metrics", r#"["m"]"#),
        ("current-metrics", r#"[{"type":5}]"#),
        ("current-metrics", r#"[{"type":"Resource","resource":{"name":"cpu","currentAverageUtilization":"x"}}]"#),
        ("current-metrics", r#"[5]"#),
    ] {
        let mut stored = to_storage(scaler(), with_annotation(name, text));
        stored["metadata"]["annotations"] = plain["metadata"]["annotations"].clone();
        assert_eq!(stored, plain, "{name}: {text}");
    }
}

#[test]
fn empty_values_convert_as_in_kube_apiserver() {
    let none = r#"{"ScaleUp":null,"ScaleDown":null}"#;
    for text in [none, "{}", "null"] {
        let stored = to_storage(scaler(), with_annotation("behavior", text));
        assert_eq!(stored["spec"].get("behavior"), None, "{text}");
    }
    let mut stored = to_storage(scaler(), with_annotation("behavior", r#"{"ScaleUp":{}}"#));
    assert!(stored["spec"]["behavior"]["scaleUp"].is_object());
    stored["spec"]["behavior"] = json!({});
    let served = from_storage(scaler(), stored);
    assert_eq!(served["metadata"]["annotations"][format!("{ANNOTATIONS}/behavior")], none);
    for text in ["[]", "null"] {
        let mut object = with_annotation("current-metrics", text);
        object["status"]["currentCPUUtilizationPercentage"] = 7.into();
        assert_eq!(to_storage(scaler(), object)["status"]["currentMetrics"], json!([]), "{text}");
    }
    let of =
        |kind, percent| json!({"type": kind, "resource": {"name": "cpu", "current": {"averageUtilization": percent}}});
    let mut stored = to_storage(scaler(), with_annotation("other", ""));
    stored["status"]["currentMetrics"] = json!([of("Resource", 0), of("Resource", 9), of("Pods", 5)]);
    assert_eq!(from_storage(scaler(), stored)["status"]["currentCPUUtilizationPercentage"], 9);
}

#[test]
fn behavior_is_read_in_any_letters() {
    let text = r#"{"scaleup":{"SELECTPOLICY":"Max"},"more":1}"#;
    let stored = to_storage(scaler(), with_annotation("behavior", text));
    assert_eq!(stored["spec"]["behavior"], json!({"scaleUp": {"selectPolicy": "Max"}}));
}

#[test]
fn a_status_that_is_written_in_the_old_version_leaves_metrics_in_their_order() {
    let cpu = json!({"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 5}}});
    let memory = json!({"type": "Resource", "resource": {"name": "memory", "target": {"type": "AverageValue", "averageValue": "1"}}});
    let stored = json!({"metadata": {"name": "h"}, "spec": {"maxReplicas": 3, "metrics": [cpu, memory]}, "status": {}});
    let mut served = from_storage(scaler(), stored.clone());
    served["status"]["desiredReplicas"] = 2.into();
    let written = status_to_storage(scaler(), &served, &stored);
    assert_eq!((&written["spec"], &written["status"]["desiredReplicas"]), (&stored["spec"], &json!(2)));
}

#[test]
fn annotations_of_the_old_version_have_no_effect_in_the_new_one() {
    let kind = KindTable::builtin().kind_named("autoscaling", "v2", "HorizontalPodAutoscaler").unwrap();
    let behavior = format!("{ANNOTATIONS}/behavior");
    let mut object = json!({"metadata": {"annotations": {behavior: "x", "a": "b"}}, "spec": {"maxReplicas": 3}});
    pass_through(kind, &mut object);
    assert_eq!(object["metadata"]["annotations"], json!({"a": "b"}));
    assert_eq!(object["spec"].get("behavior"), None);
}

#[test]
fn other_kinds_are_stored_as_they_are_served() {
    let kind = KindTable::builtin().kind_named("", "v1", "ConfigMap").unwrap();
    assert!(!is_needed(kind));
    assert_eq!(to_storage(kind, json!({"a": 1})), json!({"a": 1}));
}

#[test]
fn fields_of_the_conversion_are_in_whole_objects_only() {
    let table = KindTable::builtin();
    let generation = "deprecated.daemonset.template.generation";
    let daemons = table.kind_named("apps", "v1", "DaemonSet").unwrap();
    for (annotations, expected) in [
        (json!({generation: "3"}), json!({"metadata": {"name": "d"}})),
        (json!({generation: "3", "a": "b"}), json!({"metadata": {"name": "d", "annotations": {"a": "b"}}})),
    ] {
        assert_eq!(internal(daemons, json!({"metadata": {"name": "d", "annotations": annotations}})), expected);
    }
    let deployments = table.kind_named("apps", "v1", "Deployment").unwrap();
    let rolled = json!({"metadata": {"name": "d", "annotations": {"deprecated.deployment.rollback.to": "3"}}});
    assert!(hides_number(deployments, &rolled) && is_internal(deployments));
    assert_eq!(internal(deployments, rolled), json!({"metadata": {"name": "d"}}));
    let scaler = table.kind_named("autoscaling", "v1", "HorizontalPodAutoscaler").unwrap();
    let behavior = r#"{"scaleUp":{"selectPolicy":"Max"}}"#;
    let served = json!({"metadata": {"annotations": {"autoscaling.alpha.kubernetes.io/behavior": behavior}},
        "spec": {"targetCPUUtilizationPercentage": 50}});
    let printed = internal(scaler, served);
    assert_eq!(printed["metadata"], json!({}));
    assert_eq!(printed["spec"]["metrics"][0]["resource"]["target"]["averageUtilization"], 50);
}

#[test]
fn numbers_in_annotations_of_old_are_numbers() {
    let table = KindTable::builtin();
    let (rollback, generation) = ("deprecated.deployment.rollback.to", "deprecated.daemonset.template.generation");
    for (name, annotation, text, expected) in [
        ("Deployment", rollback, "5", Ok(json!({rollback: "5"}))),
        ("Deployment", rollback, "+007", Ok(json!({rollback: "7"}))),
        ("Deployment", rollback, "", Ok(json!(null))),
        (
            "Deployment",
            rollback,
            "x",
            Err(
                "failed to parse annotation[deprecated.deployment.rollback.to]=x as int64: strconv.ParseInt: parsing \"x\": invalid syntax",
            ),
        ),
        ("DaemonSet", generation, "", Err("strconv.ParseInt: parsing \"\": invalid syntax")),
        (
            "DaemonSet",
            generation,
            "9223372036854775808",
            Err("strconv.ParseInt: parsing \"9223372036854775808\": value out of range"),
        ),
        ("DaemonSet", rollback, "x", Ok(json!({rollback: "x"}))),
        ("StatefulSet", rollback, "x", Ok(json!({rollback: "x"}))),
    ] {
        let kind = table.kind_named("apps", "v1", name).unwrap();
        let mut object = json!({"metadata": {"annotations": {annotation: text}}});
        let settled = settle_number(kind, &mut object).map(|()| object["metadata"]["annotations"].clone());
        assert_eq!(settled, expected.map_err(str::to_owned), "{name} {text}");
    }
}

#[test]
fn a_blank_object_has_the_fields_of_the_conversion() {
    let table = KindTable::builtin();
    let of = |kind: &str| blank(table, table.kind_named("apps", "v1", kind).unwrap());
    assert_eq!(of("Deployment")["spec"]["replicas"], 0);
    assert_eq!(of("DaemonSet")["metadata"]["annotations"]["deprecated.daemonset.template.generation"], "0");
    assert_eq!(of("ControllerRevision")["metadata"], json!({}));
}
