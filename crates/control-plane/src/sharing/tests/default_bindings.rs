//! Default bindings of workspace types.

use serde_json::{Value, json};

use super::world::{V2, WIDGETS, World, admin, condition, user, widget};

const WORKSPACES: &str = "apis/tenancy.kcp.io/v1alpha1/workspaces";
const TYPES: &str = "apis/tenancy.kcp.io/v1alpha1/workspacetypes";

fn binding_type(name: &str, path: &str, export: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": {"defaultAPIBindings": [{"path": path, "export": export}]}})
}

fn workspace(name: &str, of_type: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": {"type": {"path": "root:provider", "name": of_type}}})
}

impl World {
    async fn phase(&self, name: &str) -> Value {
        self.get("root", &format!("{WORKSPACES}/{name}")).await.unwrap_or_default()["status"]["phase"].take()
    }
}

#[tokio::test(start_paused = true)]
async fn a_workspace_is_ready_once_its_default_bindings_are_bound() {
    let world = World::exporting().await;
    let claims = json!({"spec": {"permissionClaims": [{"group": "", "resource": "configmaps", "verbs": ["get"]}]}});
    world.merge("root:provider", &format!("{V2}/apiexports/widgets"), claims).await;
    world.post("root:provider", TYPES, binding_type("widgety", "", "widgets")).await;
    let born = world.post("root", WORKSPACES, workspace("new", "widgety")).await;
    assert_eq!(born["status"]["initializers"], json!(["system:apibindings"]));
    world.until("it is ready", || async { world.phase("new").await == "Ready" }).await;
    let bindings = world.get("root:new", &format!("{V2}/apibindings")).await.unwrap();
    let binding = &bindings["items"][0];
    assert_eq!(binding["status"]["phase"], "Bound");
    assert_eq!(binding["spec"]["permissionClaims"][0]["state"], "Accepted", "the user accepts them with the type");
    world.post("root:new", WIDGETS, widget("a", 1)).await;
}

#[tokio::test(start_paused = true)]
async fn a_workspace_waits_for_a_missing_export() {
    let world = World::exporting().await;
    world.post("root:provider", TYPES, binding_type("early", "root:provider", "later")).await;
    for name in ["waiting", "given-up"] {
        world.post("root", WORKSPACES, workspace(name, "early")).await;
    }
    world
        .until("the condition says so", || async {
            let found = world.get("root", &format!("{WORKSPACES}/waiting")).await.unwrap();
            let conditions = found["status"]["conditions"].as_array().unwrap();
            let own = conditions.iter().find(|own| own["type"] == "APIBindingsInitialized");
            own.is_some_and(|own| own["message"] == "APIExport root:provider|later not found")
        })
        .await;
    world.delete("root", &format!("{WORKSPACES}/given-up")).await;
    world.until("it can be deleted", || async { world.phase("given-up").await.is_null() }).await;
    world.post("root:provider", &format!("{V2}/apiexports"), json!({"metadata": {"name": "later"}})).await;
    world.until("the export has come", || async { world.phase("waiting").await == "Ready" }).await;
    let found = world.get("root", &format!("{WORKSPACES}/waiting")).await.unwrap();
    assert_eq!(condition(&found, "WorkspaceInitialized"), "True");
}

#[tokio::test(start_paused = true)]
async fn a_default_binding_takes_the_right_to_bind() {
    let world = World::exporting().await;
    world.allow("one", "ann", json!({"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]})).await;
    let ann = user("ann");
    let uri = format!("/clusters/root:one/{TYPES}");
    let mut refused = Vec::new();
    for (path, export) in [("root:provider", "widgets"), ("root:provider", "missing"), ("root:nowhere", "widgets")] {
        let (code, answer) = world.send_as(&ann, "POST", &uri, binding_type("x", path, export)).await;
        assert_eq!(code, 403, "{answer}");
        refused.push(answer["message"].as_str().unwrap().replace(&format!("{path}:{export}"), "P:E"));
    }
    assert!(refused.iter().all(|other| *other == refused[0]), "no answer tells which export there is: {refused:?}");
    let (code, _) = world.send_as(&ann, "POST", &uri, json!({"metadata": {"name": "plain"}})).await;
    assert_eq!(code, 201);
    let added = binding_type("plain", "root:provider", "widgets");
    let (code, answer) = world.send_as(&ann, "PATCH", &format!("{uri}/plain"), added.clone()).await;
    assert_eq!(code, 403, "a type cannot gain it later: {answer}");
    let (code, _) = world.send_as(&admin(), "PATCH", &format!("{uri}/plain"), added).await;
    assert_eq!(code, 200);
    let labelled = json!({"metadata": {"labels": {"a": "b"}}});
    let (code, answer) = world.send_as(&ann, "PATCH", &format!("{uri}/plain"), labelled).await;
    assert_eq!(code, 200, "another change of the type takes no right: {answer}");
}
