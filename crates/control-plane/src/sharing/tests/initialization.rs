//! Initializers and terminators of workspace types, and the views of their providers.

use portolan_apiserver::User;
use serde_json::{Value, json};

use super::{
    views::Watch,
    world::{World, admin, condition, user},
};

const WORKSPACES: &str = "apis/tenancy.kcp.io/v1alpha1/workspaces";
const TYPES: &str = "apis/tenancy.kcp.io/v1alpha1/workspacetypes";
const CLUSTERS: &str = "apis/core.kcp.io/v1alpha1/logicalclusters";
const MAPS: &str = "api/v1/namespaces/default/configmaps";

/// Kind of a step: the virtual workspace of its view, and the field of its pending steps.
#[derive(Clone, Copy)]
struct Step {
    view: &'static str,
    field: &'static str,
}

const INITIALIZER: Step = Step { view: "initializingworkspaces", field: "initializers" };
const TERMINATOR: Step = Step { view: "terminatingworkspaces", field: "terminators" };

impl World {
    /// World with the type `setup` in `provider`.
    async fn with_type(spec: Value) -> Self {
        let world = Self::new().await;
        world.post("root:provider", TYPES, json!({"metadata": {"name": "setup"}, "spec": spec})).await;
        world
    }

    async fn born(&self, name: &str) -> Value {
        let of_type = json!({"path": "root:provider", "name": "setup"});
        self.post("root", WORKSPACES, json!({"metadata": {"name": name}, "spec": {"type": of_type}})).await
    }

    async fn workspace(&self, name: &str) -> Value {
        self.get("root", &format!("{WORKSPACES}/{name}")).await.unwrap_or_default()
    }

    async fn uri(&self, step: Step, target: &str, path: &str) -> String {
        let target = if target == "*" { target.to_owned() } else { self.id(target).await };
        format!("/services/{}/{}:setup/clusters/{target}/{path}", step.view, self.id("provider").await)
    }

    /// Sends a request through the view of a step: method, target and path.
    async fn stepping(
        &self,
        user: &User,
        step: Step,
        (method, target, path): (&str, &str, &str),
        object: Value,
    ) -> (u16, Value) {
        self.send_as(user, method, &self.uri(step, target, path).await, object).await
    }

    /// Ends the step of `setup` in a workspace.
    async fn end_step(&self, step: Step, target: &str) -> Value {
        let path = format!("{CLUSTERS}/cluster/status");
        let patch = json!({"status": {step.field: null}});
        let (code, answer) = self.stepping(&admin(), step, ("PATCH", target, &path), patch).await;
        assert_eq!(code, 200, "{answer}");
        answer
    }

    async fn provider(&self, verb: &str) -> User {
        let rule = json!({
            "apiGroups": ["tenancy.kcp.io"], "resources": ["workspacetypes"], "resourceNames": ["setup"], "verbs": [verb],
        });
        self.allow("provider", "setter", rule).await;
        user("setter")
    }
}

/// Returns the type and the object of the next event.
async fn event(watch: &mut Watch) -> (String, Value) {
    let mut event = watch.next().await.expect("the watch continues");
    (event["type"].as_str().unwrap().to_owned(), event["object"].take())
}

#[tokio::test(start_paused = true)]
async fn a_workspace_is_ready_after_its_initializer() {
    let world = World::with_type(json!({"initializer": true})).await;
    let step = format!("{}:setup", world.id("provider").await);
    let kind = world.get("root:provider", &format!("{TYPES}/setup")).await.unwrap();
    let views = kind["status"]["virtualWorkspaces"].as_array().unwrap();
    assert_eq!((views.len(), &views[0]["type"]), (1, &json!("initializing")));
    assert!(views[0]["url"].as_str().unwrap().ends_with(&format!("/services/initializingworkspaces/{step}")));
    assert_eq!(kind["metadata"]["annotations"]["kcp.io/cluster"], world.id("provider").await.as_str());
    let uri = format!("{}?watch=true", world.uri(INITIALIZER, "*", CLUSTERS).await);
    let mut watch = Watch::of(world.open(&admin(), "GET", &uri, Value::Null).await.1);

    let born = world.born("new").await;
    assert_eq!((&born["status"]["phase"], &born["status"]["initializers"]), (&json!("Initializing"), &json!([step])));
    let labels = born["metadata"]["labels"].as_object().unwrap();
    assert!(labels.keys().any(|key| key.starts_with("initializer.internal.kcp.io/")), "{labels:?}");
    assert_eq!(condition(&born, "WorkspaceInitialized"), "False", "what is missing is in a condition");
    let face = world.get("root:new", &format!("{CLUSTERS}/cluster")).await.expect("its creator is in it already");
    assert_eq!((&face["status"]["phase"], &face["spec"]["initializers"]), (&json!("Initializing"), &json!([step])));

    let (change, shown) = event(&mut watch).await;
    assert_eq!((change.as_str(), &shown["metadata"]["annotations"]["kcp.io/path"]), ("ADDED", &json!("root:new")));
    let (code, list) = world.stepping(&admin(), INITIALIZER, ("GET", "*", CLUSTERS), Value::Null).await;
    let items = list["items"].as_array().unwrap();
    assert_eq!((code, items.len()), (200, 1), "{list}");
    assert_eq!(items[0]["metadata"]["annotations"]["kcp.io/cluster"], born["spec"]["cluster"]);
    assert_eq!(items[0]["metadata"]["resourceVersion"], shown["metadata"]["resourceVersion"]);

    let ended = world.end_step(INITIALIZER, "new").await;
    assert_eq!((&ended["status"]["phase"], ended["status"].get("initializers")), (&json!("Ready"), None));
    let ready = world.workspace("new").await;
    assert_eq!(
        (&ready["status"]["phase"], condition(&ready, "WorkspaceInitialized").as_str()),
        (&json!("Ready"), "True")
    );
    assert!(ready["status"].get("initializers").is_none() && ready["metadata"].get("labels").is_none(), "{ready}");
    assert_eq!(event(&mut watch).await.0, "DELETED", "it leaves the view");
    let (_, list) = world.stepping(&admin(), INITIALIZER, ("GET", "*", CLUSTERS), Value::Null).await;
    assert_eq!(list["items"], json!([]));
    let (code, _) = world.stepping(&admin(), INITIALIZER, ("GET", "new", MAPS), Value::Null).await;
    assert_eq!(code, 403, "its provider is out");
}

#[tokio::test(start_paused = true)]
async fn a_provider_reaches_what_waits_for_it_and_nothing_else() {
    let world = World::with_type(json!({"initializer": true, "terminator": true})).await;
    world.born("new").await;
    let setter = world.provider("initialize").await;
    let face = format!("{CLUSTERS}/cluster");
    let map = || json!({"metadata": {"name": "own"}});
    let nothing = || Value::Null;
    for (case, user, step, request, object, expected) in [
        ("the logical clusters", &setter, INITIALIZER, ("GET", "*", CLUSTERS), nothing(), 200),
        ("without the right", &user("ann"), INITIALIZER, ("GET", "*", CLUSTERS), nothing(), 403),
        ("with that of the other stage", &setter, TERMINATOR, ("GET", "*", CLUSTERS), nothing(), 403),
        ("discovery of all", &setter, INITIALIZER, ("GET", "*", "apis/core.kcp.io/v1alpha1"), nothing(), 200),
        ("other resources of all", &setter, INITIALIZER, ("GET", "*", "api/v1/configmaps"), nothing(), 404),
        ("a write to all", &setter, INITIALIZER, ("POST", "*", CLUSTERS), json!({}), 405),
        ("the one that waits", &setter, INITIALIZER, ("GET", "new", &*face), nothing(), 200),
        ("its list", &setter, INITIALIZER, ("GET", "new", CLUSTERS), nothing(), 200),
        ("a deletion of it", &setter, INITIALIZER, ("DELETE", "new", &*face), json!({}), 405),
        ("another name", &setter, INITIALIZER, ("GET", "new", &*format!("{CLUSTERS}/x")), nothing(), 404),
        ("one that waits for nothing", &setter, INITIALIZER, ("GET", "one", &*face), nothing(), 403),
        ("its content", &setter, INITIALIZER, ("GET", "one", MAPS), nothing(), 403),
        ("discovery in the one that waits", &setter, INITIALIZER, ("GET", "new", "apis"), nothing(), 200),
        ("a write to its content", &setter, INITIALIZER, ("POST", "new", MAPS), map(), 201),
        ("a read of its content", &setter, INITIALIZER, ("GET", "new", &*format!("{MAPS}/own")), nothing(), 200),
        ("paths of the server", &setter, INITIALIZER, ("GET", "new", "metrics"), nothing(), 404),
        ("its content in the other stage", &admin(), TERMINATOR, ("GET", "new", MAPS), nothing(), 403),
    ] {
        let (code, answer) = world.stepping(user, step, request, object).await;
        assert_eq!(code, expected, "{case}: {answer}");
    }
    let (code, _) = world.send_as(&setter, "GET", &format!("/clusters/root:new/{MAPS}"), Value::Null).await;
    assert_eq!(code, 403, "it has no rights without the view");
    for (case, uri) in [
        ("a type that does not exist", format!("/services/initializingworkspaces/root:nope/clusters/*/{CLUSTERS}")),
        ("a workspace that does not exist", format!("/services/initializingworkspaces/nope:x/clusters/*/{CLUSTERS}")),
        ("the system's own", format!("/services/initializingworkspaces/system:apibindings/clusters/*/{CLUSTERS}")),
    ] {
        let (code, answer) = world.send_as(&setter, "GET", &uri, Value::Null).await;
        assert_eq!(code, 403, "{case}: {answer}");
    }
    let by_path = format!("/services/initializingworkspaces/root:provider:setup/clusters/*/{CLUSTERS}");
    let (code, list) = world.send_as(&setter, "GET", &by_path, Value::Null).await;
    assert_eq!((code, list["items"].as_array().map(Vec::len)), (200, Some(1)), "the path of the type works, too");
}

#[tokio::test(start_paused = true)]
async fn a_provider_acts_as_the_creator_or_by_the_permissions_of_the_type() {
    let world = World::with_type(json!({"initializer": true})).await;
    let setter = world.provider("initialize").await;
    let (create, use_it) = (
        json!({"apiGroups": ["tenancy.kcp.io"], "resources": ["workspaces"], "verbs": ["create"]}),
        json!({"apiGroups": ["tenancy.kcp.io"], "resources": ["workspacetypes"], "verbs": ["use"]}),
    );
    world.allow("one", "ann", create).await;
    world.allow("provider", "ann", use_it).await;
    let of_type = json!({"path": "root:provider", "name": "setup"});
    let workspace = json!({"metadata": {"name": "of-ann"}, "spec": {"type": of_type}});
    let uri = format!("/clusters/root:one/{WORKSPACES}");
    let (code, born) = world.send_as(&user("ann"), "POST", &uri, workspace).await;
    assert_eq!(code, 201, "{born}");
    let base = format!(
        "/services/initializingworkspaces/root:provider:setup/clusters/{}",
        born["spec"]["cluster"].as_str().unwrap()
    );
    let child = json!({"metadata": {"name": "child"}});
    let (code, answer) = world.send_as(&setter, "POST", &format!("{base}/{WORKSPACES}"), child).await;
    assert_eq!((code, &answer["status"]["phase"]), (201, &json!("Ready")), "{answer}");
    let owner = &answer["metadata"]["annotations"]["experimental.tenancy.kcp.io/owner"];
    assert_eq!(owner.as_str().unwrap(), r#"{"username":"ann"}"#, "what it makes is the creator's");
    let (code, _) =
        world.send_as(&user("ann"), "GET", &format!("/clusters/root:one:of-ann:child/{MAPS}"), Value::Null).await;
    assert_eq!(code, 200, "who is the administrator of it");

    let rule = json!({"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "create"]});
    let limited = json!({"spec": {"initializerPermissions": [rule]}});
    world.merge("root:provider", &format!("{TYPES}/setup"), limited).await;
    for (method, path, object, expected) in [
        ("POST", MAPS, json!({"metadata": {"name": "own"}}), 201),
        ("GET", MAPS, Value::Null, 403),
        ("GET", "api/v1/namespaces/default/secrets", Value::Null, 403),
        ("GET", &*format!("{CLUSTERS}/cluster"), Value::Null, 200),
    ] {
        let (code, answer) = world.send_as(&setter, method, &format!("{base}/{path}"), object).await;
        assert_eq!(code, expected, "{method} {path}: {answer}");
    }
    world.delete("root:provider", &format!("{TYPES}/setup")).await;
    let (code, _) = world.send_as(&setter, "GET", &format!("{base}/{MAPS}/own"), Value::Null).await;
    assert_eq!(code, 503, "without the type its permissions are unknown");
    let (code, answer) = world
        .send_as(&setter, "PATCH", &format!("{base}/{CLUSTERS}/cluster"), json!({"status": {"initializers": []}}))
        .await;
    assert_eq!((code, &answer["status"]["phase"]), (200, &json!("Ready")), "but it can let go: {answer}");
}

#[tokio::test(start_paused = true)]
async fn only_the_own_step_can_be_ended() {
    let world = World::with_type(json!({"initializer": true, "extend": {"with": [{"name": "base"}]}})).await;
    let base = json!({"metadata": {"name": "base"}, "spec": {"initializer": true}});
    world.post("root:provider", TYPES, base).await;
    let born = world.born("new").await;
    let id = world.id("provider").await;
    let steps = [format!("{id}:setup"), format!("{id}:base")];
    assert_eq!(born["status"]["initializers"], json!(steps), "a type has the initializers of those that it extends");
    let path = format!("{CLUSTERS}/cluster/status");
    for (case, patch, expected) in [
        ("another one", json!({"status": {"initializers": [steps[0]]}}), 422),
        ("all", json!({"status": {"initializers": []}}), 422),
        ("one more", json!({"status": {"initializers": [steps[0], steps[1], "root:x"]}}), 422),
        ("a terminator", json!({"status": {"terminators": ["root:x"]}}), 422),
        ("an old revision", json!({"metadata": {"resourceVersion": "1"}, "status": {"initializers": [steps[1]]}}), 409),
        ("nothing", json!({"status": {"phase": "Ready"}}), 200),
    ] {
        let (code, answer) = world.stepping(&admin(), INITIALIZER, ("PATCH", "new", &path), patch).await;
        assert_eq!(code, expected, "{case}: {answer}");
        assert_eq!(world.workspace("new").await["status"]["initializers"], json!(steps), "{case}");
    }
    let forged = json!({"metadata": {"labels": null}, "status": {"phase": "Ready", "initializers": null}});
    for path in [format!("{WORKSPACES}/new"), format!("{WORKSPACES}/new/status")] {
        world.merge("root", &path, forged.clone()).await;
        let kept = world.workspace("new").await;
        assert_eq!(
            (&kept["status"], &kept["metadata"]["labels"]),
            (&born["status"], &born["metadata"]["labels"]),
            "{path}"
        );
    }
    let (_, mut face) = world.stepping(&admin(), INITIALIZER, ("GET", "new", &*path), Value::Null).await;
    face["status"]["initializers"] = json!([steps[1]]);
    let (code, answer) = world.stepping(&admin(), INITIALIZER, ("PUT", "new", &path), face).await;
    assert_eq!((code, &answer["status"]["initializers"]), (200, &json!([steps[1]])), "{answer}");
    assert_eq!(world.workspace("new").await["status"]["phase"], "Initializing");
}

#[tokio::test(start_paused = true)]
async fn a_terminator_holds_the_deletion() {
    let world = World::with_type(json!({"terminator": true})).await;
    let born = world.born("old").await;
    assert_eq!(born["status"]["phase"], "Ready", "nothing initializes it");
    world.post("root:old", MAPS, json!({"metadata": {"name": "kept"}})).await;
    world.delete("root", &format!("{WORKSPACES}/old")).await;
    let terminating = || async { world.workspace("old").await["status"]["phase"] == "Terminating" };
    world.until("it waits", terminating).await;
    let (_, list) = world.stepping(&admin(), TERMINATOR, ("GET", "*", CLUSTERS), Value::Null).await;
    assert!(list["items"][0]["metadata"]["deletionTimestamp"].is_string(), "{list}");
    let (code, _) = world.stepping(&admin(), TERMINATOR, ("GET", "old", &*format!("{MAPS}/kept")), Value::Null).await;
    assert_eq!(code, 200, "its provider still finds the content");
    let (code, _) = world.send("POST", "root:old", WORKSPACES, json!({"metadata": {"name": "x"}})).await;
    assert_eq!(code, 403, "nothing is created below it");
    tokio::time::sleep(std::time::Duration::from_secs(60)).await;
    assert!(world.get("root:old", &format!("{MAPS}/kept")).await.is_some(), "for as long as it takes");
    let ended = world.end_step(TERMINATOR, "old").await;
    assert_eq!(ended["status"]["phase"], "Deleting");
    world.until("it is gone", || async { world.workspace("old").await.is_null() }).await;
}

#[tokio::test(start_paused = true)]
async fn an_initializer_that_never_ends_holds_no_deletion() {
    let world = World::with_type(json!({"initializer": true})).await;
    let born = world.born("stuck").await;
    let conditions = born["status"]["conditions"].as_array().unwrap();
    let why = conditions.iter().find(|own| own["type"] == "WorkspaceInitialized").unwrap();
    assert!(why["message"].as_str().unwrap().ends_with(":setup"), "{why}");
    world.delete("root", &format!("{WORKSPACES}/stuck")).await;
    world.until("it is gone", || async { world.workspace("stuck").await.is_null() }).await;
    let (_, list) = world.stepping(&admin(), INITIALIZER, ("GET", "*", CLUSTERS), Value::Null).await;
    assert_eq!(list["items"], json!([]));
}

#[tokio::test(start_paused = true)]
async fn types_that_cannot_be_resolved_make_no_workspace() {
    let world = World::new().await;
    let extends =
        |all: &[&str]| json!({"extend": {"with": all.iter().map(|name| json!({"name": name})).collect::<Vec<_>>()}});
    for (name, spec) in [
        ("self", extends(&["self"])),
        ("left", extends(&["right"])),
        ("right", extends(&["left"])),
        ("above", extends(&["left"])),
        ("dangling", extends(&["gone"])),
        ("diamond", extends(&["one", "two"])),
        ("one", extends(&["end"])),
        ("two", extends(&["end"])),
        ("end", json!({"initializer": true})),
    ] {
        world.post("root", TYPES, json!({"metadata": {"name": name}, "spec": spec})).await;
    }
    for (name, expected) in [
        ("self", Err("root:self extends itself")),
        ("left", Err("extends itself")),
        ("above", Err("extends itself")),
        ("dangling", Err("root:dangling extends root:gone, which does not exist")),
        ("diamond", Ok(json!(["root:end"]))),
    ] {
        let workspace = json!({"metadata": {"name": name}, "spec": {"type": {"name": name}}});
        let (code, answer) = world.send("POST", "root", WORKSPACES, workspace).await;
        match expected {
            Ok(steps) => assert_eq!((code, &answer["status"]["initializers"]), (201, &steps), "{name}: {answer}"),
            Err(why) => {
                assert_eq!(code, 403, "{name}: {answer}");
                assert!(answer["message"].as_str().unwrap().contains(why), "{name}: {answer}");
            }
        }
    }
}
