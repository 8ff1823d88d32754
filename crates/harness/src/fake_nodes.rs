//! Nodes that kwok simulates, and disks for their claims: no container runs, but pods become ready.

use serde_json::{Value, json};

/// Annotation of nodes that kwok simulates.
pub const ANNOTATION: &str = "kwok.x-k8s.io/node=fake";

/// Stages for kwok: a bare pod with the first label succeeds once it has started. A pod with the second label serves
/// for two seconds after its deletion, like a container with a grace period.
pub const PODS_THAT_END: &str = r#"apiVersion: kwok.x-k8s.io/v1alpha1
kind: Stage
metadata: {name: pod-ends}
spec:
  resourceRef: {apiGroup: v1, kind: Pod}
  selector:
    matchLabels: {clients.portolan.dev/ends: "true"}
    matchExpressions:
      - {key: .metadata.deletionTimestamp, operator: DoesNotExist}
      - {key: .status.phase, operator: In, values: [Running]}
  next:
    statusTemplate: |
      phase: Succeeded
---
apiVersion: kwok.x-k8s.io/v1alpha1
kind: Stage
metadata: {name: pod-stops-gracefully}
spec:
  resourceRef: {apiGroup: v1, kind: Pod}
  selector:
    matchLabels: {clients.portolan.dev/graceful: "true"}
    matchExpressions:
      - {key: .metadata.deletionTimestamp, operator: Exists}
  # Of several stages, those with a weight come first.
  weight: 1
  delay: {durationMilliseconds: 2000}
  next: {delete: true}
"#;

/// Returns one list with `nodes` nodes, a default StorageClass, and volumes for it, since there is no provisioner.
pub fn manifest(cluster: &str, nodes: usize, volumes: usize) -> String {
    let mut items: Vec<Value> = (1..=nodes).map(|number| node(&format!("{cluster}-node-{number}"))).collect();
    items.push(storage_class());
    items.extend((1..=volumes).map(|number| volume(&format!("{cluster}-disk-{number}"))));
    json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string()
}

fn node(name: &str) -> Value {
    let size = json!({"cpu": "32", "memory": "256Gi", "pods": "1000"});
    json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "annotations": {"kwok.x-k8s.io/node": "fake"},
            "labels": {
                "kubernetes.io/arch": "amd64",
                "kubernetes.io/hostname": name,
                "kubernetes.io/os": "linux",
                "type": "kwok",
            },
        },
        "status": {"allocatable": size, "capacity": size},
    })
}

pub(super) fn storage_class() -> Value {
    json!({
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {
            "name": "standard",
            "annotations": {"storageclass.kubernetes.io/is-default-class": "true"},
        },
        "provisioner": "kubernetes.io/no-provisioner",
        "volumeBindingMode": "WaitForFirstConsumer",
    })
}

fn volume(name: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {
            "storageClassName": "standard",
            "capacity": {"storage": "100Gi"},
            "accessModes": ["ReadWriteOnce", "ReadWriteMany"],
            "persistentVolumeReclaimPolicy": "Retain",
            "hostPath": {"path": "/nonexistent"},
        },
    })
}
