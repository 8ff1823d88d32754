//! Creating, changing and deleting objects.

use std::time::Duration;

use crate::common::{Faulty, MAPS, Plane, config_map};
use portolan_apiserver::ApiServerConfig;
use portolan_store::{Expect, Transaction, Write};
use portolan_types::{GroupResource, LogicalClusterId, ObjectKey, Record, Seams};
use serde_json::{Value, json};

#[tokio::test]
async fn an_object_lives_and_dies() {
    let admin = Plane::new().await.admin();
    let created = admin.post(MAPS, config_map("a", json!({}))).await.expect(201).json();
    assert_eq!(created["metadata"]["namespace"], "default");
    let version = created["metadata"]["resourceVersion"].clone();
    assert_eq!(admin.get(&format!("{MAPS}/a")).await.expect(200).json(), created);

    let mut changed = created.clone();
    changed["data"]["k"] = "w".into();
    let changed = admin.put(&format!("{MAPS}/a"), changed).await.expect(200).json();
    assert_ne!(changed["metadata"]["resourceVersion"], version);

    let mut stale = created.clone();
    stale["data"]["k"] = "x".into();
    let refused = admin.put(&format!("{MAPS}/a"), stale).await.expect(409);
    assert_eq!(
        refused.message(),
        r#"Operation cannot be fulfilled on configmaps "a": the object has been modified; please apply your changes to the latest version and try again"#
    );

    let same = admin.put(&format!("{MAPS}/a"), changed.clone()).await.expect(200).json();
    assert_eq!(same, changed, "a write without effect keeps the revision");

    let gone = admin.delete(&format!("{MAPS}/a")).await.expect(200).json();
    assert_eq!((&gone["status"], &gone["details"]["uid"]), (&json!("Success"), &created["metadata"]["uid"]));
    let missing = admin.get(&format!("{MAPS}/a")).await.expect(404);
    assert_eq!(missing.message(), r#"configmaps "a" not found"#);
}

#[tokio::test]
async fn wrong_writes_are_refused_with_the_right_status() {
    let admin = Plane::new().await.admin();
    admin.post(MAPS, config_map("a", json!({}))).await.expect(201);
    let json_media = [("content-type", "application/json")];
    let huge = format!("{{\"data\":{{\"k\":\"{}\"}}}}", "x".repeat(3 << 20));
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    for (case, method, path, media, body, code) in [
        (
            "twice the same name",
            "POST",
            MAPS.to_owned(),
            "application/json",
            config_map("a", json!({})).to_string(),
            409,
        ),
        (
            "a missing namespace",
            "POST",
            "/api/v1/namespaces/nope/configmaps".into(),
            "application/json",
            config_map("a", json!({})).to_string(),
            404,
        ),
        (
            "another namespace in the body",
            "POST",
            MAPS.to_owned(),
            "application/json",
            json!({"metadata": {"name": "b", "namespace": "x"}}).to_string(),
            400,
        ),
        ("no name", "POST", MAPS.to_owned(), "application/json", json!({"metadata": {}}).to_string(), 422),
        (
            "a resourceVersion",
            "POST",
            MAPS.to_owned(),
            "application/json",
            json!({"metadata": {"name": "b", "resourceVersion": "1"}}).to_string(),
            500,
        ),
        ("malformed JSON", "POST", MAPS.to_owned(), "application/json", "{\"a\":".into(), 400),
        (
            "the wrong kind",
            "POST",
            MAPS.to_owned(),
            "application/json",
            json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "b"}}).to_string(),
            400,
        ),
        ("no media type of ours", "POST", MAPS.to_owned(), "text/plain", "x".into(), 415),
        ("a body over 3 MiB", "POST", MAPS.to_owned(), "application/json", huge, 413),
        ("a body 100 000 deep", "POST", MAPS.to_owned(), "application/json", deep, 400),
        (
            "an unknown field, strictly",
            "POST",
            format!("{MAPS}?fieldValidation=Strict"),
            "application/json",
            json!({"metadata": {"name": "b"}, "nope": 1}).to_string(),
            400,
        ),
        ("an unknown patch type", "PATCH", format!("{MAPS}/a"), "application/json", "{}".into(), 415),
        (
            "a dry run of something else",
            "POST",
            format!("{MAPS}?dryRun=Some"),
            "application/json",
            config_map("b", json!({})).to_string(),
            422,
        ),
        ("an unknown path", "GET", "/api/v1/nope".into(), "application/json", String::new(), 404),
        (
            "an unknown resource of a group",
            "GET",
            "/apis/apps/v1/things".into(),
            "application/json",
            String::new(),
            404,
        ),
        ("an unknown method", "POST", format!("{MAPS}/a"), "application/json", "{}".into(), 405),
        ("a bad logical cluster", "GET", "/../../clusters/A/api".into(), "application/json", String::new(), 400),
    ] {
        let answer = admin.send(method, &path, &[("content-type", media)], body).await;
        assert_eq!(answer.code, code, "{case}: {}", answer.text().chars().take(300).collect::<String>());
        assert_eq!(answer.json()["kind"], "Status", "{case}");
        assert_eq!(answer.json()["code"], code, "{case}");
    }
    let refused = json!({"metadata": {"name": "-"}, "nope": 1}).to_string();
    let refused = admin.send("POST", MAPS, &json_media, refused).await.expect(422);
    assert_eq!(refused.headers["warning"], "299 - \"unknown field \\\"nope\\\"\"", "also a failure is warned");
    let warned = admin
        .send("POST", MAPS, &json_media, json!({"metadata": {"name": "b"}, "nope": 1}).to_string())
        .await
        .expect(201);
    assert_eq!(warned.headers["warning"], "299 - \"unknown field \\\"nope\\\"\"");
}

#[tokio::test]
async fn patches_of_all_kinds_change_objects() {
    let admin = Plane::new().await.admin();
    let path = "/apis/apps/v1/namespaces/default/deployments";
    let deployment = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"},
        "spec": {
            "selector": {"matchLabels": {"app": "web"}},
            "template": {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "a", "image": "a:1"}]}},
        },
    });
    let created = admin.post(path, deployment.clone()).await.expect(201).json();
    assert_eq!((&created["metadata"]["generation"], &created["spec"]["replicas"]), (&json!(1), &json!(1)));
    let one = format!("{path}/web");
    let strategic = json!({"spec": {"template": {"spec": {"containers": [{"name": "b", "image": "b:1"}]}}}});
    let patched = admin.patch(&one, "application/strategic-merge-patch+json", strategic).await.expect(200).json();
    assert_eq!(patched["spec"]["template"]["spec"]["containers"].as_array().map(Vec::len), Some(2));
    assert_eq!(patched["metadata"]["generation"], 2);
    let patched = admin.merge(&one, json!({"spec": {"replicas": 4}})).await.expect(200).json();
    assert_eq!(patched["spec"]["replicas"], 4);
    let operations = json!([{"op": "replace", "path": "/spec/replicas", "value": 5}]);
    let patched = admin.patch(&one, "application/json-patch+json", operations).await.expect(200).json();
    assert_eq!(patched["spec"]["replicas"], 5);
    let unchanged = admin.merge(&one, json!({"spec": {"replicas": 5}})).await.expect(200).json();
    assert_eq!(unchanged["metadata"]["resourceVersion"], patched["metadata"]["resourceVersion"]);
    admin.merge(&one, json!({"metadata": {"resourceVersion": "1"}, "spec": {"replicas": 6}})).await.expect(409);

    let scale = admin.get(&format!("{one}/scale")).await.expect(200).json();
    assert_eq!((&scale["kind"], &scale["spec"]["replicas"]), (&json!("Scale"), &json!(5)));
    let protobuf = [("accept", "application/vnd.kubernetes.protobuf")];
    let packed = admin.send("GET", &format!("{one}/scale"), &protobuf, "").await.expect(200);
    let table = portolan_kinds::KindTable::builtin();
    let decoded = portolan_codec::protobuf::decode(&packed.bytes, table).unwrap();
    assert_eq!((&decoded["spec"], &decoded["status"]["selector"]), (&scale["spec"], &scale["status"]["selector"]));
    let scaled = admin.merge(&format!("{one}/scale"), json!({"spec": {"replicas": 7}})).await.expect(200).json();
    assert_eq!(scaled["spec"]["replicas"], 7);
    assert_eq!(admin.get(&one).await.json()["spec"]["replicas"], 7);

    let status = admin
        .merge(&format!("{one}/status"), json!({"status": {"replicas": 7}, "spec": {"replicas": 1}}))
        .await
        .expect(200)
        .json();
    assert_eq!(
        (&status["status"]["replicas"], &status["spec"]["replicas"]),
        (&json!(7), &json!(7)),
        "a status write is one"
    );
    let before = admin.get(&one).await.json()["metadata"]["generation"].clone();
    assert_eq!(status["metadata"]["generation"], before);
}

#[tokio::test]
async fn apply_creates_owns_and_conflicts() {
    let admin = Plane::new().await.admin();
    let path = |manager: &str| format!("{MAPS}/a?fieldManager={manager}");
    let apply = "application/apply-patch+yaml";
    let object =
        |value: &str| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"k": value}});
    let created = admin.patch(&path("one"), apply, object("1")).await.expect(201).json();
    let again = admin.patch(&path("one"), apply, object("1")).await.expect(200).json();
    assert_eq!(again, created, "applying the same again writes nothing");
    let conflict = admin.patch(&path("two"), apply, object("2")).await.expect(409).json();
    assert_eq!(conflict["details"]["causes"][0]["reason"], "FieldManagerConflict");
    let forced = admin.patch(&format!("{}&force=true", path("two")), apply, object("2")).await.expect(200).json();
    assert_eq!(forced["data"]["k"], "2");
    admin.patch(&format!("{MAPS}/a"), apply, object("3")).await.expect(422);
}

#[tokio::test]
async fn deletion_waits_for_finalizers_and_heeds_preconditions() {
    let admin = Plane::new().await.admin();
    let mut object = config_map("a", json!({}));
    object["metadata"]["finalizers"] = json!(["example.com/hold"]);
    let created = admin.post(MAPS, object).await.expect(201).json();
    let one = format!("{MAPS}/a");
    let wrong = json!({"preconditions": {"uid": "other"}});
    admin.send("DELETE", &one, &[("content-type", "application/json")], wrong.to_string()).await.expect(409);
    let marked = admin.delete(&one).await.expect(200).json();
    assert!(marked["metadata"]["deletionTimestamp"].is_string());
    let again = admin.delete(&one).await.expect(200).json();
    assert_eq!(again["metadata"]["resourceVersion"], marked["metadata"]["resourceVersion"]);
    let released = admin.merge(&one, json!({"metadata": {"finalizers": null}})).await.expect(200).json();
    assert_eq!(released["metadata"]["uid"], created["metadata"]["uid"]);
    admin.get(&one).await.expect(404);
}

#[tokio::test]
async fn namespaces_end_through_their_finalizer() {
    let admin = Plane::new().await.admin();
    admin.post("/api/v1/namespaces", json!({"metadata": {"name": "x"}})).await.expect(201);
    let marked = admin.delete("/api/v1/namespaces/x").await.expect(200).json();
    assert_eq!(marked["status"]["phase"], "Terminating");
    let late = admin.post("/api/v1/namespaces/x/configmaps", config_map("a", json!({}))).await.expect(403).json();
    assert_eq!(late["details"]["causes"][0]["reason"], "NamespaceTerminating");
    let why = "is forbidden: unable to create new content in namespace x because it is being terminated";
    assert_eq!(late["message"], format!("configmaps \"a\" {why}"));
    let unnamed = json!({"metadata": {"generateName": "g-"}});
    let late = admin.post("/api/v1/namespaces/x/configmaps", unnamed).await.expect(403).json();
    assert_eq!(late["message"], format!("configmaps \"g-\" {why}"));
    let mut done = marked.clone();
    done["spec"]["finalizers"] = json!([]);
    admin.put("/api/v1/namespaces/x/finalize", done).await.expect(200);
    admin.get("/api/v1/namespaces/x").await.expect(404);
    for name in ["default", "kube-system", "kube-public"] {
        let refused = admin.delete(&format!("/api/v1/namespaces/{name}")).await.expect(403);
        assert_eq!(refused.message(), format!("namespaces {name:?} is forbidden: this namespace may not be deleted"));
    }
}

#[tokio::test]
async fn dry_runs_leave_nothing_behind() {
    let admin = Plane::new().await.admin();
    let dry = admin.post(&format!("{MAPS}?dryRun=All"), config_map("a", json!({}))).await.expect(201).json();
    assert!(dry["metadata"]["uid"].is_string() && dry["metadata"]["resourceVersion"].is_null());
    admin.get(&format!("{MAPS}/a")).await.expect(404);
    admin.post(MAPS, config_map("a", json!({}))).await.expect(201);
    admin.merge(&format!("{MAPS}/a?dryRun=All"), json!({"data": {"k": "z"}})).await.expect(200);
    admin.send("DELETE", &format!("{MAPS}/a?dryRun=All"), &[], "").await.expect(200);
    assert_eq!(admin.get(&format!("{MAPS}/a")).await.expect(200).json()["data"]["k"], "v");
    admin.post(&format!("{MAPS}?dryRun=All"), config_map("a", json!({}))).await.expect(409);
}

#[tokio::test]
async fn of_a_deletion_with_a_body_the_query_is_not_read() {
    let admin = Plane::new().await.admin();
    let json = [("content-type", "application/json")];
    for (query, body, is_gone) in [
        ("dryRun=All", json!({"dryRun": ["All"]}), false),
        ("dryRun=x&gracePeriodSeconds=x&propagationPolicy=x", json!({"dryRun": ["All"]}), false),
        ("dryRun=All", json!({"preconditions": {}}), true),
        ("dryRun=", json!({}), true),
    ] {
        for path in [format!("{MAPS}/a?{query}"), format!("{MAPS}?fieldSelector=metadata.name%3Da&{query}")] {
            admin.post(MAPS, config_map("a", json!({}))).await;
            admin.send("DELETE", &path, &json, body.to_string()).await.expect(200);
            admin.get(&format!("{MAPS}/a")).await.expect(if is_gone { 404 } else { 200 });
        }
    }
    let refused = admin.send("DELETE", &format!("{MAPS}/a?dryRun=All"), &json, r#"{"dryRun": ["x"]}"#).await;
    assert!(refused.expect(422).message().contains(r#"Unsupported value: ["x"]: supported"#));
}

#[tokio::test]
async fn the_revision_of_a_create_is_validated_as_in_kubernetes() {
    const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/default/leases";
    let admin = Plane::new().await.admin();
    let at = |name: &str, revision: &str| json!({"metadata": {"name": name, "resourceVersion": revision}});
    for (case, name, revision, code) in [
        ("errors are reported first", "A_B", "5", 422),
        ("what is right has none", "a", "5", 500),
        ("text that is not a number is ignored", "b", "x", 201),
        ("nor what is too large", "c", "99999999999999999999", 201),
        ("nor zero", "d", "0", 201),
    ] {
        let answer = admin.post(MAPS, at(name, revision)).await;
        assert_eq!(answer.code, code, "{case}: {}", answer.text());
    }
    for (case, revision, code) in [("a number is passed over", "5", 201), ("it must be one", "x", 500)] {
        let answer = admin.put(&format!("{LEASES}/l-{code}"), at(&format!("l-{code}"), revision)).await;
        assert_eq!(answer.code, code, "{case}: {}", answer.text());
    }
    let tried = admin.put(&format!("{LEASES}/tried?dryRun=All"), at("tried", "5")).await.expect(201).json();
    assert_eq!(tried["metadata"]["resourceVersion"], "5");
}

#[tokio::test]
async fn another_namespace_is_refused_before_all_else() {
    let admin = Plane::new().await.admin();
    admin.post(MAPS, config_map("a", json!({}))).await.expect(201);
    let other = |name: &str| json!({"metadata": {"name": name, "namespace": "z", "resourceVersion": "x"}});
    for (case, answer) in [
        ("of nothing", admin.put(&format!("{MAPS}/none"), other("none")).await),
        ("of something", admin.put(&format!("{MAPS}/a"), other("a")).await),
        ("by a patch", admin.merge(&format!("{MAPS}/a"), other("a")).await),
    ] {
        let refused = answer.expect(400);
        let expected = "the namespace of the provided object does not match the namespace sent on the request";
        assert_eq!(refused.message(), expected, "{case}");
    }
}

#[tokio::test]
async fn a_patched_uid_is_reported_with_the_other_errors() {
    let admin = Plane::new().await.admin();
    admin.post(MAPS, config_map("a", json!({}))).await.expect(201);
    let wrong = json!({"metadata": {"uid": "u", "finalizers": ["-"]}});
    let refused = admin.merge(&format!("{MAPS}/a"), wrong).await.expect(422);
    let fields: Vec<&str> = ["metadata.finalizers", "metadata.uid"].into();
    assert!(fields.iter().all(|field| refused.message().contains(field)), "{}", refused.message());
    let renamed = json!({"metadata": {"uid": "u", "name": "b"}});
    admin.merge(&format!("{MAPS}/a"), renamed).await.expect(400);
}

#[tokio::test]
async fn an_eviction_says_one_thing_and_is_read_when_there_is_a_pod() {
    const PODS: &str = "/api/v1/namespaces/default/pods";
    let admin = Plane::new().await.admin();
    let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    admin.post(PODS, pod).await.expect(201);
    let asks = |name: &str, options: Value| json!({"metadata": {"name": name}, "deleteOptions": options});
    for (name, query, options, code) in [
        ("none", "", json!({"propagationPolicy": "x"}), 404),
        ("p", "?dryRun=All", json!({"dryRun": ["x"]}), 500),
        ("p", "", json!({"dryRun": ["x"]}), 422),
        ("p", "?dryRun=All", json!({"dryRun": []}), 201),
        ("p", "?dryRun=All", json!({"dryRun": ["All"]}), 201),
    ] {
        let answer = admin.post(&format!("{PODS}/{name}/eviction{query}"), asks(name, options.clone())).await;
        assert_eq!(answer.code, code, "{query} {options}: {}", answer.text());
    }
    admin.get(&format!("{PODS}/p")).await.expect(200);
}

#[tokio::test]
async fn a_binding_brings_labels_as_they_are_and_asks_for_its_pod() {
    const PODS: &str = "/api/v1/namespaces/default/pods";
    let admin = Plane::new().await.admin();
    let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    admin.post(PODS, pod).await.expect(201);
    let bind = |metadata: Value| json!({"metadata": metadata, "target": {"name": "n"}});
    let refused = admin.post(&format!("{PODS}/p/binding"), bind(json!({"name": "p", "uid": "x"}))).await.expect(409);
    assert!(refused.message().contains("StorageError: invalid object, Code: 4, Key: "), "{}", refused.message());
    let odd = bind(json!({"name": "p", "labels": {"a/b/c": "x"}}));
    admin.post(&format!("{PODS}/p/binding"), odd).await.expect(201);
    let bound = admin.get(&format!("{PODS}/p")).await.expect(200).json();
    assert_eq!((&bound["metadata"]["labels"]["a/b/c"], &bound["spec"]["nodeName"]), (&json!("x"), &json!("n")));
}

#[tokio::test]
async fn generated_names_differ_and_some_updates_create() {
    let admin = Plane::new().await.admin();
    let body = json!({"metadata": {"generateName": "a-"}});
    let one = admin.post(MAPS, body.clone()).await.expect(201).json();
    let two = admin.post(MAPS, body).await.expect(201).json();
    assert_ne!(one["metadata"]["name"], two["metadata"]["name"]);
    let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "l"}, "spec": {"holderIdentity": "me"}});
    let leases = "/apis/coordination.k8s.io/v1/namespaces/default/leases";
    admin.put(&format!("{leases}/l"), lease.clone()).await.expect(201);
    admin.put(&format!("{leases}/l"), lease).await.expect(422);
    admin.put(&format!("{MAPS}/nope"), config_map("nope", json!({}))).await.expect(404);
}

#[tokio::test]
async fn racing_writers_all_succeed_and_lose_no_update() {
    let plane = Plane::new().await;
    let admin = plane.admin();
    let mut held = config_map("a", json!({}));
    held["metadata"]["finalizers"] = json!(["example.com/hold"]);
    admin.post(MAPS, held).await.expect(201);
    let mut writers = tokio::task::JoinSet::new();
    for n in 0..100 {
        let admin = admin.clone();
        writers.spawn(async move {
            let patch = json!({"data": {format!("k{n}"): "v"}});
            let patched = admin.merge(&format!("{MAPS}/a"), patch).await;
            // Every tenth writer also deletes the object, which stays because of its finalizer.
            let deleted = if n % 10 == 0 { Some(admin.delete(&format!("{MAPS}/a")).await) } else { None };
            [Some(patched), deleted]
        });
    }
    for answer in writers.join_all().await.into_iter().flatten().flatten() {
        answer.expect(200);
    }
    let left = admin.get(&format!("{MAPS}/a")).await.expect(200).json();
    assert_eq!(left["data"].as_object().map(|d| d.len()), Some(101));
    assert!(left["metadata"]["deletionTimestamp"].is_string());
}

#[tokio::test]
async fn an_oversized_object_is_stored_without_field_owners() {
    let admin = Plane::new().await.admin();
    let object = |name: &str, count: usize| {
        let data: serde_json::Map<String, serde_json::Value> =
            (0..count).map(|n| (format!("{name}-{n:09}"), json!(""))).collect();
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data})
    };
    let owned = |answer: &serde_json::Value| answer["metadata"]["managedFields"].is_array();
    let created = admin.post(MAPS, object("a", 50_000)).await.expect(201).json();
    assert!(!owned(&created));
    admin.post(MAPS, object("b", 1)).await.expect(201);
    let replaced = admin.put(&format!("{MAPS}/b"), object("b", 50_000)).await.expect(200).json();
    assert!(!owned(&replaced));
    admin.post(MAPS, object("c", 1)).await.expect(201);
    let patched = admin.merge(&format!("{MAPS}/c"), object("c", 50_000)).await.expect(200).json();
    assert!(!owned(&patched));
    let apply = "application/apply-patch+yaml";
    admin.patch(&format!("{MAPS}/d?fieldManager=m"), apply, object("d", 50_000)).await.expect(413);
    let small = json!({"data": null, "metadata": {"labels": {"x": "y"}}});
    let small = admin.merge(&format!("{MAPS}/c"), small).await.expect(200).json();
    assert!(!owned(&small), "as upstream, who has no owners gets them with the next apply");
    let applied = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"k": "v"}});
    let applied = admin.patch(&format!("{MAPS}/c?fieldManager=m"), apply, applied).await.expect(200).json();
    assert!(owned(&applied));
}

#[tokio::test]
async fn a_put_of_a_missing_object_requires_no_uid() {
    const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/default/leases";
    let admin = Plane::new().await.admin();
    let spec = json!({"holderIdentity": "me"});
    let lease = json!({"metadata": {"name": "l", "uid": "abc"}, "spec": spec});
    let told = "Precondition failed: UID in precondition: abc, UID in object meta: ";
    let refused = admin.put(&format!("{LEASES}/l"), lease).await.expect(409);
    assert!(refused.message().ends_with(told), "{}", refused.message());
    let mut map = config_map("a", json!({}));
    map["metadata"]["uid"] = "abc".into();
    // A missing object that PUT may not create gives 404, with any uid.
    admin.put(&format!("{MAPS}/a"), map).await.expect(404);
    admin.put(&format!("{LEASES}/l"), json!({"metadata": {"name": "l"}, "spec": spec})).await.expect(201);
}

#[tokio::test]
async fn a_deletion_by_its_query_has_preconditions() {
    let admin = Plane::new().await.admin();
    let made = admin.post(MAPS, config_map("a", json!({}))).await.expect(201).json();
    let text = |key: &str| made["metadata"][key].as_str().unwrap().to_owned();
    let (uid, version) = (text("uid"), text("resourceVersion"));
    for (query, code) in [
        ("uid=other".to_owned(), 409),
        ("resourceVersion=1".to_owned(), 409),
        (format!("uid={uid}&resourceVersion=1"), 409),
        (format!("dryRun=All&uid={uid}&resourceVersion={version}"), 200),
        ("dryRun=All&dryRun=x".to_owned(), 422),
        ("uid=".to_owned(), 200),
    ] {
        let answer = admin.delete(&format!("{MAPS}/a?{query}")).await;
        assert_eq!(answer.code, code, "{query}: {}", answer.text());
    }
    admin.post(MAPS, config_map("a", json!({}))).await.expect(201);
    admin.delete(&format!("{MAPS}?uid=other")).await.expect(409);
    admin.get(&format!("{MAPS}/a")).await.expect(200);
}

#[tokio::test]
async fn many_are_listed_as_of_then_and_deleted_as_they_are_now() {
    let admin = Plane::new().await.admin();
    let made = admin.post(MAPS, config_map("a", json!({}))).await.expect(201).json();
    admin.post(MAPS, config_map("b", json!({}))).await.expect(201);
    let version = made["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
    let listed = |query: &str| format!("{MAPS}?resourceVersion={version}{query}");
    admin.delete(&listed("&dryRun=All&resourceVersionMatch=Exact")).await.expect(200);
    admin.patch(&format!("{MAPS}/a"), "application/merge-patch+json", json!({"data": {"k": "w"}})).await.expect(200);
    // The revision is a precondition, too.
    for query in ["", "&resourceVersionMatch=Exact", "&resourceVersionMatch=NotOlderThan", "&limit=1"] {
        for dry in ["&dryRun=All", ""] {
            let refused = admin.delete(&listed(&format!("{query}{dry}"))).await.expect(409);
            let expected = format!("the ResourceVersion in the precondition ({version}) does not match");
            assert!(refused.message().contains(&expected), "{query}{dry}: {}", refused.message());
        }
    }
    admin.delete(&format!("{MAPS}/a")).await.expect(200);
    let told = admin.delete(&listed("&resourceVersionMatch=Exact")).await.expect(200).json();
    assert_eq!(told["items"][0]["metadata"]["name"], "a", "what others have deleted is as good as deleted");
    admin.get(&format!("{MAPS}/b")).await.expect(200);
}

#[tokio::test]
async fn a_service_comes_to_be_by_its_status_and_has_no_address() {
    let admin = Plane::new().await.admin();
    let services = "/api/v1/namespaces/default/services";
    let service = json!({"metadata": {"name": "s"}, "spec": {"type": "LoadBalancer", "ports": [{"port": 80}]}, "status": {"loadBalancer": {"ingress": [{"ip": "10.0.0.1"}]}}});
    let made = admin.put(&format!("{services}/s/status"), service.clone()).await.expect(201).json();
    assert_eq!((&made["spec"]["clusterIP"], &made["status"]), (&json!(null), &json!({"loadBalancer": {}})));
    assert_eq!(made["metadata"]["managedFields"][0]["subresource"], "status");
    admin.put(&format!("{services}/s/status"), service).await.expect(200);
    let deployment = json!({"metadata": {"name": "d"}, "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": {
        "metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}}});
    let none = "/apis/apps/v1/namespaces/default/deployments/d/status";
    admin.put(none, deployment).await.expect(404);
}

#[tokio::test]
async fn a_scale_written_as_it_is_moves_the_revision_while_owners_change() {
    let admin = Plane::new().await.admin();
    let sets = "/apis/apps/v1/namespaces/default/replicasets";
    let set = json!({"metadata": {"name": "r"}, "spec": {"replicas": 1, "selector": {"matchLabels": {"a": "b"}}, "template": {
        "metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}}});
    let mut version = admin.post(sets, set).await.expect(201).json()["metadata"]["resourceVersion"].clone();
    let scale =
        json!({"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": {"name": "r"}, "spec": {"replicas": 1}});
    for moves in [true, true, false] {
        let written = admin.put(&format!("{sets}/r/scale"), scale.clone()).await.expect(200).json();
        let now = written["metadata"]["resourceVersion"].clone();
        assert_eq!(now != version, moves, "{now}");
        version = now;
    }
    let mut more = scale;
    more["spec"]["more"] = 1.into();
    let refused =
        admin.patch(&format!("{sets}/r/scale?fieldManager=m"), "application/apply-patch+yaml", more).await.expect(500);
    assert_eq!(
        refused.message(),
        "failed to create typed patch object (/r; autoscaling/v1, Kind=Scale): .spec.more: field not declared in schema"
    );
}

#[tokio::test]
async fn orphan_dependents_false_has_a_warning() {
    let admin = Plane::new().await.admin();
    let mut held = config_map("a", json!({}));
    held["metadata"]["finalizers"] = json!(["orphan", "example.com/x"]);
    admin.post(MAPS, held).await.expect(201);
    let one = format!("{MAPS}/a");
    let json_media = [("content-type", "application/json")];
    let dry = json!({"orphanDependents": false, "dryRun": ["All"]}).to_string();
    let told = admin.send("DELETE", &one, &json_media, dry).await.expect(202).json();
    assert_eq!(told["metadata"]["finalizers"], json!(["example.com/x"]));
    admin.delete(&format!("{one}?dryRun=All&orphanDependents=true")).await.expect(200);
    let kept = admin.delete(&one).await.expect(200).json();
    assert_eq!(kept["metadata"]["finalizers"], json!(["orphan", "example.com/x"]), "the order is the client's");
    admin.delete(&format!("{one}?orphanDependents=false")).await.expect(202);
    admin.merge(&one, json!({"metadata": {"finalizers": null}})).await.expect(200);
    admin.post(MAPS, config_map("a", json!({}))).await.expect(201);
    admin.delete(&format!("{one}?orphanDependents=false")).await.expect(200);
}

#[tokio::test]
async fn a_patched_scale_is_read_as_one() {
    const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";
    let admin = Plane::new().await.admin();
    let template = json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let spec = json!({"selector": {"matchLabels": {"a": "b"}}, "template": template});
    admin.post(DEPLOYMENTS, json!({"metadata": {"name": "d"}, "spec": spec})).await.expect(201);
    let scale = |query: &str| format!("{DEPLOYMENTS}/d/scale{query}");
    let more = json!({"spec": {"replicas": 3, "more": 1}});
    let warned = admin.merge(&scale(""), more.clone()).await.expect(200);
    assert_eq!(warned.headers["warning"], "299 - \"unknown field \\\"spec.more\\\"\"");
    let refused = admin.merge(&scale("?fieldValidation=Strict"), more).await.expect(422);
    assert!(refused.message().contains("unknown field \"spec.more\""), "{}", refused.message());
    let text = admin.merge(&scale(""), json!({"spec": {"replicas": "5"}})).await.expect(422).json();
    assert_eq!(text["details"]["causes"][0]["field"], "patch");
    let other = admin.merge(&scale(""), json!({"metadata": {"uid": "x"}})).await.expect(409).json();
    assert_eq!(other["details"]["kind"], "deployments/scale");
    let twice = r#"{"spec":{"replicas":4,"replicas":5}}"#;
    let merge = [("content-type", "application/merge-patch+json")];
    let warned = admin.send("PATCH", &scale(""), &merge, twice).await.expect(200);
    assert!(warned.headers["warning"].to_str().unwrap().contains("duplicate field"));
    let strategic = "application/strategic-merge-patch+json";
    admin.patch(&scale(""), strategic, json!({"spec": {"replicas": 6}})).await.expect(200);
    assert_eq!(admin.get(&scale("")).await.expect(200).json()["spec"]["replicas"], 6);
}

#[tokio::test]
async fn services_get_addresses_of_their_own() {
    let admin = Plane::new().await.admin();
    let services = "/api/v1/namespaces/default/services";
    let service = |name: &str, ip: Option<&str>| json!({"metadata": {"name": name}, "spec": {"clusterIP": ip, "ports": [{"port": 80}], "selector": {"a": "b"}}});
    let one = admin.post(services, service("one", None)).await.expect(201).json();
    let ip = one["spec"]["clusterIP"].as_str().unwrap().to_owned();
    assert_eq!(one["spec"]["clusterIPs"], json!([ip]));
    let address = admin.get(&format!("/apis/networking.k8s.io/v1/ipaddresses/{ip}")).await.expect(200).json();
    assert_eq!(address["spec"]["parentRef"]["name"], "one");
    let taken = admin.post(services, service("two", Some(&ip))).await.expect(422);
    assert!(taken.message().contains("provided IP is already allocated"), "{}", taken.message());
    let headless = admin.post(services, service("three", Some("None"))).await.expect(201).json();
    assert_eq!(headless["spec"]["clusterIP"], "None");
    let kept =
        admin.merge(&format!("{services}/one"), json!({"metadata": {"labels": {"x": "y"}}})).await.expect(200).json();
    assert_eq!(kept["spec"]["clusterIP"], ip.as_str());
    admin.delete(&format!("{services}/one")).await.expect(200);
    admin.get(&format!("/apis/networking.k8s.io/v1/ipaddresses/{ip}")).await.expect(404);
    admin.post(services, service("two", Some(&ip))).await.expect(201);
}

#[tokio::test]
async fn the_servers_annotations_are_not_for_clients() {
    let admin = Plane::new().await.admin();
    let mut object = config_map("a", json!({}));
    object["metadata"]["annotations"] = json!({"portolan.dev/clusters": "east"});
    let answer = admin.post(MAPS, object).await.expect(201);
    assert!(answer.headers["warning"].to_str().unwrap().contains("written by the server only"));
    assert!(answer.json()["metadata"]["annotations"].is_null());
}

#[tokio::test]
async fn a_service_may_have_one_node_port_for_two_protocols() {
    let plane = Plane::new().await;
    let admin = plane.admin();
    let services = "/api/v1/namespaces/default/services";
    let port = |name: &str, protocol: &str, port: u16, node: u16| json!({"name": name, "protocol": protocol, "port": port, "nodePort": node});
    let ports =
        json!([port("dns", "UDP", 53, 30053), port("http", "TCP", 80, 30080), port("dns-tcp", "TCP", 53, 30053),]);
    let service = json!({"metadata": {"name": "s"}, "spec": {"type": "NodePort", "ports": ports}});
    for _ in 0..2 {
        admin.post(services, service.clone()).await.expect(201);
        admin.delete(&format!("{services}/s")).await.expect(200);
    }
}

#[tokio::test]
async fn evictions_cannot_spend_one_allowance_twice() {
    let plane = Plane::new().await;
    let admin = plane.admin();
    let (pods, budgets) =
        ("/api/v1/namespaces/default/pods", "/apis/policy/v1/namespaces/default/poddisruptionbudgets");
    for name in ["a", "b"] {
        let spec = json!({"containers": [{"name": "c", "image": "i"}]});
        admin.post(pods, json!({"metadata": {"name": name, "labels": {"app": "x"}}, "spec": spec})).await.expect(201);
        admin.merge(&format!("{pods}/{name}/status"), json!({"status": {"phase": "Running"}})).await.expect(200);
    }
    let spec = json!({"minAvailable": 1, "selector": {"matchLabels": {"app": "x"}}});
    admin.post(budgets, json!({"metadata": {"name": "x"}, "spec": spec})).await.expect(201);
    let one = json!({"status": {"disruptionsAllowed": 1, "observedGeneration": 1}});
    admin.merge(&format!("{budgets}/x/status"), one).await.expect(200);
    let evict = |name: &'static str, query: &'static str| {
        let admin = admin.clone();
        async move { admin.post(&format!("{pods}/{name}/eviction{query}"), json!({"metadata": {"name": name}})).await.code }
    };
    assert_eq!(evict("a", "?dryRun=All").await, 201);
    let mut codes = [evict("a", ""), evict("b", "")].map(Box::pin);
    let [first, second] = &mut codes;
    let codes = tokio::join!(first, second);
    assert_eq!((codes.0.min(codes.1), codes.0.max(codes.1)), (201, 429));
    let budget = admin.get(&format!("{budgets}/x")).await.expect(200).json();
    assert_eq!(budget["status"]["disruptionsAllowed"], 0);
    assert_eq!(budget["status"]["disruptedPods"].as_object().map(serde_json::Map::len), Some(1));
}

#[tokio::test]
async fn failures_that_time_alone_does_not_mend_name_no_time() {
    let admin = Plane::new().await.admin();
    let (pods, budgets) =
        ("/api/v1/namespaces/default/pods", "/apis/policy/v1/namespaces/default/poddisruptionbudgets");
    let spec = json!({"containers": [{"name": "c", "image": "i"}]});
    admin.post(pods, json!({"metadata": {"name": "a", "labels": {"app": "x"}}, "spec": spec})).await.expect(201);
    admin.merge(&format!("{pods}/a/status"), json!({"status": {"phase": "Running"}})).await.expect(200);
    let spec = json!({"minAvailable": 1, "selector": {"matchLabels": {"app": "x"}}});
    admin.post(budgets, json!({"metadata": {"name": "x"}, "spec": spec})).await.expect(201);
    let eviction = format!("{pods}/a/eviction");
    let evict = || admin.post(&eviction, json!({"metadata": {"name": "a"}}));

    let later = evict().await.expect(429);
    assert_eq!(later.headers["retry-after"], "10");
    assert_eq!(later.json()["details"]["retryAfterSeconds"], 10);
    let cause = "The disruption budget x is still being processed by the server.";
    assert_eq!(later.json()["details"]["causes"], json!([{"reason": "DisruptionBudget", "message": cause}]));

    let seen = json!({"status": {"observedGeneration": 1, "desiredHealthy": 2, "currentHealthy": 1}});
    admin.merge(&format!("{budgets}/x/status"), seen).await.expect(200);
    let mut stale = admin.post(MAPS, config_map("a", json!({}))).await.expect(201).json();
    stale["metadata"]["resourceVersion"] = "1".into();
    for (case, refused, code) in [
        ("an eviction that a budget does not allow", evict().await, 429),
        ("a stale write", admin.put(&format!("{MAPS}/a"), stale).await, 409),
        ("twice the same name", admin.post(MAPS, config_map("a", json!({}))).await, 409),
        ("what is not there", admin.get(&format!("{MAPS}/b")).await, 404),
    ] {
        let refused = refused.expect(code);
        assert!(!refused.headers.contains_key("retry-after"), "{case}: {}", refused.text());
        assert!(refused.json()["details"]["retryAfterSeconds"].is_null(), "{case}: {}", refused.text());
    }
    assert_eq!(admin.get(&format!("{pods}/a")).await.expect(200).json()["metadata"]["deletionTimestamp"], json!(null));
}

#[tokio::test]
async fn an_owner_that_is_named_twice_is_one() {
    let admin = Plane::new().await.admin();
    let owner = |uid: &str| json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "o", "uid": uid});
    let twice = json!([owner("u"), owner("v"), owner("u")]);
    let once = json!([owner("u"), owner("v")]);
    let owned = |name: &str| json!({"metadata": {"name": name, "ownerReferences": twice}});
    let told = "duplicate UID(s) observed: u";
    let created = admin.post(MAPS, owned("a")).await.expect(201);
    admin.post(MAPS, config_map("b", json!({}))).await.expect(201);
    let replaced = admin.put(&format!("{MAPS}/b"), owned("b")).await.expect(200);
    for (case, answer) in [("created", created), ("replaced", replaced)] {
        let warnings: Vec<_> = answer.headers.get_all("warning").iter().map(|value| value.to_str().unwrap()).collect();
        assert_eq!(warnings.len(), 1, "{case}: {warnings:?}");
        assert!(
            warnings[0].starts_with("299 - \".metadata.ownerReferences contains duplicate entries; "),
            "{warnings:?}"
        );
        assert!(warnings[0].ends_with(&format!("{told}\"")), "{case}: {warnings:?}");
        assert_eq!(answer.json()["metadata"]["ownerReferences"], once, "{case}");
    }
    let again = admin.put(&format!("{MAPS}/b"), json!({"metadata": {"name": "b", "ownerReferences": once}})).await;
    assert!(!again.expect(200).headers.contains_key("warning"));
}

#[tokio::test]
async fn a_pod_without_grace_period_is_deleted_despite_concurrent_writes() {
    const PODS: &str = "/api/v1/namespaces/default/pods";
    let store = Faulty::over(portolan_store::memory());
    let plane = Plane::on(store.clone(), ApiServerConfig::in_memory(Seams::system())).await;
    let admin = plane.admin();
    for case in ["written", "removed"] {
        let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
        let made = admin.post(PODS, pod).await.expect(201).json();
        let pods = GroupResource::new("", "pods");
        let namespace = "default".parse().unwrap();
        let key = ObjectKey::namespaced(LogicalClusterId::ROOT, pods, namespace, "p".parse().unwrap());
        let mut other = made.clone();
        other["metadata"]["labels"] = json!({"a": "b"});
        other["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        let record = (case == "written").then(|| Record::of(&other));
        let writes = vec![Write { key: key.clone(), expect: Expect::Present, record }];
        store.write_before([None, Some(Transaction { writes, ..Transaction::default() })]);
        let options = json!({"preconditions": {"resourceVersion": made["metadata"]["resourceVersion"]}});
        let json = [("content-type", "application/json")];
        let gone = admin.send("DELETE", &format!("{PODS}/p"), &json, options.to_string()).await;
        assert_eq!(gone.code, 200, "{case}: {}", gone.text());
        assert_eq!(gone.json()["metadata"]["uid"], made["metadata"]["uid"], "{case}");
        admin.get(&format!("{PODS}/p")).await.expect(404);
    }
}

#[tokio::test(start_paused = true)]
async fn a_delete_retries_after_conflicts_and_waits_for_other_finalizers() {
    const PODS: &str = "/api/v1/namespaces/default/pods";
    let store = Faulty::over(portolan_store::memory());
    let plane = Plane::on(store.clone(), ApiServerConfig::in_memory(Seams::system())).await;
    let admin = plane.admin();
    let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let made = admin.post(PODS, pod).await.expect(201).json();
    let (pods, namespace) = (GroupResource::new("", "pods"), "default".parse().unwrap());
    let key = ObjectKey::namespaced(LogicalClusterId::ROOT, pods, namespace, "p".parse().unwrap());
    let rival = |n: usize| {
        let mut other = made.clone();
        other["metadata"]["labels"] = json!({"n": n.to_string()});
        Some(Transaction::one(key.clone(), Expect::Present, Some(Record::of(&other))))
    };
    let before_the_mark = (0..5).map(rival);
    let before_the_removal = (5..10).map(rival);
    store.write_before(before_the_mark.chain([None]).chain(before_the_removal));
    let gone = tokio::time::timeout(Duration::from_secs(20), admin.delete(&format!("{PODS}/p"))).await;
    gone.expect("it has its turn already").expect(200);
    admin.get(&format!("{PODS}/p")).await.expect(404);
}

#[tokio::test]
async fn a_job_deletion_with_a_propagation_policy_has_no_warning() {
    const JOBS: &str = "/apis/batch/v1/namespaces/default/jobs";
    let admin = Plane::new().await.admin();
    let template = json!({"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}});
    for (query, warns) in [
        ("", true),
        ("?orphanDependents=true", false),
        ("?orphanDependents=false", false),
        ("?propagationPolicy=Orphan", false),
    ] {
        let job = json!({"metadata": {"generateName": "j"}, "spec": {"template": template}});
        let name = admin.post(JOBS, job).await.expect(201).json()["metadata"]["name"].as_str().unwrap().to_owned();
        let answer = admin.delete(&format!("{JOBS}/{name}{query}")).await;
        assert_eq!(answer.headers.contains_key("warning"), warns, "{query}: {}", answer.text());
    }
}

#[tokio::test]
async fn an_eviction_holds_few_budgets_at_once() {
    const PODS: &str = "/api/v1/namespaces/default/pods";
    let store = Faulty::over(portolan_store::memory());
    let plane = Plane::on(store.clone(), ApiServerConfig::in_memory(Seams::system())).await;
    let admin = plane.admin();
    let labels = json!({"app": "x"});
    let pod =
        json!({"metadata": {"name": "p", "labels": labels}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    admin.post(PODS, pod).await.expect(201);
    admin.merge(&format!("{PODS}/p/status"), json!({"status": {"phase": "Running"}})).await.expect(200);
    for n in 0..10 {
        let selector = json!({"matchLabels": {"app": if n == 9 { "x" } else { "y" }}});
        let budget = json!({"metadata": {"name": format!("b{n}"), "annotations": {"a": "x".repeat(100_000)}},
            "spec": {"minAvailable": 1, "selector": selector}});
        admin.post("/apis/policy/v1/namespaces/default/poddisruptionbudgets", budget).await.expect(201);
    }
    store.largest_read();
    admin.post(&format!("{PODS}/p/eviction"), json!({"metadata": {"name": "p"}})).await.expect(429);
    assert!(store.largest_read() <= portolan_store::SLICE_BYTES + 110_000);
}

#[tokio::test]
async fn evictions_and_bindings_are_of_the_namespace_of_their_url() {
    const PODS: &str = "/api/v1/namespaces/default/pods";
    let admin = Plane::new().await.admin();
    let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    admin.post(PODS, pod).await.expect(201);
    let metadata = json!({"name": "p", "namespace": "other"});
    let binding = json!({"metadata": metadata, "target": {"kind": "Node", "name": "n"}});
    for (path, object) in [
        (format!("{PODS}/p/eviction"), json!({"metadata": metadata})),
        (format!("{PODS}/p/binding"), binding.clone()),
        ("/api/v1/namespaces/default/bindings".to_owned(), binding),
    ] {
        let refused = admin.post(&path, object).await.expect(400);
        let why = "the namespace of the provided object does not match the namespace sent on the request";
        assert_eq!(refused.message(), why, "{path}");
    }
    let foreign = json!({"metadata": {"name": "p", "namespace": "default", "uid": "of-another"}});
    admin.post(&format!("{PODS}/p/eviction"), foreign).await.expect(201);
}
