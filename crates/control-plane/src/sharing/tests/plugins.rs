//! Requests of kcp's plugins `kubectl kcp bind apiexport` and `kubectl kcp claims`, in their order.

use serde_json::{Value, json};

use super::world::{V1, V2, World};

/// Reads all of discovery, as `ServerPreferredResources` does: one group that fails breaks the plugin. Returns the
/// versions that have a resource of `apis.kcp.io`.
async fn discovered(world: &World, cluster: &str, plural: &str) -> Vec<String> {
    let core = world.get(cluster, "api/v1").await.expect("the core group");
    assert!(core["resources"].as_array().is_some_and(|all| !all.is_empty()));
    let groups = world.get(cluster, "apis").await.expect("the groups");
    let mut found = Vec::new();
    for group in groups["groups"].as_array().unwrap() {
        for version in group["versions"].as_array().unwrap() {
            let version = version["groupVersion"].as_str().unwrap();
            let list = world.get(cluster, &format!("apis/{version}")).await;
            let list = list.unwrap_or_else(|| panic!("{version} cannot be discovered"));
            let has = list["resources"].as_array().unwrap().iter().any(|own| own["name"] == plural);
            found.extend((has && group["name"] == "apis.kcp.io").then(|| version.to_owned()));
        }
    }
    found
}

#[tokio::test(start_paused = true)]
async fn the_plugins_bind_and_decide_about_claims() {
    let world = World::exporting().await;
    let claims = json!({"spec": {"permissionClaims": [{"group": "", "resource": "configmaps", "verbs": ["*"]}]}});
    world.merge("root:provider", &format!("{V2}/apiexports/widgets"), claims).await;
    let versions = discovered(&world, "root:one", "apibindings").await;
    assert_eq!(versions, ["apis.kcp.io/v1alpha2", "apis.kcp.io/v1alpha1"], "the newer one is preferred");
    let export = world.get("root:provider", &format!("{V1}/apiexports/widgets")).await.expect("in the old version");
    assert_eq!(export["spec"]["permissionClaims"][0]["all"], true, "{export}");
    let binding = json!({
        "metadata": {"name": "widgets"},
        "spec": {
            "reference": {"export": {"path": "root:provider", "name": "widgets"}},
            "permissionClaims": [{
                "group": "", "resource": "configmaps", "verbs": ["*"], "selector": {"matchAll": true},
                "state": "Accepted",
            }],
        },
    });
    let made = world.post("root:one", &format!("{V2}/apibindings"), binding).await;
    assert_eq!(made["metadata"]["name"], "widgets");
    world.until_bound("one", "widgets").await;
    assert_eq!(discovered(&world, "root:one", "apibindings").await.len(), 2, "discovery is whole with the new group");
    let listed = world.get("root:one", &format!("{V2}/apibindings")).await.unwrap();
    let mut bound: Value = listed["items"][0].clone();
    assert_eq!(bound["status"]["exportPermissionClaims"][0]["resource"], "configmaps", "{bound}");
    bound["spec"]["permissionClaims"][0]["state"] = "Rejected".into();
    let (code, answer) = world.send("PUT", "root:one", &format!("{V2}/apibindings/widgets"), bound).await;
    assert_eq!(code, 200, "{answer}");
    world
        .until("the claim is withdrawn", || async {
            world.binding("one", "widgets").await.pointer("/status/appliedPermissionClaims").is_none()
        })
        .await;
}
