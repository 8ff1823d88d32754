//! Starts of watches and the bookmark after their initial state, in every combination of options. The table is that of
//! kube-apiserver's `RunWatchSemantics`.

use std::time::Duration;

use serde_json::{Value, json};

use crate::common::{Client, MAPS, Plane, Watch, config_map};

const ELSEWHERE: &str = "/api/v1/namespaces/kube-public/configmaps";

async fn next(watch: &mut Watch, case: &str) -> Value {
    let next = tokio::time::timeout(Duration::from_secs(20), watch.next()).await;
    next.unwrap_or_else(|_| panic!("{case}: nothing comes")).unwrap_or_else(|| panic!("{case}: it ended"))
}

async fn expect_added(watch: &mut Watch, names: &[&str], case: &str) {
    for name in names {
        let event = next(watch, case).await;
        assert_eq!((&event["type"], &event["object"]["metadata"]["name"]), (&json!("ADDED"), &json!(name)), "{case}");
    }
}

/// The bookmark has the revision of the whole store, which a write elsewhere has increased.
async fn expect_mark(watch: &mut Watch, at: &Value, case: &str) {
    let mark = next(watch, case).await;
    let metadata = &mark["object"]["metadata"];
    assert_eq!(mark["type"], "BOOKMARK", "{case}");
    assert_eq!(metadata["annotations"]["k8s.io/initial-events-end"], "true", "{case}");
    assert_eq!(&metadata["resourceVersion"], at, "{case}");
}

/// Creates three objects and one in another namespace. Returns the version of the last one.
async fn scene() -> (Client, Value) {
    let admin = Plane::new().await.admin();
    for name in ["a", "b", "c"] {
        admin.post(MAPS, config_map(name, json!({}))).await.expect(201);
    }
    let last = admin.post(ELSEWHERE, config_map("other", json!({}))).await.expect(201).json();
    (admin, last["metadata"]["resourceVersion"].clone())
}

#[tokio::test]
async fn watches_start_where_version_bookmarks_and_initial_events_say() {
    let asked = [(true, Some(true)), (true, Some(false)), (false, Some(true)), (false, Some(false)), (false, None)];
    for (version, (bookmarks, initial)) in ["", "0", "1", "now"].into_iter().flat_map(|v| asked.map(|a| (v, a))) {
        let case = format!("version {version:?}, bookmarks {bookmarks}, initial events {initial:?}");
        let (admin, last) = scene().await;
        let version = if version == "now" { last.as_str().unwrap() } else { version };
        let mut path = format!("{MAPS}?watch=true&allowWatchBookmarks={bookmarks}&resourceVersion={version}");
        if let Some(initial) = initial {
            path += &format!("&sendInitialEvents={initial}&resourceVersionMatch=NotOlderThan");
        }
        let mut watch = admin.watch(&path, &[]).await;
        // From version 1 on they are events that happened.
        let are_sent = match initial {
            Some(true) => true,
            Some(false) => version == "1",
            None => ["", "0", "1"].contains(&version),
        };
        expect_added(&mut watch, if are_sent { &["a", "b", "c"] } else { &[] }, &case).await;
        if bookmarks && initial == Some(true) {
            expect_mark(&mut watch, &last, &case).await;
        }
        for name in ["d", "e"] {
            admin.post(MAPS, config_map(name, json!({}))).await.expect(201);
        }
        expect_added(&mut watch, &["d", "e"], &case).await;
    }
}

#[tokio::test]
async fn a_streamed_list_of_one_has_that_one_and_its_mark() {
    let (admin, last) = scene().await;
    let streamed = "watch=true&allowWatchBookmarks=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan";
    let mut watch = admin.watch(&format!("{MAPS}?{streamed}&fieldSelector=metadata.name%3Db"), &[]).await;
    expect_added(&mut watch, &["b"], "one of three").await;
    expect_mark(&mut watch, &last, "one of three").await;
}
