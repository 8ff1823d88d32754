//! PodTopologyLabels: copies zone and region labels of a node to its pods.

use portolan_types::{
    GroupResource, Status,
    object::{self, child_mut},
};
use serde_json::Value;

use super::super::lookup;
use crate::hooks::AdmissionRequest;
use crate::storage::StorageContext;

const LABELS: [&str; 2] = ["topology.kubernetes.io/zone", "topology.kubernetes.io/region"];

/// Labels a pod that is created on a node.
pub(super) async fn label_pod(
    storage: &StorageContext,
    request: &AdmissionRequest<'_>,
    pod: &mut Value,
) -> Result<(), Status> {
    let node = pod.pointer("/spec/nodeName").and_then(Value::as_str).unwrap_or_default().to_owned();
    label(storage, request, pod, &node).await
}

/// Labels a Binding, from which the pod takes them.
pub(super) async fn label_binding(
    storage: &StorageContext,
    request: &AdmissionRequest<'_>,
    binding: &mut Value,
) -> Result<(), Status> {
    let target = |key: &str| binding["target"][key].as_str().unwrap_or_default().to_owned();
    let (kind, name) = (target("kind"), target("name"));
    if kind == "Node" { label(storage, request, binding, &name).await } else { Ok(()) }
}

/// Overwrites labels with those of the node. A missing node has none.
async fn label(
    storage: &StorageContext,
    request: &AdmissionRequest<'_>,
    object: &mut Value,
    node: &str,
) -> Result<(), Status> {
    if node.is_empty() {
        return Ok(());
    }
    let Some(node) = lookup::cluster_scoped(storage, request.cluster.id, GroupResource::new("", "nodes"), node).await?
    else {
        return Ok(());
    };
    let Some(labels) = object::metadata(&node).get("labels").and_then(Value::as_object) else { return Ok(()) };
    for (key, value) in LABELS.iter().filter_map(|key| labels.get_key_value(*key)) {
        child_mut(object::metadata_mut(object), "labels").insert(key.clone(), value.clone());
    }
    Ok(())
}
