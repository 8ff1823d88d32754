//! The flattened view: all consumers as one cluster.

use std::collections::BTreeSet;

use portolan_apiserver::User;
use serde_json::{Value, json};

use super::{
    views::Watch,
    world::{V1, V2, WIDGETS, World, admin, exported, schema, user, widget},
};

const ALL_WIDGETS: &str = "apis/example.dev/v1/widgets";
const ALL_CONFIGS: &str = "api/v1/configmaps";

fn claims() -> Value {
    let all = |group: &str, resource: &str| json!({"group": group, "resource": resource, "verbs": ["*"], "selector": {"matchAll": true}, "state": "Accepted"});
    json!([
        all("", "configmaps"),
        all("", "namespaces"),
        all("rbac.authorization.k8s.io", "rolebindings"),
        all("networking.k8s.io", "networkpolicies"),
    ])
}

impl World {
    /// World with the workspaces `one` and `two`, which have bound widgets with claims and have one each.
    async fn flattened() -> Self {
        let world = Self::new().await;
        world.post("root:provider", &format!("{V1}/apiresourceschemas"), schema("v1", "widgets", "Widget")).await;
        let mut hubs = schema("v1", "hubs", "Hub");
        hubs["spec"]["scope"] = "Cluster".into();
        world.post("root:provider", &format!("{V1}/apiresourceschemas"), hubs).await;
        let claimed: Vec<_> = claims()
            .as_array()
            .unwrap()
            .iter()
            .map(|claim| json!({"group": claim["group"], "resource": claim["resource"], "verbs": ["*"]}))
            .collect();
        let export = json!({"metadata": {"name": "widgets"}, "spec": {
            "resources": [exported("v1", "widgets"), exported("v1", "hubs")], "permissionClaims": claimed,
        }});
        world.post("root:provider", &format!("{V2}/apiexports"), export).await;
        world.until_exported().await;
        for name in ["one", "two"] {
            world.bind(name, claims()).await;
            world.post(&format!("root:{name}"), WIDGETS, widget(&format!("of-{name}"), 1)).await;
        }
        world
    }

    async fn flat_url(&self) -> String {
        format!("/services/flattened/{}/widgets", self.id("provider").await)
    }

    async fn flat_as(&self, user: &User, method: &str, path: &str, object: Value) -> (u16, Value) {
        self.send_as(user, method, &format!("{}/{path}", self.flat_url().await), object).await
    }

    async fn flat(&self, method: &str, path: &str, object: Value) -> (u16, Value) {
        self.flat_as(&admin(), method, path, object).await
    }

    async fn flat_watch(&self, path: &str) -> Watch {
        let uri = format!("{}/{path}", self.flat_url().await);
        let (code, body) = self.open(&admin(), "GET", &uri, Value::Null).await;
        assert_eq!(code, 200, "{uri}");
        Watch::of(body)
    }
}

fn names(list: &Value) -> BTreeSet<(String, String)> {
    let text =
        |item: &Value, pointer: &str| item.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
    let items = list["items"].as_array().unwrap_or_else(|| panic!("{list}")).iter();
    items.map(|item| (text(item, "/metadata/namespace"), text(item, "/metadata/name"))).collect()
}

fn pairs(expected: &[(&str, &str)]) -> BTreeSet<(String, String)> {
    expected.iter().map(|(namespace, name)| ((*namespace).to_owned(), (*name).to_owned())).collect()
}

#[tokio::test(start_paused = true)]
async fn all_consumers_look_like_one_cluster() {
    let world = World::flattened().await;
    let (one, two) = (world.id("one").await, world.id("two").await);
    let (code, list) = world.flat("GET", ALL_WIDGETS, Value::Null).await;
    assert_eq!(code, 200, "{list}");
    let (first, second) = (format!("{one}--default"), format!("{two}--default"));
    assert_eq!(names(&list), pairs(&[(&first, "of-one"), (&second, "of-two")]));
    let path = format!("apis/example.dev/v1/namespaces/{first}/widgets");
    let (code, list) = world.flat("GET", &path, Value::Null).await;
    assert_eq!((code, names(&list)), (200, pairs(&[(&first, "of-one")])), "{list}");
    let (code, found) = world.flat("GET", &format!("{path}/of-one"), Value::Null).await;
    assert_eq!((code, &found["metadata"]["namespace"]), (200, &json!(first)), "{found}");
    let (_, page) = world.flat("GET", &format!("{ALL_WIDGETS}?limit=1"), Value::Null).await;
    let token = page["metadata"]["continue"].as_str().expect("another page");
    let (_, rest) = world.flat("GET", &format!("{ALL_WIDGETS}?limit=1&continue={token}"), Value::Null).await;
    let both: BTreeSet<_> = names(&page).into_iter().chain(names(&rest)).collect();
    assert_eq!(both, pairs(&[(&first, "of-one"), (&second, "of-two")]));
    let (_, list) =
        world.flat("GET", &format!("{ALL_WIDGETS}?fieldSelector=metadata.namespace={first}"), Value::Null).await;
    assert_eq!(names(&list), pairs(&[(&first, "of-one")]), "selectors are about the names of the view");
    let (_, spaces) = world
        .flat("GET", &format!("api/v1/namespaces?labelSelector=kubernetes.io/metadata.name={first}"), Value::Null)
        .await;
    assert_eq!(names(&spaces), pairs(&[("", &first)]), "{spaces}");
}

#[tokio::test(start_paused = true)]
async fn writes_reach_the_one_workspace_of_their_names() {
    let world = World::flattened().await;
    let one = world.id("one").await;
    let namespace = format!("{one}--default");
    let mut made = widget("made", 2);
    made["metadata"]["namespace"] = namespace.clone().into();
    let path = format!("apis/example.dev/v1/namespaces/{namespace}/widgets");
    let (code, answer) = world.flat("POST", &path, made).await;
    assert_eq!((code, &answer["metadata"]["namespace"]), (201, &json!(namespace)), "{answer}");
    let own = format!("{WIDGETS}/made");
    let stored = world.get("root:one", &own).await.unwrap();
    assert_eq!((&stored["metadata"]["namespace"], &stored["spec"]["size"]), (&json!("default"), &json!(2)));
    let (code, answer) = world.flat("PATCH", &format!("{path}/made/status"), json!({"status": {"phase": "Up"}})).await;
    assert_eq!((code, &answer["metadata"]["namespace"]), (200, &json!(namespace)), "{answer}");
    let (_, mut read) = world.flat("GET", &format!("{path}/made"), Value::Null).await;
    read["spec"]["size"] = 3.into();
    let (code, answer) = world.flat("PUT", &format!("{path}/made"), read).await;
    assert_eq!((code, &answer["spec"]["size"]), (200, &json!(3)), "{answer}");
    let stored = world.get("root:one", &own).await.unwrap();
    assert_eq!((&stored["status"]["phase"], &stored["spec"]["size"]), (&json!("Up"), &json!(3)), "{stored}");
    assert_eq!(stored["metadata"].get("annotations"), None, "marks of the view are not stored");
    let (code, answer) = world.flat("DELETE", &format!("{path}/made"), json!({})).await;
    assert_eq!(code, 200, "{answer}");
    assert!(world.get("root:one", &own).await.is_none());
}

#[tokio::test(start_paused = true)]
async fn cluster_scoped_objects_go_where_their_names_tell() {
    let world = World::flattened().await;
    let one = world.id("one").await;
    let hub = |name: &str| json!({"apiVersion": "example.dev/v1", "kind": "Hub", "metadata": {"name": name}});
    let (code, answer) = world.flat("POST", "apis/example.dev/v1/hubs", hub(&format!("{one}--a"))).await;
    assert_eq!((code, &answer["metadata"]["name"]), (201, &json!(format!("{one}--a"))), "{answer}");
    assert!(world.get("root:one", "apis/example.dev/v1/hubs/a").await.is_some());
    let space = json!({"metadata": {"name": format!("{one}--made")}});
    let (code, answer) = world.flat("POST", "api/v1/namespaces", space).await;
    assert_eq!(code, 201, "{answer}");
    let labels = &answer["metadata"]["labels"];
    assert_eq!(labels["kubernetes.io/metadata.name"], format!("{one}--made"), "{answer}");
    assert!(world.get("root:one", "api/v1/namespaces/made").await.is_some());
    let (code, list) = world.flat("GET", "apis/example.dev/v1/hubs", Value::Null).await;
    assert_eq!((code, names(&list)), (200, pairs(&[("", &format!("{one}--a"))])));
    let (code, _) = world.flat("DELETE", &format!("apis/example.dev/v1/hubs/{one}--a"), json!({})).await;
    assert_eq!(code, 200);
    let (code, _) = world.flat("POST", "api/v1/namespaces", Value::Null).await;
    assert!(code >= 400, "a body without a name is none of a consumer's");
    let (code, answer) = world.flat("POST", "api/v1/namespaces", json!({"metadata": {"name": "leases"}})).await;
    assert_eq!(code, 201, "{answer}");
    assert!(
        world.get("root:provider", "api/v1/namespaces/leases").await.is_some(),
        "a name without an id is the operator's"
    );
}

#[tokio::test(start_paused = true)]
async fn names_without_an_id_are_those_of_the_operators_own_workspace() {
    let world = World::flattened().await;
    let one = world.id("one").await;
    let config = |name: &str| json!({"metadata": {"name": name}});
    world.post("root:provider", "api/v1/namespaces/default/configmaps", config("own")).await;
    world.post("root:one", "api/v1/namespaces/default/configmaps", config("theirs")).await;
    world.post("root:provider", "api/v1/namespaces", config(&format!("{one}--default"))).await;
    let shadow = format!("api/v1/namespaces/{one}--default/configmaps");
    world.post("root:provider", &shadow, config("shadow")).await;
    let (_, list) = world.flat("GET", ALL_CONFIGS, Value::Null).await;
    let all = names(&list);
    let has = |namespace: &str, name: &str| all.contains(&(namespace.to_owned(), name.to_owned()));
    assert!(has("default", "own") && has(&format!("{one}--default"), "theirs"), "{all:?}");
    assert!(!all.iter().any(|(_, name)| name == "shadow"), "no object has the name of another: {all:?}");
    let lease = json!({"metadata": {"name": "leader"}, "spec": {"holderIdentity": "operator"}});
    let leases = "apis/coordination.k8s.io/v1/namespaces/kube-system/leases";
    let (code, answer) = world.flat("POST", leases, lease).await;
    assert_eq!(code, 201, "{answer}");
    assert!(world.get("root:provider", &format!("{leases}/leader")).await.is_some());
    let (code, _) = world.flat("GET", "apis/storage.k8s.io/v1/storageclasses", Value::Null).await;
    assert_eq!(code, 200);
    let class = json!({"metadata": {"name": "fast"}, "provisioner": "x"});
    let (code, answer) = world.flat("POST", "apis/storage.k8s.io/v1/storageclasses", class).await;
    assert_eq!(code, 403, "infrastructure is read-only: {answer}");
}

#[tokio::test(start_paused = true)]
async fn references_are_rewritten_and_cross_no_border() {
    let world = World::flattened().await;
    let (one, two) = (world.id("one").await, world.id("two").await);
    let group = "rbac.authorization.k8s.io";
    let roles = format!("apis/{group}/v1/namespaces/default/rolebindings");
    let binding = |namespace: &str| {
        json!({
            "metadata": {"name": "b"}, "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "view"},
            "subjects": [{"kind": "ServiceAccount", "name": "a", "namespace": namespace}],
        })
    };
    world.post("root:one", &roles, binding("shop")).await;
    let path = format!("apis/{group}/v1/namespaces/{one}--default/rolebindings/b");
    let (code, shown) = world.flat("GET", &path, Value::Null).await;
    assert_eq!(code, 200, "{shown}");
    assert_eq!(shown["subjects"][0]["namespace"], format!("{one}--shop"));
    assert_eq!(shown["roleRef"]["name"], format!("{one}--view"));
    for foreign in [format!("{two}--shop"), "cert-manager".into(), "shop".into(), format!("{one}---shop-x")] {
        let mut changed = shown.clone();
        changed["subjects"][0]["namespace"] = foreign.clone().into();
        let (code, answer) = world.flat("PUT", &path, changed.clone()).await;
        assert_eq!(code, 403, "{foreign}: {answer}");
        let (code, answer) = world.flat("PATCH", &path, json!({"subjects": changed["subjects"]})).await;
        assert_eq!(code, 403, "{foreign}: {answer}");
    }
    let mut moved = shown.clone();
    moved["metadata"]["namespace"] = format!("{two}--default").into();
    let (code, answer) = world.flat("PUT", &path, moved).await;
    assert_eq!(code, 403, "{answer}");
    let (code, answer) = world.flat("PUT", &path, shown).await;
    assert_eq!(code, 200, "{answer}");
    let stored = world.get("root:one", &format!("{roles}/b")).await.unwrap();
    assert_eq!(stored["subjects"][0]["namespace"], "shop");
}

#[tokio::test(start_paused = true)]
async fn a_watch_follows_all_consumers() {
    let world = World::flattened().await;
    let (one, two) = (world.id("one").await, world.id("two").await);
    let mut watch = world.flat_watch(&format!("{ALL_WIDGETS}?watch=true")).await;
    let mut seen = BTreeSet::new();
    for _ in 0..2 {
        let event = watch.next().await.unwrap();
        seen.insert(event["object"]["metadata"]["namespace"].as_str().unwrap().to_owned());
    }
    assert_eq!(seen, BTreeSet::from([format!("{one}--default"), format!("{two}--default")]));
    world.post("root:two", WIDGETS, widget("later", 1)).await;
    let event = watch.next().await.unwrap();
    assert_eq!((&event["type"], &event["object"]["metadata"]["name"]), (&json!("ADDED"), &json!("later")), "{event}");
    assert_eq!(event["object"]["metadata"]["namespace"], format!("{two}--default"));
    world.delete("root:one", &format!("{WIDGETS}/of-one")).await;
    let event = watch.next().await.unwrap();
    assert_eq!(
        (&event["type"], &event["object"]["metadata"]["namespace"]),
        (&json!("DELETED"), &json!(format!("{one}--default")))
    );
}

#[tokio::test(start_paused = true)]
async fn a_view_shows_no_more_than_consent_and_own_rights() {
    let world = World::flattened().await;
    let one = world.id("one").await;
    let ann = user("ann");
    let namespaced = format!("apis/example.dev/v1/namespaces/{one}--default/widgets");
    for path in [ALL_WIDGETS, ALL_CONFIGS, namespaced.as_str(), "apis", "api/v1/namespaces"] {
        let (code, answer) = world.flat_as(&ann, "GET", path, Value::Null).await;
        assert_eq!(code, 403, "{path}: {answer}");
    }
    let (code, answer) = world.flat_as(&ann, "POST", "apis/example.dev/v1/hubs", Value::Null).await;
    assert_eq!(code, 403, "{answer}");
    let content = json!({"apiGroups": ["apis.kcp.io"], "resources": ["apiexports/content"], "verbs": ["get", "list"]});
    world.allow("provider", "ann", content).await;
    world.post("root:provider", "api/v1/namespaces/default/configmaps", json!({"metadata": {"name": "own"}})).await;
    let (code, list) = world.flat_as(&ann, "GET", ALL_CONFIGS, Value::Null).await;
    assert_eq!(code, 200, "{list}");
    assert!(!names(&list).iter().any(|(_, name)| name == "own"), "without a right in the operator's workspace: {list}");
    let (code, _) = world.flat_as(&ann, "GET", "api/v1/namespaces/default/configmaps/own", Value::Null).await;
    assert_eq!(code, 403);
    let (code, _) = world.flat_as(&ann, "DELETE", &format!("{namespaced}/of-one"), json!({})).await;
    assert_eq!(code, 403, "the verb is not granted");
    let (code, _) = world.flat("GET", &format!("api/v1/namespaces/{one}--default/secrets"), Value::Null).await;
    assert_eq!(code, 404, "secrets are not claimed");
    let provider = world.id("provider").await;
    for id in [provider.as_str(), "system", "root", "0000000000000"] {
        let (code, answer) =
            world.flat("GET", &format!("api/v1/namespaces/{id}--default/configmaps"), Value::Null).await;
        let is_empty = code == 200 && answer["items"] == json!([]);
        assert!(is_empty || matches!(code, 403 | 404), "{id}: {code} {answer}");
    }
}

/// Reads events until one of an object with this name, and returns their types and namespaces. No watch ends meanwhile.
async fn until_named(watch: &mut Watch, name: &str) -> Vec<(String, String)> {
    let mut seen = Vec::new();
    loop {
        let event = watch.next().await.expect("the watch continues");
        let text = |pointer: &str| event.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
        assert_ne!(text("/type"), "ERROR", "{event}");
        seen.push((text("/type"), text("/object/metadata/namespace")));
        if text("/object/metadata/name") == name {
            return seen;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_workspace_that_joins_or_leaves_ends_no_watch() {
    let world = World::flattened().await;
    let (one, two) = (world.id("one").await, world.id("two").await);
    let configs = "api/v1/namespaces/default/configmaps";
    let config = |name: &str| json!({"metadata": {"name": name}});
    world.post("root:one", configs, config("before")).await;
    let mut watch = world.flat_watch(&format!("{ALL_CONFIGS}?watch=true")).await;
    until_named(&mut watch, "before").await;
    world.post("root:one", configs, config("last")).await;
    until_named(&mut watch, "last").await;
    world.delete("root:one", &format!("{V2}/apibindings/widgets")).await;
    let left = until_named(&mut watch, "last").await;
    assert!(left.contains(&("DELETED".into(), format!("{one}--default"))), "{left:?}");
    assert!(
        left.iter()
            .all(|(word, space)| word != "DELETED" || *space == format!("{one}--default") || space.starts_with(&one)),
        "{left:?}"
    );
    world.post("root:two", configs, config("still")).await;
    assert_eq!(until_named(&mut watch, "still").await.last(), Some(&("ADDED".into(), format!("{two}--default"))));
    world.bind("one", claims()).await;
    let joined = until_named(&mut watch, "before").await;
    assert!(joined.contains(&("ADDED".into(), format!("{one}--default"))), "{joined:?}");
}

#[tokio::test(start_paused = true)]
async fn a_workspace_that_is_deleted_leaves_a_running_watch() {
    let world = World::flattened().await;
    let (one, two) = (world.id("one").await, world.id("two").await);
    let configs = "api/v1/namespaces/default/configmaps";
    let config = |name: &str| json!({"metadata": {"name": name}});
    world.post("root:one", configs, config("theirs")).await;
    let mut watch = world.flat_watch(&format!("{ALL_CONFIGS}?watch=true")).await;
    until_named(&mut watch, "theirs").await;
    world.delete("root", "apis/tenancy.kcp.io/v1alpha1/workspaces/one").await;
    let gone = until_named(&mut watch, "theirs").await;
    assert_eq!(gone.last(), Some(&("DELETED".into(), format!("{one}--default"))));
    world.post("root:two", configs, config("still")).await;
    assert_eq!(until_named(&mut watch, "still").await.last(), Some(&("ADDED".into(), format!("{two}--default"))));
    let (_, list) = world.flat("GET", ALL_CONFIGS, Value::Null).await;
    assert!(!names(&list).iter().any(|(namespace, _)| namespace.starts_with(&one)), "{list}");
}

#[tokio::test(start_paused = true)]
async fn an_apply_creates_what_the_claim_covers() {
    let world = World::flattened().await;
    let one = world.id("one").await;
    let ann = user("ann");
    let content = json!({"apiGroups": ["apis.kcp.io"], "resources": ["apiexports/content"], "verbs": ["*"]});
    world.allow("provider", "ann", content).await;
    let path = format!("api/v1/namespaces/{one}--default/configmaps/applied");
    let applied = json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"a": "b"}, "metadata": {
        "name": "applied", "namespace": format!("{one}--default"),
    }});
    let uri = format!("{}/{path}?fieldManager=operator", world.flat_url().await);
    let (code, answer) = world.apply_as(&ann, &uri, applied).await;
    assert_eq!((code, &answer["metadata"]["namespace"]), (201, &json!(format!("{one}--default"))), "{answer}");
    let stored = world.get("root:one", "api/v1/namespaces/default/configmaps/applied").await.unwrap();
    assert_eq!(stored["data"]["a"], "b");
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "applied"}});
    let uri = format!("{}/{}?fieldManager=operator", world.flat_url().await, path.replace("configmaps", "secrets"));
    let (code, answer) = world.apply_as(&ann, &uri, secret).await;
    assert_eq!(code, 404, "secrets are not claimed: {answer}");
}

#[tokio::test(start_paused = true)]
async fn names_that_do_not_fit_are_shown_by_their_hash() {
    let world = World::flattened().await;
    let one = world.id("one").await;
    let long = |end: char| format!("{}{end}", "n".repeat(62));
    for end in ['a', 'b'] {
        world.post("root:one", "api/v1/namespaces", json!({"metadata": {"name": long(end)}})).await;
    }
    let (_, spaces) = world.flat("GET", "api/v1/namespaces", Value::Null).await;
    let hashed: Vec<_> = names(&spaces).into_iter().map(|(_, name)| name).filter(|name| name.contains("---")).collect();
    assert_eq!(hashed.len(), 2, "{spaces}");
    for name in &hashed {
        let path = format!("api/v1/namespaces/{name}/configmaps");
        let (code, answer) = world.flat("POST", &path, json!({"metadata": {"name": "c", "namespace": name}})).await;
        assert_eq!((code, &answer["metadata"]["namespace"]), (201, &json!(name)), "{answer}");
    }
    for end in ['a', 'b'] {
        let path = format!("api/v1/namespaces/{}/configmaps/c", long(end));
        assert!(world.get("root:one", &path).await.is_some(), "each has its own");
    }
    let role = format!("apis/rbac.authorization.k8s.io/v1/namespaces/{one}--default/rolebindings");
    let binding = json!({
        "metadata": {"name": "b"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": format!("{one}--view")},
        "subjects": [{"kind": "ServiceAccount", "name": "a", "namespace": hashed[0]}],
    });
    let (code, answer) = world.flat("POST", &role, binding).await;
    assert_eq!((code, &answer["subjects"][0]["namespace"]), (201, &json!(hashed[0])), "{answer}");
    let stored =
        world.get("root:one", "apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings/b").await.unwrap();
    assert!(stored["subjects"][0]["namespace"].as_str().unwrap().starts_with("nnn"), "{stored}");
    let (code, answer) = world.flat("GET", &format!("api/v1/namespaces/{one}---nnn-x/configmaps"), Value::Null).await;
    assert_eq!(code, 404, "no name has this hash: {answer}");
}
