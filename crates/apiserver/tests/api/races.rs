//! Writes that race with writes to the same object or its dependencies, and writes whose clients disconnect early.

use std::{
    future::{Future as _, poll_fn},
    sync::Arc,
    task::Poll,
    time::Duration,
};

use crate::common::{Client, Faulty, Hands, MAPS, Plane, config_map};
use portolan_apiserver::ApiServerConfig;
use portolan_store::{Expect, Transaction};
use portolan_types::{GroupResource, LogicalClusterId, ObjectKey, Record, Seams};
use serde_json::{Value, json};

const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/default/leases";

async fn faulty() -> (Arc<Faulty>, Plane) {
    let store = Faulty::over(portolan_store::memory());
    let plane = Plane::on(store.clone(), ApiServerConfig::in_memory(Seams::system())).await;
    (store, plane)
}

/// The key of an object in the namespace `default`.
fn key(group: &str, resource: &str, name: &str) -> ObjectKey {
    let resource = GroupResource::new(group, resource);
    ObjectKey::namespaced(LogicalClusterId::ROOT, resource, "default".parse().unwrap(), name.parse().unwrap())
}

/// Somebody makes this object.
fn creation_of(key: &ObjectKey, mut object: Value) -> Option<Transaction> {
    object["metadata"] = json!({"name": &*key.name, "namespace": "default", "uid": "theirs"});
    Some(Transaction::one(key.clone(), Expect::Absent, Some(Record::of(&object))))
}

/// Somebody removes an object.
fn removed(key: &ObjectKey) -> Option<Transaction> {
    Some(Transaction::one(key.clone(), Expect::Present, None))
}

async fn apply(client: &Client, path: &str, data: Value) -> crate::common::Answer {
    let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": data});
    client.patch(&format!("{path}?fieldManager=m"), "application/apply-patch+yaml", object).await
}

#[tokio::test]
async fn an_apply_creates_or_updates_despite_concurrent_writes() {
    let (store, plane) = faulty().await;
    let (admin, path, map) = (plane.admin(), format!("{MAPS}/a"), key("", "configmaps", "a"));
    let theirs = || creation_of(&map, json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"theirs": "1"}}));

    store.write_before([theirs()]);
    let applied = apply(&admin, &path, json!({"mine": "1"})).await.expect(200).json();
    assert_eq!(
        (&applied["data"], &applied["metadata"]["uid"]),
        (&json!({"mine": "1", "theirs": "1"}), &json!("theirs"))
    );

    store.write_before([removed(&map)]);
    let applied = apply(&admin, &path, json!({"mine": "2"})).await.expect(201).json();
    assert_eq!(applied["data"], json!({"mine": "2"}));
    assert_ne!(applied["metadata"]["uid"], "theirs");

    store.write_before([removed(&map), theirs(), removed(&map), theirs(), removed(&map), theirs(), removed(&map)]);
    let applied = apply(&admin, &path, json!({"mine": "3"})).await.expect(201).json();
    assert_eq!(applied["data"], json!({"mine": "3"}));
    assert_eq!(admin.get(&path).await.expect(200).json(), applied);
}

#[tokio::test]
async fn a_create_on_update_becomes_an_update_after_a_race() {
    let (store, plane) = faulty().await;
    let (admin, lease) = (plane.admin(), key("coordination.k8s.io", "leases", "l"));
    let object = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "l"}});
    store.write_before([creation_of(&lease, object.clone())]);
    let refused = admin.put(&format!("{LEASES}/l"), object.clone()).await.expect(422).message();
    assert!(refused.contains("must be specified for an update"), "{refused}");

    let mut theirs = admin.get(&format!("{LEASES}/l")).await.expect(200).json();
    theirs["spec"] = json!({"holderIdentity": "me"});
    theirs["metadata"].as_object_mut().unwrap().remove("uid");
    store.write_before([removed(&lease)]);
    admin.put(&format!("{LEASES}/l"), theirs).await.expect(201);

    let map = admin.post(MAPS, config_map("a", json!({}))).await.expect(201).json();
    let mut changed = map.clone();
    changed["data"]["k"] = "w".into();
    store.write_before([removed(&key("", "configmaps", "a"))]);
    admin.put(&format!("{MAPS}/a"), changed).await.expect(404);
}

#[tokio::test]
async fn objects_are_made_in_a_namespace_that_others_write_and_in_none_that_ends() {
    let (store, plane) = faulty().await;
    let admin = plane.admin();
    let namespaces = GroupResource::new("", "namespaces");
    let key = ObjectKey::cluster_scoped(LogicalClusterId::ROOT, namespaces, "default".parse().unwrap());
    let stored = plane.store.get(&key).await.unwrap().unwrap();
    let namespace = stored.to_value().unwrap();
    let written = |change: &dyn Fn(&mut Value)| {
        let mut namespace = namespace.clone();
        change(&mut namespace);
        Some(Transaction::one(key.clone(), Expect::Present, Some(Record::of(&namespace))))
    };
    store.write_before(
        (0..8).map(|n| written(&|namespace| namespace["metadata"]["labels"]["n"] = n.to_string().into())),
    );
    for n in 0..8 {
        admin.post(MAPS, config_map(&format!("m{n}"), json!({}))).await.expect(201);
    }
    store.write_before([written(&|namespace| {
        namespace["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into()
    })]);
    let refused = admin.post(MAPS, config_map("late", json!({}))).await.expect(403);
    assert!(refused.message().ends_with("because it is being terminated"), "{}", refused.text());
}

#[tokio::test]
async fn a_recreated_namespace_is_another_one() {
    let (store, plane) = faulty().await;
    let admin = plane.admin();
    admin.post("/api/v1/namespaces", json!({"metadata": {"name": "a"}})).await.expect(201);
    let namespaces = GroupResource::new("", "namespaces");
    let key = ObjectKey::cluster_scoped(LogicalClusterId::ROOT, namespaces, "a".parse().unwrap());
    store.write_before([Some(Transaction::one(key, Expect::Present, None))]);
    admin.post("/api/v1/namespaces/a/configmaps", config_map("late", json!({}))).await.expect(404);
}

#[tokio::test]
async fn of_pods_that_are_to_go_at_once_none_stays_marked_whenever_its_client_leaves() {
    const PODS: &str = "/api/v1/namespaces/default/pods";
    let admin = Plane::new().await.admin();
    for polls in 0..60 {
        let name = format!("p{polls}");
        let pod = json!({"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
        admin.post(PODS, pod).await.expect(201);
        let path = format!("{PODS}/{name}?gracePeriodSeconds=0");
        let mut deleting = Box::pin(admin.delete(&path));
        for _ in 0..polls {
            if poll_fn(|context| Poll::Ready(deleting.as_mut().poll(context).is_ready())).await {
                break;
            }
            tokio::task::yield_now().await;
        }
    }
    let left = async || admin.get(PODS).await.expect(200).json()["items"].as_array().unwrap().clone();
    let settled = async {
        while left().await.iter().any(|pod| !pod["metadata"]["deletionTimestamp"].is_null()) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), settled).await.expect("no other writer removes a marked object");
    assert!((1..60).contains(&left().await.len()), "some were not asked for long enough");
}

#[tokio::test]
async fn an_update_of_which_nothing_is_left_is_not_written() {
    let hands = Hands::now();
    let plane = Plane::with(|config| config.seams = hands.seams()).await;
    let admin = plane.admin();
    let template = json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let sets = "/apis/apps/v1/namespaces/default/statefulsets";
    let set = json!({"metadata": {"name": "s"},
        "spec": {"serviceName": "s", "selector": {"matchLabels": {"a": "b"}}, "template": template}});
    admin.post(sets, set).await.expect(201);
    admin.post("/api/v1/namespaces", json!({"metadata": {"name": "n"}})).await.expect(201);
    admin.post(MAPS, config_map("m", json!({}))).await.expect(201);
    let slower = json!({"spec": {"updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 2}}}});
    let signal = json!({"spec": {"template": {"spec": {
        "containers": [{"name": "c", "image": "i", "lifecycle": {"stopSignal": "SIGTERM"}}]}}}});
    for (case, path, patch) in [
        ("a field of a gate that is closed", format!("{sets}/s"), slower),
        ("another one, in a list", format!("{sets}/s"), signal),
        (
            "what only a subresource sets",
            "/api/v1/namespaces/n".into(),
            json!({"spec": {"finalizers": ["a.example/b"]}}),
        ),
        ("what is so already", format!("{MAPS}/m"), json!({"data": {"k": "v"}})),
    ] {
        let mut versions = Vec::new();
        for _ in 0..4 {
            hands.forward(2);
            let answer = admin.merge(&path, patch.clone()).await.expect(200).json();
            versions.push(answer["metadata"]["resourceVersion"].clone());
        }
        assert!(versions[1..].iter().all(|version| *version == versions[0]), "{case}: {versions:?}");
    }
    hands.forward(2);
    let before = admin.get(&format!("{MAPS}/m")).await.expect(200).json();
    let disowned =
        admin.merge(&format!("{MAPS}/m"), json!({"metadata": {"managedFields": [{}]}})).await.expect(200).json();
    assert_ne!(disowned["metadata"]["resourceVersion"], before["metadata"]["resourceVersion"], "owners are a change");
}
