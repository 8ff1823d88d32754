//! Objects whose data do not move with them.

use super::*;

async fn refused(world: &World, object: &ObjectKey, on: &str) {
    let is_refused =
        |placement: Option<&Value>| placement.is_some_and(|placement| condition(placement).0 == "MoveRefused");
    world.until("the refusal", &placement_of(object), is_refused).await;
    assert_eq!(words(world.get(object).await.as_ref()), on);
    let placement = world.placement(object).await.unwrap();
    assert_eq!(placement["status"]["conditions"][0]["status"], "False");
    let (_, message) = condition(&placement);
    assert!(message.contains("the data on its volumes do not move with it"), "{message}");
}

async fn abandon(world: &World, key: &ObjectKey) {
    let annotation = "portolan.dev/abandon-volumes";
    world.change(key, |object| object::set_annotation(object, annotation, Some("true".into()))).await;
}

#[tokio::test(start_paused = true)]
async fn a_set_with_claims_moves_only_when_its_volumes_may_be_abandoned() {
    let world = World::new(&["east", "west"]).await;
    let db = shop("statefulsets.apps/shop/db");
    let spec = json!({"replicas": 1, "template": {"spec": {"containers": []}}, "volumeClaimTemplates": [{"metadata": {"name": "data"}}]});
    world.create(db.clone(), "apps/v1", "StatefulSet", json!({"spec": spec})).await;
    world.placed(&db, "east").await;
    let kind = GroupVersionKind::new("apps", "v1", "StatefulSet");
    assert_eq!(world.scheduler.preview(SHOP, &kind, &world.get(&db).await.unwrap()), Vec::<String>::new());
    world.pin(&db, "west").await;
    refused(&world, &db, "east").await;
    let warnings = world.scheduler.preview(SHOP, &kind, &world.get(&db).await.unwrap());
    let expected = "statefulset/db stays on east (not the pinned one): the data on its volumes do not move with it; \
        the annotation portolan.dev/abandon-volumes: \"true\" lets it start on new, empty volumes";
    assert_eq!(warnings, [expected]);
    abandon(&world, &db).await;
    world.placed(&db, "east-").await;
    world.confirm_gone(&db).await;
    world.placed(&db, "west").await;
}

#[tokio::test(start_paused = true)]
async fn a_drain_waits_for_a_deployment_with_a_claim_that_one_node_writes() {
    let world = World::new(&["east", "west"]).await;
    let claim = json!({"spec": {"accessModes": ["ReadWriteOnce"]}});
    world.create(shop("persistentvolumeclaims/shop/data"), "v1", "PersistentVolumeClaim", claim).await;
    let volumes = json!([{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]);
    world.deployment("web", json!({"containers": [], "volumes": volumes})).await;
    let web = shop("deployments.apps/shop/web");
    world.placed(&web, "east").await;
    let east = key(LogicalClusterId::ROOT, "physicalclusters.portolan.dev/east");
    let taint = json!([{"key": "m", "effect": "NoExecute"}]);
    let mut drained = world.get(&east).await.unwrap();
    drained["spec"]["taints"] = taint.clone();
    let kind = GroupVersionKind::new("portolan.dev", "v1alpha1", "PhysicalCluster");
    let warnings = world.scheduler.preview(LogicalClusterId::ROOT, &kind, &drained);
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    world.change(&east, |east| east["spec"]["taints"] = taint.clone()).await;
    refused(&world, &web, "east").await;
    let mut pinned = world.get(&web).await.unwrap();
    object::set_annotation(&mut pinned, "portolan.dev/pin", Some("west".into()));
    let warnings = world.scheduler.preview(SHOP, &GroupVersionKind::new("apps", "v1", "Deployment"), &pinned);
    assert!(
        warnings[0].starts_with("if one of its claims is ReadWriteOnce: deployment/web stays on east"),
        "{warnings:?}"
    );
    abandon(&world, &web).await;
    world.placed(&web, "east-").await;
}

#[tokio::test(start_paused = true)]
async fn a_workload_with_lost_volumes_restarts_only_after_abandoning_them() {
    let world = World::new(&["east", "west"]).await;
    let db = shop("statefulsets.apps/shop/db");
    let pod = json!({"containers": [{"envFrom": [{"configMapRef": {"name": "settings"}}]}]});
    let spec =
        json!({"replicas": 1, "template": {"spec": pod}, "volumeClaimTemplates": [{"metadata": {"name": "data"}}]});
    world.create(db.clone(), "apps/v1", "StatefulSet", json!({"spec": spec})).await;
    let settings = shop("configmaps/shop/settings");
    world.create(settings.clone(), "v1", "ConfigMap", json!({})).await;
    world.placed(&db, "east").await;
    world.placed(&settings, "east").await;
    world.settle().await;
    // As with `finalizers: null`.
    let east = key(LogicalClusterId::ROOT, "physicalclusters.portolan.dev/east");
    world.store.commit(Transaction::one(east, Expect::Present, None)).await.unwrap();
    refused(&world, &db, "east").await;
    world.placed(&settings, "").await;
    world.settle().await;
    refused(&world, &db, "east").await;
    assert_eq!(words(world.get(&settings).await.as_ref()), "", "nothing follows to what is gone");
    abandon(&world, &db).await;
    world.placed(&db, "west").await;
    world.placed(&settings, "west").await;
}

async fn set_with_claims(world: &World, claim: Value) -> ObjectKey {
    let db = shop("statefulsets.apps/shop/db");
    let spec = json!({"replicas": 1, "template": {"spec": {"containers": []}}, "volumeClaimTemplates": [claim]});
    world.create(db.clone(), "apps/v1", "StatefulSet", json!({"spec": spec})).await;
    db
}

fn stateful(strategy: &str) -> Value {
    json!({"resources": [{"apiGroup": "apps"}], "volumes": {"strategy": strategy}})
}

#[tokio::test(start_paused = true)]
async fn a_policy_abandons_data_and_says_so_unless_the_claim_refuses() {
    let world = World::new(&["east", "west"]).await;
    world.policy(SHOP, "stateful", stateful("Recreate")).await;
    let db = set_with_claims(&world, json!({"metadata": {"name": "data"}})).await;
    world.placed(&db, "east").await;
    world.pin(&db, "west").await;
    world.placed(&db, "east-").await;
    let placement = world.placement(&db).await.unwrap();
    let told = "the data on its volumes on east are abandoned, as policy stateful says (volumes.strategy: Recreate)";
    let (_, message) = condition(&placement);
    assert!(message.contains("waiting for east to be gone"), "{message}");
    let cause = placement["status"]["transitions"][0]["cause"].as_str().unwrap();
    assert!(cause.contains(told), "{cause}");
    world.confirm_gone(&db).await;
    world.placed(&db, "west").await;

    let world = World::new(&["east", "west"]).await;
    world.policy(SHOP, "stateful", stateful("Recreate")).await;
    let annotations = json!({"portolan.dev/volume-strategy": "Refuse"});
    let claim = json!({"metadata": {"name": "data", "annotations": annotations}});
    let db = set_with_claims(&world, claim).await;
    world.placed(&db, "east").await;
    world.pin(&db, "west").await;
    refused(&world, &db, "east").await;
}

#[tokio::test(start_paused = true)]
async fn a_claim_abandons_its_own_data() {
    let world = World::new(&["east", "west"]).await;
    let annotations = json!({"portolan.dev/volume-strategy": "Recreate"});
    let db = set_with_claims(&world, json!({"metadata": {"name": "data", "annotations": annotations}})).await;
    world.placed(&db, "east").await;
    world.pin(&db, "west").await;
    world.placed(&db, "east-").await;
}

#[tokio::test(start_paused = true)]
async fn volumes_of_a_shared_class_move_make_before_break() {
    let class = shop("storageclasses.storage.k8s.io/nfs");
    for (case, label, on) in [("declared", "true", "east west"), ("not declared", "false", "east")] {
        let world = World::new(&["east", "west"]).await;
        let labels = json!({"metadata": {"labels": {"portolan.dev/shared": label}}});
        world.create(class.clone(), "storage.k8s.io/v1", "StorageClass", labels).await;
        let claim = json!({"spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "nfs"}});
        world.create(shop("persistentvolumeclaims/shop/data"), "v1", "PersistentVolumeClaim", claim).await;
        world.policy(SHOP, "stateful", stateful("Shared")).await;
        let volumes = json!([{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]);
        world.deployment("web", json!({"containers": [], "volumes": volumes})).await;
        let web = shop("deployments.apps/shop/web");
        world.placed(&web, "east").await;
        world.ready(&web, "east", 2).await;
        world.pin(&web, "west").await;
        world.placed(&web, on).await;
        if label == "false" {
            refused(&world, &web, "east").await;
            continue;
        }
        world.ready(&web, "west", 2).await;
        world.placed(&web, "east- west").await;
        assert_eq!(words(world.get(&web).await.as_ref()), "east- west", "{case}");
    }
}
