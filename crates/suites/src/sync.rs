//! The sample app from apply to delete: placed, running on real API servers, with its status upstream, changed, moved,
//! deleted.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::app::SampleApp;
use super::custom_kinds;
use super::downstream::{self, count, name, namespace, placed_on};
use super::gate;
use super::moving;
use super::scene::{self, Scene};
use harness::poll;
use harness::report::CheckReport;

const SYNC_LIMIT: Duration = Duration::from_secs(60);

/// Runs the scenario in the workspaces `shop` and `moves`.
pub(super) fn run(report: &mut CheckReport, scene: &Scene) {
    let made = scene.workspace("shop");
    if !report.check("sync: a workspace is made and Ready", || made.as_ref().map(drop).map_err(scene::copy)) {
        return;
    }
    let Ok(kubectl) = made else { return };
    let app = SampleApp::new(scene, kubectl);
    if !report.check("sync: kubectl apply takes the sample app", || app.apply()) {
        return;
    }
    let steps: [(&str, &dyn Fn() -> Result<()>); 13] = [
        ("every object says where it is placed", &|| poll::until("placement", SYNC_LIMIT, || app.all_placed())),
        ("the real API servers have the copies", &|| poll::until("copies", SYNC_LIMIT, || app.copies_match())),
        ("rollout status and wait see it ready", &|| app.ready_above()),
        ("kubectl apply takes the sample app once more when it is synced", &|| app.apply()),
        ("pods run on the fake nodes of the placed clusters", &|| pods_run(scene, &app)),
        ("pods, sets and claims show above", &|| projected(&app)),
        ("get -o wide has a CLUSTERS column; placements lists decisions", &|| columns(&app)),
        ("scale reaches the clusters and comes back", &|| scale(&app)),
        ("set image reaches the clusters and comes back", &|| set_image(&app)),
        ("what somebody changes or deletes below is put right", &|| drift(scene, &app)),
        ("a cluster that goes away and comes back keeps its copies", &|| outage(scene, &app)),
        ("delete leaves no workload below", &|| deleted(scene, &app)),
        ("a deleted workspace leaves nothing at all below", &|| scene.delete_workspace("shop")),
    ];
    for (name, step) in steps {
        report.check(&format!("sync: {name}"), step);
    }
    gate::run_below(report, scene);
    moving::run(report, scene);
    custom_kinds::run(report, scene);
}

fn pods_run(scene: &Scene, app: &SampleApp<'_>) -> Result<()> {
    for deployment in app.of_kind("Deployment")? {
        for place in placed_on(&deployment) {
            let cluster = scene.cluster(&place)?;
            let copy = downstream::one(cluster, "deployment", name(&deployment))?;
            let pods = cluster.kubectl().json(&format!("get pods -n {}", namespace(&copy)))?;
            let own = |pod: &&Value| name(pod).starts_with(&format!("{}-", name(&deployment)));
            let pods: Vec<&Value> = downstream::items(&pods).iter().filter(own).collect();
            ensure!(!pods.is_empty(), "{place} has no pod of {}", name(&deployment));
            for pod in pods {
                let (phase, node) = (downstream::text(pod, "/status/phase"), downstream::text(pod, "/spec/nodeName"));
                ensure!(phase == "Running" && node.starts_with(&place), "{place}: {} {phase} on {node:?}", name(pod));
            }
        }
    }
    Ok(())
}

fn projected(app: &SampleApp<'_>) -> Result<()> {
    poll::until("projected objects", SYNC_LIMIT, || {
        for deployment in app.of_kind("Deployment")? {
            let (name, place) = (name(&deployment), namespace(&deployment));
            let wanted = count(&deployment, "/spec/replicas");
            let running = "--field-selector=status.phase=Running -o name";
            let pods = app.kubectl().run(&format!("get pods -n {place} {running}"))?;
            let own = pods.lines().filter(|pod| pod.starts_with(&format!("pod/{name}-"))).count();
            ensure!(own as u64 >= wanted, "{own} of {wanted} pods of {name} run above");
            let sets = app.kubectl().run(&format!("get replicasets -n {place} -o name"))?;
            ensure!(sets.contains(&format!("/{name}-")), "no ReplicaSet of {name} above");
        }
        for set in app.of_kind("StatefulSet")? {
            let claims = app.kubectl().run(&format!("get pvc -n {} --no-headers", namespace(&set)))?;
            ensure!(claims.lines().count() > 0 && claims.lines().all(|line| line.contains("Bound")), "{claims}");
        }
        Ok(())
    })
}

fn columns(app: &SampleApp<'_>) -> Result<()> {
    for deployment in app.of_kind("Deployment")? {
        let args = format!("get deployment {} -n {} -o wide", name(&deployment), namespace(&deployment));
        let out = app.kubectl().run(&args)?;
        let places = placed_on(&deployment).join(",");
        ensure!(out.contains("CLUSTERS") && out.contains(&places), "{places} is not in {out}");
    }
    let out = app.kubectl().run("get placements --all-namespaces")?;
    ensure!(out.contains(scene::EAST) || out.contains(scene::WEST), "{out}");
    Ok(())
}

/// The parts add up to the whole (divided), or each is the whole (duplicated).
fn adds_up(parts: &[u64], whole: u64) -> bool {
    parts.iter().sum::<u64>() == whole || parts.iter().all(|part| *part == whole)
}

fn scale(app: &SampleApp<'_>) -> Result<()> {
    let deployment = first_deployment(app)?;
    let target = format!("deployment/{} -n {}", name(&deployment), namespace(&deployment));
    for replicas in [6, 2] {
        app.kubectl().run(&format!("scale {target} --replicas={replicas}"))?;
        app.kubectl().run(&format!("rollout status {target} --timeout=120s"))?;
        app.kubectl()
            .run(&format!("wait {target} --for=jsonpath={{.status.readyReplicas}}={replicas} --timeout=60s"))?;
        poll::until("replicas below", SYNC_LIMIT, || {
            let parts = app.replicas_below(&deployment, None)?;
            ensure!(adds_up(&parts, replicas), "{parts:?} is not {replicas}");
            Ok(())
        })?;
    }
    Ok(())
}

fn set_image(app: &SampleApp<'_>) -> Result<()> {
    let deployment = first_deployment(app)?;
    let target = format!("deployment/{} -n {}", name(&deployment), namespace(&deployment));
    let image = "registry.example/e2e/changed:2";
    app.kubectl().run(&format!("set image {target} *={image}"))?;
    app.kubectl().run(&format!("rollout status {target} --timeout=120s"))?;
    // When `rollout status` ends, the rollout must be complete downstream, too.
    app.replicas_below(&deployment, Some(image)).map(drop)
}

fn first_deployment(app: &SampleApp<'_>) -> Result<Value> {
    app.of_kind("Deployment")?.into_iter().next().context("no Deployment")
}

fn drift(scene: &Scene, app: &SampleApp<'_>) -> Result<()> {
    let deployment = first_deployment(app)?;
    let place = placed_on(&deployment).into_iter().next().context("not placed")?;
    let cluster = scene.cluster(&place)?;
    let copy = downstream::one(cluster, "deployment", name(&deployment))?;
    let target = format!("deployment/{} -n {}", name(&copy), namespace(&copy));

    let patch = json!([{"op": "replace", "path": "/spec/template/spec/containers/0/image", "value": "evil:1"}]);
    cluster.kubectl().run_args(&[
        "patch",
        "deployment",
        name(&copy),
        "-n",
        namespace(&copy),
        "--type=json",
        "-p",
        &patch.to_string(),
    ])?;
    poll::until("the image is put right", SYNC_LIMIT, || {
        let image = |object: &Value| downstream::text(object, "/spec/template/spec/containers/0/image").to_owned();
        let now = downstream::one(cluster, "deployment", name(&copy))?;
        ensure!(image(&now) == image(&copy), "image {}", image(&now));
        Ok(())
    })?;

    cluster.kubectl().run(&format!("delete {target}"))?;
    poll::until("the copy is made again", SYNC_LIMIT, || {
        let again = downstream::one(cluster, "deployment", name(&copy))?;
        ensure!(again.pointer("/metadata/uid") != copy.pointer("/metadata/uid"), "still the old copy");
        Ok(())
    })?;
    app.ready_above()
}

/// Absence is not deletion: while a cluster is unreachable nothing moves, and after its return everything is as before.
fn outage(scene: &Scene, app: &SampleApp<'_>) -> Result<()> {
    let deployment = first_deployment(app)?;
    let place = placed_on(&deployment).into_iter().next().context("not placed")?;
    let cluster = scene.cluster(&place)?;
    let before = downstream::one(cluster, "deployment", name(&deployment))?;
    cluster.interrupt(Duration::from_secs(10))?;
    let fresh = app.kubectl().json(&format!("get deployment {} -n {}", name(&deployment), namespace(&deployment)))?;
    ensure!(placed_on(&fresh) == placed_on(&deployment), "moved to {:?}", placed_on(&fresh));
    let after = downstream::one(cluster, "deployment", name(&deployment))?;
    ensure!(before.pointer("/metadata/uid") == after.pointer("/metadata/uid"), "the copy was replaced");
    scene.clusters_ready()?;
    app.ready_above()
}

fn deleted(scene: &Scene, app: &SampleApp<'_>) -> Result<()> {
    let objects = app.objects()?;
    app.delete()?;
    poll::until("nothing is left below", SYNC_LIMIT, || {
        for cluster in scene.clusters() {
            for object in objects.iter().filter(|object| !namespace(object).is_empty()) {
                if !downstream::text(object, "/apiVersion").starts_with("portolan.dev/") {
                    downstream::none(cluster, downstream::kind(object), name(object))?;
                }
            }
        }
        Ok(())
    })
}
