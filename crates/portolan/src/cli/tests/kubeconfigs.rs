//! Kubeconfig of all workspaces, which follows them.

use super::*;
use crate::cli::kubeconfig::AllWorkspaces;

/// Time in which a change is written, far below that of a list at intervals.
const SOON: Duration = Duration::from_secs(5);

fn contexts(file: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    let config: Value = serde_saphyr::from_str(&text).unwrap_or_default();
    let contexts = config["contexts"].as_array().cloned().unwrap_or_default();
    contexts.iter().filter_map(|context| context["name"].as_str().map(str::to_owned)).collect()
}

async fn until_contexts(file: &Path, expected: &[&str]) {
    let looking = async {
        while contexts(file) != expected {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    if tokio::time::timeout(SOON, looking).await.is_err() {
        panic!("{expected:?}: {:?}", contexts(file));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kubeconfig_follows_workspaces_that_come_and_go() {
    let (plane, folder) = start().await;
    let file = folder.path().join("all.kubeconfig");
    let admin = std::fs::read_to_string(folder.path().join("data/admin.kubeconfig")).unwrap();
    let out = file.clone();
    let following = tokio::spawn(async move {
        let top = LogicalClusterPath::root();
        AllWorkspaces { admin: &admin, top: &top, out: Some(out), watch: true }.run().await
    });
    until_contexts(&file, &["root"]).await;
    let root = WorkspaceClient::new(plane.api(), &LogicalClusterPath::root());
    make_workspaces(&root, 0..2).await;
    until_contexts(&file, &["root", "root-team-0", "root-team-1"]).await;
    // A workspace that was created during the watch is watched too.
    let team = WorkspaceClient::new(plane.api(), &"root:team-0".parse().unwrap());
    make_workspaces(&team, 7..8).await;
    until_contexts(&file, &["root", "root-team-0", "root-team-0-team-7", "root-team-1"]).await;
    root.delete("/apis/tenancy.kcp.io/v1alpha1/workspaces/team-1").await.unwrap();
    until_contexts(&file, &["root", "root-team-0", "root-team-0-team-7"]).await;
    following.abort();
    plane.stop().await;
}
