//! Admission through placement: a template whose pods are refused upstream is not synced downstream until it is
//! admitted.

use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use super::downstream::{self, count, placed_on, text};
use super::scene::{self, Scene};
use harness::report::CheckReport;
use harness::{kubectl::Kubectl, poll};

const LIMIT: Duration = Duration::from_secs(60);
/// Deployments that race for a quota, and the number that it allows.
const RACING: u64 = 60;
const ALLOWED: u64 = 10;

/// Checks admission upstream, in the workspace `gated`.
pub(super) fn run(report: &mut CheckReport, scene: &Scene) {
    let made = scene.workspace("gated");
    if !report.check("admission: a workspace is made and Ready", || made.as_ref().map(drop).map_err(scene::copy)) {
        return;
    }
    let Ok(kubectl) = made else { return };
    let kubectl = kubectl.in_namespace("default");
    let steps: [(&str, &dyn Fn() -> Result<()>); 4] = [
        ("what pods are refused for keeps a Deployment from being placed, until it is gone", &|| {
            refused(scene, &kubectl)
        }),
        ("sixty Deployments at once take exactly what a quota allows", &|| race(&kubectl)),
        ("a quota that is raised lets in as many more", &|| raised(&kubectl)),
        ("a deleted workspace leaves nothing below", &|| scene.delete_workspace("gated")),
    ];
    for (name, step) in steps {
        report.check(&format!("admission: {name}"), step);
    }
}

/// Checks the copies downstream, in the workspace `held`.
pub(super) fn run_below(report: &mut CheckReport, scene: &Scene) {
    let made = scene.workspace("held");
    report.check("sync: what a quota does not admit stays upstream, and what runs stays as it was", || {
        let kubectl = made.as_ref().map_err(scene::copy)?.in_namespace("default");
        held(scene, &kubectl)?;
        scene.delete_workspace("held")
    });
}

fn deployment(name: &str, replicas: u64, spec: &Value) -> Value {
    let labels = json!({"app": name});
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": {
        "replicas": replicas, "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": spec}}})
}

fn asking(cpu: &str) -> Value {
    json!({"containers": [{"name": "a", "image": "gated:1", "resources": {"requests": {"cpu": cpu}}}]})
}

/// Reason and message of the condition `Placed`.
fn placed_condition(kubectl: &Kubectl, name: &str) -> Result<(String, String)> {
    let placement = kubectl.json(&format!("get placement deployments.apps-{name}"))?;
    let of = |key: &str| text(&placement, &format!("/status/conditions/0/{key}")).to_owned();
    Ok((of("reason"), of("message")))
}

fn wait_for_placed_condition(kubectl: &Kubectl, name: &str, reason: &str, message: &str) -> Result<()> {
    poll::until(reason, LIMIT, || {
        let (seen, text) = placed_condition(kubectl, name)?;
        ensure!(seen == reason && text.contains(message), "{seen}: {text}");
        Ok(())
    })
}

fn quota(kubectl: &Kubectl, hard: &str) -> Result<()> {
    kubectl.run(&format!("create quota team --hard={hard}"))?;
    until_used(kubectl, "requests.cpu", "0")
}

fn until_used(kubectl: &Kubectl, name: &str, amount: &str) -> Result<()> {
    poll::until("usage", LIMIT, || {
        let quota = kubectl.json("get quota team")?;
        let used = quota["status"]["used"][name].as_str().unwrap_or_default();
        ensure!(used == amount, "{name}={used} is used");
        Ok(())
    })
}

fn refused(scene: &Scene, kubectl: &Kubectl) -> Result<()> {
    let robot = json!({"serviceAccountName": "robot", "containers": [{"name": "a", "image": "gated:1"}]});
    kubectl.run_with("create -f -", &deployment("gated-robot", 1, &robot).to_string())?;
    wait_for_placed_condition(kubectl, "gated-robot", "AdmissionRefused", "serviceaccount \"robot\" not found")?;
    let described = kubectl.run("describe deployment gated-robot")?;
    for told in ["FailedCreate", "ReplicaFailure"] {
        ensure!(described.contains(told), "{told} is not told:\n{described}");
    }
    let placements = kubectl.run("get placements")?;
    ensure!(placements.contains("AdmissionRefused"), "the reason is not listed:\n{placements}");
    for cluster in scene.clusters() {
        downstream::none(cluster, "deployment", "gated-robot")?;
    }
    rollout_ends(kubectl, &robot)?;
    kubectl.run("create serviceaccount robot")?;
    kubectl.run("rollout status deployment/gated-robot --timeout=60s")?;
    kubectl.run("delete deployment gated-robot --wait --timeout=60s").map(drop)
}

/// `rollout status` of a refused Deployment ends at the deadline with its error.
fn rollout_ends(kubectl: &Kubectl, pod: &Value) -> Result<()> {
    let mut late = deployment("gated-late", 1, pod);
    late["spec"]["progressDeadlineSeconds"] = json!(2);
    kubectl.run_with("create -f -", &late.to_string())?;
    let output = kubectl.call("rollout status deployment/gated-late --timeout=50s", "")?;
    let says = "deployment \"gated-late\" exceeded its progress deadline";
    ensure!(output.code == Some(1) && output.stderr.contains(says), "{output}");
    kubectl.run("delete deployment gated-late --wait --timeout=60s").map(drop)
}

fn race(kubectl: &Kubectl) -> Result<()> {
    quota(kubectl, "requests.cpu=1")?;
    let all: Vec<Value> = (0..RACING).map(|n| deployment(&format!("race-{n}"), 1, &asking("100m"))).collect();
    kubectl.run_with("create -f -", &json!({"apiVersion": "v1", "kind": "List", "items": all}).to_string())?;
    settles(kubectl, ALLOWED)
}

fn raised(kubectl: &Kubectl) -> Result<()> {
    kubectl.run_args(&["patch", "quota", "team", "--type=merge", "-p", r#"{"spec":{"hard":{"requests.cpu":"2"}}}"#])?;
    settles(kubectl, 2 * ALLOWED)
}

/// Checks that this number is placed, the others are refused, and the quota shows it.
fn settles(kubectl: &Kubectl, placed: u64) -> Result<()> {
    poll::until("all are told", LIMIT, || {
        let all = kubectl.json("get deployments")?;
        let here = downstream::items(&all).iter().filter(|object| !placed_on(object).is_empty()).count() as u64;
        ensure!(here == placed, "{here} are placed");
        let all = kubectl.json("get placements")?;
        let refused = |placement: &&Value| text(placement, "/status/conditions/0/reason") == "QuotaExceeded";
        let refused = downstream::items(&all).iter().filter(refused).count() as u64;
        ensure!(refused == RACING - placed, "{refused} are refused");
        Ok(())
    })?;
    until_used(kubectl, "requests.cpu", &(placed / ALLOWED).to_string())
}

fn held(scene: &Scene, kubectl: &Kubectl) -> Result<()> {
    quota(kubectl, "requests.cpu=1")?;
    kubectl.run_with("create -f -", &deployment("held", 2, &asking("300m")).to_string())?;
    kubectl.run("rollout status deployment/held --timeout=60s")?;
    until_used(kubectl, "requests.cpu", "600m")?;
    let below = || {
        let object = kubectl.json("get deployment held")?;
        let place = placed_on(&object).into_iter().next().unwrap_or_default();
        downstream::one(scene.cluster(&place)?, "deployment", "held")
    };
    kubectl.run("scale deployment held --replicas=4")?;
    wait_for_placed_condition(kubectl, "held", "QuotaExceeded", "exceeded quota: team, requested: requests.cpu=600m")?;
    ensure!(count(&below()?, "/spec/replicas") == 2, "the copy grew beyond the quota");
    kubectl.run("scale deployment held --replicas=3")?;
    poll::until("three below", LIMIT, || {
        ensure!(count(&below()?, "/spec/replicas") == 3, "not three");
        Ok(())
    })?;
    kubectl.run("rollout status deployment/held --timeout=60s")?;
    // The pods that show above are counted by their template, and once.
    until_used(kubectl, "requests.cpu", "900m")?;
    kubectl.run("delete deployment held --wait --timeout=60s")?;
    until_used(kubectl, "requests.cpu", "0")
}
