//! The inventory for other tools: `ClusterProfile` and `PlacementDecision` where a workspace defines them.

use super::*;

const PROFILES: &str = "/apis/multicluster.x-k8s.io/v1alpha1/namespaces/default/clusterprofiles";
const DECISION: &str =
    "/apis/multicluster.x-k8s.io/v1alpha1/namespaces/default/placementdecisions/deployments.apps-web";
const DEPLOYMENT: &str = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web, namespace: default}\nspec:\n  \
                          selector: {matchLabels: {app: web}}\n  template:\n    metadata: {labels: {app: web}}\n    \
                          spec: {containers: [{name: c, image: nginx}]}\n";

/// Definition of a kind of the inventory, with the fields of SIG Multicluster's that the test reads.
fn definition(kind: &str, plural: &str, fields: &Value, subresources: &Value) -> String {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": format!("{plural}.multicluster.x-k8s.io"),
            "annotations": {"api-approved.kubernetes.io": "https://github.com/kubernetes/enhancements/pull/4322"},
        },
        "spec": {
            "group": "multicluster.x-k8s.io",
            "scope": "Namespaced",
            "names": {"kind": kind, "plural": plural, "singular": kind.to_lowercase()},
            "versions": [{
                "name": "v1alpha1", "served": true, "storage": true, "subresources": subresources,
                "schema": {"openAPIV3Schema": {"type": "object", "properties": fields}},
            }],
        },
    })
    .to_string()
}

fn profiles() -> String {
    let text = json!({"type": "string"});
    let list = |fields: Value| json!({"type": "array", "items": {"type": "object", "properties": fields}});
    let manager = json!({"type": "object", "required": ["name"], "properties": {"name": text},
        "x-kubernetes-validations": [{"rule": "self == oldSelf", "message": "ClusterManager is immutable"}]});
    let condition = json!({"type": text, "status": text, "reason": {"type": "string", "minLength": 1},
        "message": text, "lastTransitionTime": {"type": "string", "format": "date-time"}});
    let cluster = json!({"type": "object", "properties": {"server": text, "certificate-authority-data": text}});
    let fields = json!({
        "spec": {"type": "object", "required": ["clusterManager"],
            "properties": {"displayName": text, "clusterManager": manager}},
        "status": {"type": "object", "properties": {
            "conditions": list(condition),
            "version": {"type": "object", "properties": {"kubernetes": text}},
            "properties": list(json!({"name": text, "value": text})),
            "accessProviders": list(json!({"name": text, "cluster": cluster})),
        }},
    });
    definition("ClusterProfile", "clusterprofiles", &fields, &json!({"status": {}}))
}

fn decisions() -> String {
    let text = json!({"type": "string"});
    let reference = json!({"type": "object", "properties": {"name": text, "namespace": text}});
    let item = json!({"type": "object", "properties": {"clusterProfileRef": reference, "reason": text}});
    let fields = json!({"schedulerName": text, "decisions": {"type": "array", "maxItems": 100, "items": item}});
    definition("PlacementDecision", "placementdecisions", &fields, &json!({}))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_workspace_that_defines_the_inventory_has_a_profile_per_cluster_and_a_decision_per_placement() {
    let (plane, _folder) = start().await;
    let root = WorkspaceClient::new(plane.api(), &LogicalClusterPath::root());
    root.apply(MEMBER).await.unwrap();
    root.apply(DEPLOYMENT).await.unwrap();
    root.apply(&profiles()).await.unwrap();
    root.apply(&decisions()).await.unwrap();
    let east = format!("{PROFILES}/east");
    let is_healthy = |profile: &Value| {
        let conditions = profile["status"]["conditions"].as_array().cloned().unwrap_or_default();
        conditions.iter().any(|own| own["type"] == "ControlPlaneHealthy" && own["status"] == "True")
    };
    until(&root, &east, is_healthy).await;
    let profile = root.get(&east).await.unwrap();
    assert_eq!(profile["spec"], json!({"displayName": "east", "clusterManager": {"name": "portolan"}}));
    assert_eq!(profile["metadata"]["labels"]["x-k8s.io/cluster-manager"], "portolan");
    let status = &profile["status"];
    assert!(status["version"]["kubernetes"].as_str().unwrap().starts_with("v1."), "{status}");
    let region = json!({"name": "region", "value": "eu"});
    assert!(status["properties"].as_array().unwrap().contains(&region), "{status}");
    let access = &status["accessProviders"][0];
    assert!(access["cluster"]["server"].as_str().unwrap().ends_with("/physicalclusters/east/proxy"), "{access}");
    assert!(!access["cluster"]["certificate-authority-data"].as_str().unwrap().is_empty());

    until(&root, DECISION, |decision| decision["decisions"][0]["clusterProfileRef"]["name"] == "east").await;
    let decision = root.get(DECISION).await.unwrap();
    assert_eq!(decision["schedulerName"], "portolan");
    assert_eq!(decision["decisions"][0]["clusterProfileRef"]["namespace"], "default");
    assert_eq!(decision["decisions"][0]["reason"], "placed on east by its namespace's default");
    let labels = json!({
        "multicluster.x-k8s.io/decision-key": "deployments.apps-web",
        "multicluster.x-k8s.io/decision-index": "0",
        "multicluster.x-k8s.io/placement-key": "deployments.apps-web",
    });
    assert_eq!(decision["metadata"]["labels"], labels);

    // Both are restored when they are deleted, and go with their source.
    delete(&plane, DECISION).await;
    until(&root, DECISION, |decision| decision["decisions"][0]["clusterProfileRef"]["name"] == "east").await;
    delete(&plane, "/apis/apps/v1/namespaces/default/deployments/web").await;
    wait_until_gone(&root, DECISION).await;
    delete(&plane, "/apis/portolan.dev/v1alpha1/physicalclusters/east").await;
    wait_until_gone(&root, &east).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_profile_of_another_manager_is_left_alone() {
    let (plane, _folder) = start().await;
    let root = WorkspaceClient::new(plane.api(), &LogicalClusterPath::root());
    root.apply(&profiles()).await.unwrap();
    until(&root, PROFILES, is_empty).await;
    let foreign = json!({
        "apiVersion": "multicluster.x-k8s.io/v1alpha1", "kind": "ClusterProfile", "metadata": {"name": "east"},
        "spec": {"displayName": "theirs", "clusterManager": {"name": "other"}},
    });
    let (_, answer) =
        ask(&plane, Method::POST, &format!("/clusters/root{PROFILES}"), "application/json", foreign).await;
    assert_eq!(answer["metadata"]["name"], "east", "{answer}");
    root.apply(MEMBER).await.unwrap();
    root.apply(&MEMBER.replace("east", "west")).await.unwrap();
    until(&root, &format!("{PROFILES}/west"), |profile| profile["status"]["accessProviders"][0].is_object()).await;
    let profile = root.get(&format!("{PROFILES}/east")).await.unwrap();
    assert_eq!(profile["spec"]["displayName"], "theirs");
    assert_eq!(profile["status"], Value::Null);
}

async fn delete(plane: &ControlPlane, path: &str) {
    let path = format!("/clusters/root{path}");
    let (_, answer) = ask(plane, Method::DELETE, &path, "application/json", Value::Null).await;
    assert_ne!(answer["status"], "Failure", "{answer}");
}

async fn wait_until_gone(workspace: &WorkspaceClient, path: &str) {
    let looking = async {
        while workspace.get(path).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    assert!(tokio::time::timeout(PATIENCE, looking).await.is_ok(), "{path}: {:?}", workspace.get(path).await);
}
