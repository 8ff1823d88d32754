//! Exports and bindings.

use serde_json::{Value, json};

use super::world::{V1, V2, WIDGETS, World, admin, binding, condition, exported, schema, user, widget};

#[tokio::test(start_paused = true)]
async fn a_bound_resource_is_served_as_a_defined_one() {
    let world = World::exporting().await;
    assert!(world.get("root:one", WIDGETS).await.is_none(), "nothing is bound");
    world.bind("one", json!([])).await;
    let list = world.get("root:one", "apis/example.dev/v1").await.expect("its group is served");
    assert_eq!(list["resources"][0]["name"], "widgets", "{list}");
    world.post("root:one", WIDGETS, widget("a", 3)).await;
    let (code, answer) = world.send("POST", "root:one", WIDGETS, widget("b", 0)).await;
    assert_eq!(code, 422, "its schema is checked: {answer}");
    let path = format!("{WIDGETS}/a");
    let changed = world.merge("root:one", &path, json!({"spec": {"size": 4}})).await;
    assert_eq!(changed["spec"]["size"], 4);
    let status = world.merge("root:one", &format!("{path}/status"), json!({"status": {"phase": "Up"}})).await;
    assert_eq!(status["status"]["phase"], "Up");
    let listed = world.get("root:one", WIDGETS).await.unwrap();
    assert_eq!(listed["items"].as_array().map(Vec::len), Some(1));
    let document = world.get("root:one", "openapi/v3/apis/example.dev/v1").await.expect("it is documented");
    assert!(document.to_string().contains("dev.example.v1.Widget"), "{document}");
    assert!(world.get("root:two", WIDGETS).await.is_none(), "another workspace has not bound it");
}

#[tokio::test(start_paused = true)]
async fn a_binding_shows_its_export() {
    let world = World::exporting().await;
    world.bind("one", json!([])).await;
    let bound = world.binding("one", "widgets").await;
    let export = world.get("root:provider", &format!("{V2}/apiexports/widgets")).await.unwrap();
    assert_eq!(bound["status"]["apiExportClusterName"], world.id("provider").await.as_str());
    let resource = &bound["status"]["boundResources"][0];
    assert_eq!(resource["schema"]["identityHash"], export["status"]["identityHash"]);
    assert_eq!(resource["storageVersions"], json!(["v1"]));
    let expected = ["APIExportValid", "InitialBindingCompleted", "BindingUpToDate", "PermissionClaimsValid", "Ready"];
    for name in expected {
        assert_eq!(condition(&bound, name), "True", "{name}: {bound}");
    }
    let old = world.get("root:one", &format!("{V1}/apibindings/widgets")).await.unwrap();
    assert_eq!((&old["apiVersion"], &old["status"]["phase"]), (&json!("apis.kcp.io/v1alpha1"), &json!("Bound")));
    let old = world.get("root:provider", &format!("{V1}/apiexports/widgets")).await.unwrap();
    assert_eq!(old["spec"]["latestResourceSchemas"], json!(["v1.widgets.example.dev"]));
}

#[tokio::test(start_paused = true)]
async fn an_export_has_addresses_once_it_is_bound() {
    let world = World::exporting().await;
    let slice = || async {
        world.get("root:provider", &format!("{V1}/apiexportendpointslices/widgets")).await.unwrap_or_default()
    };
    world.until("the slice is made", || async { condition(&slice().await, "APIExportValid") == "True" }).await;
    assert_eq!(slice().await.pointer("/status/endpoints"), None);
    world.bind("one", json!([])).await;
    let expected = format!("/services/apiexport/{}/widgets", world.id("provider").await);
    world
        .until("it has an address", || async {
            let url = slice().await.pointer("/status/endpoints/0/url").cloned().unwrap_or_default();
            url.as_str().is_some_and(|url| url.starts_with("https://") && url.ends_with(&expected))
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn unbinding_deletes_the_objects() {
    let world = World::exporting().await;
    world.bind("one", json!([])).await;
    world.bind("two", json!([])).await;
    world.post("root:one", WIDGETS, widget("a", 1)).await;
    world.post("root:two", WIDGETS, widget("a", 1)).await;
    world.delete("root:one", &format!("{V2}/apibindings/widgets")).await;
    let gone = || async { world.binding("one", "widgets").await.is_null() };
    world.until("the binding is gone", gone).await;
    assert!(world.get("root:one", WIDGETS).await.is_none(), "nothing is served");
    world.bind("one", json!([])).await;
    let listed = world.get("root:one", WIDGETS).await.unwrap();
    assert_eq!(listed["items"], json!([]), "the objects are gone");
    assert!(world.get("root:two", &format!("{WIDGETS}/a")).await.is_some(), "another workspace keeps its own");
}

#[tokio::test(start_paused = true)]
async fn the_first_definition_keeps_its_names() {
    let world = World::exporting().await;
    world.bind("one", json!([])).await;
    world.post("root:one", &format!("{V2}/apibindings"), binding("again", json!([]))).await;
    let conflicts = |name: &'static str| {
        let world = &world;
        async move {
            let binding = world.binding("one", name).await;
            condition(&binding, "InitialBindingCompleted") == "False" && binding["status"]["phase"] == "Binding"
        }
    };
    world.until("a second binding of the resource waits", || conflicts("again")).await;
    world.delete("root:one", &format!("{V2}/apibindings/widgets")).await;
    world.until_bound("one", "again").await;
}

#[tokio::test(start_paused = true)]
async fn a_binding_needs_the_right_to_bind() {
    let world = World::exporting().await;
    let anything = json!({"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]});
    world.allow("one", "ann", anything).await;
    let uri = format!("/clusters/root:one/{V2}/apibindings");
    let (code, answer) = world.send_as(&user("ann"), "POST", &uri, binding("widgets", json!([]))).await;
    assert_eq!(code, 403, "{answer}");
    assert!(answer["message"].as_str().unwrap().contains("no permission to bind to export root:provider:widgets"));
    let mut missing = binding("missing", json!([]));
    missing["spec"]["reference"]["export"]["path"] = "root:nowhere".into();
    let (code, _) = world.send_as(&user("ann"), "POST", &uri, missing).await;
    assert_eq!(code, 403, "a workspace that does not exist looks the same");
    let bind = json!({"apiGroups": ["apis.kcp.io"], "resources": ["apiexports"], "verbs": ["bind"]});
    world.allow("provider", "ann", bind).await;
    let (code, answer) = world.send_as(&user("ann"), "POST", &uri, binding("widgets", json!([]))).await;
    assert_eq!(code, 201, "{answer}");
    world.until_bound("one", "widgets").await;
}

#[tokio::test(start_paused = true)]
async fn no_client_writes_the_status_of_a_binding() {
    let world = World::exporting().await;
    world.post("root:one", &format!("{V2}/apibindings"), binding("widgets", json!([]))).await;
    let forged = json!({"status": {"phase": "Bound", "apiExportClusterName": "root"}});
    let path = format!("/clusters/root:one/{V2}/apibindings/widgets/status");
    let (code, _) = world.send_as(&admin(), "PATCH", &path, forged.clone()).await;
    assert_eq!(code, 405, "there is no such verb");
    let plain = world.merge("root:one", &format!("{V2}/apibindings/widgets"), forged).await;
    assert_ne!(plain["status"]["apiExportClusterName"], "root", "a write of the object keeps the status");
}

#[tokio::test(start_paused = true)]
async fn an_export_that_changes_changes_its_bindings() {
    let world = World::exporting().await;
    world.bind("one", json!([])).await;
    let schemas = format!("{V1}/apiresourceschemas");
    world.post("root:provider", &schemas, schema("v1", "gadgets", "Gadget")).await;
    let both = json!({"spec": {"resources": [exported("v1", "widgets"), exported("v1", "gadgets")]}});
    world.merge("root:provider", &format!("{V2}/apiexports/widgets"), both).await;
    world
        .until("the new resource is served", || async {
            world.get("root:one", "apis/example.dev/v1/namespaces/default/gadgets").await.is_some()
        })
        .await;
    let mut next = schema("v2", "widgets", "Widget");
    next["spec"]["versions"][0]["schema"]["properties"]["spec"]["properties"]["size"]["minimum"] = json!(10);
    world.post("root:provider", &schemas, next).await;
    let other = json!({"spec": {"resources": [exported("v2", "widgets")]}});
    world.merge("root:provider", &format!("{V2}/apiexports/widgets"), other).await;
    world
        .until("the new schema is checked", || async {
            let dry = format!("{WIDGETS}?dryRun=All");
            world.send("POST", "root:one", &dry, widget("a", 3)).await.0 == 422
        })
        .await;
    world.delete("root:provider", &format!("{V2}/apiexports/widgets")).await;
    world
        .until("a deleted export is noticed", || async {
            condition(&world.binding("one", "widgets").await, "APIExportValid") == "False"
        })
        .await;
    world.post("root:one", WIDGETS, widget("a", 12)).await;
}

#[tokio::test(start_paused = true)]
async fn a_resource_that_leaves_an_export_stays_with_its_bindings() {
    let world = World::exporting().await;
    let schemas = format!("{V1}/apiresourceschemas");
    world.post("root:provider", &schemas, schema("v1", "gadgets", "Gadget")).await;
    world.bind("one", json!([])).await;
    world.post("root:one", WIDGETS, widget("a", 1)).await;
    let export = format!("{V2}/apiexports/widgets");
    let gadgets = json!({"spec": {"resources": [exported("v1", "gadgets")]}});
    world.merge("root:provider", &export, gadgets).await;
    world
        .until("the other resource is bound", || async {
            let bound = world.binding("one", "widgets").await;
            bound["status"]["boundResources"].as_array().is_some_and(|all| all.len() == 2)
        })
        .await;
    let path = format!("{WIDGETS}/a");
    assert!(world.get("root:one", &path).await.is_some(), "its objects can still be read");
    let widgets = json!({"spec": {"resources": [exported("v1", "widgets")]}});
    world.merge("root:provider", &export, widgets).await;
    assert!(world.get("root:one", &path).await.is_some(), "and when it comes back");
    world.delete("root:one", &format!("{V2}/apibindings/widgets")).await;
    world.until("the binding is gone", || async { world.binding("one", "widgets").await.is_null() }).await;
    world.bind("one", json!([])).await;
    let listed = world.get("root:one", WIDGETS).await.unwrap();
    assert_eq!(listed["items"], json!([]), "the objects went with the binding");
}

#[tokio::test(start_paused = true)]
async fn an_endpoint_slice_needs_the_right_to_bind_the_export_of_another_workspace() {
    let world = World::exporting().await;
    let anything = json!({"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]});
    world.allow("one", "ann", anything).await;
    let uri = format!("/clusters/root:one/{V1}/apiexportendpointslices");
    let slice = |name: &str, path: Option<&str>, export: &str| {
        let mut slice = json!({"metadata": {"name": name}, "spec": {"export": {"name": export}}});
        path.into_iter().for_each(|path| slice["spec"]["export"]["path"] = path.into());
        slice
    };
    let mut refused = Vec::new();
    for (path, export) in [("root:provider", "widgets"), ("root:provider", "missing"), ("root:nowhere", "widgets")] {
        let object = slice("a", Some(path), export);
        let (code, answer) = world.send_as(&user("ann"), "POST", &uri, object).await;
        assert_eq!(code, 403, "{answer}");
        refused.push(answer["message"].as_str().unwrap().replace(path, "P").replace(export, "E"));
    }
    assert!(refused[0].contains("no permission to bind to export P:E"), "{refused:?}");
    assert!(refused.iter().all(|other| *other == refused[0]), "no answer tells which export there is: {refused:?}");
    let (code, answer) = world.send_as(&user("ann"), "POST", &uri, slice("own", None, "later")).await;
    assert_eq!(code, 201, "an export of its own workspace: {answer}");
    let bind = json!({"apiGroups": ["apis.kcp.io"], "resources": ["apiexports"], "verbs": ["bind"]});
    world.allow("provider", "ann", bind).await;
    let object = slice("a", Some("root:provider"), "widgets");
    let (code, answer) = world.send_as(&user("ann"), "POST", &uri, object).await;
    assert_eq!(code, 201, "{answer}");
}

#[tokio::test(start_paused = true)]
async fn bad_input_is_refused() {
    let world = World::exporting().await;
    let exports = format!("{V2}/apiexports");
    let mut renamed = binding("x", json!([]));
    renamed["spec"]["reference"] = json!({});
    let mut selecting = binding(
        "x",
        json!([{
            "resource": "configmaps", "verbs": ["*"], "state": "Accepted", "selector": {},
        }]),
    );
    for (what, cluster, path, object, expected) in [
        ("a binding to nothing", "root:one", format!("{V2}/apibindings"), renamed, 422),
        ("a claim without a selector", "root:one", format!("{V2}/apibindings"), selecting.take(), 422),
        (
            "an export with a schema of another name",
            "root:provider",
            exports.clone(),
            json!({"metadata": {"name": "x"}, "spec": {"resources": [{
                "name": "gadgets", "group": "example.dev", "schema": "v1.widgets.example.dev",
            }]}}),
            422,
        ),
        (
            "a schema with another name",
            "root:provider",
            format!("{V1}/apiresourceschemas"),
            {
                let mut other = schema("v1", "gadgets", "Gadget");
                other["metadata"]["name"] = "v1.other.example.dev".into();
                other
            },
            422,
        ),
        (
            "a schema of a built-in resource",
            "root:provider",
            format!("{V1}/apiresourceschemas"),
            {
                let mut own = schema("v1", "deployments", "Deployment");
                own["metadata"]["name"] = "v1.deployments.apps".into();
                own["spec"]["group"] = "apps".into();
                own
            },
            422,
        ),
    ] {
        let (code, answer) = world.send("POST", cluster, &path, object).await;
        assert_eq!(code, expected, "{what}: {answer}");
    }
    let path = format!("{V1}/apiresourceschemas/v1.widgets.example.dev");
    let (code, answer) = world.send("PATCH", "root:provider", &path, json!({"spec": {"scope": "Cluster"}})).await;
    assert_eq!(code, 422, "a schema does not change: {answer}");
    world.bind("one", json!([])).await;
    let moved: Value = json!({"spec": {"reference": {"export": {"path": "root:two", "name": "widgets"}}}});
    let (code, answer) = world.send("PATCH", "root:one", &format!("{V2}/apibindings/widgets"), moved).await;
    assert_eq!(code, 422, "a binding does not move: {answer}");
}
