//! Moves of single workloads by `portolan.dev/pin`, without a policy.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::downstream::{self, count, placed_on};
use super::scene::{self, EAST, Scene, WEST};
use harness::kubectl::Kubectl;
use harness::poll;
use harness::report::CheckReport;

const LIMIT: Duration = Duration::from_secs(90);

/// A Deployment with a ConfigMap that its template names, and a Service. Names are unique on the physical clusters.
const MANIFEST: &str = "
{apiVersion: v1, kind: ConfigMap, metadata: {name: mover-settings}, data: {mode: calm}}
---
{apiVersion: v1, kind: Service, metadata: {name: mover}, spec: {selector: {app: mover}, ports: [{port: 80}]}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: mover}
spec:
  replicas: 2
  selector: {matchLabels: {app: mover}}
  template:
    metadata: {labels: {app: mover}}
    spec:
      containers:
        - {name: app, image: 'mover:1', envFrom: [{configMapRef: {name: mover-settings}}]}
---
{apiVersion: v1, kind: ConfigMap, metadata: {name: unnamed}, data: {by: nobody}}
";

/// Runs in the workspace `moves`.
pub(super) fn run(report: &mut CheckReport, scene: &Scene) {
    let made = scene.workspace("moves");
    if !report.check("move: a workspace is made and Ready", || made.as_ref().map(drop).map_err(scene::copy)) {
        return;
    }
    let Ok(kubectl) = made else { return };
    let kubectl = kubectl.in_namespace("default").within(Duration::from_secs(150));
    let steps: [(&str, &dyn Fn() -> Result<()>); 4] = [
        ("without a policy a namespace runs on one cluster, with what its pods name", &|| settles(scene, &kubectl)),
        ("a pin moves it to the other cluster and no replica is missing meanwhile", &|| moves(scene, &kubectl)),
        ("a pin on a cluster that is not there moves nothing and says why", &|| impossible(scene, &kubectl)),
        ("a deleted workspace leaves nothing below", &|| scene.delete_workspace("moves")),
    ];
    for (name, step) in steps {
        report.check(&format!("move: {name}"), step);
    }
}

fn mover(kubectl: &Kubectl) -> Result<Value> {
    kubectl.json("get deployment mover")
}

/// Checks that the object is placed and ready on `place` only.
fn lives_on(scene: &Scene, kubectl: &Kubectl, place: &str) -> Result<()> {
    let deployment = mover(kubectl)?;
    ensure!(placed_on(&deployment) == [place], "placed on {:?}", placed_on(&deployment));
    ensure!(count(&deployment, "/status/readyReplicas") == 2, "not ready above");
    for cluster in scene.clusters() {
        for (kind, name) in [("deployment", "mover"), ("service", "mover"), ("configmap", "mover-settings")] {
            if cluster.name() == place {
                downstream::one(cluster, kind, name)?;
            } else {
                downstream::none(cluster, kind, name)?;
            }
        }
        // Nothing that runs names it, so it stays above.
        downstream::none(cluster, "configmap", "unnamed")?;
    }
    let copy = downstream::one(scene.cluster(place)?, "deployment", "mover")?;
    ensure!(count(&copy, "/status/readyReplicas") == 2, "not ready on {place}");
    Ok(())
}

fn settles(scene: &Scene, kubectl: &Kubectl) -> Result<()> {
    kubectl.run_with("apply -f -", MANIFEST)?;
    kubectl.run("rollout status deployment/mover --timeout=120s")?;
    let place = placed_on(&mover(kubectl)?).into_iter().next().context("not placed")?;
    poll::until("one cluster", LIMIT, || lives_on(scene, kubectl, &place))
}

fn moves(scene: &Scene, kubectl: &Kubectl) -> Result<()> {
    let from = placed_on(&mover(kubectl)?).into_iter().next().context("not placed")?;
    let to = if from == EAST { WEST } else { EAST };
    kubectl.run(&format!("annotate deployment mover portolan.dev/pin={to}"))?;
    let start = Instant::now();
    loop {
        let seen = mover(kubectl)?;
        let ready = count(&seen, "/status/readyReplicas");
        ensure!(ready >= 2, "only {ready} of 2 replicas ready during the move, placed on {:?}", placed_on(&seen));
        match lives_on(scene, kubectl, to) {
            Ok(()) => return Ok(()),
            Err(error) if start.elapsed() > LIMIT => bail!("the move from {from} to {to} did not end: {error:#}"),
            Err(_) => {}
        }
    }
}

fn impossible(scene: &Scene, kubectl: &Kubectl) -> Result<()> {
    let place = placed_on(&mover(kubectl)?).into_iter().next().context("not placed")?;
    kubectl.run("annotate deployment mover portolan.dev/pin=atlantis --overwrite")?;
    poll::until("a reason", Duration::from_secs(20), || {
        let said = kubectl.run("describe deployment mover")?;
        ensure!(said.matches("atlantis").count() > 1, "nothing but the pin names atlantis:\n{said}");
        Ok(())
    })?;
    lives_on(scene, kubectl, &place)?;
    kubectl.run("annotate deployment mover portolan.dev/pin-").map(drop)
}
