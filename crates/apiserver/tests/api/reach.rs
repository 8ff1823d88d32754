//! Physical clusters as the workspaces see them that may use them: inherited ones, and nodes.

use serde_json::{Value, json};

use crate::common::{Client, Plane};

const CLUSTERS: &str = "/apis/portolan.dev/v1alpha1/physicalclusters";
const NODES: &str = "/api/v1/nodes";
const TABLE: [(&str, &str); 1] = [("accept", "application/json;as=Table;v=v1;g=meta.k8s.io")];

async fn plane() -> Plane {
    let plane = Plane::with(|config| config.computes_nodes = true).await;
    let admin = plane.admin();
    workspace(&admin, "a").await;
    workspace(&admin.at("root:a"), "b").await;
    workspace(&admin, "other").await;
    plane
}

async fn workspace(client: &Client, name: &str) {
    let object = json!({"apiVersion": "tenancy.kcp.io/v1alpha1", "kind": "Workspace", "metadata": {"name": name}});
    client.post("/apis/tenancy.kcp.io/v1alpha1/workspaces", object).await.expect(201);
}

fn physical(name: &str) -> Value {
    json!({"apiVersion": "portolan.dev/v1alpha1", "kind": "PhysicalCluster",
        "metadata": {"name": name, "labels": {"region": "eu"}}, "spec": {"connection": {"simulated": {}}}})
}

async fn register(client: &Client, name: &str) -> Value {
    client.post(CLUSTERS, physical(name)).await.expect(201);
    let status = json!({"status": {"version": "v1.36.3", "capacity": {"cpu": "8"}, "allocatable": {"cpu": "7"},
        "conditions": [{"type": "Ready", "status": "True", "reason": "Answers", "message": "10.0.0.1",
            "lastTransitionTime": "2026-01-01T00:00:00Z"}]}});
    client.merge(&format!("{CLUSTERS}/{name}/status"), status).await.expect(200).json()
}

async fn names(client: &Client, path: &str) -> Vec<String> {
    let listed = client.get(path).await.expect(200).json();
    let items = listed["items"].as_array().unwrap();
    items.iter().map(|item| item["metadata"]["name"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn descendants_see_inherited_clusters_without_their_connection() {
    let plane = plane().await;
    let admin = plane.admin();
    let (a, b, other) = (admin.at("root:a"), admin.at("root:a:b"), admin.at("root:other"));
    register(&admin, "east").await;
    register(&a, "south").await;
    for (client, seen) in
        [(&admin, vec!["east"]), (&a, vec!["east", "south"]), (&b, vec!["east", "south"]), (&other, vec!["east"])]
    {
        assert_eq!(names(client, CLUSTERS).await, seen);
        assert_eq!(names(client, NODES).await, seen);
    }
    let shown = b.get(&format!("{CLUSTERS}/east")).await.expect(200).json();
    assert_eq!(shown["spec"]["connection"], Value::Null);
    assert_eq!(
        shown["metadata"]["annotations"],
        json!({"portolan.dev/workspace": "root", "portolan.dev/mode": "simulated"})
    );
    assert_eq!(shown["status"]["allocatable"]["cpu"], "7");
    assert!(!shown.to_string().contains("10.0.0.1"));
    assert!(a.get(&format!("{CLUSTERS}/south")).await.expect(200).json()["spec"]["connection"].is_object());
    assert_eq!(names(&b, &format!("{CLUSTERS}?fieldSelector=metadata.name=south")).await, ["south"]);
    assert_eq!(names(&b, &format!("{CLUSTERS}?labelSelector=region=eu&limit=1")).await, ["east"]);
    assert_eq!(names(&b, &format!("{CLUSTERS}?labelSelector=region=us")).await, Vec::<String>::new());
    let table = b.send("GET", CLUSTERS, &TABLE, "").await.expect(200).json();
    assert_eq!(table["rows"].as_array().unwrap().len(), 2);
    other.get(&format!("{CLUSTERS}/south")).await.expect(404);
}

#[tokio::test]
async fn inherited_clusters_are_read_only_and_reserve_their_name() {
    let plane = plane().await;
    let admin = plane.admin();
    let b = admin.at("root:a:b");
    register(&admin, "east").await;
    let path = format!("{CLUSTERS}/east");
    let read_only = "it is registered in workspace \"root\", and read-only in the workspaces below that";
    let shown = b.get(&path).await.expect(200).json();
    for answer in [
        b.merge(&path, json!({"metadata": {"labels": {"a": "b"}}})).await,
        b.merge(&format!("{path}/status"), json!({"status": {"version": "v2"}})).await,
        b.delete(&path).await,
    ] {
        let refused = answer.expect(403).message();
        assert!(refused.contains(read_only), "{refused}");
    }
    let mut connected = shown;
    connected["spec"]["connection"] = json!({"simulated": {}});
    b.put(&path, connected).await.expect(403);
    b.post(CLUSTERS, physical("east")).await.expect(409);
    b.delete(CLUSTERS).await.expect(200);
    assert_eq!(names(&admin, CLUSTERS).await, ["east"]);
    register(&b, "deep").await;
    register(&admin.at("root:other"), "deep").await;
    b.delete(&format!("{CLUSTERS}/deep")).await.expect(200);
}

#[tokio::test]
async fn descendants_keep_no_name_from_an_ancestor_and_see_their_own_one() {
    let plane = plane().await;
    let admin = plane.admin();
    let b = admin.at("root:a:b");
    let own = register(&b, "deep").await;
    let mut watches = Vec::new();
    for path in [NODES, CLUSTERS] {
        let mut watch = b.watch(&format!("{path}?watch=true"), &[]).await;
        assert_eq!(watch.seen().await, ("ADDED".into(), "deep".into()));
        watches.push(watch);
    }
    let of_root = register(&admin, "deep").await;
    let uid = |object: &Value| object["metadata"]["uid"].clone();
    for path in [NODES, CLUSTERS] {
        assert_eq!(names(&b, path).await, ["deep"], "{path}");
        for (client, expected) in [(&b, &own), (&admin.at("root:a"), &of_root), (&admin, &of_root)] {
            assert_eq!(uid(&client.get(&format!("{path}/deep")).await.expect(200).json()), uid(expected), "{path}");
        }
    }
    register(&admin, "later").await;
    b.delete(&format!("{CLUSTERS}/deep")).await.expect(200);
    for watch in &mut watches {
        assert_eq!(watch.seen().await, ("ADDED".into(), "later".into()), "nothing of the one that is hidden");
        assert_eq!(watch.seen().await, ("MODIFIED".into(), "later".into()));
        let event = watch.next().await.unwrap();
        assert_eq!((&event["type"], uid(&event["object"])), (&json!("MODIFIED"), uid(&of_root)));
    }
    b.post(CLUSTERS, physical("deep")).await.expect(409);
}

#[tokio::test]
async fn a_workspace_sees_only_usable_physical_clusters() {
    let plane = plane().await;
    let admin = plane.admin();
    register(&admin, "east").await;
    let closed = json!({"subjects": [{"kind": "Group", "apiGroup": "rbac.authorization.k8s.io", "name": "system:clusters:root:other"}]});
    let binding = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/portolan:physicalcluster-users";
    admin.merge(binding, closed).await.expect(200);
    for path in [CLUSTERS, NODES] {
        assert_eq!(names(&admin.at("root:a"), path).await, Vec::<String>::new(), "{path}");
        assert_eq!(names(&admin.at("root:other"), path).await, ["east"], "{path}");
    }
    admin.at("root:a").get(&format!("{NODES}/east")).await.expect(404);
    assert_eq!(names(&admin, CLUSTERS).await, ["east"], "where it is registered");
}

#[tokio::test]
async fn nodes_are_computed_and_cannot_be_written() {
    let plane = plane().await;
    let admin = plane.admin();
    let a = admin.at("root:a");
    let stored = register(&admin, "east").await;
    let node = a.get(&format!("{NODES}/east")).await.expect(200).json();
    assert_eq!((&node["kind"], &node["metadata"]["uid"]), (&json!("Node"), &stored["metadata"]["uid"]));
    assert_eq!(node["status"]["nodeInfo"]["kubeletVersion"], "v1.36.3");
    let table = a.send("GET", NODES, &TABLE, "").await.expect(200).json();
    assert_eq!(table["rows"][0]["cells"][0], "east");
    assert_eq!(table["rows"][0]["cells"][1], "Ready");
    a.post(NODES, json!({"metadata": {"name": "own"}})).await.expect(405);
    a.put(&format!("{NODES}/east"), node).await.expect(405);
    a.merge(&format!("{NODES}/east"), json!({"spec": {"unschedulable": true}})).await.expect(405);
    a.delete(&format!("{NODES}/east")).await.expect(405);
    a.delete(NODES).await.expect(405);
    let listed = a.get("/api/v1").await.expect(200).json();
    let resources = listed["resources"].as_array().unwrap();
    let nodes: Vec<&Value> =
        resources.iter().filter(|one| one["name"].as_str().unwrap().split('/').next() == Some("nodes")).collect();
    assert_eq!(nodes.len(), 1, "{nodes:?}");
    assert_eq!(nodes[0]["verbs"], json!(["get", "list", "watch"]));
    plane
        .store
        .range(portolan_store::RangeRequest::all(portolan_store::RangeScope::AllClusters(
            portolan_types::GroupResource::new("", "nodes"),
        )))
        .await
        .map(|page| assert_eq!(page.objects.len(), 0))
        .unwrap();
}

#[tokio::test]
async fn watches_follow_physical_clusters_within_reach() {
    let plane = plane().await;
    let admin = plane.admin();
    let b = admin.at("root:a:b");
    register(&admin, "east").await;
    let mut nodes = b.watch(&format!("{NODES}?watch=true"), &[]).await;
    let mut clusters = b.watch(&format!("{CLUSTERS}?watch=true"), &[]).await;
    let mut own = admin.watch(&format!("{CLUSTERS}?watch=true"), &[]).await;
    for watch in [&mut nodes, &mut clusters, &mut own] {
        assert_eq!(watch.seen().await, ("ADDED".into(), "east".into()));
    }
    register(&admin.at("root:other"), "elsewhere").await;
    admin.merge(&format!("{CLUSTERS}/east"), json!({"spec": {"unschedulable": true}})).await.expect(200);
    let stored = own.next().await.unwrap();
    assert_eq!((&stored["type"], stored["object"]["spec"]["connection"].is_object()), (&json!("MODIFIED"), true));
    let changed = clusters.next().await.unwrap();
    assert_eq!((&changed["type"], &changed["object"]["spec"]["connection"]), (&json!("MODIFIED"), &Value::Null));
    let changed = nodes.next().await.unwrap();
    assert_eq!((&changed["type"], &changed["object"]["kind"]), (&json!("MODIFIED"), &json!("Node")));
    assert_eq!(changed["object"]["spec"]["unschedulable"], true);
    register(&admin.at("root:a"), "south").await;
    assert_eq!(nodes.seen().await, ("ADDED".into(), "south".into()));
    assert_eq!(clusters.seen().await, ("ADDED".into(), "south".into()));
}

#[tokio::test(start_paused = true)]
async fn a_watch_ends_with_expired_when_other_physical_clusters_are_in_reach() {
    let plane = plane().await;
    let admin = plane.admin();
    register(&admin, "east").await;
    let binding = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/portolan:physicalcluster-users";
    let group =
        |name: &str| json!({"subjects": [{"kind": "Group", "apiGroup": "rbac.authorization.k8s.io", "name": name}]});
    for (subject, before, ends, after) in [
        ("system:clusters:root:a", vec!["east"], false, vec!["east"]),
        ("system:clusters:root:other", vec!["east"], true, vec![]),
        ("system:clusters", vec![], true, vec!["east"]),
    ] {
        for path in [NODES, CLUSTERS] {
            assert_eq!(names(&admin.at("root:a"), path).await, before, "{subject}: {path}");
        }
        let mut watches = Vec::new();
        for path in [NODES, CLUSTERS] {
            let watch = format!("{path}?watch=true&resourceVersion={}&timeoutSeconds=60", plane.store.current());
            watches.push(admin.at("root:a").watch(&watch, &[]).await);
        }
        admin.merge(binding, group(subject)).await.expect(200);
        tokio::time::advance(std::time::Duration::from_secs(11)).await;
        for watch in &mut watches {
            let event = watch.next().await;
            assert_eq!(
                event.as_ref().is_some_and(|event| event["object"]["code"] == 410),
                ends,
                "{subject}: {event:?}"
            );
        }
        for path in [NODES, CLUSTERS] {
            assert_eq!(names(&admin.at("root:a"), path).await, after, "{subject}: {path}");
        }
    }
}

#[tokio::test]
async fn a_resumed_watch_ends_with_expired_when_rights_have_changed_meanwhile() {
    let plane = plane().await;
    let admin = plane.admin();
    register(&admin, "east").await;
    let grant = async |subject: &str| {
        let binding = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/portolan:physicalcluster-users";
        let group = json!({"kind": "Group", "apiGroup": "rbac.authorization.k8s.io", "name": subject});
        admin.merge(binding, json!({"subjects": [group]})).await.expect(200);
        plane.store.current()
    };
    let everybody = grant("system:clusters").await;
    let itself = grant("system:clusters:root:a").await;
    let another = grant("system:clusters:root:other").await;
    let cordon = json!({"spec": {"unschedulable": true}});
    for (case, now, resumed, expected) in [
        ("the right is gone", "system:clusters:root:other", everybody, "ERROR"),
        ("the right is new", "system:clusters", another, "ERROR"),
        ("the right is the same", "system:clusters:root:a", everybody, "MODIFIED"),
        ("another had it meanwhile", "system:clusters:root:a", itself, "MODIFIED"),
    ] {
        grant(now).await;
        let uncordon = json!({"spec": {"unschedulable": false}});
        for change in [&cordon, &uncordon] {
            admin.merge(&format!("{CLUSTERS}/east"), change.clone()).await.expect(200);
        }
        for path in [NODES, CLUSTERS] {
            let watch = format!("{path}?watch=true&resourceVersion={resumed}");
            let event = admin.at("root:a").watch(&watch, &[]).await.next().await.unwrap();
            assert_eq!(event["type"], expected, "{case}: {path}: {event}");
            assert_eq!(event["object"]["code"] == 410, expected == "ERROR", "{case}: {path}: {event}");
        }
    }
}
