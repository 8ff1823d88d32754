//! Forms of answers beside the objects themselves: tables, metadata, bookmarks, tokens.

use crate::common::{Hands, MAPS, Plane, Watch, config_map};
use serde_json::{Value, json};

const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io";
const DAEMONS: &str = "/apis/apps/v1/namespaces/default/daemonsets";

fn metadata(kind: &str, version: &str) -> String {
    format!("application/json;as={kind};v={version};g=meta.k8s.io")
}

fn daemons() -> Value {
    let labels = json!({"app": "d"});
    let pods = json!({"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    json!({"metadata": {"name": "d"}, "spec": {"selector": {"matchLabels": labels}, "template": pods}})
}

#[tokio::test]
async fn empty_lists_match_gos_encoding() {
    let admin = Plane::new().await.admin();
    let (old, new) = (metadata("PartialObjectMetadataList", "v1beta1"), metadata("PartialObjectMetadataList", "v1"));
    for (path, accept, key, expected) in [
        (MAPS, "application/json", "items", json!([])),
        (MAPS, TABLE, "rows", json!([])),
        (MAPS, &new, "items", Value::Null),
        (MAPS, &old, "items", Value::Null),
        ("/api/v1/limitranges", TABLE, "rows", Value::Null),
    ] {
        let list = admin.send("GET", path, &[("accept", accept)], "").await.expect(200).json();
        assert_eq!(list.get(key), Some(&expected), "{path} {accept}");
    }
}

#[tokio::test]
async fn metadata_is_shown_without_conversion_annotations() {
    let admin = Plane::new().await.admin();
    let made = admin.post(DAEMONS, daemons()).await.expect(201).json();
    assert_eq!(made["metadata"]["annotations"]["deprecated.daemonset.template.generation"], "1");
    let path = format!("{DAEMONS}/d");
    let shown = admin.send("GET", &path, &[("accept", &metadata("PartialObjectMetadata", "v1"))], "").await.json();
    assert_eq!(shown["metadata"].get("annotations"), None);
    let table = admin.send("GET", &path, &[("accept", TABLE)], "").await.json();
    assert_eq!(table["rows"][0]["object"]["metadata"].get("annotations"), None);
    let whole = admin.send("GET", &format!("{path}?includeObject=Object"), &[("accept", TABLE)], "").await.json();
    assert_eq!(whole["rows"][0]["object"], made);
}

#[tokio::test]
async fn old_lists_of_metadata_come_in_protobuf_as_well() {
    let admin = Plane::new().await.admin();
    admin.post(MAPS, config_map("a", json!({}))).await.expect(201);
    let accept = metadata("PartialObjectMetadataList", "v1beta1").replace("json", "vnd.kubernetes.protobuf");
    let list = admin.send("GET", MAPS, &[("accept", &accept)], "").await.expect(200);
    assert_eq!(list.headers["content-type"], "application/vnd.kubernetes.protobuf");
    assert!(list.bytes.starts_with(b"k8s\0") && list.bytes.windows(19).any(|part| part == b"meta.k8s.io/v1beta1"));
}

#[tokio::test]
async fn the_end_of_the_first_state_is_a_whole_object() {
    let admin = Plane::new().await.admin();
    let query = "watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
    let mut watch = admin.watch(&format!("{DAEMONS}?{query}"), &[]).await;
    let mark = watch.next().await.unwrap();
    assert_eq!(mark["type"], "BOOKMARK");
    let annotations = &mark["object"]["metadata"]["annotations"];
    assert_eq!(annotations["k8s.io/initial-events-end"], "true");
    assert_eq!(annotations["deprecated.daemonset.template.generation"], "0");
}

#[tokio::test]
async fn a_watch_from_a_revision_to_come_waits_for_it() {
    let admin = Plane::new().await.admin();
    let made = admin.post(MAPS, config_map("a", json!({}))).await.expect(201).json();
    let now: u64 = made["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap();
    let mut watch = admin.watch(&format!("{MAPS}?watch=true&resourceVersion={}", now + 2), &[]).await;
    for name in ["b", "c", "d"] {
        admin.post(MAPS, config_map(name, json!({}))).await.expect(201);
    }
    assert_eq!(watch.seen().await, ("ADDED".into(), "d".into()), "what came before is not shown");
}

#[tokio::test]
async fn the_first_state_at_a_revision_that_does_not_come_is_refused_in_the_stream() {
    let admin = Plane::new().await.admin();
    let query = "watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&resourceVersion=99999999";
    let mut watch = admin.watch(&format!("{MAPS}?{query}"), &[]).await;
    let event = watch.next().await.unwrap();
    assert_eq!((&event["type"], &event["object"]["code"]), (&json!("ERROR"), &json!(504)));
    assert_eq!(event["object"]["details"]["retryAfterSeconds"], 1);
    assert_eq!(watch.next().await, None);
}

#[tokio::test]
async fn a_token_is_answered_in_every_form_and_named_after_its_account() {
    let admin = Plane::new().await.admin();
    let path = "/api/v1/namespaces/default/serviceaccounts/default/token";
    let made = admin.post(path, json!({"spec": {}})).await.expect(201).json();
    assert_eq!((&made["metadata"]["name"], &made["spec"]["expirationSeconds"]), (&json!("default"), &json!(3600)));
    assert!(made["metadata"]["uid"].is_string());
    assert_eq!(made["metadata"]["managedFields"][0]["subresource"], "token");
    let headers = [("content-type", "application/json"), ("accept", "application/vnd.kubernetes.protobuf")];
    let sent = admin.send("POST", path, &headers, r#"{"spec": {}}"#).await.expect(201);
    assert!(sent.bytes.starts_with(b"k8s\0"));
    let bound = |kind: &str| json!({"spec": {"boundObjectRef": {"apiVersion": "v1", "kind": kind, "name": "none"}}});
    for (case, request, code, words) in [
        ("another name", json!({"metadata": {"name": "other"}}), 422, "must match the service account name"),
        ("another uid", json!({"metadata": {"uid": "other"}}), 409, "does not match the UID of the service account"),
        (
            "too short",
            json!({"spec": {"expirationSeconds": 10}}),
            422,
            "TokenRequest.authentication.k8s.io \"\" is invalid",
        ),
        ("another kind", bound("ConfigMap"), 400, "cannot bind token to object of type /v1, Kind=ConfigMap"),
        ("no such node", bound("Node"), 404, "nodes \"none\" not found"),
    ] {
        let refused = admin.post(path, request).await.expect(code);
        assert!(refused.message().contains(words), "{case}: {}", refused.message());
    }
}

#[tokio::test]
async fn the_ages_of_a_watch_are_those_of_each_event() {
    let hands = Hands::now();
    let plane = Plane::with(|config| config.seams = hands.seams()).await;
    let admin = plane.admin();
    let table = [("accept", "application/json;as=Table;v=v1;g=meta.k8s.io")];
    let path = format!("{MAPS}?watch=true&resourceVersion={}", plane.store.current());
    let (mut first, mut second) = (admin.watch(&path, &table).await, admin.watch(&path, &table).await);
    let age = async |watch: &mut Watch| watch.next().await.unwrap()["object"]["rows"][0]["cells"][2].clone();
    hands.forward(6);
    admin.post(MAPS, config_map("young", json!({}))).await.expect(201);
    assert_eq!((age(&mut first).await, age(&mut second).await), (json!("0s"), json!("0s")));
    hands.forward(7);
    admin.merge(&format!("{MAPS}/young"), json!({"metadata": {"labels": {"a": "b"}}})).await.expect(200);
    assert_eq!(age(&mut first).await, "7s");
    hands.forward(2);
    assert_eq!(age(&mut second).await, "9s", "it is of when it is shown");
}
