//! The work of a simulated cluster grows as its pods do, counted in objects that are read and written.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};
use support::{CORE, Fixture, counting::Work, template, workload};

/// Reads and writes per pod at most, whatever the number of pods.
const READS_PER_POD: usize = 60;
const WRITES_PER_POD: usize = 15;
/// Pods of the two runs that are compared.
const FEW: usize = 40;
const MANY: usize = 240;

/// Counts reads and writes while this number of pods becomes ready and is deleted again.
struct Case {
    kind: &'static str,
    path: &'static str,
    /// The workload with this number of pods.
    of: fn(usize) -> Value,
    /// Pointer to the number of pods that are ready, or done.
    ready: &'static str,
    /// Nodes for this number of pods.
    nodes: fn(usize) -> usize,
}

fn deployment(pods: usize) -> Value {
    workload("Deployment", i64::try_from(pods).unwrap())
}

fn stateful_set(pods: usize) -> Value {
    let mut set = workload("StatefulSet", i64::try_from(pods).unwrap());
    set["spec"]["podManagementPolicy"] = "Parallel".into();
    set["spec"]["volumeClaimTemplates"] = json!([{"metadata": {"name": "data"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}}]);
    set
}

fn daemon_set(_: usize) -> Value {
    let mut set = workload("DaemonSet", 0);
    set["spec"].as_object_mut().unwrap().remove("replicas");
    set
}

fn job(pods: usize) -> Value {
    json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "web"},
        "spec": {"parallelism": pods, "completions": pods, "template": template("web:1", "Never")}})
}

const CASES: [Case; 4] = [
    Case {
        kind: "Deployment",
        path: "/apis/apps/v1/namespaces/default/deployments",
        of: deployment,
        ready: "/status/readyReplicas",
        nodes: |pods| pods / 25 + 1,
    },
    Case {
        kind: "StatefulSet",
        path: "/apis/apps/v1/namespaces/default/statefulsets",
        of: stateful_set,
        ready: "/status/readyReplicas",
        nodes: |pods| pods / 25 + 1,
    },
    Case {
        kind: "DaemonSet",
        path: "/apis/apps/v1/namespaces/default/daemonsets",
        of: daemon_set,
        ready: "/status/numberReady",
        nodes: |pods| pods,
    },
    Case {
        kind: "Job",
        path: "/apis/batch/v1/namespaces/default/jobs",
        of: job,
        ready: "/status/succeeded",
        nodes: |pods| pods / 25 + 1,
    },
];

/// A Service and a disruption budget select the pods.
async fn work(case: &Case, pods: usize) -> Work {
    let (f, counted) = Fixture::counting(u32::try_from((case.nodes)(pods)).unwrap()).await;
    let before = counted.now();
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"},
        "spec": {"selector": {"app": "web"}, "ports": [{"port": 80}]}});
    f.create(&format!("{CORE}/services"), service).await;
    let budget = json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "web"},
        "spec": {"selector": {"matchLabels": {"app": "web"}}, "minAvailable": 1}});
    f.create("/apis/policy/v1/namespaces/default/poddisruptionbudgets", budget).await;
    f.create(case.path, (case.of)(pods)).await;
    let path = &format!("{}/web", case.path);
    f.until_calmly(path, |own| own.pointer(case.ready) == Some(&json!(pods))).await;
    f.delete(path, "Background").await;
    f.until_calmly(&format!("{CORE}/pods?limit=1"), |pods| pods["items"] == json!([])).await;
    counted.now() - before
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn work_per_pod_does_not_grow_with_the_number_of_pods() {
    for case in &CASES {
        let (few, many) = (work(case, FEW).await, work(case, MANY).await);
        for (pods, work) in [(FEW, few), (MANY, many)] {
            assert!(work.reads <= READS_PER_POD * pods, "{} of {pods}: {work:?}", case.kind);
            assert!(work.writes <= WRITES_PER_POD * pods, "{} of {pods}: {work:?}", case.kind);
        }
        // A look serves several pods, more or fewer by chance.
        assert!(many.reads * FEW <= few.reads * MANY * 3 / 2, "{}: {few:?} {many:?}", case.kind);
    }
}

/// So many Deployments of one pod each, in one namespace.
async fn work_of_many(deployments: usize) -> Work {
    let (f, counted) = Fixture::counting(u32::try_from(deployments / 25 + 1).unwrap()).await;
    let before = counted.now();
    let path = "/apis/apps/v1/namespaces/default/deployments";
    for number in 0..deployments {
        let (name, labels) = (format!("web-{number}"), json!({"app": format!("web-{number}")}));
        let mut one = deployment(1);
        one["metadata"]["name"] = name.into();
        one["spec"]["selector"]["matchLabels"] = labels.clone();
        one["spec"]["template"]["metadata"]["labels"] = labels;
        f.create(path, one).await;
    }
    let looks = AtomicUsize::new(0);
    let are_ready = |list: &Value| {
        looks.fetch_add(1, Ordering::Relaxed);
        let items = list["items"].as_array().map_or(&[][..], Vec::as_slice);
        items.iter().filter(|own| own["status"]["readyReplicas"] == 1).count() == deployments
    };
    f.until_calmly(path, are_ready).await;
    let work = counted.now() - before;
    // The looks of the test are at all of them.
    Work { reads: work.reads - looks.into_inner() * deployments, ..work }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn work_per_workload_does_not_grow_with_the_number_of_workloads() {
    let (few, many) = (work_of_many(FEW).await, work_of_many(MANY).await);
    assert!(many.reads * FEW <= few.reads * MANY * 3 / 2, "{few:?} {many:?}");
    assert!(many.writes * FEW <= few.writes * MANY * 3 / 2, "{few:?} {many:?}");
}
