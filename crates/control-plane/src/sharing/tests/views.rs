//! Views of providers over their consumers.

use std::collections::BTreeSet;

use http_body_util::BodyExt as _;
use portolan_apiserver::{Body, User};
use serde_json::{Value, json};

use super::world::{V1, V2, WIDGETS, World, admin, binding, user, widget};

const ALL_WIDGETS: &str = "apis/example.dev/v1/widgets";

/// Watch that is read line by line.
pub(super) struct Watch {
    body: Body,
    text: String,
}

impl Watch {
    pub(super) fn of(body: Body) -> Self {
        Self { body, text: String::new() }
    }

    /// Returns the next event; `None` at the end.
    pub(super) async fn next(&mut self) -> Option<Value> {
        loop {
            if let Some((line, rest)) = self.text.split_once('\n') {
                let event = serde_json::from_str(line).unwrap();
                self.text = rest.to_owned();
                return Some(event);
            }
            let frame = self.body.frame().await?.unwrap();
            self.text.push_str(std::str::from_utf8(frame.data_ref().unwrap()).unwrap());
        }
    }

    /// Returns the type of the next event, and the name and the logical cluster of its object.
    async fn next_object(&mut self) -> (String, String, String) {
        let event = self.next().await.expect("an event");
        let text = |pointer: &str| event.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
        (text("/type"), text("/object/metadata/name"), text("/object/metadata/annotations/kcp.io~1cluster"))
    }
}

impl World {
    /// Returns the URL of the view for a target, `*` or a workspace.
    async fn view(&self, target: &str) -> String {
        let target = if target == "*" { target.to_owned() } else { self.id(target).await };
        format!("/services/apiexport/{}/widgets/clusters/{target}", self.id("provider").await)
    }

    async fn in_view(&self, user: &User, method: &str, target: &str, path: &str, object: Value) -> (u16, Value) {
        self.send_as(user, method, &format!("{}/{path}", self.view(target).await), object).await
    }

    async fn watch(&self, target: &str, path: &str) -> Watch {
        let uri = format!("{}/{path}", self.view(target).await);
        let (code, body) = self.open(&admin(), "GET", &uri, Value::Null).await;
        assert_eq!(code, 200, "{uri}");
        Watch::of(body)
    }
}

fn names(list: &Value) -> Vec<(String, String)> {
    let text = |item: &Value, pointer: &str| item.pointer(pointer).and_then(Value::as_str).unwrap().to_owned();
    let items = list["items"].as_array().unwrap_or_else(|| panic!("{list}")).iter();
    items.map(|item| (text(item, "/metadata/annotations/kcp.io~1cluster"), text(item, "/metadata/name"))).collect()
}

/// World with the workspaces `one` and `two`, which have bound widgets and have one each.
async fn bound() -> World {
    let world = World::exporting().await;
    for name in ["one", "two"] {
        world.bind(name, json!([])).await;
        world.post(&format!("root:{name}"), WIDGETS, widget(&format!("of-{name}"), 1)).await;
    }
    world
}

#[tokio::test(start_paused = true)]
async fn a_provider_sees_the_objects_of_all_consumers() {
    let world = bound().await;
    let (one, two) = (world.id("one").await, world.id("two").await);
    let (code, list) = world.in_view(&admin(), "GET", "*", ALL_WIDGETS, Value::Null).await;
    assert_eq!(code, 200, "{list}");
    let found: BTreeSet<_> = names(&list).into_iter().collect();
    let expected = BTreeSet::from([(one.clone(), "of-one".to_owned()), (two.clone(), "of-two".to_owned())]);
    assert_eq!(found, expected);
    let (code, page) = world.in_view(&admin(), "GET", "*", &format!("{ALL_WIDGETS}?limit=1"), Value::Null).await;
    assert_eq!((code, names(&page).len()), (200, 1), "{page}");
    let token = page["metadata"]["continue"].as_str().expect("another page");
    let next = format!("{ALL_WIDGETS}?limit=1&continue={token}");
    let (_, rest) = world.in_view(&admin(), "GET", "*", &next, Value::Null).await;
    let all: BTreeSet<_> = names(&page).into_iter().chain(names(&rest)).collect();
    assert_eq!((all, &rest["metadata"]["continue"]), (expected, &json!("")), "{rest}");
    let (_, list) = world.in_view(&admin(), "GET", "one", ALL_WIDGETS, Value::Null).await;
    assert_eq!(names(&list), [(one.clone(), "of-one".to_owned())]);
    let (code, object) = world.in_view(&admin(), "GET", "one", &format!("{WIDGETS}/of-one"), Value::Null).await;
    assert_eq!((code, &object["metadata"]["annotations"]["kcp.io/cluster"]), (200, &json!(one)));
}

#[tokio::test(start_paused = true)]
async fn a_provider_writes_to_one_consumer() {
    let world = bound().await;
    let (code, made) = world.in_view(&admin(), "POST", "one", WIDGETS, widget("made", 2)).await;
    assert_eq!(code, 201, "{made}");
    let path = format!("{WIDGETS}/made");
    let status = json!({"status": {"phase": "Up"}});
    let (code, answer) = world.in_view(&admin(), "PATCH", "one", &format!("{path}/status"), status).await;
    assert_eq!((code, &answer["status"]["phase"]), (200, &json!("Up")), "{answer}");
    assert_eq!(world.get("root:one", &path).await.unwrap()["status"]["phase"], "Up");
    let (code, _) = world.in_view(&admin(), "DELETE", "one", &path, json!({})).await;
    assert_eq!(code, 200);
    assert!(world.get("root:one", &path).await.is_none());
    let (code, _) = world.in_view(&admin(), "POST", "*", WIDGETS, widget("made", 2)).await;
    assert_eq!(code, 405, "all logical clusters are only read");
}

#[tokio::test(start_paused = true)]
async fn discovery_has_what_the_view_has() {
    let world = bound().await;
    for target in ["*", "one"] {
        let (code, groups) = world.in_view(&admin(), "GET", target, "apis", Value::Null).await;
        let found: BTreeSet<_> =
            groups["groups"].as_array().unwrap().iter().map(|group| group["name"].as_str().unwrap()).collect();
        assert_eq!((code, found), (200, BTreeSet::from(["apis.kcp.io", "example.dev"])), "{target}");
        let (code, list) = world.in_view(&admin(), "GET", target, "apis/example.dev/v1", Value::Null).await;
        assert_eq!((code, &list["resources"][0]["name"]), (200, &json!("widgets")), "{target}: {list}");
        let (code, core) = world.in_view(&admin(), "GET", target, "api/v1", Value::Null).await;
        assert_eq!(code, 404, "{target}: {core}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_watch_has_new_consumers_and_ends_with_consent() {
    let world = World::exporting().await;
    world.bind("one", json!([])).await;
    world.post("root:one", WIDGETS, widget("a", 1)).await;
    let (one, two) = (world.id("one").await, world.id("two").await);
    let mut watch = world.watch("*", &format!("{ALL_WIDGETS}?watch=true")).await;
    assert_eq!(watch.next_object().await, ("ADDED".into(), "a".into(), one.clone()));
    world.bind("two", json!([])).await;
    world.post("root:two", WIDGETS, widget("b", 1)).await;
    assert_eq!(watch.next_object().await, ("ADDED".into(), "b".into(), two.clone()));
    world.delete("root:one", &format!("{WIDGETS}/a")).await;
    assert_eq!(watch.next_object().await, ("DELETED".into(), "a".into(), one));
    world.delete("root:two", &format!("{V2}/apibindings/widgets")).await;
    let mut last = watch.next_object().await;
    while last.0 == "MODIFIED" || last.0 == "DELETED" {
        last = watch.next_object().await;
    }
    assert_eq!(last.0, "ERROR", "what the client has seen of it, it must forget");
    assert!(watch.next().await.is_none(), "the stream ends");
}

#[tokio::test(start_paused = true)]
async fn bindings_are_watched_in_both_versions() {
    let world = World::exporting().await;
    world.bind("one", json!([])).await;
    let (one, two) = (world.id("one").await, world.id("two").await);
    for version in [V1, V2] {
        let (code, list) = world.in_view(&admin(), "GET", "*", &format!("{version}/apibindings"), Value::Null).await;
        assert_eq!((code, names(&list)), (200, vec![(one.clone(), "widgets".to_owned())]), "{version}: {list}");
        assert_eq!(list["items"][0]["metadata"]["annotations"]["kcp.io/path"], "root:one");
    }
    let mut watch = world.watch("*", &format!("{V1}/apibindings?watch=true")).await;
    assert_eq!(watch.next_object().await, ("ADDED".into(), "widgets".into(), one));
    world.bind("two", json!([])).await;
    assert_eq!(watch.next_object().await, ("ADDED".into(), "widgets".into(), two.clone()));
    world.delete("root:two", &format!("{V2}/apibindings/widgets")).await;
    let mut last = watch.next_object().await;
    while last.0 == "MODIFIED" {
        last = watch.next_object().await;
    }
    assert_eq!(last, ("DELETED".into(), "widgets".into(), two));
}

#[tokio::test(start_paused = true)]
async fn a_hostile_provider_sees_nothing_else() {
    let world = bound().await;
    world.post("root:two", "api/v1/namespaces/default/secrets", json!({"metadata": {"name": "s"}})).await;
    let one = user("ann");
    let (code, _) = world.in_view(&one, "GET", "*", ALL_WIDGETS, Value::Null).await;
    assert_eq!(code, 403, "it takes the right to the content");
    let content = json!({"apiGroups": ["apis.kcp.io"], "resources": ["apiexports/content"], "verbs": ["list", "get"]});
    world.allow("provider", "ann", content).await;
    let (code, list) = world.in_view(&one, "GET", "*", ALL_WIDGETS, Value::Null).await;
    assert_eq!(code, 200, "{list}");
    let outside = format!("{}/../root/{ALL_WIDGETS}", world.view("*").await);
    let (code, _) = world.send_as(&one, "GET", &outside, Value::Null).await;
    assert!(code >= 400, "a path does not leave the view");
    for (what, method, target, path, expected) in [
        ("another verb", "DELETE", "one", format!("{WIDGETS}/of-one"), 403),
        ("a secret", "GET", "two", "api/v1/namespaces/default/secrets/s".to_owned(), 404),
        ("all secrets", "GET", "*", "api/v1/secrets".to_owned(), 404),
        ("a workspace without a binding", "GET", "provider", ALL_WIDGETS.to_owned(), 403),
        ("the workspaces", "GET", "one", "apis/tenancy.kcp.io/v1alpha1/workspaces".to_owned(), 404),
        ("metrics", "GET", "one", "metrics".to_owned(), 404),
        ("a backup", "GET", "*", "snapshot".to_owned(), 404),
    ] {
        let (code, answer) = world.in_view(&one, method, target, &path, Value::Null).await;
        assert_eq!(code, expected, "{what}: {answer}");
    }
    for uri in [
        format!("/services/apiexport/{}/missing/clusters/*/{ALL_WIDGETS}", world.id("provider").await),
        format!("/services/apiexport/{}/widgets/clusters/*/{ALL_WIDGETS}", world.id("one").await),
    ] {
        let (code, answer) = world.send_as(&one, "GET", &uri, Value::Null).await;
        assert_eq!(code, 403, "an export that does not exist looks like one of others: {answer}");
    }
    for uri in
        ["/services", "/services/apiexport", "/services/other/a/b/clusters/*/api", "/services/apiexport/x/y/z/*/api"]
    {
        assert_eq!(world.send_as(&one, "GET", uri, Value::Null).await.0, 404, "{uri}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_hostile_binder_gains_nothing() {
    let world = bound().await;
    let anything = json!({"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]});
    world.allow("one", "eve", anything).await;
    let eve = user("eve");
    let uri = format!("/clusters/root:one/{V2}/apibindings/widgets");
    let label = json!({"metadata": {"labels": {"internal.apis.kcp.io/export": null}}});
    let (code, _) = world.send_as(&eve, "PATCH", &uri, label).await;
    assert_eq!(code, 200);
    let mut forged = binding("forged", json!([]));
    forged["metadata"]["labels"] = json!({"internal.apis.kcp.io/export": "x"});
    forged["status"] = json!({"phase": "Bound", "apiExportClusterName": world.id("provider").await});
    let bindings = format!("/clusters/root:one/{V2}/apibindings");
    let (code, answer) = world.send_as(&eve, "POST", &bindings, forged).await;
    assert_eq!(code, 403, "without the right to bind: {answer}");
    let named = json!({"metadata": {"annotations": {"kcp.io/cluster": world.id("two").await}}});
    world.merge("root:one", &format!("{WIDGETS}/of-one"), named).await;
    world
        .until("the label is restored", || async {
            let (_, list) = world.in_view(&admin(), "GET", "*", ALL_WIDGETS, Value::Null).await;
            names(&list).len() == 2
        })
        .await;
    let (_, list) = world.in_view(&admin(), "GET", "one", ALL_WIDGETS, Value::Null).await;
    assert_eq!(names(&list), [(world.id("one").await, "of-one".to_owned())], "no object names another workspace");
}

#[tokio::test(start_paused = true)]
async fn an_export_that_was_made_again_has_no_old_consumers() {
    let world = bound().await;
    world.delete("root:provider", &format!("{V2}/apiexports/widgets")).await;
    world.delete("root:provider", "api/v1/namespaces/kcp-system/secrets/widgets").await;
    world.delete("root:provider", &format!("{V1}/apiresourceschemas/v1.widgets.example.dev")).await;
    let (code, _) = world.in_view(&admin(), "GET", "*", ALL_WIDGETS, Value::Null).await;
    assert_eq!(code, 403);
    world.export_widgets("v1").await;
    let (code, list) = world.in_view(&admin(), "GET", "*", ALL_WIDGETS, Value::Null).await;
    assert_eq!((code, names(&list)), (200, vec![]), "they bound another identity");
}
