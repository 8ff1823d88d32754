//! Permission claims, and the maximal permission policy.

use std::time::Duration;

use http_body_util::BodyExt as _;
use portolan_apiserver::User;
use serde_json::{Value, json};

use super::world::{V2, WIDGETS, World, admin, condition, user, widget};

const MAPS: &str = "api/v1/namespaces/default/configmaps";

fn accepted(verbs: Value, selector: Value) -> Value {
    json!([{"group": "", "resource": "configmaps", "verbs": verbs, "selector": selector, "state": "Accepted"}])
}

fn map(name: &str, labels: Value) -> Value {
    json!({"metadata": {"name": name, "labels": labels}})
}

impl World {
    async fn claiming(verbs: Value) -> Self {
        let world = Self::exporting().await;
        let claims = json!({"spec": {"permissionClaims": [{"group": "", "resource": "configmaps", "verbs": verbs}]}});
        world.merge("root:provider", &format!("{V2}/apiexports/widgets"), claims).await;
        world
    }

    async fn claimed(&self, user: &User, method: &str, target: &str, path: &str, object: Value) -> (u16, Value) {
        let target = if target == "*" { target.to_owned() } else { self.id(target).await };
        let uri = format!("/services/apiexport/{}/widgets/clusters/{target}/{path}", self.id("provider").await);
        self.send_as(user, method, &uri, object).await
    }
}

#[tokio::test(start_paused = true)]
async fn a_claim_shows_the_agreed_fields() {
    let world = World::claiming(json!(["get", "list", "watch", "create", "update", "patch"])).await;
    let labels = || json!({"app": "a"});
    world.bind("one", accepted(json!(["*"]), json!({"matchLabels": labels()}))).await;
    world.bind("two", json!([])).await;
    world.post("root:one", MAPS, map("shown", labels())).await;
    world.post("root:one", MAPS, map("hidden", json!({}))).await;
    world.post("root:two", MAPS, map("other", labels())).await;
    let (code, list) = world.claimed(&admin(), "GET", "*", "api/v1/configmaps", Value::Null).await;
    let found: Vec<_> = list["items"].as_array().unwrap().iter().map(|item| &item["metadata"]["name"]).collect();
    assert_eq!((code, found), (200, vec![&json!("shown")]), "{list}");
    for (what, method, target, path, object, expected) in [
        ("an object that is covered", "GET", "one", format!("{MAPS}/shown"), Value::Null, 200),
        ("an object that is not", "GET", "one", format!("{MAPS}/hidden"), Value::Null, 404),
        ("a write of it", "PATCH", "one", format!("{MAPS}/hidden"), json!({"data": {"a": "b"}}), 404),
        ("a verb that is not claimed", "DELETE", "one", format!("{MAPS}/shown"), json!({}), 403),
        ("a workspace that accepts nothing", "GET", "two", format!("{MAPS}/other"), Value::Null, 404),
        ("a new object that is covered", "POST", "one", MAPS.to_owned(), map("new", labels()), 201),
        ("a new object that is not", "POST", "one", MAPS.to_owned(), map("newer", json!({})), 403),
        (
            "a write that would hide an object",
            "PATCH",
            "one",
            format!("{MAPS}/shown"),
            json!({"metadata": {"labels": {"app": null}}}),
            403,
        ),
    ] {
        let (code, answer) = world.claimed(&admin(), method, target, &path, object).await;
        assert_eq!(code, expected, "{what}: {answer}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_binding_tells_of_its_claims() {
    let world = World::claiming(json!(["*"])).await;
    world.bind("one", accepted(json!(["get"]), json!({"matchAll": true}))).await;
    let bound = world.binding("one", "widgets").await;
    assert_eq!(bound["status"]["exportPermissionClaims"][0]["resource"], "configmaps", "{bound}");
    assert_eq!(bound["status"]["appliedPermissionClaims"][0]["verbs"], json!(["get"]));
    let unknown = json!({"spec": {"permissionClaims": [
        {"group": "", "resource": "secrets", "verbs": ["*"], "selector": {"matchAll": true}, "state": "Accepted"},
    ]}});
    world.merge("root:one", &format!("{V2}/apibindings/widgets"), unknown).await;
    world
        .until("a claim that the export does not make is invalid", || async {
            condition(&world.binding("one", "widgets").await, "PermissionClaimsValid") == "False"
        })
        .await;
    let (code, _) = world.claimed(&admin(), "GET", "one", "api/v1/secrets", Value::Null).await;
    assert_eq!(code, 404, "and shows nothing");
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_is_withdrawn_ends_at_once() {
    let world = World::claiming(json!(["*"])).await;
    world.bind("one", accepted(json!(["*"]), json!({"matchAll": true}))).await;
    let (code, _) = world.claimed(&admin(), "GET", "one", MAPS, Value::Null).await;
    assert_eq!(code, 200);
    let rejected = json!({"spec": {"permissionClaims": [
        {"group": "", "resource": "configmaps", "verbs": ["*"], "selector": {"matchAll": true}, "state": "Rejected"},
    ]}});
    let uri = format!(
        "/services/apiexport/{}/widgets/clusters/*/api/v1/configmaps?watch=true&resourceVersion={}",
        world.id("provider").await,
        world.claimed(&admin(), "GET", "*", "api/v1/configmaps", Value::Null).await.1["metadata"]["resourceVersion"]
            .as_str()
            .unwrap(),
    );
    let (code, body) = world.open(&admin(), "GET", &uri, Value::Null).await;
    assert_eq!(code, 200);
    world.merge("root:one", &format!("{V2}/apibindings/widgets"), rejected).await;
    let bytes = http_body_util::BodyExt::collect(body).await.unwrap().to_bytes();
    let last: Value = serde_json::from_slice(bytes.trim_ascii().rsplit(|byte| *byte == b'\n').next().unwrap()).unwrap();
    assert_eq!((&last["type"], &last["object"]["code"]), (&json!("ERROR"), &json!(410)), "{last}");
    let (code, _) = world.claimed(&admin(), "GET", "one", MAPS, Value::Null).await;
    assert_eq!(code, 404);
}

#[tokio::test(start_paused = true)]
async fn a_claim_reaches_no_streams_and_no_tokens() {
    let world = World::exporting().await;
    let claims = json!([{"group": "", "resource": "serviceaccounts", "verbs": ["*"]}]);
    let export = json!({"spec": {"permissionClaims": claims}});
    world.merge("root:provider", &format!("{V2}/apiexports/widgets"), export).await;
    let all = json!({"matchAll": true});
    let accepted = json!([
        {"group": "", "resource": "serviceaccounts", "verbs": ["*"], "selector": all, "state": "Accepted"},
    ]);
    world.bind("one", accepted).await;
    let account = "api/v1/namespaces/default/serviceaccounts/default";
    world.until("the account exists", || async { world.get("root:one", account).await.is_some() }).await;
    let (code, _) = world.claimed(&admin(), "GET", "one", account, Value::Null).await;
    assert_eq!(code, 200);
    let (code, answer) = world.claimed(&admin(), "POST", "one", &format!("{account}/token"), json!({"spec": {}})).await;
    assert_eq!(code, 404, "{answer}");
}

#[tokio::test(start_paused = true)]
async fn an_export_bounds_what_its_consumers_do() {
    let world = World::exporting().await;
    world.bind("one", json!([])).await;
    let anything = json!({"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]});
    world.allow("one", "ann", anything).await;
    let create = |name: &'static str| {
        let world = &world;
        async move { world.send_as(&user("ann"), "POST", &format!("/clusters/root:one/{WIDGETS}"), widget(name, 1)).await }
    };
    assert_eq!(create("a").await.0, 201, "without a policy");
    let policy = json!({"spec": {"maximalPermissionPolicy": {"local": {}}}});
    world.merge("root:provider", &format!("{V2}/apiexports/widgets"), policy).await;
    let (code, answer) = create("b").await;
    assert_eq!(code, 403, "{answer}");
    let rule = json!({"apiGroups": ["example.dev"], "resources": ["widgets"], "verbs": ["create"]});
    world.allow("provider", "apis.kcp.io:binding:ann", rule).await;
    assert_eq!(create("b").await.0, 201, "the policy allows it");
    let uri = format!("/clusters/root:one/{WIDGETS}/b");
    let (code, _) = world.send_as(&user("ann"), "DELETE", &uri, json!({})).await;
    assert_eq!(code, 403, "and nothing else");
}

#[tokio::test(start_paused = true)]
async fn a_watch_ends_when_a_policy_begins_to_forbid_it() {
    let world = World::exporting().await;
    world.bind("one", json!([])).await;
    let anything = json!({"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]});
    world.allow("one", "ann", anything).await;
    let uri = format!("/clusters/root:one/{WIDGETS}?watch=true");
    let (code, body) = world.open(&user("ann"), "GET", &uri, Value::Null).await;
    assert_eq!(code, 200);
    let policy = json!({"spec": {"maximalPermissionPolicy": {"local": {}}}});
    world.merge("root:provider", &format!("{V2}/apiexports/widgets"), policy).await;
    let ended = tokio::time::timeout(Duration::from_secs(120), body.collect()).await.expect("the watch ends");
    let text = String::from_utf8(ended.unwrap().to_bytes().to_vec()).unwrap();
    assert!(text.contains("\"ERROR\"") && text.contains("maximal permission policy"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn a_page_of_a_view_skips_unclaimed_objects() {
    let world = World::claiming(json!(["*"])).await;
    world.bind("one", accepted(json!(["*"]), json!({"matchLabels": {"app": "a"}}))).await;
    // More than a slice of the store, in front of the objects that are covered.
    let large = "x".repeat(200 * 1024);
    for number in 0..12 {
        let mut hidden = map(&format!("hidden-{number:02}"), json!({}));
        hidden["data"] = json!({"large": large});
        world.post("root:one", MAPS, hidden).await;
    }
    for name in ["shown-1", "shown-2", "shown-3"] {
        world.post("root:one", MAPS, map(name, json!({"app": "a"}))).await;
    }
    let (mut found, mut token) = (Vec::new(), String::new());
    for _ in 0..4 {
        let path = format!("api/v1/configmaps?limit=1&continue={token}");
        let (code, page) = world.claimed(&admin(), "GET", "*", &path, Value::Null).await;
        assert_eq!(code, 200, "{page}");
        let items = page["items"].as_array().unwrap().iter();
        found.extend(items.map(|item| item["metadata"]["name"].as_str().unwrap().to_owned()));
        token = page["metadata"]["continue"].as_str().unwrap_or_default().to_owned();
        if token.is_empty() {
            break;
        }
    }
    assert_eq!(found, ["shown-1", "shown-2", "shown-3"]);
}

#[tokio::test(start_paused = true)]
async fn the_objects_of_a_new_consumer_come_after_the_events_before_its_binding() {
    let world = World::claiming(json!(["*"])).await;
    let all = json!({"matchAll": true});
    world.bind("one", accepted(json!(["*"]), all.clone())).await;
    let (_, list) = world.claimed(&admin(), "GET", "*", "api/v1/configmaps", Value::Null).await;
    let revision = list["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
    world.post("root:one", MAPS, map("first", json!({}))).await;
    world.post("root:two", MAPS, map("joined", json!({}))).await;
    world.post("root:one", MAPS, map("second", json!({}))).await;
    world.bind("two", accepted(json!(["*"]), all)).await;
    world.post("root:one", MAPS, map("third", json!({}))).await;
    let provider = world.id("provider").await;
    let uri = format!(
        "/services/apiexport/{provider}/widgets/clusters/*/api/v1/configmaps?watch=true&resourceVersion={revision}"
    );
    let (code, mut body) = world.open(&admin(), "GET", &uri, Value::Null).await;
    assert_eq!(code, 200);
    let (mut text, mut names) = (String::new(), Vec::<String>::new());
    while !names.iter().any(|name| name == "third") {
        let frame = body.frame().await.expect("the watch goes on").unwrap();
        text.push_str(std::str::from_utf8(frame.data_ref().unwrap()).unwrap());
        while let Some((line, rest)) = text.split_once('\n') {
            let event: Value = serde_json::from_str(line).unwrap();
            names.extend(event.pointer("/object/metadata/name").and_then(Value::as_str).map(str::to_owned));
            text = rest.to_owned();
        }
    }
    names.retain(|name| name != "kube-root-ca.crt");
    assert_eq!(names, ["first", "second", "joined", "third"]);
}
