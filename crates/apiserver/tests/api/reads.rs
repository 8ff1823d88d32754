//! Lists, watches and the forms they come in.

use std::time::Duration;

use crate::common::{Client, MAPS, Plane, config_map};
use portolan_apiserver::ApiServerConfig;
use portolan_types::Seams;
use serde_json::{Value, json};

fn names(list: &Value) -> Vec<&str> {
    list["items"].as_array().unwrap().iter().map(|o| o["metadata"]["name"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn lists_come_in_pages_of_one_state() {
    let admin = Plane::new().await.admin();
    for name in ["a", "b", "c", "d", "e"] {
        admin.post(MAPS, config_map(name, json!({"n": name}))).await.expect(201);
    }
    let first = admin.get(&format!("{MAPS}?limit=2")).await.expect(200).json();
    assert_eq!((names(&first), &first["kind"]), (vec!["a", "b"], &json!("ConfigMapList")));
    admin.post(MAPS, config_map("bb", json!({}))).await.expect(201);
    let token = first["metadata"]["continue"].as_str().unwrap();
    let second = admin.get(&format!("{MAPS}?limit=2&continue={token}")).await.expect(200).json();
    assert_eq!(names(&second), ["c", "d"], "what came in between is not in it");
    assert_eq!(second["metadata"]["resourceVersion"], first["metadata"]["resourceVersion"]);
    let token = second["metadata"]["continue"].as_str().unwrap();
    let third = admin.get(&format!("{MAPS}?limit=2&continue={token}")).await.expect(200).json();
    assert_eq!((names(&third), &third["metadata"]["continue"]), (vec!["e"], &Value::Null));

    let version = first["metadata"]["resourceVersion"].as_str().unwrap();
    let exact =
        admin.get(&format!("{MAPS}?resourceVersion={version}&resourceVersionMatch=Exact")).await.expect(200).json();
    assert_eq!(names(&exact), ["a", "b", "c", "d", "e"]);
    for (case, query, code) in [
        ("a token of another list", format!("?continue={token}&labelSelector=x%3Dy"), 400),
        ("a forged token", "?continue=eyJ9".into(), 400),
        ("a match without a version", "?resourceVersionMatch=Exact".into(), 422),
        ("an odd version", "?resourceVersion=1e9".into(), 400),
        ("an odd selector", "?labelSelector=a%20b".into(), 400),
        ("an unknown field", "?fieldSelector=spec.x%3D1".into(), 400),
    ] {
        let answer = admin.get(&format!("{MAPS}{query}")).await;
        assert_eq!(answer.code, code, "{case}: {}", answer.text());
    }
}

#[tokio::test]
async fn selectors_choose() {
    let admin = Plane::new().await.admin();
    for (name, tier) in [("a", "front"), ("b", "back"), ("c", "front")] {
        admin.post(MAPS, config_map(name, json!({"tier": tier}))).await.expect(201);
    }
    for (query, expected) in [
        ("labelSelector=tier%3Dfront", vec!["a", "c"]),
        ("labelSelector=tier%20notin%20(front)", vec!["b"]),
        ("fieldSelector=metadata.name%3Db", vec!["b"]),
        ("fieldSelector=metadata.name%21%3Db", vec!["a", "c"]),
        ("fieldSelector=metadata.name%21%3Db&limit=1", vec!["a"]),
        ("fieldSelector=metadata.name%3Db&labelSelector=tier%3Dfront", vec![]),
    ] {
        assert_eq!(names(&admin.get(&format!("{MAPS}?{query}")).await.expect(200).json()), expected, "{query}");
    }
    let gone = admin.send("DELETE", &format!("{MAPS}?labelSelector=tier%3Dfront"), &[], "").await.expect(200).json();
    assert_eq!(names(&gone), ["a", "c"]);
    assert_eq!(names(&admin.get(MAPS).await.json()), ["b"]);
}

#[tokio::test]
async fn parameters_of_no_meaning_select_everything() {
    let admin = Plane::new().await.admin();
    admin.post(MAPS, config_map("a", json!({}))).await.expect(201);
    for query in ["fieldSelector=%3D", "fieldSelector=%3D%3D,!%3D", "resourceVersion=00", "resourceVersion=00&limit=1"]
    {
        assert_eq!(names(&admin.get(&format!("{MAPS}?{query}")).await.expect(200).json()), ["a"], "{query}");
    }
    admin.get(&format!("{MAPS}/a?resourceVersion=00")).await.expect(200);
}

#[tokio::test]
async fn a_form_that_does_not_fit_is_refused_when_there_is_an_answer() {
    let admin = Plane::new().await.admin();
    let of_many = [
        ("accept", "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"),
        ("content-type", "application/json"),
    ];
    admin.send("GET", &format!("{MAPS}/a"), &of_many, "").await.expect(404);
    admin.send("POST", MAPS, &of_many, config_map("a", json!({})).to_string()).await.expect(406);
    admin.send("GET", &format!("{MAPS}/a"), &of_many, "").await.expect(406);
    let gone = admin.send("DELETE", &format!("{MAPS}/a"), &of_many, "").await.expect(200).json();
    assert_eq!(gone["status"], "Success", "a Status has no other form");
    admin.send("GET", "/apis/apps", &[("accept", "application/*")], "").await.expect(200);
}

#[tokio::test]
async fn a_watch_goes_on_where_a_list_ended() {
    let admin = Plane::new().await.admin();
    admin.post(MAPS, config_map("a", json!({}))).await.expect(201);
    let version = admin.get(MAPS).await.json()["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
    admin.post(MAPS, config_map("b", json!({}))).await.expect(201);
    let mut watch = admin.watch(&format!("{MAPS}?watch=true&resourceVersion={version}"), &[]).await;
    assert_eq!(watch.seen().await, ("ADDED".into(), "b".into()));
    admin.merge(&format!("{MAPS}/a"), json!({"data": {"k": "2"}})).await.expect(200);
    admin.delete(&format!("{MAPS}/b")).await.expect(200);
    let modified = watch.next().await.unwrap();
    assert_eq!(modified["object"]["data"]["k"], "2");
    let deleted = watch.next().await.unwrap();
    let number =
        |event: &Value| event["object"]["metadata"]["resourceVersion"].as_str().unwrap().parse::<u64>().unwrap();
    assert_eq!(deleted["type"], "DELETED");
    assert!(number(&deleted) > number(&modified));
}

#[tokio::test]
async fn objects_come_into_view_and_leave_it() {
    let admin = Plane::new().await.admin();
    let mut watch = admin.watch(&format!("{MAPS}?watch=true&labelSelector=on%3Dyes&resourceVersion=1"), &[]).await;
    admin.post(MAPS, config_map("a", json!({}))).await.expect(201);
    let one = format!("{MAPS}/a");
    admin.merge(&one, json!({"metadata": {"labels": {"on": "yes"}}})).await.expect(200);
    admin.merge(&one, json!({"data": {"k": "2"}})).await.expect(200);
    let left =
        admin.merge(&one, json!({"metadata": {"labels": {"on": "no"}}, "data": {"k": "3"}})).await.expect(200).json();
    for expected in ["ADDED", "MODIFIED"] {
        assert_eq!(watch.seen().await.0, expected);
    }
    let event = watch.next().await.unwrap();
    assert_eq!((&event["type"], &event["object"]["data"]["k"]), (&json!("DELETED"), &json!("2")));
    assert_eq!(event["object"]["metadata"]["resourceVersion"], left["metadata"]["resourceVersion"]);
}

#[tokio::test]
async fn a_streamed_list_ends_with_its_bookmark() {
    let admin = Plane::new().await.admin();
    let path =
        format!("{MAPS}?watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true");
    let mut empty = admin.watch(&path, &[]).await;
    let mark = empty.next().await.unwrap();
    assert_eq!((&mark["type"], &mark["object"]["kind"]), (&json!("BOOKMARK"), &json!("ConfigMap")));
    assert_eq!(mark["object"]["metadata"]["annotations"]["k8s.io/initial-events-end"], "true");
    admin.post(MAPS, config_map("a", json!({}))).await.expect(201);
    assert_eq!(empty.seen().await, ("ADDED".into(), "a".into()));
    let mut full = admin.watch(&path, &[]).await;
    assert_eq!(full.seen().await, ("ADDED".into(), "a".into()));
    assert_eq!(full.seen().await.0, "BOOKMARK");
    admin.get(&path.replace("&resourceVersionMatch=NotOlderThan", "")).await.expect(422);
}

#[tokio::test(start_paused = true)]
async fn bookmarks_come_by_the_minute_and_the_end_when_asked_for() {
    let admin = Plane::new().await.admin();
    admin.post(MAPS, config_map("a", json!({}))).await.expect(201);
    let path = format!("{MAPS}?watch=true&allowWatchBookmarks=true&timeoutSeconds=150&resourceVersion=1");
    let started = tokio::time::Instant::now();
    let mut watch = admin.watch(&path, &[]).await;
    let mut seen = Vec::new();
    while let Some(event) = watch.next().await {
        seen.push((event["type"].as_str().unwrap().to_owned(), started.elapsed().as_secs()));
    }
    let expected: Vec<(String, u64)> = [("ADDED", 0), ("BOOKMARK", 60), ("BOOKMARK", 120), ("BOOKMARK", 148)]
        .map(|(word, at)| (word.to_owned(), at))
        .into();
    assert_eq!(seen, expected);
    assert!(started.elapsed() >= Duration::from_secs(150));
}

#[tokio::test(start_paused = true)]
async fn a_state_to_come_is_waited_for() {
    let admin = Plane::new().await.admin();
    let late = admin.get(&format!("{MAPS}?resourceVersion=999999")).await.expect(504).json();
    assert_eq!(late["details"]["causes"][0]["reason"], "ResourceVersionTooLarge");
    assert_eq!(late["details"]["retryAfterSeconds"], 1);
}

#[tokio::test]
async fn tables_and_metadata_are_forms_of_all_answers() {
    let admin = Plane::new().await.admin();
    admin.post(MAPS, config_map("a", json!({}))).await.expect(201);
    let table = [("accept", "application/json;as=Table;v=v1;g=meta.k8s.io,application/json")];
    let list = admin.send("GET", MAPS, &table, "").await.expect(200).json();
    assert_eq!((&list["kind"], &list["rows"][0]["cells"][0]), (&json!("Table"), &json!("a")));
    assert!(list["columnDefinitions"].as_array().is_some_and(|c| !c.is_empty()));
    let pretty = admin.send("GET", &format!("{MAPS}?pretty=true"), &table, "").await.expect(200).json();
    assert_eq!(pretty["rows"], list["rows"], "rows of stored bytes are those of trees");
    let plain = admin.get(MAPS).await.expect(200).json();
    let managed = &plain["items"][0]["metadata"]["managedFields"];
    assert_eq!(
        (&list["rows"][0]["object"]["metadata"]["managedFields"], managed[0]["fieldsV1"].is_object()),
        (managed, true)
    );
    let mut watch = admin.watch(&format!("{MAPS}?watch=true"), &table).await;
    admin.post(MAPS, config_map("b", json!({}))).await.expect(201);
    let columns = |event: Value| event["object"]["columnDefinitions"].as_array().map_or(0, Vec::len);
    assert!(columns(watch.next().await.unwrap()) > 0);
    assert_eq!(columns(watch.next().await.unwrap()), 0, "columns come once");

    let one = [("accept", "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io")];
    let refused = admin.send("GET", MAPS, &one, "").await.expect(406).message();
    assert_eq!(
        refused,
        "you requested PartialObjectMetadata, but the requested object is a list (*core.ConfigMapList)"
    );
    let packed = [("accept", "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1")];
    let packed = admin.send("GET", MAPS, &packed, "").await.expect(200);
    let table = portolan_kinds::KindTable::builtin();
    let list = portolan_codec::protobuf::decode(&packed.bytes, table).unwrap();
    assert_eq!(
        (&list["kind"], &list["items"][1]["metadata"]["name"]),
        (&json!("PartialObjectMetadataList"), &json!("b"))
    );
    assert_eq!(&list["items"][0]["metadata"]["managedFields"], managed);
    let packed = admin.send("GET", MAPS, &[("accept", "application/vnd.kubernetes.protobuf")], "").await.expect(200);
    let list = portolan_codec::protobuf::decode(&packed.bytes, table).unwrap();
    assert_eq!(list["items"][0], plain["items"][0]);
    let failure = admin.send("GET", &format!("{MAPS}/none"), &[("accept", "application/yaml")], "").await.expect(404);
    assert_eq!(failure.headers["content-type"], "application/yaml");
    assert!(failure.text().contains("reason: NotFound"), "{}", failure.text());

    let metadata = [("accept", "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io")];
    let list = admin.send("GET", MAPS, &metadata, "").await.expect(200).json();
    assert_eq!(list["kind"], "PartialObjectMetadataList");
    assert_eq!((&list["items"][0]["kind"], &list["items"][0]["data"]), (&json!("PartialObjectMetadata"), &Value::Null));
    let mut watch = admin.watch(&format!("{MAPS}?watch=true"), &metadata).await;
    assert_eq!(watch.next().await, None, "no object is the metadata of a list");
    let yaml = admin.send("GET", &format!("{MAPS}/a"), &[("accept", "application/yaml")], "").await.expect(200);
    assert!(yaml.text().contains("kind: ConfigMap"), "{}", yaml.text());
    let protobuf = [("accept", "application/vnd.kubernetes.protobuf")];
    let bytes = admin.send("GET", &format!("{MAPS}/a"), &protobuf, "").await.expect(200);
    assert_eq!((&bytes.bytes[..4], bytes.headers["content-type"].to_str().unwrap()), (&b"k8s\0"[..], protobuf[0].1));
    let again = [("content-type", protobuf[0].1)];
    admin.send("POST", MAPS, &again, bytes.bytes.clone()).await.expect(500);
    let odd = admin.send("GET", MAPS, &[("accept", "text/html")], "").await.expect(406);
    assert_eq!(odd.json()["reason"], "NotAcceptable");
    let review = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
    let only_table = [("accept", "application/json;as=Table;v=v1;g=meta.k8s.io"), ("content-type", "application/json")];
    let body = json!({"spec": {"nonResourceAttributes": {"verb": "get", "path": "/x"}}}).to_string();
    admin.send("POST", review, &only_table, body).await.expect(406);
}

#[tokio::test]
async fn large_lists_are_compressed_on_request() {
    let admin = Plane::new().await.admin();
    let text = "lorem ipsum ".repeat(2000);
    for n in 0..10 {
        let object = json!({"metadata": {"name": format!("m{n}")}, "data": {"k": text}});
        admin.post(MAPS, object).await.expect(201);
    }
    let plain = admin.get(MAPS).await.expect(200);
    let packed = admin.send("GET", MAPS, &[("accept-encoding", "gzip")], "").await.expect(200);
    assert_eq!(packed.headers["content-encoding"], "gzip");
    assert!(packed.bytes.len() * 10 < plain.bytes.len());
    let mut unpacked = Vec::new();
    std::io::Read::read_to_end(&mut flate2::read::GzDecoder::new(&packed.bytes[..]), &mut unpacked).unwrap();
    assert_eq!(unpacked, plain.bytes);
    assert_eq!(names(&plain.json()).len(), 10);
}

#[tokio::test]
async fn other_versions_show_the_same_object() {
    let admin = Plane::new().await.admin();
    let event = json!({
        "metadata": {"name": "e"}, "regarding": {"kind": "Pod", "name": "p", "namespace": "default"}, "note": "hello",
        "reason": "Testing", "action": "Test", "type": "Normal", "eventTime": "2026-01-01T00:00:00.000000Z",
        "reportingController": "example.com/c", "reportingInstance": "c-1",
    });
    admin.post("/apis/events.k8s.io/v1/namespaces/default/events", event).await.expect(201);
    let core = admin.get("/api/v1/namespaces/default/events/e").await.expect(200).json();
    assert_eq!(
        (&core["apiVersion"], &core["message"], &core["involvedObject"]["name"]),
        (&json!("v1"), &json!("hello"), &json!("p"))
    );
    let other = admin.get("/apis/events.k8s.io/v1/namespaces/default/events").await.expect(200).json();
    assert_eq!((&other["items"][0]["note"], &other["apiVersion"]), (&json!("hello"), &json!("events.k8s.io/v1")));
    let selected = "/api/v1/namespaces/default/events?fieldSelector=involvedObject.name%3Dp";
    assert_eq!(names(&admin.get(selected).await.expect(200).json()), ["e"]);
}

#[tokio::test]
async fn an_expired_list_can_be_continued_inconsistently() {
    let plane = Plane::new().await;
    let admin = plane.admin();
    for name in ["a", "b", "c", "d"] {
        admin.post(MAPS, config_map(name, json!({}))).await.expect(201);
    }
    let first = admin.get(&format!("{MAPS}?limit=1")).await.expect(200).json();
    let token = first["metadata"]["continue"].as_str().unwrap().to_owned();
    let version = first["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
    admin.delete(&format!("{MAPS}/b")).await.expect(200);
    let now = plane.store.current();
    plane.store.compact(now).await.unwrap();
    let expired = admin.get(&format!("{MAPS}?limit=1&continue={token}")).await.expect(410).json();
    assert_eq!(expired["reason"], "Expired");
    let token = expired["metadata"]["continue"].as_str().unwrap();
    let rest = admin.get(&format!("{MAPS}?limit=1&continue={token}")).await.expect(200).json();
    assert_eq!(names(&rest), ["c"]);
    // From here on the rest is of one state again.
    admin.post(MAPS, config_map("e", json!({}))).await.expect(201);
    let token = rest["metadata"]["continue"].as_str().unwrap();
    let last = admin.get(&format!("{MAPS}?limit=9&continue={token}")).await.expect(200).json();
    assert_eq!(names(&last), ["d"]);
    assert_eq!(last["metadata"]["resourceVersion"], rest["metadata"]["resourceVersion"]);
    // The request is not refused: all clients look for this in the stream.
    let mut gone = admin.watch(&format!("{MAPS}?watch=true&resourceVersion={version}"), &[]).await;
    let event = gone.next().await.unwrap();
    assert_eq!((&event["type"], &event["object"]["code"]), (&json!("ERROR"), &json!(410)));
    assert!(event["object"]["message"].as_str().unwrap().starts_with("too old resource version"));
    let exact = format!("{MAPS}?resourceVersion={version}&resourceVersionMatch=Exact");
    let message = admin.get(&exact).await.expect(410).message();
    assert_eq!(message, "The resourceVersion for the provided list is too old.");
    let events = format!("/api/v1/namespaces/default/events?watch=true&resourceVersion={version}");
    let gone = admin.watch(&events, &[]).await.next().await.unwrap();
    assert_eq!(gone["object"]["message"], "The resourceVersion for the provided watch is too old.");
}

#[tokio::test]
async fn a_watch_with_bookmarks_marks_the_end_of_the_state_that_it_was_not_asked_for() {
    let admin = Plane::new().await.admin();
    admin.post(MAPS, config_map("a", json!({}))).await.expect(201);
    for query in ["", "&resourceVersion=0"] {
        let path = format!("{MAPS}?watch=true&allowWatchBookmarks=true{query}");
        let mut watch = admin.watch(&path, &[]).await;
        assert_eq!(watch.seen().await, ("ADDED".into(), "a".into()));
        let mark = watch.next().await.unwrap();
        assert_eq!(mark["type"], "BOOKMARK", "{query}");
        assert_eq!(mark["object"]["metadata"]["annotations"]["k8s.io/initial-events-end"], "true", "{query}");
    }
}

#[tokio::test]
async fn history_before_a_logical_cluster_is_not_served() {
    let plane = Plane::new().await;
    let admin = plane.admin();
    let before = admin.get(MAPS).await.expect(200).json()["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
    let workspaces = "/apis/tenancy.kcp.io/v1alpha1/workspaces";
    let made = admin.post(workspaces, json!({"metadata": {"name": "w"}})).await.expect(201).json();
    let made = made["metadata"]["resourceVersion"].as_str().unwrap();
    let entry = plane.api.directory().by_path(&"root:w".parse().unwrap()).unwrap();
    assert!(entry.since.to_string().parse::<u64>().unwrap() > before.parse::<u64>().unwrap());
    // Another server reads the stored entry, and so does this one after a change.
    let other = Plane::on(plane.store.clone(), ApiServerConfig::in_memory(Seams::system())).await;
    assert_eq!(other.api.directory().by_path(&entry.path), Some(entry.clone()));
    for (case, plane) in [("the server that made it", &plane), ("another one", &other)] {
        let inside = plane.admin().at("root:w");
        let exact = format!("{MAPS}?resourceVersionMatch=Exact&resourceVersion=");
        let refused = inside.get(&format!("{exact}{before}")).await.expect(410);
        assert_eq!(refused.message(), "The resourceVersion for the provided list is too old.", "{case}");
        inside.get(&format!("{exact}{}", entry.since)).await.expect(200);
        inside.get(&format!("{MAPS}?resourceVersionMatch=NotOlderThan&resourceVersion={before}")).await.expect(200);
        let mut watch = inside.watch(&format!("{MAPS}?watch=true&resourceVersion={before}"), &[]).await;
        let told = watch.next().await.unwrap()["object"]["message"].clone();
        assert_eq!(told, format!("too old resource version: {before} ({})", entry.since), "{case}");
        assert_eq!(watch.next().await, None, "{case}");
        let since = format!("/api/v1/namespaces?watch=true&resourceVersion={made}");
        let seen = inside.watch(&since, &[]).await.seen().await;
        assert_eq!(seen, ("ADDED".into(), "default".into()), "{case}: the Workspace is of the same transaction");
        let at_least =
            format!("watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&resourceVersion={before}");
        let mut watch = inside.watch(&format!("/api/v1/namespaces?{at_least}"), &[]).await;
        assert_eq!(watch.seen().await, ("ADDED".into(), "default".into()), "{case}");
    }
    admin.delete(&format!("{workspaces}/w")).await.expect(200);
    assert_eq!(plane.api.directory().by_path(&entry.path).map(|marked| marked.since), Some(entry.since));
}

#[tokio::test]
async fn items_carry_their_type_only_if_the_list_does_not() {
    let admin = Plane::new().await.admin();
    let lease = json!({"metadata": {"name": "l"}, "spec": {"holderIdentity": "me"}});
    admin.post("/apis/coordination.k8s.io/v1/namespaces/default/leases", lease).await.expect(201);
    let slice = json!({"metadata": {"name": "s"}, "addressType": "IPv4", "endpoints": []});
    admin.post("/apis/discovery.k8s.io/v1/namespaces/default/endpointslices", slice).await.expect(201);
    admin.post("/apis/tenancy.kcp.io/v1alpha1/workspaces", json!({"metadata": {"name": "w"}})).await.expect(201);
    admin.post(MAPS, config_map("a", json!({}))).await.expect(201);
    for (path, typed) in [
        (MAPS, false),
        ("/api/v1/namespaces", false),
        ("/apis/coordination.k8s.io/v1/leases", false),
        ("/apis/discovery.k8s.io/v1/endpointslices", false),
        ("/apis/rbac.authorization.k8s.io/v1/clusterroles", false),
        ("/apis/tenancy.kcp.io/v1alpha1/workspaces", true),
    ] {
        for query in ["", "?pretty=true"] {
            let list = admin.get(&format!("{path}{query}")).await.expect(200).json();
            for item in list["items"].as_array().unwrap() {
                assert_eq!(
                    (item["kind"].is_string(), item["apiVersion"].is_string()),
                    (typed, typed),
                    "{path}: {item}"
                );
                assert!(
                    item["metadata"]["name"].is_string() && item["metadata"]["resourceVersion"].is_string(),
                    "{item}"
                );
            }
        }
    }
}

async fn encoded(admin: &Client) -> u64 {
    let text = admin.get("/metrics").await.expect(200).text();
    let line = text.lines().find_map(|line| line.strip_prefix("portolan_watch_frames_encoded_total "));
    line.expect("it is counted").parse().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_event_is_encoded_once_per_format() {
    let admin = Plane::new().await.admin();
    let version = admin.get(MAPS).await.json()["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
    let path = format!("{MAPS}?watch=true&resourceVersion={version}");
    let mut watchers = tokio::task::JoinSet::new();
    let partial = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io";
    for accept in ["application/json", partial] {
        for _ in 0..100 {
            let mut watch = admin.watch(&path, &[("accept", accept)]).await;
            watchers.spawn(async move {
                for n in 0..20 {
                    assert_eq!(watch.seen().await, ("ADDED".into(), format!("m{n:02}")));
                }
                watch
            });
        }
    }
    let before = encoded(&admin).await;
    for n in 0..20 {
        admin.post(MAPS, config_map(&format!("m{n:02}"), json!({}))).await.expect(201);
    }
    let _watching = watchers.join_all().await;
    assert_eq!(encoded(&admin).await - before, 2 * 20, "once for each of the two forms");
}

#[tokio::test]
async fn each_cache_has_a_size_metric() {
    let config = ApiServerConfig::in_memory(Seams::system());
    let mut of_store = portolan_store::StoreConfig::new(portolan_store::Engine::Memory, None);
    of_store.registry = Some(config.registry.clone());
    let admin = Plane::on(portolan_store::memory_with(of_store), config).await.admin();
    let mut watch = admin.watch(&format!("{MAPS}?watch=true"), &[]).await;
    admin.post(MAPS, config_map("a", json!({}))).await.expect(201);
    assert_eq!(watch.seen().await, ("ADDED".into(), "a".into()));
    let discovery = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
    admin.send("GET", "/apis", &[("accept", discovery)], "").await.expect(200);
    let text = admin.get("/metrics").await.expect(200).text();
    for (family, cache, least) in [
        ("bytes", "watch-frames", 100),
        ("bytes", "watch-rings", 100),
        ("bytes", "documents", 1000),
        ("bytes", "definitions", 0),
        ("bytes", "conversions", 0),
        ("bytes", "expressions", 0),
        ("bytes", "admission-configuration", 0),
        ("bytes", "roles", 0),
        ("entries", "spread", 0),
        ("entries", "tokens", 0),
        ("entries", "webhook-clients", 0),
    ] {
        let name = format!("portolan_cache_{family}{{cache=\"{cache}\"}} ");
        let line = text.lines().find_map(|line| line.strip_prefix(name.as_str()));
        let taken: u64 = line.unwrap_or_else(|| panic!("{cache} is not told of")).parse().unwrap();
        assert!(taken >= least, "{cache} takes {taken}");
    }
}
