//! Cases of status: of objects whose copies or physical cluster are gone.

use anyhow::{Result, ensure};
use serde_json::Value;

use super::super::downstream::{count, items, text};
use super::super::scene::EAST;
use super::Case;
use super::stage::{CaseStage, NORTH, SOUTH, apply, deployment, downstream_namespace, eventually, workload};

pub(super) const CASES: [Case; 3] = [
    ("a workload that a policy takes off every cluster shows no ready replica", unbound),
    ("endpoints of one Service come from all its clusters", endpoints),
    ("drift in a list with keys is repaired", keyed_list_drift),
];

fn unbound(stage: &CaseStage<'_>) -> Result<()> {
    let kubectl = stage.namespace("unbound")?;
    apply(
        &kubectl,
        "{apiVersion: portolan.dev/v1alpha1, kind: PlacementPolicy, metadata: {name: p}, spec: {
           resources: [{apiGroup: apps, kinds: [Deployment, StatefulSet]}], clusters: {names: [east]}}}",
    )?;
    apply(&kubectl, &deployment("web", 2))?;
    apply(&kubectl, &workload("StatefulSet", "db", "serviceName: db, replicas: 2, ", ""))?;
    kubectl.run("rollout status deployment/web --timeout=60s")?;
    kubectl.run("rollout status statefulset/db --timeout=60s")?;
    kubectl.run_args(&[
        "patch",
        "placementpolicy",
        "p",
        "--type=merge",
        "-p",
        r#"{"spec":{"count":0,"clusters":null}}"#,
    ])?;
    eventually("nothing is ready", || {
        ensure!(items(&kubectl.json("get pods")?).is_empty(), "pods stay");
        for target in ["deployment/web", "statefulset/db"] {
            let found = kubectl.json(&format!("get {target}"))?;
            for field in ["readyReplicas", "availableReplicas", "replicas"] {
                let shown = count(&found, &format!("/status/{field}"));
                ensure!(shown == 0, "{target}: {field} is {shown}, and no pod runs");
            }
        }
        let web = kubectl.json("get deployment web")?;
        let conditions = web.pointer("/status/conditions").and_then(Value::as_array).cloned().unwrap_or_default();
        let available = conditions.iter().find(|one| text(one, "/type") == "Available");
        ensure!(available.is_none_or(|one| text(one, "/status") != "True"), "Available is True");
        Ok(())
    })?;
    stage.discard(&["unbound"])
}

fn endpoints(stage: &CaseStage<'_>) -> Result<()> {
    let kubectl = stage.namespace("endpoints")?;
    apply(
        &kubectl,
        "{apiVersion: portolan.dev/v1alpha1, kind: PlacementPolicy, metadata: {name: two}, spec: {
           resources: [{apiGroup: apps, kinds: [Deployment]}], clusters: {names: [east, north, south]},
           replicas: {mode: Divide, by: Equal}}}",
    )?;
    apply(&kubectl, &deployment("web", 6))?;
    apply(
        &kubectl,
        "{apiVersion: v1, kind: Service, metadata: {name: web}, spec: {selector: {app: web}, ports: [{port: 80}]}}",
    )?;
    kubectl.run("rollout status deployment/web --timeout=60s")?;
    eventually("six addresses", || {
        let endpoints = kubectl.json("get endpoints web")?;
        let addresses: usize = endpoints["subsets"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|subset| subset["addresses"].as_array().map_or(0, Vec::len))
            .sum();
        ensure!(addresses == 6, "Endpoints has {addresses} addresses of 6 pods");
        let slices = kubectl.json("get endpointslices -l kubernetes.io/service-name=web")?;
        let names: Vec<&str> = items(&slices).iter().map(|slice| text(slice, "/metadata/name")).collect();
        for cluster in [EAST, NORTH, SOUTH] {
            ensure!(
                names.iter().filter(|name| name.contains(cluster)).count() == 1,
                "no slice of {cluster}: {names:?}"
            );
        }
        Ok(())
    })?;
    stage.discard(&["endpoints"])
}

fn keyed_list_drift(stage: &CaseStage<'_>) -> Result<()> {
    let kubectl = stage.pinned("drift", EAST)?;
    apply(&kubectl, &deployment("db", 1))?;
    apply(
        &kubectl,
        "{apiVersion: v1, kind: Service, metadata: {name: db}, spec: {selector: {app: db}, ports: [{port: 5432}]}}",
    )?;
    let member = stage.east()?.kubectl();
    let namespace = eventually("a namespace downstream", || downstream_namespace(stage.east()?, "drift"))?;
    let member = member.in_namespace(&namespace);
    eventually("the Service downstream", || member.run("get service db"))?;
    member.run_args(&[
        "patch",
        "service",
        "db",
        "--type=merge",
        "-p",
        r#"{"spec":{"ports":[{"port":9,"name":"x"}]}}"#,
    ])?;
    eventually("the port is repaired", || {
        let ports = member.json("get service db")?["spec"]["ports"].clone();
        ensure!(ports.as_array().is_some_and(|ports| ports.len() == 1) && ports[0]["port"] == 5432, "{ports}");
        Ok(())
    })?;
    stage.discard(&["drift"])
}
