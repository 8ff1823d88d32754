//! Cases of StatefulSets with volumes, and of deletions that leave dependents.

use std::time::Duration;

use anyhow::{Result, ensure};

use super::super::downstream::{count, items, placed_on, text};
use super::super::scene::{EAST, WEST};
use super::Case;
use super::stage::{CaseStage, apply, downstream_namespace, eventually, workload};
use harness::poll;

pub(super) const CASES: [Case; 2] = [
    ("a StatefulSet with volumes moves only when its volumes are abandoned, and leaves no claim behind", volumes),
    ("an orphaned Deployment's pods run on, and a later apply adopts them", orphans),
];

const STATEFUL_SET: &str = "
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db, annotations: {portolan.dev/pin: east}}
spec:
  serviceName: db
  replicas: 1
  selector: {matchLabels: {app: db}}
  template:
    metadata: {labels: {app: db}}
    spec: {containers: [{name: db, image: 'postgres:16', volumeMounts: [{name: data, mountPath: /data}]}]}
  volumeClaimTemplates: [{metadata: {name: data}, spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}]
";

fn volumes(stage: &CaseStage<'_>) -> Result<()> {
    let kubectl = stage.namespace("volumes")?;
    apply(&kubectl, STATEFUL_SET)?;
    kubectl.run("rollout status statefulset/db --timeout=90s")?;
    let answer = kubectl.call("annotate statefulset db portolan.dev/pin=west --overwrite", "")?;
    ensure!(answer.code == Some(0) && answer.stderr.contains("Warning"), "no warning: {answer}");
    eventually("a reason", || {
        let said = kubectl.run("describe statefulset db")?;
        ensure!(said.contains("MoveRefused"), "nothing says that the move is held:\n{said}");
        Ok(())
    })?;
    let held = placed_on(&kubectl.json("get statefulset db")?);
    ensure!(held == [EAST], "placed on {held:?} although its volumes are in {EAST}");
    kubectl.run("annotate statefulset db portolan.dev/abandon-volumes=true")?;
    poll::until("the move", Duration::from_secs(90), || {
        let set = kubectl.json("get statefulset db")?;
        ensure!(placed_on(&set) == [WEST] && count(&set, "/status/readyReplicas") == 1, "on {:?}", placed_on(&set));
        Ok(())
    })?;
    let west = stage.scene.cluster(WEST)?;
    let namespace = downstream_namespace(west, "volumes")?;
    let uid = |list: &serde_json::Value| {
        items(list).iter().map(|one| text(one, "/metadata/uid").to_owned()).collect::<Vec<_>>()
    };
    let before = uid(&west.kubectl().json(&format!("get pvc -n {namespace}"))?);
    ensure!(before.len() == 1, "{} claims on {WEST}", before.len());
    stage.kubectl.run("delete namespace volumes --timeout=120s")?;
    for name in [EAST, WEST] {
        let cluster = stage.scene.cluster(name)?;
        poll::until("no claim is left", Duration::from_secs(60), || {
            let left = cluster.kubectl().json("get pvc --all-namespaces")?;
            let left: Vec<&str> = items(&left).iter().map(|one| text(one, "/metadata/namespace")).collect();
            ensure!(!left.iter().any(|one| one.starts_with("volumes-")), "claims are left on {name}: {left:?}");
            Ok(())
        })?;
    }
    let kubectl = stage.namespace("volumes")?;
    apply(&kubectl, &STATEFUL_SET.replace("portolan.dev/pin: east", "portolan.dev/pin: west"))?;
    kubectl.run("rollout status statefulset/db --timeout=90s")?;
    let after = uid(&west.kubectl().json(&format!("get pvc -n {}", downstream_namespace(west, "volumes")?))?);
    ensure!(after.len() == 1 && after != before, "the claim of the deleted namespace is used again: {after:?}");
    stage.discard(&["volumes"])
}

fn orphans(stage: &CaseStage<'_>) -> Result<()> {
    let kubectl = stage.pinned("orphans", EAST)?;
    let manifest = workload("Deployment", "web", "replicas: 2, ", "");
    apply(&kubectl, &manifest)?;
    kubectl.run("rollout status deployment/web --timeout=60s")?;
    let namespace = downstream_namespace(stage.east()?, "orphans")?;
    let member = stage.east()?.kubectl().in_namespace(&namespace);
    let pods = |kubectl: &harness::kubectl::Kubectl| -> Result<Vec<String>> {
        let list = kubectl.json("get pods")?;
        let mut uids: Vec<String> = items(&list).iter().map(|one| text(one, "/metadata/uid").to_owned()).collect();
        uids.sort();
        Ok(uids)
    };
    let before = eventually("two pods downstream", || {
        let found = pods(&member)?;
        ensure!(found.len() == 2, "{found:?}");
        Ok(found)
    })?;
    kubectl.run("delete deployment web --cascade=orphan --timeout=60s")?;
    eventually("the Deployment is gone downstream", || {
        let left = member.run("get deployments --output=name")?;
        ensure!(left.trim().is_empty(), "{left}");
        Ok(())
    })?;
    std::thread::sleep(Duration::from_secs(3));
    ensure!(pods(&member)? == before, "pods went downstream");
    ensure!(pods(&kubectl)?.len() == 2, "pods went upstream");
    apply(&kubectl, &manifest)?;
    kubectl.run("rollout status deployment/web --timeout=60s")?;
    ensure!(pods(&member)? == before, "the pods were not adopted");
    stage.discard(&["orphans"])
}
