//! Cases of unmodified clients: discovery, kubeconfigs, Jobs of CronJobs, suspended and foreign Jobs.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use super::super::downstream::{items, name, text};
use super::super::scene::EAST;
use super::Case;
use super::stage::{CaseStage, NORTH, apply, eventually};
use harness::kubectl::Kubectl;
use harness::poll;

pub(super) const CASES: [Case; 5] = [
    ("every resource that lists the verb watch can be watched", watchable),
    ("keys in kubeconfigs are SEC1", kubeconfig_key),
    ("a Job of a CronJob can be changed, and goes in the foreground", cron_jobs),
    ("a suspended Job has not started, and its template can be changed", suspended),
    ("a Job that another controller manages is not run", managed_by),
];

fn watchable(stage: &CaseStage<'_>) -> Result<()> {
    let list = stage.kubectl.run("api-resources --verbs=list,watch -o name")?;
    ensure!(list.lines().count() > 50, "{list}");
    // The suites of the clients read those of kube-apiserver.
    for resource in
        list.lines().map(str::trim).filter(|name| [".kcp.io", ".portolan.dev"].iter().any(|end| name.ends_with(end)))
    {
        let watch = stage.kubectl.call(&format!("get {resource} -A --watch --request-timeout=1s"), "")?;
        ensure!(!watch.stderr.contains("MethodNotAllowed"), "{resource}: {watch}");
    }
    Ok(())
}

fn kubeconfig_key(stage: &CaseStage<'_>) -> Result<()> {
    let file = stage.scene.server().data().join("admin.kubeconfig");
    let file = file.to_str().context("the path is not UTF-8")?;
    let config = stage.root.run_args(&["config", "view", "--raw", "-o", "json", "--kubeconfig", file])?;
    let config: Value = serde_json::from_str(&config)?;
    let key = text(&config, "/users/0/user/client-key-data");
    // The beginning of `-----BEGIN EC PRIVATE KEY-----` in base64.
    ensure!(
        key.starts_with("LS0tLS1CRUdJTiBFQyBQUklWQVRFIEtFW"),
        "the key begins with {}",
        key.get(..44).unwrap_or(key)
    );
    Ok(())
}

fn cron_jobs(stage: &CaseStage<'_>) -> Result<()> {
    for cluster in [EAST, NORTH] {
        let namespace = format!("cron-{cluster}");
        let kubectl = stage.pinned(&namespace, cluster)?;
        kubectl.run_args(&["create", "cronjob", "cj", "--image=c:1", "--schedule=*/1 * * * *"])?;
    }
    for cluster in [EAST, NORTH] {
        let namespace = format!("cron-{cluster}");
        let kubectl = stage.kubectl.in_namespace(&namespace);
        let job = poll::until("a Job", Duration::from_secs(100), || first_job(&kubectl))?;
        kubectl.run(&format!("label job {job} a=b")).with_context(|| cluster.to_owned())?;
        kubectl.run("delete cronjob cj --cascade=foreground --timeout=60s").with_context(|| cluster.to_owned())?;
        stage
            .kubectl
            .run(&format!("delete namespace {namespace} --timeout=90s"))
            .with_context(|| cluster.to_owned())?;
    }
    Ok(())
}

fn first_job(kubectl: &Kubectl) -> Result<String> {
    let list = kubectl.json("get jobs")?;
    items(&list).first().map(|job| name(job).to_owned()).context("no Job yet")
}

fn suspended(stage: &CaseStage<'_>) -> Result<()> {
    for cluster in [EAST, NORTH] {
        let namespace = format!("suspended-{cluster}");
        let kubectl = stage.pinned(&namespace, cluster)?;
        apply(
            &kubectl,
            "{apiVersion: batch/v1, kind: Job, metadata: {name: s}, spec: {suspend: true,
               template: {spec: {restartPolicy: Never, containers: [{name: c, image: 'c:1'}]}}}}",
        )?;
        eventually("the condition Suspended", || {
            let job = kubectl.json("get job s")?;
            let conditions = job["status"]["conditions"].as_array().cloned().unwrap_or_default();
            let found = conditions.iter().any(|one| one["type"] == "Suspended" && one["status"] == "True");
            ensure!(found && job["status"]["startTime"].is_null(), "{cluster}: {}", job["status"]);
            Ok(())
        })?;
        let start = r#"{"spec":{"suspend":false,"template":{"metadata":{"labels":{"x":"y"}}}}}"#;
        kubectl.run_args(&["patch", "job", "s", "--type=merge", "-p", start]).with_context(|| cluster.to_owned())?;
        kubectl.run("wait job/s --for=condition=Complete --timeout=60s").with_context(|| cluster.to_owned())?;
        stage.discard(&[&namespace])?;
    }
    Ok(())
}

fn managed_by(stage: &CaseStage<'_>) -> Result<()> {
    let kubectl = stage.pinned("managed", NORTH)?;
    apply(
        &kubectl,
        "{apiVersion: batch/v1, kind: Job, metadata: {name: m}, spec: {managedBy: example.com/else,
           template: {spec: {restartPolicy: Never, containers: [{name: c, image: 'c:1'}]}}}}
---
{apiVersion: batch/v1, kind: Job, metadata: {name: ours}, spec: {
           template: {spec: {restartPolicy: Never, containers: [{name: c, image: 'c:1'}]}}}}",
    )?;
    // By then the foreign one would have run, too.
    kubectl.run("wait job/ours --for=condition=Complete --timeout=60s")?;
    let pods = kubectl.run("get pods -l batch.kubernetes.io/job-name=m -o name")?;
    let job = kubectl.json("get job m")?;
    ensure!(pods.trim().is_empty(), "pods: {pods}");
    ensure!(job["status"]["startTime"].is_null() && super::super::downstream::placed_on(&job).is_empty(), "{job}");
    stage.discard(&["managed"])
}
