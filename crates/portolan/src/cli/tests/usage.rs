//! Tests of `metrics.k8s.io` in workspaces, merged from simulated physical clusters.

use super::*;

const PODS: &str = "/apis/metrics.k8s.io/v1beta1/namespaces/default/pods";
const NODES: &str = "/apis/metrics.k8s.io/v1beta1/nodes";
/// Physical cluster without the Secret of its kubeconfig.
const WEST: &str = "apiVersion: portolan.dev/v1alpha1\nkind: PhysicalCluster\nmetadata: {name: west}\nspec:\n  connection: {direct: \
                    {kubeconfigSecretRef: {namespace: default, name: none}}}\n";

fn names(list: &Value) -> Vec<&str> {
    let items = list["items"].as_array().unwrap().iter();
    items.map(|item| item["metadata"]["name"].as_str().unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn usage_is_that_of_the_workspaces_own_pods_under_their_names_there() {
    let (plane, _folder) = start().await;
    let root = WorkspaceClient::new(plane.api(), &LogicalClusterPath::root());
    root.apply(MEMBER).await.unwrap();
    root.apply(WEST).await.unwrap();
    make_workspaces(&root, 0..2).await;
    for (number, name) in ["web", "other"].into_iter().enumerate() {
        let team = WorkspaceClient::new(plane.api(), &format!("root:team-{number}").parse().unwrap());
        team.apply(&deployment(name).to_string()).await.unwrap();
        let running = format!("/apis/apps/v1/namespaces/default/deployments/{name}");
        until(&team, &running, |found| found["status"]["readyReplicas"] == 1).await;
    }
    let team = WorkspaceClient::new(plane.api(), &"root:team-0".parse().unwrap());
    until(&team, PODS, |found| names(found).len() == 1).await;
    let (usage, pods) = (team.get(PODS).await.unwrap(), team.get("/api/v1/namespaces/default/pods").await.unwrap());
    assert_eq!(names(&usage), names(&pods), "no pod of the other workspace");
    let own = &usage["items"][0];
    assert_eq!(own["metadata"]["namespace"], "default");
    assert_eq!(own["containers"], json!([{"name": "c", "usage": {"cpu": "10m", "memory": "16Mi"}}]));
    let path = format!("/clusters/root:team-0{NODES}");
    let (headers, nodes) = ask(&plane, Method::GET, &path, "application/json", Value::Null).await;
    assert_eq!(names(&nodes), ["east"]);
    assert_eq!(nodes["items"][0]["usage"]["cpu"], "120m", "that of both workspaces and of the node itself");
    let warning = headers.get(WARNING).unwrap().to_str().unwrap();
    assert!(warning.contains("usage on physical cluster \\\"west\\\" is missing: it cannot be reached"), "{warning}");
    plane.stop().await;
}
