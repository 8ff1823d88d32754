//! Cases of placement: division, fallback, bounds, moves and drains.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde_json::Value;

use super::super::downstream::{count, items, placed_on, text};
use super::super::scene::{EAST, WEST};
use super::Case;
use super::stage::{CaseStage, NORTH, PATIENCE, SOUTH, apply, clusters, deployment, eventually, shares};
use harness::kubectl::Kubectl;
use harness::poll;

pub(super) const CASES: [Case; 7] = [
    ("growth of a weighted division takes no replica away, and shrinking adds none", weights),
    ("a divided Job runs its completions once", divided_job),
    ("a divided StatefulSet has each ordinal once", divided_stateful_set),
    ("a fallback is not used while the first choice fits", fallback),
    ("bounds hold the growth of a workload with one copy", bounds),
    ("a move ends when the new copy is Available", min_ready_seconds),
    ("a drain of a divided, autoscaled Deployment ends", autoscaled_drain),
];

fn weights(stage: &CaseStage<'_>) -> Result<()> {
    let kubectl = stage.namespace("weights")?;
    apply(
        &kubectl,
        "{apiVersion: portolan.dev/v1alpha1, kind: PlacementPolicy, metadata: {name: p}, spec: {
           resources: [{apiGroup: apps, kinds: [Deployment]}], clusters: {names: [east, west, north]},
           replicas: {mode: Divide, by: Weight, weights: [{selector: {matchLabels: {zone: eu-1}}, weight: 3},
             {selector: {matchLabels: {zone: us-1}}, weight: 3}, {selector: {matchLabels: {zone: sim-1}}, weight: 1}]}}}",
    )?;
    apply(&kubectl, &deployment("llm", 1))?;
    let sizes = (1..=12).chain((1..12).rev());
    let mut before = BTreeMap::new();
    let mut previous = 0;
    for size in sizes {
        kubectl.run(&format!("scale deployment/llm --replicas={size}"))?;
        let now = eventually("the division", || {
            let found = shares(&kubectl, "deployments.apps-llm")?;
            ensure!(found.values().sum::<u64>() == size, "{found:?} is not {size}");
            Ok(found)
        })?;
        let share = |of: &BTreeMap<String, u64>, name: &str| of.get(name).copied().unwrap_or_default();
        for name in [EAST, WEST, NORTH] {
            let (from, to) = (share(&before, name), share(&now, name));
            ensure!(if size > previous { to >= from } else { to <= from }, "{before:?} became {now:?} at {size}");
        }
        (before, previous) = (now, size);
    }
    stage.discard(&["weights"])
}

fn divided_job(stage: &CaseStage<'_>) -> Result<()> {
    let kubectl = stage.namespace("jobs")?;
    apply(
        &kubectl,
        "{apiVersion: portolan.dev/v1alpha1, kind: PlacementPolicy, metadata: {name: p}, spec: {
           resources: [{apiGroup: batch, kinds: [Job]}], clusters: {names: [east, north]}, count: 2,
           replicas: {mode: Divide, by: Equal}}}",
    )?;
    apply(
        &kubectl,
        "{apiVersion: batch/v1, kind: Job, metadata: {name: work}, spec: {completions: 6, parallelism: 2, completionMode: Indexed,
           template: {spec: {restartPolicy: Never,
             containers: [{name: c, image: 'reg.example/w:1'}]}}}}",
    )?;
    let done = || {
        let job = kubectl.json("get job work")?;
        ensure!(count(&job, "/status/succeeded") == 6, "{}", job["status"]);
        Ok(job)
    };
    poll::until("six completions", Duration::from_secs(90), done)?;
    let pods = kubectl.json("get pods")?;
    let succeeded = items(&pods).iter().filter(|pod| text(pod, "/status/phase") == "Succeeded").count();
    ensure!(succeeded == 6, "{succeeded} pods ran for 6 completions");
    stage.discard(&["jobs"])
}

fn divided_stateful_set(stage: &CaseStage<'_>) -> Result<()> {
    let kubectl = stage.namespace("ordinals")?;
    apply(
        &kubectl,
        "{apiVersion: portolan.dev/v1alpha1, kind: PlacementPolicy, metadata: {name: p}, spec: {
           resources: [{apiGroup: apps, kinds: [StatefulSet]}], clusters: {names: [east, west]}, count: 2,
           replicas: {mode: Divide, by: Equal}}}",
    )?;
    apply(&kubectl, &super::stage::workload("StatefulSet", "db", "serviceName: db, replicas: 4, ", ""))?;
    let owner = |ordinal: usize| if ordinal < 2 { EAST } else { WEST };
    for size in [4, 1, 6] {
        kubectl.run(&format!("scale statefulset/db --replicas={size}"))?;
        let expected: Vec<(String, &str)> = (0..size).map(|at| (format!("db-{at}"), owner(at))).collect();
        eventually("each ordinal once, where it was", || {
            let pods = kubectl.json("get pods")?;
            let cluster = |pod: &Value| pod["metadata"]["labels"]["portolan.dev/cluster"].clone();
            let mut found: Vec<(&str, Value)> =
                items(&pods).iter().map(|pod| (text(pod, "/metadata/name"), cluster(pod))).collect();
            found.sort_by_key(|(name, _)| *name);
            let is_same = found.len() == expected.len()
                && found.iter().zip(&expected).all(|(one, other)| one.0 == other.0 && one.1 == other.1);
            ensure!(is_same, "{found:?} is not {expected:?}");
            let set = kubectl.json("get statefulset db")?;
            ensure!(count(&set, "/status/readyReplicas") == size as u64, "{}", set["status"]);
            Ok(())
        })?;
    }
    stage.discard(&["ordinals"])
}

fn fallback(stage: &CaseStage<'_>) -> Result<()> {
    let kubectl = stage.namespace("fallback")?;
    apply(
        &kubectl,
        "{apiVersion: portolan.dev/v1alpha1, kind: PlacementPolicy, metadata: {name: fb}, spec: {
           resources: [{apiGroup: apps, kinds: [Deployment]}], clusters: {names: [west], fallback: [{names: [east]}]}}}",
    )?;
    apply(&kubectl, &deployment("fb", 2))?;
    kubectl.run("rollout status deployment/fb --timeout=60s")?;
    let found = placed_on(&kubectl.json("get deployment fb")?);
    ensure!(found == [WEST], "placed on {found:?}, although the first choice fits");
    stage.discard(&["fallback"])
}

fn bounds(stage: &CaseStage<'_>) -> Result<()> {
    let used = || {
        let cluster = stage.root.json("get physicalcluster south")?;
        anyhow::Ok(cluster.pointer("/status/usage").cloned().unwrap_or_default())
    };
    stage.root.run_args(&[
        "patch",
        "physicalcluster",
        SOUTH,
        "--type=merge",
        "-p",
        r#"{"spec":{"bounds":{"cpu":"7"}}}"#,
    ])?;
    let kubectl = stage.pinned("bounds", SOUTH)?;
    apply(
        &kubectl,
        "{apiVersion: apps/v1, kind: Deployment, metadata: {name: one}, spec: {replicas: 1, selector: {matchLabels: {app: one}},
           template: {metadata: {labels: {app: one}}, spec: {containers: [{name: c, image: 'x:1', resources: {requests: {cpu: 500m}}}]}}}}",
    )?;
    kubectl.run("rollout status deployment/one --timeout=60s")?;
    kubectl.run("scale deployment/one --replicas=20")?;
    poll::until("a reason", PATIENCE, || {
        let said = kubectl.run("describe deployment one")?;
        ensure!(said.contains("fit the bounds of south"), "nothing says why it does not grow:\n{said}");
        Ok(())
    })?;
    let mut most = 0;
    poll::until("14 pods that are ready", PATIENCE, || {
        most = most.max(items(&kubectl.json("get pods")?).len());
        let one = kubectl.json("get deployment one")?;
        ensure!(count(&one, "/status/readyReplicas") == 14, "{} are ready", count(&one, "/status/readyReplicas"));
        Ok(())
    })?;
    ensure!(most <= 14, "{most} pods of 500m CPU ran under a bound of 7 CPU");
    ensure!(!used()?.is_null(), "the PhysicalCluster does not say what is used of its bounds");
    stage.root.run_args(&["patch", "physicalcluster", SOUTH, "--type=merge", "-p", r#"{"spec":{"bounds":null}}"#])?;
    stage.discard(&["bounds"])
}

fn min_ready_seconds(stage: &CaseStage<'_>) -> Result<()> {
    let kubectl = stage.namespace("minready")?;
    apply(
        &kubectl,
        "{apiVersion: apps/v1, kind: Deployment, metadata: {name: m, annotations: {portolan.dev/pin: east}},
          spec: {replicas: 3, minReadySeconds: 8, selector: {matchLabels: {app: m}},
            template: {metadata: {labels: {app: m}}, spec: {containers: [{name: c, image: 'nginx:1'}]}}}}",
    )?;
    let available = |kubectl: &Kubectl| -> Result<(u64, Vec<String>)> {
        let found = kubectl.json("get deployment m")?;
        Ok((count(&found, "/status/availableReplicas"), placed_on(&found)))
    };
    eventually("three are available", || {
        let (found, _) = available(&kubectl)?;
        ensure!(found == 3, "{found} available");
        Ok(())
    })?;
    kubectl.run("annotate deployment m portolan.dev/pin=west --overwrite")?;
    let start = Instant::now();
    loop {
        let (found, places) = available(&kubectl)?;
        ensure!(found >= 3, "only {found} of 3 replicas available during the move, placed on {places:?}");
        if places == [WEST] {
            break;
        }
        ensure!(start.elapsed() < Duration::from_secs(90), "the move does not end, placed on {places:?}");
        std::thread::sleep(Duration::from_millis(200));
    }
    stage.discard(&["minready"])
}

fn autoscaled_drain(stage: &CaseStage<'_>) -> Result<()> {
    let kubectl = stage.namespace("autoscaled")?;
    apply(
        &kubectl,
        "{apiVersion: portolan.dev/v1alpha1, kind: PlacementPolicy, metadata: {name: dv}, spec: {
           resources: [{apiGroup: apps, kinds: [Deployment]}], clusters: {names: [east, west]}, replicas: {mode: Divide}}}",
    )?;
    apply(&kubectl, &deployment("h", 4))?;
    apply(
        &kubectl,
        "{apiVersion: autoscaling/v2, kind: HorizontalPodAutoscaler, metadata: {name: h}, spec: {
           scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: h}, minReplicas: 3, maxReplicas: 10,
           metrics: [{type: Resource, resource: {name: cpu, target: {type: Utilization, averageUtilization: 70}}}]}}",
    )?;
    eventually("both clusters run it", || {
        let found = placed_on(&kubectl.json("get deployment h")?);
        ensure!(found.len() == 2, "placed on {found:?}");
        Ok(())
    })?;
    let taint = r#"{"spec":{"taints":[{"key":"maintenance","effect":"NoExecute"}]}}"#;
    stage.root.run_args(&["patch", "physicalcluster", WEST, "--type=merge", "-p", taint])?;
    let drained = poll::until("the drain ends", Duration::from_secs(90), || {
        let found = clusters(&kubectl, "deployments.apps-h")?;
        ensure!(found == [EAST], "on {found:?}");
        Ok(())
    });
    stage.root.run_args(&["patch", "physicalcluster", WEST, "--type=merge", "-p", r#"{"spec":{"taints":null}}"#])?;
    drained?;
    stage.discard(&["autoscaled"])
}
