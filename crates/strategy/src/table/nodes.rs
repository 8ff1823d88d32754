//! Nodes, priority classes and leases.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{
    column::{AGE, Column, NAME, NONE, Row, UNKNOWN, flag, number, text},
    format,
};

pub(super) const PRIORITY_CLASS: &[Column] = &[
    NAME,
    number("Value", "Higher values are scheduled first.", |row| row.int("/value").into()),
    flag("Global-Default", "True for the class of pods that name none.", |row| row.flag("/globalDefault").into()),
    AGE,
    text("PreemptionPolicy", "Policy for preempting other pods.", |row| row.text("/preemptionPolicy").into()),
];

pub(super) const RUNTIME_CLASS: &[Column] =
    &[NAME, text("Handler", "Name of the handler on the nodes.", |row| row.text("/handler").into()), AGE];

pub(super) const LEASE: &[Column] =
    &[NAME, text("Holder", "Holder of the lease.", |row| row.text("/spec/holderIdentity").into()), AGE];

pub(super) const NODE: &[Column] = &[
    NAME,
    text("Status", "Readiness of the node.", |row| node_status(row).into()),
    text("Roles", "Roles by labels.", |row| node_roles(row).into()),
    AGE,
    text("Version", "Version of the kubelet.", |row| row.text("/status/nodeInfo/kubeletVersion").into()),
    text("Internal-IP", "Address within the cluster.", |row| node_address(row, "InternalIP").into()).wide(),
    text("External-IP", "Address outside of the cluster.", |row| node_address(row, "ExternalIP").into()).wide(),
    text("OS-Image", "Operating system.", |row| row.text_or("/status/nodeInfo/osImage", UNKNOWN).into()).wide(),
    text("Kernel-Version", "Version of the kernel, and architecture.", |row| {
        let kernel = row.text_or("/status/nodeInfo/kernelVersion", UNKNOWN);
        match row.text("/status/nodeInfo/architecture") {
            "" => kernel.into(),
            architecture => format!("{kernel} ({architecture})").into(),
        }
    })
    .wide(),
    text("Container-Runtime", "Container runtime and its version.", |row| {
        row.text_or("/status/nodeInfo/containerRuntimeVersion", UNKNOWN).into()
    })
    .wide(),
];

fn node_status(row: &Row<'_>) -> String {
    let ready = match row.condition("Ready") {
        Some("True") => "Ready",
        Some(_) => "NotReady",
        None => "Unknown",
    };
    let cordoned = if row.flag("/spec/unschedulable") { ",SchedulingDisabled" } else { "" };
    format!("{ready}{cordoned}")
}

fn node_roles(row: &Row<'_>) -> String {
    let labels = row.at("/metadata/labels").and_then(Value::as_object);
    let role = |(key, value): (&String, &Value)| {
        let value = value.as_str().unwrap_or_default();
        let role = key.strip_prefix("node-role.kubernetes.io/").unwrap_or(value);
        let names_role = key.starts_with("node-role.kubernetes.io/") || key == "kubernetes.io/role";
        (names_role && !role.is_empty()).then(|| role.to_owned())
    };
    let roles: BTreeSet<String> = labels.into_iter().flatten().filter_map(role).collect();
    format::or_none(roles.into_iter().collect::<Vec<_>>().join(","))
}

fn node_address(row: &Row<'_>, kind: &str) -> String {
    let found = row.list("/status/addresses").iter().find(|address| address["type"] == kind);
    found.and_then(|address| address["address"].as_str()).unwrap_or(NONE).to_owned()
}
