//! Volumes of a cluster: folders of this machine, since there is no provisioner.

use std::path::Path;

use anyhow::Result;
use serde_json::{Value, json};

use crate::fake_nodes::storage_class;
use crate::kubectl::Kubectl;

const VOLUMES: usize = 8;

/// Creates a default StorageClass with volumes for claims, each a folder below `dir`.
pub(super) fn create(kubectl: &Kubectl, cluster: &str, dir: &Path) -> Result<()> {
    let volumes = (1..=VOLUMES).map(|number| volume(&format!("{cluster}-disk-{number}"), dir));
    let items: Vec<Value> = std::iter::once(storage_class()).chain(volumes).collect();
    let list = json!({"apiVersion": "v1", "kind": "List", "items": items});
    kubectl.run_with("create -f -", &list.to_string()).map(drop)
}

fn volume(name: &str, dir: &Path) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {
            "storageClassName": "standard",
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": "Retain",
            "hostPath": {"path": dir.join(name), "type": "DirectoryOrCreate"},
        },
    })
}
