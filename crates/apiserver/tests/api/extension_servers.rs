//! Objects that extension API servers read when they start.

use serde_json::{Value, json};

use crate::common::{Client, Plane, config_map};

const MAPS: &str = "/api/v1/namespaces/kube-system/configmaps";
const NAME: &str = "extension-apiserver-authentication";
const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1/namespaces/kube-system";

async fn names(client: &Client, path: &str) -> Vec<String> {
    let listed = client.get(path).await.expect(200).json();
    let items = listed["items"].as_array().unwrap();
    items.iter().map(|item| item["metadata"]["name"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn every_workspace_publishes_its_extension_authentication() {
    let plane = Plane::new().await;
    let admin = plane.admin();
    let workspace = json!({"apiVersion": "tenancy.kcp.io/v1alpha1", "kind": "Workspace", "metadata": {"name": "a"}});
    admin.post("/apis/tenancy.kcp.io/v1alpha1/workspaces", workspace).await.expect(201);
    for client in [admin.clone(), admin.at("root:a")] {
        let map = client.get(&format!("{MAPS}/{NAME}")).await.expect(200).json();
        let keys: Vec<&String> = map["data"].as_object().unwrap().keys().collect();
        let headers =
            ["requestheader-extra-headers-prefix", "requestheader-group-headers", "requestheader-username-headers"];
        let authorities = ["requestheader-allowed-names", "requestheader-client-ca-file"];
        let mut expected = [&["client-ca-file"][..], &headers, &authorities].concat();
        expected.sort_unstable();
        assert_eq!(keys, expected);
        assert_eq!(map["data"]["requestheader-allowed-names"], r#"["portolan-front-proxy"]"#);
        assert!(map["data"]["client-ca-file"].as_str().unwrap().starts_with("-----BEGIN CERTIFICATE-----"));
        assert_eq!(map["metadata"]["namespace"], "kube-system");
        let only = format!("?fieldSelector=metadata.name={NAME}");
        for path in
            [MAPS.to_owned(), format!("{MAPS}{only}"), format!("/api/v1/configmaps{only}"), format!("{MAPS}?limit=1")]
        {
            assert_eq!(names(&client, &path).await, [NAME], "{path}");
        }
        assert_eq!(names(&client, &format!("{MAPS}?labelSelector=a=b")).await, Vec::<String>::new());
        assert_eq!(names(&client, "/api/v1/namespaces/default/configmaps").await, Vec::<String>::new());
        let mut watch = client.watch(&format!("{MAPS}?watch=true"), &[]).await;
        assert_eq!(watch.seen().await, ("ADDED".into(), NAME.into()));
    }
}

#[tokio::test]
async fn the_reader_role_grants_reads_only() {
    let plane = Plane::new().await;
    let admin = plane.admin();
    assert_eq!(names(&admin, &format!("{RBAC}/roles")).await, ["extension-apiserver-authentication-reader"]);
    let binding = json!({"metadata": {"name": "metrics"},
        "subjects": [{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "ann"}],
        "roleRef": {"kind": "Role", "apiGroup": "rbac.authorization.k8s.io", "name": "extension-apiserver-authentication-reader"}});
    let ann = plane.as_user("ann");
    ann.get(&format!("{MAPS}/{NAME}")).await.expect(403);
    admin.post(&format!("{RBAC}/rolebindings"), binding).await.expect(201);
    admin.post(MAPS, config_map("other", json!({}))).await.expect(201);
    ann.get(&format!("{MAPS}/{NAME}")).await.expect(200);
    ann.get(&format!("{MAPS}?fieldSelector=metadata.name={NAME}")).await.expect(200);
    ann.get(&format!("{MAPS}/other")).await.expect(403);
    ann.get(MAPS).await.expect(403);
}

#[tokio::test]
async fn a_workspace_that_changes_it_has_its_own() {
    let plane = Plane::new().await;
    let admin = plane.admin();
    let workspace = json!({"apiVersion": "tenancy.kcp.io/v1alpha1", "kind": "Workspace", "metadata": {"name": "a"}});
    admin.post("/apis/tenancy.kcp.io/v1alpha1/workspaces", workspace).await.expect(201);
    let (inside, path) = (admin.at("root:a"), format!("{MAPS}/{NAME}"));
    let mut watch = inside.watch(&format!("{MAPS}?watch=true"), &[]).await;
    assert_eq!(watch.seen().await.0, "ADDED");
    let changed = inside.merge(&path, json!({"data": {"more": "x"}})).await.expect(200).json();
    assert!(changed["data"]["client-ca-file"].is_string());
    assert_eq!(watch.seen().await, ("MODIFIED".into(), NAME.into()));
    assert_eq!(inside.get(&path).await.expect(200).json()["data"]["more"], "x");
    assert_eq!(names(&inside, "/api/v1/configmaps").await, [NAME]);
    assert_eq!(admin.get(&path).await.expect(200).json()["data"]["more"], Value::Null);
    inside.delete(&path).await.expect(200);
    assert_eq!(watch.seen().await, ("MODIFIED".into(), NAME.into()), "the shared one is shown again");
    assert_eq!(inside.get(&path).await.expect(200).json()["data"]["more"], Value::Null);
    inside.delete(&path).await.expect(403);
    inside.merge(&path, json!({"data": {"more": "y"}})).await.expect(200);
    inside.delete(MAPS).await.expect(200);
    assert_eq!(inside.get(&path).await.expect(200).json()["data"]["more"], Value::Null);
    admin.delete(&path).await.expect(403);
    admin.delete(MAPS).await.expect(200);
    admin.get(&path).await.expect(200);
}
