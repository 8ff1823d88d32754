use serde_json::{Value, json};

use super::{inherited, node};

fn east() -> Value {
    json!({
        "apiVersion": "portolan.dev/v1alpha1", "kind": "PhysicalCluster",
        "metadata": {"name": "east", "uid": "u-1", "creationTimestamp": "2026-01-01T00:00:00Z", "labels": {"region": "eu"},
            "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "secret"}, "finalizers": ["a/b"],
            "managedFields": [{"manager": "kubectl"}]},
        "spec": {"connection": {"direct": {"kubeconfigSecretRef": {"name": "secret"}}}, "taints": [{"key": "a", "effect": "NoSchedule"}],
            "unschedulable": true, "bounds": {"cpu": "9"}, "proxy": {"url": "http://secret"}},
        "status": {"version": "v1.36.3", "capacity": {"cpu": "8"}, "allocatable": {"cpu": "7"}, "conditions": [
            {"type": "Ready", "status": "False", "reason": "Unreachable", "message": "10.0.0.1 refused",
                "lastTransitionTime": "2026-01-02T00:00:00Z"}]},
    })
}

#[test]
fn inherited_physical_clusters_hide_the_connection() {
    let shown = inherited::of(east(), &"root:infra".parse().unwrap());
    let text = shown.to_string();
    for hidden in ["connection", "secret", "10.0.0.1", "kubectl", "finalizers"] {
        assert!(!text.contains(hidden), "{hidden}: {text}");
    }
    let annotations = json!({"portolan.dev/workspace": "root:infra", "portolan.dev/mode": "direct"});
    assert_eq!(shown["metadata"]["annotations"], annotations);
    assert_eq!((&shown["spec"]["bounds"]["cpu"], &shown["metadata"]["labels"]["region"]), (&json!("9"), &json!("eu")));
    assert_eq!(shown["status"]["conditions"][0]["reason"], "Unreachable");
}

#[test]
fn a_node_stands_for_a_physical_cluster() {
    let node = node::of(&east());
    assert_eq!((&node["metadata"]["name"], &node["metadata"]["uid"]), (&json!("east"), &json!("u-1")));
    assert_eq!(node["metadata"]["labels"]["topology.kubernetes.io/region"], "eu");
    assert_eq!(node["metadata"]["labels"]["kubernetes.io/hostname"], "east");
    assert_eq!((&node["spec"]["unschedulable"], &node["spec"]["taints"][0]["key"]), (&json!(true), &json!("a")));
    assert_eq!((&node["status"]["capacity"]["cpu"], &node["status"]["allocatable"]["cpu"]), (&json!("8"), &json!("7")));
    assert_eq!(node["status"]["nodeInfo"]["kubeletVersion"], "v1.36.3");
    let ready = node["status"]["conditions"].as_array().unwrap().last().unwrap();
    assert_eq!(
        (&ready["type"], &ready["status"], &ready["reason"]),
        (&json!("Ready"), &json!("False"), &json!("Unreachable"))
    );
    assert!(!node.to_string().contains("10.0.0.1"));
    let unheard = node::of(&json!({"metadata": {"name": "new"}, "spec": {}}));
    assert_eq!(unheard["status"]["conditions"].as_array().unwrap().last().unwrap()["status"], "Unknown");
}
