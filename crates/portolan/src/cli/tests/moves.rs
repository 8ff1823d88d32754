//! Moves and failover through the API, with simulated physical clusters.

use portolan_control_plane::FailoverTiming;
use tokio::time::Instant;

use super::*;

const WEB: &str = "/apis/apps/v1/namespaces/default/deployments/web";
const DB: &str = "/apis/apps/v1/namespaces/default/statefulsets/db";
const EAST: &str = "/apis/portolan.dev/v1alpha1/physicalclusters/east";
const SERVICE: &str = "/api/v1/namespaces/default/services/web";
const PLACEMENT: &str = "/apis/portolan.dev/v1alpha1/namespaces/default/placements";
const APP: &str = "apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template: {metadata: {labels: {app: web}}, spec: {containers: [{name: c, image: 'nginx:1'}]}}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {type: LoadBalancer, selector: {app: web}, ports: [{port: 80}]}
";

fn policy(cluster: &str, more: &str) -> String {
    format!(
        "apiVersion: portolan.dev/v1alpha1\nkind: ClusterPlacementPolicy\nmetadata: {{name: p}}\nspec:\n  resources: [{{apiGroup: \
         apps}}]\n  clusters: {{names: [{cluster}]}}\n{more}"
    )
}

async fn members(root: &WorkspaceClient, names: &[&str]) {
    for name in names {
        root.apply(&MEMBER.replace("east", name)).await.unwrap();
    }
    let all_ready = |list: &Value| list.to_string().matches("the API server answers").count() == names.len();
    until(root, "/apis/portolan.dev/v1alpha1/physicalclusters", all_ready).await;
}

fn clusters_of(object: &Value) -> &str {
    object["metadata"]["annotations"]["portolan.dev/clusters"].as_str().unwrap_or_default()
}

/// Returns the physical clusters of which a Service publishes an address.
async fn publishing(root: &WorkspaceClient) -> Vec<String> {
    let placement = root.get(&format!("{PLACEMENT}/services-web")).await.unwrap();
    let copies = placement["status"]["clusters"].as_array().cloned().unwrap_or_default();
    let has = |copy: &&Value| copy["addresses"].as_i64().unwrap_or(0) > 0;
    copies.iter().filter(has).map(|copy| copy["name"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_balanced_workload_moves_without_a_moment_without_address() {
    let (plane, _folder) = start().await;
    let root = WorkspaceClient::new(plane.api(), &LogicalClusterPath::root());
    members(&root, &["east", "west"]).await;
    let moves = "  moves: {addressGracePeriodSeconds: 2}\n";
    root.apply(&policy("east", moves)).await.unwrap();
    root.apply(APP).await.unwrap();
    until(&root, WEB, |web| web["status"]["availableReplicas"] == 2).await;
    until(&root, SERVICE, |service| !service["status"]["loadBalancer"]["ingress"].is_null()).await;
    root.apply(&policy("west", moves)).await.unwrap();
    let (mut seen, mut withdrawn_at) = (Vec::new(), None);
    let end = Instant::now() + PATIENCE;
    loop {
        let web = root.get(WEB).await.unwrap();
        let now = publishing(&root).await;
        let addresses = root.get(SERVICE).await.unwrap()["status"]["loadBalancer"]["ingress"].clone();
        assert!(addresses.as_array().is_some_and(|all| !all.is_empty()), "no address after {seen:?}");
        assert!(web["status"]["availableReplicas"].as_i64() >= Some(2), "after {seen:?}: {}", web["status"]);
        if seen.last() != Some(&now) {
            seen.push(now.clone());
        }
        if now == ["west"] {
            withdrawn_at.get_or_insert_with(Instant::now);
        }
        if clusters_of(&web) == "west" {
            break;
        }
        assert!(
            Instant::now() < end,
            "it does not move: {seen:?} {:?}",
            root.get(&format!("{PLACEMENT}/deployments.apps-web")).await
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // Both are published for a moment, which may pass between two looks.
    seen.retain(|names| names.len() == 1);
    assert_eq!(seen, [["east"], ["west"]]);
    let grace = withdrawn_at.unwrap().elapsed();
    assert!((Duration::from_millis(900)..Duration::from_secs(8)).contains(&grace), "{grace:?}");
    plane.stop().await;
}

/// Kubeconfig of a physical cluster that does not answer.
const DEAD: &str = "apiVersion: v1
kind: Secret
metadata: {name: dead, namespace: default}
stringData:
  kubeconfig: |
    apiVersion: v1
    kind: Config
    current-context: c
    contexts: [{name: c, context: {cluster: k, user: u}}]
    clusters: [{name: k, cluster: {server: 'https://127.0.0.1:9', certificate-authority-data: QUJD}}]
    users: [{name: u, user: {token: t}}]
";

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_physical_cluster_loses_only_objects_that_may_run_twice() {
    let folder = tempfile::tempdir().unwrap();
    // Heartbeats come every five to ten seconds.
    let failover = FailoverTiming {
        lost_after: Duration::from_secs(20),
        doubted_after: Duration::from_secs(16),
        well_after: Duration::from_secs(1),
        tick: Duration::from_millis(200),
        ..FailoverTiming::default()
    };
    let config = Config { failover, ..config(folder.path(), Engine::Memory) };
    let plane = portolan_control_plane::open(config).await.unwrap().start().await.unwrap();
    let root = WorkspaceClient::new(plane.api(), &LogicalClusterPath::root());
    members(&root, &["east", "north", "west"]).await;
    let more =
        "  tolerations: [{key: portolan.dev/unreachable, operator: Exists, effect: NoExecute, tolerationSeconds: 1}]\n";
    let spec = policy("east", more).replace("[east]", "[east], fallback: [{names: [west]}]");
    root.apply(&spec).await.unwrap();
    let set = "apiVersion: apps/v1\nkind: StatefulSet\nmetadata: {name: db}\nspec:\n  selector: {matchLabels: {app: db}}\n  \
               template: {metadata: {labels: {app: db}}, spec: {containers: [{name: c, image: 'nginx:1'}]}}\n";
    for app in [APP, set] {
        root.apply(app).await.unwrap();
    }
    until(&root, WEB, |web| web["status"]["availableReplicas"] == 2).await;
    until(&root, DB, |db| db["status"]["readyReplicas"] == 1).await;
    root.apply(DEAD).await.unwrap();
    let dead = "connection: {direct: {kubeconfigSecretRef: {namespace: default, name: dead}}}";
    let cut = format!("{}{dead}\n", MEMBER.split("connection:").next().unwrap());
    root.apply(&cut).await.unwrap();
    until(&root, EAST, |east| east["status"]["taints"][0]["key"] == "portolan.dev/unreachable").await;
    until(&root, WEB, |web| clusters_of(web) == "west").await;
    until(&root, WEB, |web| web["status"]["availableReplicas"] == 2).await;
    let held = root.get(&format!("{PLACEMENT}/statefulsets.apps-db")).await.unwrap().to_string();
    assert!(held.contains("the annotation portolan.dev/write-off: east declares it"), "{held}");
    assert_eq!(clusters_of(&root.get(DB).await.unwrap()), "east", "what must run once stays");
    root.apply(MEMBER).await.unwrap();
    until(&root, EAST, |east| east["status"]["taints"].is_null()).await;
    let is_settled = |placement: &Value| placement["status"]["clusters"].as_array().is_some_and(|all| all.len() == 1);
    until(&root, &format!("{PLACEMENT}/deployments.apps-web"), is_settled).await;
    assert_eq!(clusters_of(&root.get(WEB).await.unwrap()), "west", "what has moved stays");
    until(&root, DB, |db| db["status"]["readyReplicas"] == 1).await;
    plane.stop().await;
}
