//! Limits of what a workspace stores, with all workspaces below it.

use serde_json::{Value, json};

use crate::common::{Client, MAPS, Plane, config_map};

const WORKSPACES: &str = "/apis/tenancy.kcp.io/v1alpha1/workspaces";
const MAX_OBJECTS: &str = "core.kcp.io/max-total-objects";
const MAX_BYTES: &str = "core.kcp.io/max-total-bytes";

fn workspace(name: &str, annotations: Value) -> Value {
    json!({"apiVersion": "tenancy.kcp.io/v1alpha1", "kind": "Workspace",
        "metadata": {"name": name, "annotations": annotations}})
}

async fn make(client: &Client, name: &str, annotations: Value) {
    client.post(WORKSPACES, workspace(name, annotations)).await.expect(201);
}

/// Creates ConfigMaps until one is refused. Returns their number and the refusal.
async fn fill(client: &Client) -> (usize, Value) {
    for n in 0..100 {
        let answer = client.post(MAPS, config_map(&format!("m{n}"), json!({}))).await;
        match answer.code {
            201 => {}
            _ => return (n, answer.expect(403).json()),
        }
    }
    panic!("nothing was refused");
}

async fn let_in(admin: &Client, user: &str, verbs: Value) {
    let group = "rbac.authorization.k8s.io";
    let role = json!({"metadata": {"name": "makes"}, "rules": [
        {"apiGroups": ["tenancy.kcp.io"], "resources": ["workspaces"], "verbs": verbs}]});
    admin.post(&format!("/apis/{group}/v1/clusterroles"), role).await.expect(201);
    let binding = json!({"metadata": {"name": "makes"}, "subjects": [{"kind": "User", "apiGroup": group, "name": user}],
        "roleRef": {"kind": "ClusterRole", "apiGroup": group, "name": "makes"}});
    admin.post(&format!("/apis/{group}/v1/clusterrolebindings"), binding).await.expect(201);
}

#[tokio::test]
async fn a_workspace_stores_no_more_objects_than_it_may() {
    let plane = Plane::new().await;
    let admin = plane.admin();
    make(&admin, "shop", json!({MAX_OBJECTS: "20"})).await;
    make(&admin, "other", json!({})).await;
    let shop = admin.at("root:shop");
    let (made, refused) = fill(&shop).await;
    assert!(made > 5, "{made}");
    let why = "workspace \"root:shop\" may store 20 objects with all workspaces below it \
        (core.kcp.io/max-total-objects), and stores 20";
    let name = refused["details"]["name"].as_str().unwrap();
    assert_eq!(refused["message"], format!("configmaps {name:?} is forbidden: {why}"));
    assert_eq!(refused["reason"], "Forbidden");
    let dry = shop.post(&format!("{MAPS}?dryRun=All"), config_map("dry", json!({}))).await.expect(403).json();
    assert_eq!(dry["message"], format!("configmaps \"dry\" is forbidden: {why}"));
    shop.merge(&format!("{MAPS}/m0?dryRun=All"), json!({"data": {"k": "changed"}})).await.expect(200);
    shop.merge(&format!("{MAPS}/m0"), json!({"data": {"k": "changed"}})).await.expect(200);
    admin.at("root:other").post(MAPS, config_map("a", json!({}))).await.expect(201);
    admin.post(MAPS, config_map("a", json!({}))).await.expect(201);
    shop.delete(&format!("{MAPS}/m0")).await.expect(200);
    shop.post(MAPS, config_map("again", json!({}))).await.expect(201);
    shop.post(MAPS, config_map("more", json!({}))).await.expect(403);

    let face = shop.get("/apis/core.kcp.io/v1alpha1/logicalclusters/cluster").await.expect(200).json();
    assert_eq!(face["metadata"]["annotations"][MAX_OBJECTS], "20");
    admin
        .merge(&format!("{WORKSPACES}/shop"), json!({"metadata": {"annotations": {MAX_OBJECTS: "21"}}}))
        .await
        .expect(200);
    shop.post(MAPS, config_map("more", json!({}))).await.expect(201);
    shop.post(MAPS, config_map("most", json!({}))).await.expect(403);
    admin
        .merge(&format!("{WORKSPACES}/shop"), json!({"metadata": {"annotations": {MAX_OBJECTS: null}}}))
        .await
        .expect(200);
    shop.post(MAPS, config_map("most", json!({}))).await.expect(201);
}

#[tokio::test]
async fn the_bytes_of_a_workspace_are_limited_too_and_the_server_has_limits_of_its_own() {
    let plane = Plane::with(|config| {
        config.limits.workspace_objects = 30;
        config.limits.workspace_bytes = 200_000;
    })
    .await;
    let admin = plane.admin();
    make(&admin, "shop", json!({})).await;
    make(&admin, "small", json!({MAX_BYTES: "64Ki"})).await;
    let large = |name: &str| {
        let mut map = config_map(name, json!({}));
        map["data"]["k"] = "x".repeat(50_000).into();
        map
    };
    for (path, fitting) in [("root:small", 1), ("root:shop", 3)] {
        let inside = admin.at(path);
        for n in 0..fitting {
            inside.post(MAPS, large(&format!("large{n}"))).await.expect(201);
        }
        let why = inside.post(MAPS, large("more")).await.expect(403).message();
        assert!(why.contains("core.kcp.io/max-total-bytes") && why.contains(&format!("{path:?}")), "{why}");
        let grown = json!({"data": {"more": "x".repeat(50_000)}});
        inside.merge(&format!("{MAPS}/large0?dryRun=All"), grown.clone()).await.expect(403);
        inside.merge(&format!("{MAPS}/large0"), grown).await.expect(403);
    }
    let (_, refused) = fill(&admin.at("root:shop")).await;
    assert!(refused["message"].as_str().unwrap().contains("may store 30 objects"), "{refused}");
}

#[tokio::test]
async fn descendant_workspaces_count_for_their_ancestors() {
    let plane = Plane::new().await;
    let admin = plane.admin();
    make(&admin, "shop", json!({MAX_OBJECTS: "30"})).await;
    let shop = admin.at("root:shop");
    make(&shop, "team", json!({MAX_OBJECTS: "1000"})).await;
    let (made, refused) = fill(&admin.at("root:shop:team")).await;
    assert!(refused["message"].as_str().unwrap().contains("\"root:shop\" may store 30"), "{made}: {refused}");
    shop.post(MAPS, config_map("a", json!({}))).await.expect(403);
    shop.post(WORKSPACES, workspace("more", json!({}))).await.expect(403);
    shop.delete(&format!("{WORKSPACES}/team")).await.expect(200);
}

#[tokio::test]
async fn a_tenant_cannot_lift_its_limits() {
    let plane = Plane::new().await;
    let (admin, ann) = (plane.admin(), plane.as_user("ann"));
    let_in(&admin, "ann", json!(["create", "get", "patch", "update"])).await;
    let refused = ann.post(WORKSPACES, workspace("large", json!({MAX_OBJECTS: "1000000000"}))).await.expect(403);
    assert!(refused.message().contains("the verb \"limit\""), "{}", refused.message());
    make(&admin, "shop", json!({MAX_OBJECTS: "30"})).await;
    let path = format!("{WORKSPACES}/shop");
    for annotations in [json!({MAX_OBJECTS: "31"}), json!({MAX_OBJECTS: null}), json!({MAX_BYTES: "1Ti"})] {
        ann.merge(&path, json!({"metadata": {"annotations": annotations}})).await.expect(403);
    }
    ann.merge(&path, json!({"metadata": {"annotations": {"color": "red"}}})).await.expect(200);
    for (key, text) in [(MAX_OBJECTS, "many"), (MAX_BYTES, "-1")] {
        let refused = admin.merge(&path, json!({"metadata": {"annotations": {key: text}}})).await.expect(422).json();
        assert_eq!(refused["details"]["causes"][0]["field"], format!("metadata.annotations[{key}]"));
    }
    // The creator of a workspace may do everything in it, and nothing about it.
    ann.post(WORKSPACES, workspace("own", json!({}))).await.expect(201);
    make(&ann.at("root:own"), "child", json!({MAX_OBJECTS: "50"})).await;
}
