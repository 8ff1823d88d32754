//! The policy language through the API, with simulated physical clusters: expressions, suspension, the nearest change.

use super::*;

const JSON: &str = "application/json";
const WEB: &str = "/apis/apps/v1/namespaces/default/deployments/web";
const POLICY: &str = "/apis/portolan.dev/v1alpha1/clusterplacementpolicies/gold";
const POLICIES: &str = "/clusters/root/apis/portolan.dev/v1alpha1/clusterplacementpolicies";
const EXPLANATIONS: &str = "/clusters/root/apis/portolan.dev/v1alpha1/namespaces/default/placementexplanations";

fn policy(cel: &str, suspend: Value) -> Value {
    json!({
        "apiVersion": "portolan.dev/v1alpha1", "kind": "ClusterPlacementPolicy", "metadata": {"name": "gold"},
        "spec": {"resources": [{"apiGroup": "apps"}], "clusters": {"cel": cel}, "suspend": suspend},
    })
}

fn web() -> Value {
    let pod =
        json!({"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "c", "image": "nginx:1"}]}});
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web", "namespace": "default"},
        "spec": {"replicas": 1, "selector": {"matchLabels": {"app": "web"}}, "template": pod},
    })
}

fn is_on(web: &Value, name: &str) -> bool {
    web["metadata"]["annotations"]["portolan.dev/clusters"] == name
}

#[tokio::test(flavor = "multi_thread")]
async fn expressions_suspensions_and_hints_work_together() {
    let (plane, _folder) = start().await;
    let root = WorkspaceClient::new(plane.api(), &LogicalClusterPath::root());
    root.apply(MEMBER).await.unwrap();
    root.apply(&MEMBER.replace("east", "west").replace("region: eu", "region: us")).await.unwrap();
    let ready = |list: &Value| list.to_string().matches("the API server answers").count() == 2;
    until(&root, "/apis/portolan.dev/v1alpha1/physicalclusters", ready).await;

    let wrong = policy("physicalCluster.metadata.lables['region'] == 'us'", json!({}));
    let (_, answer) = ask(&plane, Method::POST, POLICIES, JSON, wrong).await;
    assert_eq!(answer["code"], 422, "{answer}");
    assert!(answer["message"].as_str().unwrap().contains("undefined field 'lables'"), "{answer}");

    let cel = "physicalCluster.metadata.labels['region'] == 'us' && physicalCluster.status.version.startsWith('v1.')";
    root.apply(&policy(cel, json!({"dispatch": true})).to_string()).await.unwrap();
    root.apply(&web().to_string()).await.unwrap();
    until(&root, WEB, |web| is_on(web, "west")).await;
    until(&root, POLICY, |policy| policy["status"].to_string().contains("ExpressionsEvaluated")).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    let waiting = root.get(WEB).await.unwrap();
    assert_eq!(waiting["status"]["replicas"].as_i64().unwrap_or(0), 0, "nothing is sent: {waiting}");
    root.apply(&policy(cel, json!({"dispatch": false})).to_string()).await.unwrap();
    until(&root, WEB, |web| web["status"]["readyReplicas"] == 1).await;

    let object = json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"});
    let why = json!({
        "apiVersion": "portolan.dev/v1alpha1", "kind": "PlacementExplanation", "metadata": {"name": "why", "namespace": "default"},
        "spec": {"object": object},
    });
    let (_, answer) = ask(&plane, Method::POST, EXPLANATIONS, JSON, why).await;
    let change = "make clusters.cel of policy gold true for east, and raise spec.count of policy gold from 1 to 2, or pin the object \
                  to east";
    let nearest = json!({"physicalCluster": "east", "filter": "policy", "change": change});
    assert_eq!(answer["status"]["nearest"], nearest, "{answer}");
    assert_eq!(answer["status"]["clusters"][1]["scores"][1], json!({"name": "present", "value": 1}), "{answer}");
}
