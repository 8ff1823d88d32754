//! Large answers are read and sent slice by slice, but show a single state.

use std::{sync::Arc, time::Duration};

use crate::common::{Client, Faulty, MAPS, Plane, config_map, fill};
use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt as _, Full};
use portolan_apiserver::{ApiServerConfig, Body};
use portolan_store::SLICE_BYTES;
use portolan_types::Seams;
use serde_json::{Value, json};

const OBJECTS: usize = 2000;

/// A server with 2,000 objects of 1 KiB.
async fn large() -> (Plane, Arc<Faulty>) {
    let store = Faulty::over(portolan_store::memory());
    let mut config = ApiServerConfig::in_memory(Seams::system());
    config.limits.reads = 2;
    let plane = Plane::on(store.clone(), config).await;
    fill(&plane.store, OBJECTS, 900).await;
    store.largest_read();
    (plane, store)
}

async fn open(client: &Client, path: &str) -> Body {
    let request = Request::get(format!("{}{path}", client.base)).body(Full::new(Bytes::new())).unwrap();
    let answer = client.raw(request).await;
    assert_eq!(answer.status().as_u16(), 200);
    answer.into_body()
}

async fn piece(body: &mut Body) -> Bytes {
    body.frame().await.unwrap().unwrap().into_data().unwrap()
}

#[tokio::test]
async fn a_large_list_is_read_in_slices_in_every_format() {
    let (plane, store) = large().await;
    let admin = plane.admin();
    let table = "application/json;as=Table;v=v1;g=meta.k8s.io";
    let metadata = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io";
    for (case, accept, query, items) in [
        ("JSON", "application/json", "", "items"),
        ("pretty JSON", "application/json", "?pretty=true", "items"),
        ("a table", table, "", "rows"),
        ("metadata", metadata, "?pretty=1", "items"),
        ("with a selector", "application/json", "?fieldSelector=metadata.name!%3Dx", "items"),
        ("pages as long as asked for", "application/json", "?limit=2000", "items"),
    ] {
        let answer = admin.send("GET", &format!("{MAPS}{query}"), &[("accept", accept)], "").await.expect(200);
        assert_eq!(answer.json()[items].as_array().map(Vec::len), Some(OBJECTS), "{case}");
        assert!(store.largest_read() <= SLICE_BYTES + 2048, "{case}: no more than a slice is read at once");
    }
    let yaml = admin.send("GET", MAPS, &[("accept", "application/yaml")], "").await.expect(200);
    let yaml: Value = serde_saphyr::from_str(&yaml.text()).unwrap();
    let plain = admin.get(MAPS).await.expect(200).json();
    assert_eq!(yaml, plain);
    let protobuf = admin.send("GET", MAPS, &[("accept", "application/vnd.kubernetes.protobuf")], "").await.expect(200);
    let table = portolan_kinds::KindTable::builtin();
    let decoded = portolan_codec::protobuf::decode(&protobuf.bytes, table).unwrap();
    assert_eq!(decoded["items"].as_array().map(Vec::len), Some(OBJECTS));
    assert_eq!(decoded["metadata"]["resourceVersion"], plain["metadata"]["resourceVersion"]);
    assert!(store.largest_read() <= SLICE_BYTES + 2048);
}

#[tokio::test]
async fn a_page_tells_what_remains_unless_its_bytes_cut_it() {
    let plane = Plane::new().await;
    let admin = plane.admin();
    let mut large = config_map("m", json!({}));
    large["data"]["k"] = "x".repeat(900_000).into();
    for n in 0..20 {
        // Ten of them are more than a page holds.
        large["metadata"]["name"] = format!("m{n:02}").into();
        admin.post(MAPS, large.clone()).await.expect(201);
    }
    for (case, query, items, remaining) in [
        ("cut by its limit", "limit=3", 3, json!(17)),
        ("cut by its limit, of a slice that holds more", "limit=3&fieldSelector=metadata.name!%3Dx", 3, Value::Null),
        ("cut by its bytes", "limit=15", 10, Value::Null),
        ("cut by its bytes, with all that is left within the limit", "limit=500", 10, Value::Null),
    ] {
        let list = admin.get(&format!("{MAPS}?{query}")).await.expect(200).json();
        let found = (list["items"].as_array().map(Vec::len), &list["metadata"]["remainingItemCount"]);
        assert_eq!(found, (Some(items), &remaining), "{case}");
        let token = list["metadata"]["continue"].as_str().unwrap();
        let next = admin.get(&format!("{MAPS}?{query}&continue={token}")).await.expect(200).json();
        assert_eq!(next["items"].as_array().map(Vec::len), Some(items), "{case}");
        assert_eq!(next["metadata"]["continue"].is_string(), items == 3, "{case}");
    }
}

#[tokio::test]
async fn a_list_in_protobuf_that_is_too_long_to_be_kept_is_whole() {
    let plane = Plane::new().await;
    let admin = plane.admin();
    let mut large = config_map("m", json!({}));
    large["data"]["k"] = "x".repeat(900_000).into();
    for n in 0..20 {
        large["metadata"]["name"] = format!("m{n:02}").into();
        admin.post(MAPS, large.clone()).await.expect(201);
    }
    let list = admin.send("GET", MAPS, &[("accept", "application/vnd.kubernetes.protobuf")], "").await.expect(200);
    let table = portolan_kinds::KindTable::builtin();
    let decoded = portolan_codec::protobuf::decode(&list.bytes, table).unwrap();
    let names = decoded["items"].as_array().unwrap().iter().map(|item| item["metadata"]["name"].as_str().unwrap());
    assert_eq!(names.collect::<Vec<_>>(), (0..20).map(|n| format!("m{n:02}")).collect::<Vec<_>>());
}

#[tokio::test]
async fn short_lists_look_the_same_as_long_ones() {
    let admin = Plane::new().await.admin();
    let yaml = admin.send("GET", MAPS, &[("accept", "application/yaml")], "").await.expect(200);
    assert_eq!(serde_saphyr::from_str::<Value>(&yaml.text()).unwrap()["items"], json!([]));
    admin.post(MAPS, config_map("a", json!({}))).await.expect(201);
    let plain = admin.get(MAPS).await.expect(200).json();
    let pretty = admin.get(&format!("{MAPS}?pretty=true")).await.expect(200).text();
    assert_eq!(serde_json::from_str::<Value>(&pretty).unwrap(), plain);
    let shape =
        "{\n  \"kind\": \"ConfigMapList\",\n  \"apiVersion\": \"v1\",\n  \"metadata\": {\n    \"resourceVersion\"";
    assert!(pretty.starts_with(shape), "{pretty}");
    assert!(pretty.contains("\n      \"data\": {\n        \"k\": \"v\"\n      },\n"), "{pretty}");
}

#[tokio::test]
async fn a_list_shows_its_first_state_to_the_end() {
    let (plane, _) = large().await;
    let admin = plane.admin();
    let mut body = open(&admin, MAPS).await;
    let mut text = piece(&mut body).await.to_vec();
    admin.post(MAPS, config_map("zz", json!({}))).await.expect(201);
    admin.delete(&format!("{MAPS}/m01999")).await.expect(200);
    text.extend_from_slice(&body.collect().await.unwrap().to_bytes());
    let list: Value = serde_json::from_slice(&text).unwrap();
    let names: Vec<&str> =
        list["items"].as_array().unwrap().iter().map(|item| item["metadata"]["name"].as_str().unwrap()).collect();
    assert_eq!((names.len(), names.last()), (OBJECTS, Some(&"m01999")));
}

#[tokio::test]
async fn a_list_whose_state_goes_while_it_is_sent_is_cut_off() {
    let (plane, _) = large().await;
    let admin = plane.admin();
    for query in ["", "?limit=3000"] {
        let mut body = open(&admin, &format!("{MAPS}{query}")).await;
        piece(&mut body).await;
        admin.merge(&format!("{MAPS}/m01999"), json!({"data": {"k": "2"}})).await.expect(200);
        plane.store.compact(plane.store.current()).await.unwrap();
        let ended = body.collect().await;
        assert_eq!(
            ended.is_err(),
            query.is_empty(),
            "a part is never taken for the whole; a page is read before it is sent"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_stalled_list_releases_its_permit() {
    let (plane, _) = large().await;
    let admin = plane.admin();
    let stalled = [open(&admin, MAPS).await, open(&admin, MAPS).await];
    let refused = admin.get(MAPS).await.expect(429);
    assert_eq!(refused.headers["retry-after"], "1");
    assert_eq!(refused.json()["reason"], "TooManyRequests");
    admin.get("/readyz").await.expect(200);
    tokio::time::sleep(Duration::from_secs(61)).await;
    admin.get(MAPS).await.expect(200);
    for body in stalled {
        assert!(body.collect().await.is_err());
    }
}

#[tokio::test]
async fn a_watch_starts_from_its_state_slice_by_slice() {
    let (plane, store) = large().await;
    let admin = plane.admin();
    let path =
        format!("{MAPS}?watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true");
    let mut watch = admin.watch(&path, &[]).await;
    assert_eq!(watch.seen().await, ("ADDED".into(), "m00000".into()));
    admin.delete(&format!("{MAPS}/m01999")).await.expect(200);
    admin.post(MAPS, config_map("zz", json!({}))).await.expect(201);
    for n in 1..OBJECTS {
        assert_eq!(watch.seen().await, ("ADDED".into(), format!("m{n:05}")));
    }
    let mark = watch.next().await.unwrap();
    assert_eq!(mark["object"]["metadata"]["annotations"]["k8s.io/initial-events-end"], "true");
    assert_eq!(watch.seen().await, ("DELETED".into(), "m01999".into()));
    assert_eq!(watch.seen().await, ("ADDED".into(), "zz".into()));
    assert!(store.largest_read() <= SLICE_BYTES + 2048);
}

#[tokio::test]
async fn a_collection_is_deleted_slice_by_slice() {
    let (plane, store) = large().await;
    let admin = plane.admin();
    let gone = admin.send("DELETE", &format!("{MAPS}?limit=1500"), &[], "").await.expect(200).json();
    assert_eq!(gone["items"].as_array().map(Vec::len), Some(1500));
    let (one, list) =
        ("as=PartialObjectMetadata;v=v1;g=meta.k8s.io", "as=PartialObjectMetadataList;v=v1;g=meta.k8s.io");
    for (form, code, kind) in
        [("as=Table;v=v1;g=meta.k8s.io", 200, "Table"), (list, 200, "PartialObjectMetadataList"), (one, 406, "Status")]
    {
        let accept = format!("application/json;{form}");
        let tried = admin.send("DELETE", &format!("{MAPS}?dryRun=All&limit=2"), &[("accept", &accept)], "").await;
        assert_eq!(tried.expect(code).json()["kind"], kind);
    }
    assert!(store.largest_read() <= SLICE_BYTES + 2048);
    assert_eq!(admin.get(MAPS).await.expect(200).json()["items"].as_array().map(Vec::len), Some(OBJECTS - 1500));
}
