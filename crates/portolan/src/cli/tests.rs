//! The whole plane in one process, on the memory store and a simulated physical cluster.

use std::time::Duration;

use portolan_store::Engine;
use portolan_types::LogicalClusterPath;
use serde_json::Value;

use super::apply::Workspace;
use crate::control_plane::{self, Config, ControlPlane};

/// Only a failing test waits this long.
const PATIENCE: Duration = Duration::from_secs(30);
const MEMBER: &str = "apiVersion: portolan.dev/v1alpha1\nkind: PhysicalCluster\nmetadata: {name: east, labels: {region: eu}}\nspec:\n  connection: \
                      {simulated: {nodes: 1}}\n";

async fn start() -> (ControlPlane, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let config = Config {
        data_dir: folder.path().join("data"),
        bind_address: "127.0.0.1:0".parse().unwrap(),
        engine: Engine::Memory,
        tls_sans: Vec::new(),
        addresses: portolan_syncer::Addresses::default(),
        history: control_plane::HISTORY,
    };
    (control_plane::open(config).await.unwrap().start().await.unwrap(), folder)
}

async fn until(workspace: &Workspace, path: &str, test: impl Fn(&Value) -> bool) {
    let looking = async {
        loop {
            if workspace.get(path).await.is_ok_and(|found| test(&found)) {
                return;
            }
            tokio::task::yield_now().await;
        }
    };
    if tokio::time::timeout(PATIENCE, looking).await.is_err() {
        panic!("{path}: {:?}", workspace.get(path).await);
    }
}

fn is_empty(list: &Value) -> bool {
    list["items"].as_array().is_some_and(Vec::is_empty)
}

async fn make_workspaces(root: &Workspace, numbers: std::ops::Range<u32>) {
    for number in numbers {
        let manifest =
            format!("apiVersion: tenancy.kcp.io/v1alpha1\nkind: Workspace\nmetadata: {{name: team-{number}}}\n");
        root.apply(&manifest).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_task_and_no_series_runs_per_logical_cluster() {
    let (plane, _folder) = start().await;
    let root = Workspace::new(&plane.api, &LogicalClusterPath::root());
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let series = || plane.api.registry().gather().iter().map(|family| family.get_metric().len()).sum::<usize>();
    make_workspaces(&root, 0..5).await;
    let before = (tasks(), series());
    make_workspaces(&root, 5..105).await;
    let after = (tasks(), series());
    // Requests under way may have tasks of their own; a hundred logical clusters must not.
    assert!(after.0 < before.0 + 20, "tasks: {before:?} -> {after:?}");
    assert!(after.1 < before.1 + 20, "series: {before:?} -> {after:?}");
    plane.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_workload_runs_below_and_leaves_nothing_behind() {
    let (plane, _folder) = start().await;
    let root = Workspace::new(&plane.api, &LogicalClusterPath::root());
    root.apply(MEMBER).await.unwrap();
    make_workspaces(&root, 0..1).await;
    let team = Workspace::new(&plane.api, &"root:team-0".parse().unwrap());
    for manifest in super::demo::MANIFESTS {
        team.apply(manifest).await.unwrap();
    }
    let web = "/apis/apps/v1/namespaces/default/deployments/web";
    until(&team, web, |d| d["status"]["readyReplicas"] == 6).await;
    until(&team, "/apis/apps/v1/namespaces/default/statefulsets/db", |s| s["status"]["readyReplicas"] == 1).await;
    root.delete("/apis/tenancy.kcp.io/v1alpha1/workspaces/team-0").await.unwrap();
    until(&root, "/apis/tenancy.kcp.io/v1alpha1/workspaces", is_empty).await;
    assert!(team.get(web).await.is_err(), "its workspace is gone");
    root.delete("/apis/portolan.dev/v1alpha1/physicalclusters/east").await.unwrap();
    until(&root, "/apis/portolan.dev/v1alpha1/physicalclusters", is_empty).await;
    plane.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_eviction_above_ends_the_pod_below_and_another_takes_its_place() {
    const PODS: &str = "/api/v1/namespaces/default/pods";
    const WEB: &str = "/apis/apps/v1/namespaces/default/deployments/web";
    let (plane, _folder) = start().await;
    let root = Workspace::new(&plane.api, &LogicalClusterPath::root());
    root.apply(MEMBER).await.unwrap();
    make_workspaces(&root, 0..1).await;
    let team = Workspace::new(&plane.api, &"root:team-0".parse().unwrap());
    for manifest in super::demo::MANIFESTS {
        team.apply(manifest).await.unwrap();
    }
    until(&team, WEB, |web| web["status"]["readyReplicas"] == 6).await;
    let of_web = |pod: &&Value| pod["metadata"]["name"].as_str().is_some_and(|name| name.starts_with("web-"));
    until(&team, PODS, |pods| pods["items"].as_array().unwrap().iter().filter(of_web).count() == 6).await;
    let pods = team.get(PODS).await.unwrap();
    let evicted = pods["items"].as_array().unwrap().iter().find(of_web).unwrap()["metadata"].clone();
    let name = evicted["name"].as_str().unwrap();
    let eviction = serde_json::json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}});
    team.post(&format!("{PODS}/{name}/eviction"), &eviction).await.unwrap();
    until(&team, PODS, |pods| {
        let pods = pods["items"].as_array().unwrap();
        pods.iter().all(|pod| pod["metadata"]["uid"] != evicted["uid"]) && pods.iter().filter(of_web).count() == 6
    })
    .await;
    until(&team, WEB, |web| web["status"]["readyReplicas"] == 6).await;
    plane.stop().await;
}
