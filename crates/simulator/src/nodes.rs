//! The nodes: always ready, and labelled as simulated.

use std::sync::Arc;

use portolan_controllers::{Plane, PlaneError};
use portolan_types::{GroupVersionKind, LogicalClusterId};
use serde_json::json;

use crate::cluster::SimulationConfig;

/// Makes the nodes of a new cluster.
pub(crate) async fn create(plane: &Arc<Plane>, config: &SimulationConfig) -> Result<(), PlaneError> {
    let kind = plane.table().kind(&GroupVersionKind::new("", "v1", "Node")).expect("the table has core/v1");
    let now = plane.seams().now_text();
    for number in 1..=config.nodes {
        let name = format!("{}-node-{number}", config.name);
        let amounts = json!({"cpu": "16", "memory": "64Gi", "pods": "110", "ephemeral-storage": "200Gi"});
        let condition = |kind: &str, status: &str, reason: &str| {
            json!({
                "type": kind, "status": status, "reason": reason, "message": "simulated node",
                "lastHeartbeatTime": now, "lastTransitionTime": now,
            })
        };
        let node = json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": {"name": name, "labels": {
                "kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64",
                "type": "simulated",
            }},
            "spec": {"providerID": format!("simulated://{}/{name}", config.name)},
            "status": {
                "capacity": amounts, "allocatable": amounts,
                "addresses": [{"type": "InternalIP", "address": format!("198.18.0.{number}")}, {"type": "Hostname", "address": name}],
                "conditions": [
                    condition("MemoryPressure", "False", "KubeletHasSufficientMemory"),
                    condition("DiskPressure", "False", "KubeletHasNoDiskPressure"),
                    condition("PIDPressure", "False", "KubeletHasSufficientPID"),
                    condition("Ready", "True", "KubeletReady"),
                ],
                "nodeInfo": {
                    "kubeletVersion": "v1.36.0+simulated", "osImage": "simulated", "kernelVersion": "simulated",
                    "containerRuntimeVersion": "simulated://1", "operatingSystem": "linux", "architecture": "amd64",
                    "bootID": "", "machineID": "", "systemUUID": "", "kubeProxyVersion": "",
                },
            },
        });
        plane.create(kind, LogicalClusterId::ROOT, node).await?;
    }
    Ok(())
}
