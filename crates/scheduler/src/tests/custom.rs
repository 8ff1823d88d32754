//! Custom resources: placed by an explicit policy where their kind is served, with their dependents and replicas.

use super::*;

const DEFINITIONS: &str = "customresourcedefinitions.apiextensions.k8s.io";

/// Served definition of boats in `x.io`, whose scale counts `spec.crew`.
fn boats(references: &str) -> Value {
    let names = json!({"plural": "boats", "kind": "Boat"});
    let scale = json!({"specReplicasPath": ".spec.crew", "statusReplicasPath": ".status.crew"});
    json!({
        "metadata": {"annotations": {"portolan.dev/references": references}},
        "spec": {"group": "x.io", "names": names, "scope": "Namespaced",
            "versions": [{"name": "v1", "served": true, "storage": true, "subresources": {"scale": scale}}]},
        "status": {"acceptedNames": names, "conditions": [{"type": "Established", "status": "True"}]},
    })
}

async fn define(world: &World, cluster: LogicalClusterId, references: &str) -> ObjectKey {
    let key = key(cluster, &format!("{DEFINITIONS}/boats.x.io"));
    world.create(key.clone(), "apiextensions.k8s.io/v1", "CustomResourceDefinition", boats(references)).await;
    key
}

async fn boat(world: &World, cluster: LogicalClusterId, name: &str, spec: Value) -> ObjectKey {
    let key = key(cluster, &format!("boats.x.io/shop/{name}"));
    world.create(key.clone(), "x.io/v1", "Boat", json!({"spec": spec})).await;
    key
}

/// The physical cluster serves these versions of boats.
async fn serve(world: &World, physical: &str, versions: &[&str]) {
    let physical = key(LogicalClusterId::ROOT, &format!("physicalclusters.portolan.dev/{physical}"));
    world
        .change(&physical, |found| {
            found["status"]["customKinds"] =
                json!([{"group": "x.io", "kind": "Boat", "resource": "boats", "versions": versions}]);
        })
        .await;
}

fn about_boats(more: Value) -> Value {
    let mut spec = json!({"resources": [{"apiGroup": "x.io", "kinds": ["Boat"]}]});
    spec.as_object_mut().unwrap().extend(more.as_object().cloned().unwrap());
    spec
}

#[tokio::test(start_paused = true)]
async fn a_custom_resource_waits_until_its_kind_is_served_and_leaves_with_its_policy() {
    let world = World::new(&["east"]).await;
    world.policy(SHOP, "boats", about_boats(json!({}))).await;
    define(&world, SHOP, "{}").await;
    let ferry = boat(&world, SHOP, "ferry", json!({})).await;
    world.create(key(OTHER, "namespaces/shop"), "v1", "Namespace", json!({})).await;
    define(&world, OTHER, "{}").await;
    let foreign = boat(&world, OTHER, "ferry", json!({})).await;
    let said = |placement: Option<&Value>| placement.is_some_and(|p| p["status"]["rejected"]["NotSynced"] == 1);
    world.until("the reason", &placement_of(&ferry), said).await;
    serve(&world, "east", &[]).await;
    let said = |placement: Option<&Value>| placement.is_some_and(|p| p["status"]["rejected"]["KindNotServed"] == 1);
    world.until("the next reason", &placement_of(&ferry), said).await;
    serve(&world, "east", &["v1"]).await;
    world.placed(&ferry, "east").await;
    world.settle().await;
    assert_eq!(words(world.get(&foreign).await.as_ref()), "", "no policy of its workspace is about it");
    // The kind is not served any more: the copy stays.
    serve(&world, "east", &[]).await;
    world.settle().await;
    assert_eq!(words(world.get(&ferry).await.as_ref()), "east");
    let policy = shop("clusterplacementpolicies.portolan.dev/boats");
    world.store.commit(Transaction::one(policy, Expect::Present, None)).await.unwrap();
    world.placed(&ferry, "east-").await;
}

#[tokio::test(start_paused = true)]
async fn replicas_are_divided_where_the_scale_counts_them() {
    let world = World::new(&["east", "west"]).await;
    for physical in ["east", "west"] {
        serve(&world, physical, &["v1"]).await;
    }
    define(&world, SHOP, "{}").await;
    let (ferry, plain) = (
        boat(&world, SHOP, "ferry", json!({"crew": 5})).await,
        boat(&world, SHOP, "raft", json!({"replicas": 4})).await,
    );
    world.policy(SHOP, "boats", about_boats(json!({"count": "All", "replicas": {"mode": "Divide"}}))).await;
    world.placed(&ferry, "east*3 west*2").await;
    world.placed(&plain, "east west").await;
    world
        .change(&ferry, |ferry| {
            ferry["spec"]["crew"] = 7.into();
            ferry["metadata"]["generation"] = 2.into();
        })
        .await;
    world.placed(&ferry, "east*4 west*3").await;
}

#[tokio::test(start_paused = true)]
async fn another_scale_path_recounts_replicas() {
    let world = World::new(&["east"]).await;
    serve(&world, "east", &["v1"]).await;
    let definition = define(&world, SHOP, "{}").await;
    world.policy(SHOP, "boats", about_boats(json!({}))).await;
    let pods_of = |crew: i64, size: i64| json!({"crew": crew, "size": size, "template": {"spec": {"containers": []}}});
    let ferry = boat(&world, SHOP, "ferry", pods_of(5, 2)).await;
    let raft = boat(&world, SHOP, "raft", pods_of(3, 1)).await;
    for boat in [&ferry, &raft] {
        world.placed(boat, "east").await;
    }
    let east = key(LogicalClusterId::ROOT, "physicalclusters.portolan.dev/east");
    let pods = async |expected: i64| {
        world.settle().await;
        let usage = world.get(&east).await.unwrap()["status"]["usage"]["pods"].clone();
        assert_eq!(usage, expected.to_string());
    };
    pods(8).await;
    let path = "/spec/versions/0/subresources/scale/specReplicasPath";
    world.change(&definition, |crd| *crd.pointer_mut(path).unwrap() = ".spec.size".into()).await;
    pods(3).await;
    world.store.commit(Transaction::one(ferry, Expect::Present, None)).await.unwrap();
    pods(1).await;
    world.change(&definition, |crd| *crd.pointer_mut(path).unwrap() = ".spec.crew".into()).await;
    // A write that the new sums may contain before its event comes.
    world
        .change(&raft, |raft| {
            raft["spec"]["crew"] = 4.into();
            raft["metadata"]["generation"] = 2.into();
        })
        .await;
    pods(4).await;
    world.store.commit(Transaction::one(raft, Expect::Present, None)).await.unwrap();
    pods(0).await;
}

#[tokio::test(start_paused = true)]
async fn references_of_a_custom_resource_follow_it() {
    let world = World::new(&["east"]).await;
    serve(&world, "east", &["v1"]).await;
    let definition = define(&world, SHOP, r#"{"spec.charts[].secret": "Secret"}"#).await;
    let secret = |name: &str| shop(&format!("secrets/shop/{name}"));
    for name in ["north", "south", "hidden"] {
        world.create(secret(name), "v1", "Secret", json!({})).await;
    }
    let ferry = boat(&world, SHOP, "ferry", json!({"charts": [{"secret": "north"}], "log": "south"})).await;
    world.policy(SHOP, "boats", about_boats(json!({}))).await;
    world.placed(&ferry, "east").await;
    world.placed(&secret("north"), "east").await;
    world
        .change(&ferry, |ferry| {
            ferry["spec"]["charts"] = json!([{"secret": "south"}]);
            ferry["metadata"]["generation"] = 2.into();
        })
        .await;
    world.placed(&secret("south"), "east").await;
    world.placed(&secret("north"), "east-").await;
    world.confirm_gone(&secret("north")).await;
    // The definition now declares other fields.
    world
        .change(&definition, |crd| {
            crd["metadata"]["annotations"]["portolan.dev/references"] = json!(r#"{"spec.log": "Secret"}"#);
        })
        .await;
    world
        .change(&ferry, |ferry| {
            ferry["spec"] = json!({"log": "hidden"});
            ferry["metadata"]["generation"] = 3.into();
        })
        .await;
    world.placed(&secret("hidden"), "east").await;
    world.placed(&secret("south"), "east-").await;
}

#[tokio::test(start_paused = true)]
async fn a_placed_custom_resource_leaves_though_its_policy_went_while_nothing_ran() {
    let first = World::new(&["east"]).await;
    serve(&first, "east", &["v1"]).await;
    define(&first, SHOP, "{}").await;
    let ferry = boat(&first, SHOP, "ferry", json!({})).await;
    first.policy(SHOP, "boats", about_boats(json!({}))).await;
    first.placed(&ferry, "east").await;
    first.stop.cancel();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let policy = shop("clusterplacementpolicies.portolan.dev/boats");
    first.store.commit(Transaction::one(policy, Expect::Present, None)).await.unwrap();
    let next = World::on(first.store.clone(), Arc::new(UseByAll));
    next.run();
    next.placed(&ferry, "east-").await;
}

#[tokio::test(start_paused = true)]
async fn a_definition_with_faulty_references_is_answered_with_a_warning() {
    let world = World::new(&["east"]).await;
    let kind = GroupVersionKind::new("apiextensions.k8s.io", "v1", "CustomResourceDefinition");
    let faulty = world.scheduler.preview(SHOP, &kind, &boats("spec.x: Secret"));
    assert!(
        faulty[0].starts_with("the annotation portolan.dev/references is ignored: it is not a JSON map"),
        "{faulty:?}"
    );
    assert!(world.scheduler.preview(SHOP, &kind, &boats(r#"{"spec.x": "Secret"}"#)).is_empty());
}
