//! Requests that a damaged object causes to fail.

use portolan_apiserver::ApiServerConfig;
use portolan_store::{Expect, Store as _, Transaction};
use portolan_types::{GroupResource, LogicalClusterId, ObjectKey, Record, Seams};
use serde_json::{Value, json};

use crate::common::{Client, Faulty, MAPS, Plane, config_map, damaged};

const PODS: &str = "/api/v1/namespaces/default/pods";
const CLAIMS: &str = "/api/v1/namespaces/default/persistentvolumeclaims";
const OTHER_MAPS: &str = "/api/v1/namespaces/other/configmaps";
const OTHER_PODS: &str = "/api/v1/namespaces/other/pods";
const QUOTAS: &str = "/api/v1/namespaces/default/resourcequotas";
const RANGES: &str = "/api/v1/namespaces/default/limitranges";
const CLASSES: &str = "/apis/scheduling.k8s.io/v1/priorityclasses";
const CONFIGURATIONS: &str = "/apis/admissionregistration.k8s.io/v1";
const WORKSPACES: &str = "/apis/tenancy.kcp.io/v1alpha1/workspaces";

fn pod(name: &str, spec: Value) -> Value {
    let mut pod = json!({"metadata": {"name": name}, "spec": spec});
    pod["spec"]["containers"] = json!([{"name": "a", "image": "a:1"}]);
    pod
}

fn claim(name: &str, class: Option<&str>) -> Value {
    let resources = json!({"requests": {"storage": "1Gi"}});
    let spec = json!({"accessModes": ["ReadWriteOnce"], "resources": resources, "storageClassName": class});
    json!({"metadata": {"name": name}, "spec": spec})
}

/// Another namespace with somebody to run pods as, and a map and a pod that are there before anything is damaged.
async fn furnish(admin: &Client) {
    admin.post("/api/v1/namespaces", json!({"metadata": {"name": "other"}})).await.expect(201);
    let account = json!({"metadata": {"name": "default"}});
    admin.post("/api/v1/namespaces/other/serviceaccounts", account).await.expect(201);
    admin.post(MAPS, config_map("before", json!({}))).await.expect(201);
    admin.post(PODS, pod("before", json!({}))).await.expect(201);
}

/// Creates something; where a damaged object decides on that, the answer must name it.
async fn create(admin: &Client, path: &str, object: Value, damaged: Option<&str>) {
    let answer = admin.post(path, object).await;
    match damaged {
        None => assert_eq!(answer.code, 201, "{path}: {}", answer.text()),
        Some(name) => assert_is_named(&answer.expect(500).message(), name),
    }
}

#[track_caller]
fn assert_is_named(message: &str, name: &str) {
    assert!(message.contains(&format!("corrupt object, {name}: ")), "{message}");
}

/// Checks that older objects can still be changed and deleted.
async fn goes_on(plane: &Plane) {
    let admin = plane.admin();
    admin.merge(&format!("{MAPS}/before"), json!({"data": {"k": "w"}})).await.expect(200);
    admin.merge(&format!("{PODS}/before"), json!({"metadata": {"labels": {"a": "b"}}})).await.expect(200);
    for path in [MAPS, PODS] {
        admin.delete(&format!("{path}/before")).await.expect(200);
    }
    admin.post("/api/v1/namespaces", json!({"metadata": {"name": "fresh"}})).await.expect(201);
}

#[tokio::test]
async fn a_damaged_quota_refuses_objects_that_it_may_count() {
    let quota = json!({"metadata": {"name": "q"}, "spec": {"hard": {"configmaps": "5"}}});
    let (plane, _folder) = damaged(furnish, &[(QUOTAS, quota.clone())]).await;
    let (admin, name) = (plane.admin(), Some("resourcequotas/default/q"));
    create(&admin, MAPS, config_map("m", json!({})), name).await;
    create(&admin, QUOTAS, json!({"metadata": {"name": "r"}, "spec": {}}), name).await;
    create(&admin, OTHER_MAPS, config_map("m", json!({})), None).await;
    goes_on(&plane).await;
    admin.delete_unread(&format!("{QUOTAS}/q")).await.expect(200);
    create(&admin, QUOTAS, quota, None).await;
    create(&admin, MAPS, config_map("m", json!({})), None).await;
}

#[tokio::test]
async fn a_damaged_limit_range_refuses_pods_and_claims_of_its_namespace() {
    let range = json!({"metadata": {"name": "l"}, "spec": {"limits": [{"type": "Container", "max": {"cpu": "1"}}]}});
    let (plane, _folder) = damaged(furnish, &[(RANGES, range)]).await;
    let (admin, name) = (plane.admin(), Some("limitranges/default/l"));
    create(&admin, PODS, pod("p", json!({})), name).await;
    create(&admin, CLAIMS, claim("c", None), name).await;
    create(&admin, MAPS, config_map("m", json!({})), None).await;
    create(&admin, OTHER_PODS, pod("p", json!({})), None).await;
    goes_on(&plane).await;
    admin.delete_unread(&format!("{RANGES}/l")).await.expect(200);
    create(&admin, PODS, pod("p", json!({})), None).await;
    create(&admin, CLAIMS, claim("c", None), None).await;
}

#[tokio::test]
async fn a_damaged_priority_class_refuses_pods_that_may_be_of_it() {
    let class =
        |name: &str, is_default: bool| json!({"metadata": {"name": name}, "value": 7, "globalDefault": is_default});
    let of = |class: &str| pod(class, json!({"priorityClassName": class}));
    let low = async |admin: &Client| {
        furnish(admin).await;
        admin.post(CLASSES, class("low", false)).await.expect(201);
    };
    let (plane, _folder) = damaged(low, &[(CLASSES, class("high", false))]).await;
    let (admin, name) = (plane.admin(), Some("priorityclasses.scheduling.k8s.io/high"));
    create(&admin, PODS, of("high"), name).await;
    create(&admin, PODS, pod("p", json!({})), name).await;
    create(&admin, CLASSES, class("normal", true), name).await;
    create(&admin, CLASSES, class("lower", false), None).await;
    for known in ["low", "lower", "system-node-critical"] {
        create(&admin, PODS, of(known), None).await;
    }
    create(&admin, MAPS, config_map("m", json!({})), None).await;
    goes_on(&plane).await;
    admin.delete_unread(&format!("{CLASSES}/high")).await.expect(200);
    create(&admin, PODS, pod("p", json!({})), None).await;
}

#[tokio::test]
async fn beside_a_default_a_damaged_priority_class_refuses_only_pods_that_name_it() {
    let class =
        |name: &str, is_default: bool| json!({"metadata": {"name": name}, "value": 7, "globalDefault": is_default});
    let with_default = async |admin: &Client| {
        admin.post(CLASSES, class("normal", true)).await.expect(201);
    };
    let (plane, _folder) = damaged(with_default, &[(CLASSES, class("high", false))]).await;
    let admin = plane.admin();
    create(&admin, PODS, pod("p", json!({})), None).await;
    let named = pod("q", json!({"priorityClassName": "high"}));
    create(&admin, PODS, named, Some("priorityclasses.scheduling.k8s.io/high")).await;
}

/// A policy or a binding that is for nothing.
fn policy(name: &str) -> Value {
    let rule = json!({"apiGroups": [""], "apiVersions": ["v1"], "resources": ["secrets"], "operations": ["CREATE"]});
    let mutation = json!({"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": "Object{}"}});
    json!({"metadata": {"name": name}, "spec": {
        "matchConstraints": {"resourceRules": [rule]}, "validations": [{"expression": "true"}],
        "mutations": [mutation], "reinvocationPolicy": "Never", "failurePolicy": "Ignore"}})
}

fn binding(name: &str, policy: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": {"policyName": policy, "validationActions": ["Deny"]}})
}

#[tokio::test]
async fn damaged_webhooks_and_policies_refuse_matching_requests() {
    let nothing = json!({"metadata": {"name": "x"}});
    for (resource, object, whole, refuses, and_deletions) in [
        ("validatingwebhookconfigurations", nothing.clone(), None, true, true),
        ("mutatingwebhookconfigurations", nothing.clone(), None, true, true),
        ("validatingadmissionpolicies", policy("x"), None, false, false),
        ("validatingadmissionpolicies", policy("x"), Some(("bindings", binding("b", "other"))), false, false),
        ("validatingadmissionpolicies", policy("x"), Some(("bindings", binding("b", "x"))), true, true),
        ("validatingadmissionpolicybindings", binding("x", "p"), None, false, false),
        ("validatingadmissionpolicybindings", binding("x", "p"), Some(("policies", policy("p"))), true, true),
        ("mutatingadmissionpolicies", policy("x"), Some(("bindings", binding("b", "x"))), true, false),
        ("mutatingadmissionpolicybindings", binding("x", "p"), Some(("policies", policy("p"))), true, false),
    ] {
        let case = format!("{resource} beside {}", whole.is_some());
        let path = format!("{CONFIGURATIONS}/{resource}");
        let prepare = async |admin: &Client| {
            furnish(admin).await;
            if let Some((beside, object)) = &whole {
                let kind = resource.split("admissionpolic").next().unwrap();
                let beside = if *beside == "bindings" { "policybindings" } else { *beside };
                admin.post(&format!("{CONFIGURATIONS}/{kind}admission{beside}"), object.clone()).await.expect(201);
            }
        };
        let (plane, _folder) = damaged(prepare, &[(&path, object)]).await;
        let admin = plane.admin();
        let called = format!("{resource}.admissionregistration.k8s.io/x");
        create(&admin, MAPS, config_map("m", json!({})), refuses.then_some(&*called)).await;
        let deleted = admin.delete(&format!("{MAPS}/before")).await;
        if and_deletions {
            assert_is_named(&deleted.expect(500).message(), &called)
        } else {
            assert_eq!(deleted.code, 200, "{case}: {}", deleted.text())
        }
        let bindings = format!("{CONFIGURATIONS}/validatingadmissionpolicybindings");
        create(&admin, &bindings, binding("y", "none"), None).await;
        admin.delete_unread(&format!("{path}/x")).await.expect(200);
        create(&admin, MAPS, config_map("n", json!({})), None).await;
    }
}

#[tokio::test]
async fn a_damaged_default_class_refuses_objects_without_a_class() {
    let storage = json!({"metadata": {"name": "s"}, "provisioner": "p"});
    let ingress = json!({"metadata": {"name": "i"}, "spec": {"controller": "a.b/c"}});
    let objects =
        [("/apis/storage.k8s.io/v1/storageclasses", storage), ("/apis/networking.k8s.io/v1/ingressclasses", ingress)];
    let (plane, _folder) = damaged(furnish, &objects).await;
    let admin = plane.admin();
    create(&admin, CLAIMS, claim("c", None), Some("storageclasses.storage.k8s.io/s")).await;
    create(&admin, CLAIMS, claim("c", Some("s")), None).await;
    let ingresses = "/apis/networking.k8s.io/v1/namespaces/default/ingresses";
    let backend = json!({"service": {"name": "s", "port": {"number": 80}}});
    let of = |class: Option<&str>| json!({"metadata": {"name": "i"}, "spec": {"ingressClassName": class, "defaultBackend": backend}});
    create(&admin, ingresses, of(None), Some("ingressclasses.networking.k8s.io/i")).await;
    create(&admin, ingresses, of(Some("i")), None).await;
}

#[tokio::test]
async fn definitions_and_roles_are_written_beside_damaged_ones() {
    let roles = "/apis/rbac.authorization.k8s.io/v1/clusterroles";
    let collected = |name: &str| {
        let labels = json!({"rbac.authorization.k8s.io/aggregate-to-view": "true"});
        let rule = json!({"apiGroups": ["example.com"], "resources": [name], "verbs": ["get"]});
        json!({"metadata": {"name": name, "labels": labels}, "rules": [rule]})
    };
    let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    let definition = |plural: &str, kind: &str| {
        let version = json!({"name": "v1", "served": true, "storage": true,
            "schema": {"openAPIV3Schema": {"type": "object"}}});
        json!({"metadata": {"name": format!("{plural}.example.com")}, "spec": {
            "group": "example.com", "scope": "Namespaced", "names": {"plural": plural, "kind": kind},
            "versions": [version]}})
    };
    let objects = [(roles, collected("gears")), (definitions, definition("gears", "Gear"))];
    let (plane, _folder) = damaged(furnish, &objects).await;
    let admin = plane.admin();
    create(&admin, roles, collected("wheels"), None).await;
    create(&admin, definitions, definition("wheels", "Wheel"), None).await;
    for path in [format!("{roles}/gears"), format!("{definitions}/gears.example.com")] {
        admin.delete_unread(&path).await.expect(200);
    }
}

#[tokio::test]
async fn a_damaged_workspace_deleted_unread_is_restored_with_its_content() {
    let whole = async |admin: &Client| {
        admin.post(WORKSPACES, json!({"metadata": {"name": "whole"}})).await.expect(201);
    };
    let team = json!({"metadata": {"name": "team"}});
    let (plane, _folder) = damaged(whole, &[(WORKSPACES, team.clone())]).await;
    let (admin, inside) = (plane.admin(), plane.admin().at("root:team"));
    let face = "/apis/core.kcp.io/v1alpha1/logicalclusters/cluster";
    let before = inside.get(face).await.expect(200).json();
    inside.post("/api/v1/namespaces", json!({"metadata": {"name": "shop"}})).await.expect(201);
    admin.delete(&format!("{WORKSPACES}/team")).await.expect(500);
    admin.delete_unread(&format!("{WORKSPACES}/team")).await.expect(200);
    inside.get("/api/v1/namespaces/shop").await.expect(200);

    let anew = admin.post(WORKSPACES, team.clone()).await.expect(201).json();
    assert_eq!(anew["spec"]["cluster"], before["metadata"]["uid"]);
    assert_eq!(anew["metadata"]["uid"], before["spec"]["owner"]["uid"]);
    inside.get("/api/v1/namespaces/shop").await.expect(200);
    for name in ["team", "whole"] {
        admin.post(WORKSPACES, json!({"metadata": {"name": name}})).await.expect(409);
    }
    let going = admin.delete(&format!("{WORKSPACES}/team")).await.expect(200).json();
    assert!(going["metadata"]["deletionTimestamp"].is_string(), "{going}");
    assert_eq!(inside.get(face).await.expect(200).json()["status"]["phase"], "Deleting");
    admin.post(WORKSPACES, team).await.expect(409);
}

#[tokio::test]
async fn a_workspace_is_not_restored_from_a_terminating_logical_cluster() {
    let store = Faulty::over(portolan_store::memory());
    let plane = Plane::on(store.clone(), ApiServerConfig::in_memory(Seams::system())).await;
    let (admin, team) = (plane.admin(), json!({"metadata": {"name": "team"}}));
    let made = admin.post(WORKSPACES, team.clone()).await.expect(201).json();
    let workspaces = GroupResource::new("tenancy.kcp.io", "workspaces");
    let key = ObjectKey::cluster_scoped(LogicalClusterId::ROOT, workspaces, "team".parse().unwrap());
    store.commit(Transaction::one(key, Expect::Present, None)).await.unwrap();

    let entries = GroupResource::new("core.kcp.io", "logicalclusters");
    let id = made["spec"]["cluster"].as_str().unwrap().parse().unwrap();
    let entry = ObjectKey::cluster_scoped(LogicalClusterId::SYSTEM, entries, id);
    let stored = store.get(&entry).await.unwrap().unwrap();
    let mut ending = stored.record.to_value(stored.revision).unwrap();
    ending["status"]["phase"] = "Deleting".into();
    store.write_before([Some(Transaction::one(entry, Expect::Present, Some(Record::of(&ending))))]);
    let refused = admin.post(WORKSPACES, team).await.expect(409).json();
    assert_eq!(refused["reason"], "AlreadyExists");
    admin.get(&format!("{WORKSPACES}/team")).await.expect(404);
}
