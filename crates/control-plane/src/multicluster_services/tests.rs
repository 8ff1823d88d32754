//! Tests of the objects of exported Services.

use portolan_types::placement::{CopyPhase, Override, PlacedCopy, PlacedOverride, PlacementRecord, PolicyRef};
use serde_json::{Value, json};

use super::{import::*, *};

fn service() -> Value {
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web", "namespace": "shop"},
        "spec": {"type": "NodePort", "clusterIP": "10.0.0.1", "sessionAffinity": "ClientIP", "ipFamilies": ["IPv4"],
            "ports": [{"name": "http", "protocol": "TCP", "port": 80, "targetPort": 8080, "nodePort": 30000}]}})
}

fn slice(cluster: &str, ready: &[(&str, bool)]) -> Value {
    let endpoints: Vec<Value> = ready
        .iter()
        .map(|(ip, ready)| json!({"addresses": [ip], "conditions": {"ready": ready}, "nodeName": "n", "targetRef": {"name": "p"}}))
        .collect();
    json!({"metadata": {"name": format!("web-{cluster}"), "namespace": "shop",
        "labels": {"kubernetes.io/service-name": "web", "portolan.dev/cluster": cluster}},
        "addressType": "IPv4", "ports": [{"name": "http", "port": 8080}], "endpoints": endpoints})
}

#[test]
fn an_import_has_what_clients_need_and_nothing_of_one_cluster() {
    let export = json!({"apiVersion": "multicluster.x-k8s.io/v1beta1", "kind": "ServiceExport",
        "metadata": {"name": "web", "uid": "e"}, "spec": {"exportedLabels": {"tier": "web"}}});
    let made = import(&service(), &export, "v1beta1");
    assert_eq!(
        made["spec"],
        json!({"type": "ClusterSetIP", "sessionAffinity": "ClientIP", "ipFamilies": ["IPv4"],
        "ports": [{"name": "http", "protocol": "TCP", "port": 80}]})
    );
    assert_eq!(made["metadata"]["labels"], json!({"tier": "web", MANAGED_BY: MANAGER}));
    assert_eq!(made["metadata"]["ownerReferences"][0]["uid"], "e");
    let mut headless = service();
    headless["spec"]["clusterIP"] = "None".into();
    assert_eq!(import(&headless, &export, "v1beta1")["spec"]["type"], "Headless");
    assert!(fault(&service()).is_none());
    assert_eq!(fault(&json!({"spec": {"type": "ExternalName"}})).unwrap().reason, "InvalidServiceType");
}

#[test]
fn slices_name_their_physical_cluster_and_have_ready_endpoints_only() {
    let shown = [
        slice("east", &[("10.1.0.1", true), ("10.1.0.2", false)]),
        slice("west", &[("10.2.0.1", false)]),
        json!({"metadata": {"name": "own", "labels": {"kubernetes.io/service-name": "web"}}, "endpoints": [{"addresses": ["1.1.1.1"]}]}),
    ];
    let (slices, clusters) = mirrored(&service(), &json!({"metadata": {"name": "web", "uid": "i"}}), &shown);
    assert_eq!(clusters.into_iter().collect::<Vec<_>>(), ["east"]);
    assert_eq!(slices.len(), 1);
    let labels = json!({SERVICE_LABEL: "web", SOURCE_LABEL: "east", SLICE_MANAGER: MANAGER});
    assert_eq!((&slices[0]["metadata"]["name"], &slices[0]["metadata"]["labels"]), (&json!("mc-web-east"), &labels));
    assert_eq!(slices[0]["endpoints"], json!([{"addresses": ["10.1.0.1"], "conditions": {"ready": true}}]));
    assert_eq!(slices[0]["metadata"]["ownerReferences"][0]["uid"], "i");
}

#[test]
fn a_physical_cluster_that_is_about_to_be_left_has_no_slice() {
    let copy = |name: &str| PlacedCopy {
        name: name.into(),
        uid: format!("{name}-uid").parse().unwrap(),
        phase: CopyPhase::Active,
        replicas: None,
        epoch: 1,
    };
    let shown = [slice("east", &[("10.1.0.1", true)]), slice("west", &[("10.2.0.1", true)])];
    for (withdrawn, expected) in [(None, &["east", "west"][..]), (Some("east"), &["west"])] {
        let withdrawn = withdrawn.map(|name: &str| format!("{name}-uid").parse().unwrap()).into_iter().collect();
        let record =
            PlacementRecord { clusters: vec![copy("east"), copy("west")], withdrawn, ..PlacementRecord::default() };
        let mut service = service();
        record.write_to(&mut service);
        let (slices, clusters) = mirrored(&service, &json!({"metadata": {"name": "web", "uid": "i"}}), &shown);
        assert_eq!(clusters.iter().map(String::as_str).collect::<Vec<_>>(), expected);
        assert_eq!(slices.len(), expected.len());
    }
}

#[test]
fn overrides_that_change_a_service_on_some_clusters_are_conflicts() {
    let copy = |name: &str| PlacedCopy {
        name: name.into(),
        uid: format!("{name}-uid").parse().unwrap(),
        phase: CopyPhase::Active,
        replicas: None,
        epoch: 1,
    };
    let policy =
        PolicyRef { kind: "PlacementPolicy".into(), workspace: String::new(), namespace: None, name: "p".into() };
    let with = |on: &[&str], paths: &[&str]| {
        let patch = paths.iter().map(|path| json!({"op": "replace", "path": path, "value": 1})).collect();
        let on = on.iter().map(|name| format!("{name}-uid").parse().unwrap()).collect();
        let change = Override { patch, ..Override::default() };
        let overrides = vec![PlacedOverride { policy: policy.clone(), on, change }];
        let record =
            PlacementRecord { clusters: vec![copy("east"), copy("west")], overrides, ..PlacementRecord::default() };
        let mut service = service();
        record.write_to(&mut service);
        let found = conflict(&service);
        (found.is_true, found.reason)
    };
    for (on, paths, expected) in [
        (&["east"][..], &["/spec/ports/0/port"][..], (true, "PortConflict")),
        (&["east"], &["/spec/sessionAffinity", "/spec/type"], (true, "SessionAffinityConflict,TypeConflict")),
        (&["east"], &["/spec/sessionAffinityConfig/clientIP"], (true, "SessionAffinityConfigConflict")),
        (&["east"], &["/spec/externalTrafficPolicy"], (false, "NoConflicts")),
        (&["east", "west"], &["/spec/ports/0/port"], (false, "NoConflicts")),
    ] {
        let (is_conflict, reason) = with(on, paths);
        assert_eq!((is_conflict, reason.as_str()), expected, "{on:?} {paths:?}");
    }
}

#[test]
fn conditions_name_the_generation_and_keep_their_time() {
    let mut export = json!({"metadata": {"generation": 3}});
    MulticlusterCondition::new("Valid", true, "Valid", "").write_to(&mut export, "t1");
    MulticlusterCondition::new("Valid", true, "Valid", "again").write_to(&mut export, "t2");
    let condition = &export["status"]["conditions"][0];
    assert_eq!((&condition["lastTransitionTime"], &condition["observedGeneration"]), (&json!("t1"), &json!(3)));
    MulticlusterCondition::new("Valid", false, "NoService", "").write_to(&mut export, "t3");
    assert_eq!(export["status"]["conditions"][0]["lastTransitionTime"], "t3");
}
