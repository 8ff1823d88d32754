//! Labels of a node on its pods, which so see in which zone and region they run (PodTopologyLabels).

use portolan_types::{
    Status,
    object::{self, child_mut},
};
use serde_json::Value;

use super::super::{Request, lookup};
use crate::ApiServer;

const LABELS: [&str; 2] = ["topology.kubernetes.io/zone", "topology.kubernetes.io/region"];

/// Labels a pod that is made on a node.
pub(super) async fn label_pod(api: &ApiServer, request: &Request<'_>, pod: &mut Value) -> Result<(), Status> {
    let node = pod.pointer("/spec/nodeName").and_then(Value::as_str).unwrap_or_default().to_owned();
    label(api, request, pod, &node).await
}

/// Labels a Binding, whose labels the pod takes over.
pub(super) async fn label_binding(api: &ApiServer, request: &Request<'_>, binding: &mut Value) -> Result<(), Status> {
    let target = |key: &str| binding["target"][key].as_str().unwrap_or_default().to_owned();
    let (kind, name) = (target("kind"), target("name"));
    if kind == "Node" { label(api, request, binding, &name).await } else { Ok(()) }
}

/// Labels of the node replace others. A node that is not there has none.
async fn label(api: &ApiServer, request: &Request<'_>, object: &mut Value, node: &str) -> Result<(), Status> {
    if node.is_empty() {
        return Ok(());
    }
    let Some(node) = lookup::cluster_scoped(api, request.cluster.id, ("", "nodes"), node).await? else { return Ok(()) };
    let Some(labels) = object::metadata(&node).get("labels").and_then(Value::as_object) else { return Ok(()) };
    for (key, value) in LABELS.iter().filter_map(|key| labels.get_key_value(*key)) {
        child_mut(object::metadata_mut(object), "labels").insert(key.clone(), value.clone());
    }
    Ok(())
}
