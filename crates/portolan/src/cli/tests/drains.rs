//! A drain through the API, with simulated physical clusters: paused, taken over by a restarted server, completed,
//! undone.

use super::*;

const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";
const DRAIN: &str = "/apis/portolan.dev/v1alpha1/drains/empty-east";
const CLUSTERS: &str = "/apis/portolan.dev/v1alpha1/physicalclusters";
const NUMBER: usize = 20;

fn deployment(number: usize) -> String {
    format!(
        "apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: web-{number:02}}}\nspec:\n  replicas: 2\n  selector: {{matchLabels: {{app: \
         web-{number:02}}}}}\n  template: {{metadata: {{labels: {{app: web-{number:02}}}}}, spec: {{containers: [{{name: c, image: \
         'nginx:1'}}]}}}}\n"
    )
}

fn drain(more: &str) -> String {
    format!(
        "apiVersion: portolan.dev/v1alpha1\nkind: Drain\nmetadata: {{name: empty-east}}\nspec:\n  physicalClusters: [east]\n  \
         budget: {{maxMoving: 4}}\n  {more}\n"
    )
}

/// Returns the physical clusters of each Deployment.
fn places(list: &Value) -> Vec<String> {
    let of =
        |item: &Value| item["metadata"]["annotations"]["portolan.dev/clusters"].as_str().unwrap_or_default().to_owned();
    list["items"].as_array().into_iter().flatten().map(of).collect()
}

fn are_all(list: &Value, place: &str) -> bool {
    let places = places(list);
    places.len() == NUMBER && places.iter().all(|one| one == place)
}

fn are_all_available(list: &Value) -> bool {
    list["items"].as_array().is_some_and(|all| all.iter().all(|one| one["status"]["availableReplicas"] == 2))
}

/// Waits for a state of the drain, and checks on the way that the budget holds and, if asked, that no replica is
/// unavailable.
async fn follow(root: &WorkspaceClient, is_available: bool, holds: impl Fn(&Value) -> bool) -> Value {
    let end = tokio::time::Instant::now() + 3 * PATIENCE;
    loop {
        let drain = root.get(DRAIN).await.unwrap();
        let status = &drain["status"];
        assert!(status["counts"]["moving"].as_i64().unwrap_or(0) <= 4, "{status}");
        if holds(status) {
            return drain;
        }
        let list = root.get(DEPLOYMENTS).await.unwrap();
        assert!(!is_available || are_all_available(&list), "a replica is not available: {list:#}");
        assert!(!is_available || status["unavailableReplicas"].as_i64().unwrap_or(0) == 0, "{status}");
        assert!(tokio::time::Instant::now() < end, "it never comes: {drain:#}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_is_paused_taken_over_completed_and_undone() {
    let folder = tempfile::tempdir().unwrap();
    let plane = start_in(folder.path(), Engine::Redb).await;
    let root = WorkspaceClient::new(plane.api(), &LogicalClusterPath::root());
    root.apply(MEMBER).await.unwrap();
    for number in 0..NUMBER {
        root.apply(&deployment(number)).await.unwrap();
    }
    until(&root, DEPLOYMENTS, |list| are_all(list, "east") && are_all_available(list)).await;
    root.apply(&MEMBER.replace("east", "west")).await.unwrap();
    until(&root, CLUSTERS, |list| list.to_string().matches("the API server answers").count() == 2).await;

    root.apply(&drain("paused: true")).await.unwrap();
    until(&root, DRAIN, |drain| drain["status"]["plan"]["moves"] == NUMBER).await;
    let planned = root.get(DRAIN).await.unwrap()["status"].clone();
    assert_eq!((&planned["phase"], &planned["conditions"][0]["reason"]), (&json!("Planned"), &json!("Paused")));
    root.apply(&drain("paused: false")).await.unwrap();
    follow(&root, true, |status| status["counts"]["moved"].as_i64() >= Some(4)).await;
    root.apply(&drain("paused: true")).await.unwrap();
    follow(&root, true, |status| status["phase"] == "Paused" && status["counts"]["moving"] == 0).await;
    let paused = places(&root.get(DEPLOYMENTS).await.unwrap());
    let moved = paused.iter().filter(|place| *place == "west").count();
    assert!((4..NUMBER).contains(&moved), "{paused:?}");
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(places(&root.get(DEPLOYMENTS).await.unwrap()), paused, "nothing more moves");
    plane.stop().await;

    let plane = start_in(folder.path(), Engine::Redb).await;
    let root = WorkspaceClient::new(plane.api(), &LogicalClusterPath::root());
    // The simulated physical clusters start again: their pods are not available for a moment, whatever the drain does.
    assert_eq!(places(&root.get(DEPLOYMENTS).await.unwrap()), paused, "nor after a restart");
    root.apply(&drain("paused: false")).await.unwrap();
    let completed = follow(&root, false, |status| status["phase"] == "Completed").await;
    assert_eq!(completed["status"]["counts"]["moved"], NUMBER);
    until(&root, DEPLOYMENTS, |list| are_all(list, "west") && are_all_available(list)).await;
    let row = root.get(&format!("{CLUSTERS}/east")).await.unwrap()["status"]["drain"].clone();
    assert_eq!(row, json!({"name": "empty-east", "phase": "Completed", "done": NUMBER, "total": NUMBER}));

    root.apply(&drain("undo: true")).await.unwrap();
    let undone = follow(&root, true, |status| status["phase"] == "Undone").await;
    assert_eq!(undone["status"]["report"]["summary"], "20 objects restored");
    until(&root, DEPLOYMENTS, |list| are_all(list, "east") && are_all_available(list)).await;
    let taken_back = root.apply(&drain("undo: false")).await.unwrap_err().to_string();
    assert!(taken_back.contains("may not be taken back"), "{taken_back}");
    plane.stop().await;
}
