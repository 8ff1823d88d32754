//! Physical cluster as a Node.

use portolan_types::object;
use serde_json::{Map, Value, json};

// Labels that Kubernetes' tools expect, besides those of the physical cluster.
const HOSTNAME: &str = "kubernetes.io/hostname";
const SYSTEM: &str = "kubernetes.io/os";
/// Labels of cloud providers for the location of a node, and the corresponding ones of a physical cluster.
const PLACES: [(&str, &str); 2] =
    [("topology.kubernetes.io/region", "region"), ("topology.kubernetes.io/zone", "zone")];
/// Conditions of a node that are always false.
const PRESSURES: [&str; 3] = ["MemoryPressure", "DiskPressure", "PIDPressure"];
/// Fields of `nodeInfo` without a value.
const UNKNOWN_INFO: [&str; 7] =
    ["architecture", "bootID", "containerRuntimeVersion", "kernelVersion", "machineID", "osImage", "systemUUID"];

/// Returns the Node of a physical cluster.
pub(super) fn of(physical: &Value) -> Value {
    let name = object::name(physical);
    let part = |pointer: &str| physical.pointer(pointer).cloned();
    let mut metadata = Map::new();
    for key in ["name", "uid", "creationTimestamp"] {
        metadata.extend(part(&format!("/metadata/{key}")).map(|value| (key.to_owned(), value)));
    }
    metadata.insert("labels".into(), labels(physical, name));
    let mut spec = Map::new();
    for key in ["taints", "unschedulable"] {
        let given = part(&format!("/spec/{key}")).filter(|value| *value != json!([]) && *value != json!(false));
        spec.extend(given.map(|value| (key.to_owned(), value)));
    }
    let mut status = Map::new();
    for key in ["capacity", "allocatable"] {
        status.extend(part(&format!("/status/{key}")).map(|value| (key.to_owned(), value)));
    }
    status.insert("conditions".into(), conditions(physical));
    status.insert("addresses".into(), json!([{"type": "Hostname", "address": name}]));
    status.insert("daemonEndpoints".into(), json!({"kubeletEndpoint": {"Port": 0}}));
    status.insert("nodeInfo".into(), info(physical));
    json!({"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": spec, "status": status})
}

fn labels(physical: &Value, name: &str) -> Value {
    let own = object::metadata(physical).get("labels").and_then(Value::as_object);
    let mut labels = own.cloned().unwrap_or_default();
    for (known, own) in PLACES {
        if let Some(place) = labels.get(own).cloned() {
            labels.entry(known).or_insert(place);
        }
    }
    labels.entry(HOSTNAME).or_insert_with(|| name.into());
    labels.entry(SYSTEM).or_insert_with(|| "linux".into());
    labels.into()
}

fn conditions(physical: &Value) -> Value {
    let own = physical.pointer("/status/conditions").and_then(Value::as_array);
    let ready = own.into_iter().flatten().find(|condition| condition["type"] == "Ready");
    let text = |key: &str| ready.and_then(|ready| ready.get(key)?.as_str());
    let status = text("status").unwrap_or("Unknown");
    let since = text("lastTransitionTime").unwrap_or(object::meta_text(physical, "creationTimestamp"));
    let reason = text("reason").unwrap_or("NotKnown");
    let condition = |kind: &str, status: &str, reason: &str| {
        json!({"type": kind, "status": status, "reason": reason, "message": "",
            "lastHeartbeatTime": since, "lastTransitionTime": since})
    };
    let pressures = PRESSURES.iter().map(|kind| {
        let status = if status == "True" { "False" } else { "Unknown" };
        condition(kind, status, "PhysicalCluster")
    });
    pressures.chain([condition("Ready", status, reason)]).collect()
}

fn info(physical: &Value) -> Value {
    let mut info: Map<String, Value> = UNKNOWN_INFO.iter().map(|key| ((*key).to_owned(), "".into())).collect();
    let version = physical.pointer("/status/version").cloned().unwrap_or_else(|| "".into());
    info.insert("kubeletVersion".into(), version.clone());
    info.insert("kubeProxyVersion".into(), "".into());
    info.insert("operatingSystem".into(), "linux".into());
    info.into()
}
