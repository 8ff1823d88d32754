//! Environment of the cases: a workspace, its namespaces, and helpers that show where objects are placed.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use super::super::downstream::{self, items, text};
use super::super::scene::{EAST, Scene};
use harness::cluster::PhysicalCluster;
use harness::kubectl::Kubectl;
use harness::poll;

/// Workspace of the cases.
const WORKSPACE: &str = "cases";

/// First simulated cluster, in a region of its own.
pub(super) const NORTH: &str = "north";
/// Second simulated cluster, in the region of the first.
pub(super) const SOUTH: &str = "south";

/// Limit of a step that the physical clusters take part in.
pub(super) const PATIENCE: Duration = Duration::from_secs(45);

const SIMULATED: &str = "
{apiVersion: portolan.dev/v1alpha1, kind: PhysicalCluster, metadata: {name: north, labels: {region: sim, zone: sim-1}},
 spec: {connection: {simulated: {nodes: 3}}}}
---
{apiVersion: portolan.dev/v1alpha1, kind: PhysicalCluster, metadata: {name: south, labels: {region: sim, zone: sim-2}},
 spec: {connection: {simulated: {nodes: 3}}}}
";

/// Everything that a case may ask.
pub(super) struct CaseStage<'a> {
    pub(super) scene: &'a Scene,
    /// Client of the logical cluster `root`.
    pub(super) root: Kubectl,
    /// Client of the workspace of the cases.
    pub(super) kubectl: Kubectl,
}

impl<'a> CaseStage<'a> {
    /// Makes the workspace and registers the simulated clusters.
    pub(super) fn new(scene: &'a Scene) -> Result<Self> {
        let root = scene.root().within(Duration::from_secs(150));
        root.run_with("apply -f -", SIMULATED)?;
        root.run(&format!(
            "wait physicalclusters/{NORTH} physicalclusters/{SOUTH} --for=condition=Ready --timeout=50s"
        ))?;
        let kubectl = scene.workspace(WORKSPACE)?.within(Duration::from_secs(150));
        Ok(Self { scene, root, kubectl })
    }

    /// Deletes the workspace and the simulated clusters, and checks that the real ones are clean.
    pub(super) fn finish(&self) -> Result<()> {
        self.scene.delete_workspace(WORKSPACE)?;
        self.root.run(&format!("delete physicalclusters {NORTH} {SOUTH} --timeout=120s")).map(drop)
    }

    /// Makes a namespace and returns kubectl in it.
    pub(super) fn namespace(&self, name: &str) -> Result<Kubectl> {
        self.kubectl.run(&format!("create namespace {name}"))?;
        Ok(self.kubectl.in_namespace(name))
    }

    /// Makes a namespace whose workloads run on one physical cluster.
    pub(super) fn pinned(&self, name: &str, cluster: &str) -> Result<Kubectl> {
        let namespace = self.namespace(name)?;
        self.kubectl.run(&format!("annotate namespace {name} portolan.dev/pin={cluster}"))?;
        Ok(namespace)
    }

    /// The real physical cluster of which the cases look at the inside.
    pub(super) fn east(&self) -> Result<&PhysicalCluster> {
        self.scene.cluster(EAST)
    }

    /// Deletes the objects of a case without a wait.
    pub(super) fn discard(&self, namespaces: &[&str]) -> Result<()> {
        self.kubectl.run(&format!("delete namespace {} --wait=false", namespaces.join(" "))).map(drop)
    }
}

/// Applies a manifest.
pub(super) fn apply(kubectl: &Kubectl, manifest: &str) -> Result<String> {
    kubectl.run_with("apply -f -", manifest)
}

/// Deployment with one container, as YAML in flow style.
pub(super) fn deployment(name: &str, replicas: u64) -> String {
    workload("Deployment", name, &format!("replicas: {replicas}, "), "")
}

/// Deployment or StatefulSet; `spec` and `pod` are further fields of its spec and of the spec of its pods, each
/// followed by a comma.
pub(super) fn workload(kind: &str, name: &str, spec: &str, pod: &str) -> String {
    format!(
        "{{apiVersion: apps/v1, kind: {kind}, metadata: {{name: {name}, labels: {{app: {name}}}}},
          spec: {{{spec}selector: {{matchLabels: {{app: {name}}}}},
            template: {{metadata: {{labels: {{app: {name}}}}}, spec: {{{pod}containers: [{{name: c, image: 'reg.example/c:1'}}]}}}}}}}}"
    )
}

/// Waits until an attempt succeeds.
pub(super) fn eventually<T>(what: &str, attempt: impl FnMut() -> Result<T>) -> Result<T> {
    poll::until(what, PATIENCE, attempt)
}

/// Desired replicas by cluster, as the `Placement` of an object says; `deployments.apps-web` is one of its names.
pub(super) fn shares(kubectl: &Kubectl, placement: &str) -> Result<BTreeMap<String, u64>> {
    let found = kubectl.json(&format!("get placement {placement}"))?;
    let clusters = found.pointer("/status/clusters").and_then(Value::as_array).cloned().unwrap_or_default();
    Ok(clusters
        .iter()
        .map(|one| (text(one, "/name").to_owned(), one["desired"].as_u64().unwrap_or_default()))
        .collect())
}

/// Clusters on which an object is placed; empty without a `Placement`.
pub(super) fn clusters(kubectl: &Kubectl, placement: &str) -> Result<Vec<String>> {
    let found = kubectl.run(&format!("get placement {placement} --ignore-not-found --output=name"))?;
    if found.trim().is_empty() {
        return Ok(Vec::new());
    }
    Ok(shares(kubectl, placement)?.into_keys().collect())
}

/// Name of the namespace on a physical cluster that stands for an upstream one.
pub(super) fn downstream_namespace(cluster: &PhysicalCluster, upstream: &str) -> Result<String> {
    let list = cluster.kubectl().json("get namespaces")?;
    let start = format!("{upstream}-");
    let names: Vec<&str> = items(&list).iter().map(downstream::name).filter(|name| name.starts_with(&start)).collect();
    ensure!(names.len() == 1, "{} has {names:?} for {upstream}", cluster.name());
    names.first().map(|name| (*name).to_owned()).context("no namespace")
}
