//! Content of a physical cluster, read from its own API server.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use harness::cluster::PhysicalCluster;

/// The kinds of workloads, and the kinds that Kubernetes creates for them.
const KINDS: &str = "namespaces,deployments.apps,statefulsets.apps,daemonsets.apps,replicasets.apps,\
    controllerrevisions.apps,jobs.batch,cronjobs.batch,pods,services,ingresses.networking.k8s.io,\
    networkpolicies.networking.k8s.io,poddisruptionbudgets.policy,horizontalpodautoscalers.autoscaling,configmaps,\
    secrets,serviceaccounts,persistentvolumeclaims,endpointslices.discovery.k8s.io";

/// Every object of those kinds as `kind namespace/name`.
pub(super) fn inventory(cluster: &PhysicalCluster) -> Result<BTreeSet<String>> {
    let list = cluster.kubectl().json(&format!("get {KINDS} --all-namespaces"))?;
    Ok(items(&list).iter().map(|item| format!("{} {}/{}", kind(item), namespace(item), name(item))).collect())
}

/// Wants nothing to lie there that was not there `before`.
pub(super) fn nothing_since(cluster: &PhysicalCluster, before: &BTreeSet<String>) -> Result<()> {
    let now = inventory(cluster)?;
    let left: Vec<&str> = now.difference(before).map(String::as_str).collect();
    ensure!(left.is_empty(), "left on {}: {}", cluster.name(), left.join(", "));
    Ok(())
}

/// All objects of a kind with this name, in any namespace.
pub(super) fn find(cluster: &PhysicalCluster, kind: &str, name: &str) -> Result<Vec<Value>> {
    let list = cluster.kubectl().json(&format!("get {kind} --all-namespaces --field-selector=metadata.name={name}"))?;
    Ok(items(&list).to_vec())
}

/// The one object of this kind and name.
pub(super) fn one(cluster: &PhysicalCluster, kind: &str, name: &str) -> Result<Value> {
    let mut found = find(cluster, kind, name)?;
    ensure!(found.len() == 1, "{}: {} objects {kind}/{name}, expected one", cluster.name(), found.len());
    found.pop().context("no object")
}

/// Wants no object of this kind and name.
pub(super) fn none(cluster: &PhysicalCluster, kind: &str, name: &str) -> Result<()> {
    let found = find(cluster, kind, name)?.len();
    ensure!(found == 0, "{}: still {found} objects {kind}/{name}", cluster.name());
    Ok(())
}

/// The items of a list as kubectl prints it.
pub(super) fn items(list: &Value) -> &[Value] {
    list.get("items").and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

pub(super) fn kind(object: &Value) -> &str {
    text(object, "/kind")
}

pub(super) fn name(object: &Value) -> &str {
    text(object, "/metadata/name")
}

pub(super) fn namespace(object: &Value) -> &str {
    text(object, "/metadata/namespace")
}

/// A string by JSON pointer; empty if missing.
pub(super) fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// A count by JSON pointer; 0 if missing, because Kubernetes omits zeroes.
pub(super) fn count(object: &Value, pointer: &str) -> u64 {
    object.pointer(pointer).and_then(Value::as_u64).unwrap_or_default()
}

/// The names in `portolan.dev/clusters`.
pub(super) fn placed_on(object: &Value) -> Vec<String> {
    let names = text(object, "/metadata/annotations/portolan.dev~1clusters");
    names.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect()
}
