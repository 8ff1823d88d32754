//! `metrics.k8s.io`, as `kubectl top` reads it.

use std::sync::Arc;

use portolan_apiserver::hooks::{MeasuredResource, MeasuredUsage, UsageRequest, UsageSource};
use portolan_types::{BoxFuture, Status};
use serde_json::{Value, json};

use crate::common::Plane;

const PODS: &str = "/apis/metrics.k8s.io/v1beta1/pods";
const SHOP: &str = "/apis/metrics.k8s.io/v1beta1/namespaces/default/pods";
const NODES: &str = "/apis/metrics.k8s.io/v1beta1/nodes";
const TABLE: [(&str, &str); 1] = [("accept", "application/json;as=Table;v=v1;g=meta.k8s.io")];

/// Source with a usage of all objects but those named `idle`.
struct Measured;

impl UsageSource for Measured {
    fn usage(&self, request: UsageRequest) -> BoxFuture<'_, Result<MeasuredUsage, Status>> {
        let usage = json!({"cpu": "250m", "memory": "1Mi"});
        let of = |measured: &Value| {
            let mut item = json!({"metadata": {"name": measured["metadata"]["name"]}, "window": "15s"});
            match request.resource {
                MeasuredResource::Pods => item["containers"] = json!([{"usage": usage}, {"usage": usage}]),
                MeasuredResource::Nodes => item["usage"] = usage.clone(),
            }
            item
        };
        let known = request.objects.iter().filter(|measured| measured["metadata"]["name"] != "idle");
        let items = known.map(of).collect();
        Box::pin(async move { Ok(MeasuredUsage { items, warnings: vec!["east is silent".into()] }) })
    }
}

async fn plane() -> Plane {
    let plane = Plane::with(|config| config.hooks.usage = Some(Arc::new(Measured))).await;
    for name in ["web", "db", "idle"] {
        let pod = json!({"metadata": {"name": name, "labels": {"app": name}},
            "spec": {"containers": [{"name": "c", "image": "c"}]}});
        plane.admin().post("/api/v1/namespaces/default/pods", pod).await.expect(201);
    }
    plane
}

fn names(list: &Value) -> Vec<&str> {
    list["items"].as_array().unwrap().iter().map(|item| item["metadata"]["name"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn usage_is_served_of_the_pods_that_a_request_selects() {
    let plane = plane().await;
    let admin = plane.admin();
    let all = admin.get(PODS).await.expect(200).json();
    assert_eq!((&all["kind"], &all["apiVersion"]), (&json!("PodMetricsList"), &json!("metrics.k8s.io/v1beta1")));
    assert_eq!(names(&all), ["db", "web"]);
    assert_eq!(all["items"][0]["kind"], "PodMetrics");
    assert_eq!(names(&admin.get(&format!("{SHOP}?labelSelector=app=web")).await.expect(200).json()), ["web"]);
    let one = admin.get(&format!("{SHOP}/web")).await.expect(200).json();
    assert_eq!((&one["kind"], &one["metadata"]["name"]), (&json!("PodMetrics"), &json!("web")));
    for path in ["idle", "none"] {
        let absent = admin.get(&format!("{SHOP}/{path}")).await.expect(404).json();
        assert_eq!(absent["message"], format!("pods.metrics.k8s.io {path:?} not found"));
    }
    let nodes = admin.get(NODES).await.expect(200).json();
    assert_eq!(nodes["kind"], "NodeMetricsList");
    admin.get(&format!("{PODS}?labelSelector=%21%21")).await.expect(400);
    admin.get("/apis/metrics.k8s.io/v1beta1/namespaces/default/nodes").await.expect(404);
    admin.get("/apis/metrics.k8s.io/v1beta1/services").await.expect(404);
    admin.send("DELETE", &format!("{SHOP}/web"), &[], "").await.expect(405);
    admin.get(&format!("{PODS}?watch=true")).await.expect(405);
}

#[tokio::test]
async fn usage_is_a_table_as_of_metrics_server_and_gaps_are_warnings() {
    let plane = plane().await;
    let answer = plane.admin().send("GET", PODS, &TABLE, "").await.expect(200);
    let table = answer.json();
    let columns: Vec<_> = table["columnDefinitions"].as_array().unwrap().iter().map(|column| &column["name"]).collect();
    assert_eq!(columns, ["Name", "cpu", "memory", "Window"]);
    assert_eq!(table["rows"][0]["cells"], json!(["db", "500m", "2Mi", "15s"]));
    assert!(answer.headers.get("warning").unwrap().to_str().unwrap().contains("east is silent"));
}

#[tokio::test]
async fn usage_needs_rights_of_its_own_and_is_discovered() {
    let plane = plane().await;
    let (admin, ann) = (plane.admin(), plane.as_user("ann"));
    let rules = |group: &str| json!({"metadata": {"name": "usage"}, "rules": [{"apiGroups": [group], "resources": ["pods"], "verbs": ["list"]}]});
    let roles = "/apis/rbac.authorization.k8s.io/v1/clusterroles";
    admin.post(roles, rules("")).await.expect(201);
    let binding = json!({"metadata": {"name": "usage"}, "subjects": [{"kind": "User", "name": "ann",
        "apiGroup": "rbac.authorization.k8s.io"}],
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "usage"}});
    admin.post("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", binding).await.expect(201);
    ann.get("/api/v1/pods").await.expect(200);
    ann.get(PODS).await.expect(403);
    admin.merge(&format!("{roles}/usage"), rules("metrics.k8s.io")).await.expect(200);
    ann.get(PODS).await.expect(200);
    let groups = admin.get("/apis").await.expect(200).text();
    assert!(groups.contains("metrics.k8s.io/v1beta1"), "{groups}");
    let resources = admin.get("/apis/metrics.k8s.io/v1beta1").await.expect(200).json();
    let kinds: Vec<_> = resources["resources"].as_array().unwrap().iter().map(|entry| &entry["kind"]).collect();
    assert_eq!(kinds, ["NodeMetrics", "PodMetrics"]);
    let plain = Plane::with(|_| ()).await;
    plain.admin().get(PODS).await.expect(404);
    plain.admin().get("/apis/metrics.k8s.io").await.expect(404);
}
