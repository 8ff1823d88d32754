//! Expressions, terms about other workloads, and suspension, through the loop.

use super::policy_status::policy_condition;
use super::*;

fn east() -> ObjectKey {
    key(LogicalClusterId::ROOT, "physicalclusters.portolan.dev/east")
}

fn label(key: &'static str, value: Option<&'static str>) -> impl FnMut(&mut Value) + Send {
    move |object| {
        let metadata = object::metadata_mut(object);
        let labels = object::child_mut(metadata, "labels");
        match value {
            Some(value) => drop(labels.insert(key.into(), value.into())),
            None => drop(labels.remove(key)),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_object_moves_when_the_expression_of_its_policy_has_another_value() {
    let world = World::new(&["east", "west"]).await;
    world.change(&east(), label("tier", Some("gold"))).await;
    let cel = "physicalCluster.metadata.?labels.tier.orValue('') == 'gold'";
    let fallback = json!([{"names": ["west"]}]);
    let spec = json!({"resources": [{"apiGroup": "apps"}], "clusters": {"cel": cel, "fallback": fallback}});
    world.policy(SHOP, "p", spec).await;
    world.deployment("web", json!({"containers": []})).await;
    let web = shop("deployments.apps/shop/web");
    world.placed(&web, "east").await;
    world.settle().await;
    let before = world.get(&web).await;
    world.change(&east(), |east| east["status"]["version"] = "v1.36.1".into()).await;
    world.settle().await;
    assert_eq!(world.get(&web).await, before, "nothing reads the version");
    world.change(&east(), label("tier", Some("iron"))).await;
    world.placed(&web, "east west").await;
}

#[tokio::test(start_paused = true)]
async fn a_failing_expression_becomes_a_condition_and_moves_nothing() {
    let world = World::new(&["east", "west"]).await;
    world.change(&east(), label("tier", Some("gold"))).await;
    let cel = "physicalCluster.metadata.labels['tier'] == 'gold'";
    world.policy(SHOP, "p", json!({"resources": [{"apiGroup": "apps"}], "clusters": {"cel": cel}})).await;
    world.deployment("web", json!({"containers": []})).await;
    let web = shop("deployments.apps/shop/web");
    world.placed(&web, "east").await;
    let policy = shop("clusterplacementpolicies.portolan.dev/p");
    let (reason, message) = policy_condition(&world, &policy, "ExpressionsEvaluated", "False").await;
    assert_eq!((&*reason, &*message), ("EvaluationFailed", "physical cluster west: no such key: tier"));
    world.change(&east(), label("tier", None)).await;
    world.settle().await;
    world.placed(&web, "east").await;
    let (_, message) = policy_condition(&world, &policy, "ExpressionsEvaluated", "False").await;
    assert!(message.contains("physical cluster east: no such key: tier"), "{message}");
    for name in ["east", "west"] {
        let key = key(LogicalClusterId::ROOT, &format!("physicalclusters.portolan.dev/{name}"));
        world.change(&key, label("tier", Some("gold"))).await;
    }
    policy_condition(&world, &policy, "ExpressionsEvaluated", "True").await;
}

#[tokio::test(start_paused = true)]
async fn an_annotation_that_an_expression_reads_moves_the_object() {
    let world = World::new(&["east", "west"]).await;
    let cel = "object.metadata.annotations['team'] == 'a'";
    let spec = json!({"resources": [{"apiGroup": "apps", "cel": cel}], "clusters": {"names": ["west"]}});
    world.policy(SHOP, "p", spec).await;
    world.deployment("web", json!({"containers": []})).await;
    let web = shop("deployments.apps/shop/web");
    let policy = shop("clusterplacementpolicies.portolan.dev/p");
    let (_, message) = policy_condition(&world, &policy, "ExpressionsEvaluated", "False").await;
    assert_eq!(message, "resources.cel failed for deployments/web in shop: no such key: team");
    assert_eq!(words(world.get(&web).await.as_ref()), "", "it is not known where it should go");
    let (reason, _) = condition(&world.placement(&web).await.unwrap());
    assert_eq!(reason, "ExpressionFailed");
    world.change(&web, |web| object::set_annotation(web, "team", Some("a".into()))).await;
    world.placed(&web, "west").await;
    policy_condition(&world, &policy, "ExpressionsEvaluated", "True").await;
    world.change(&web, |web| object::set_annotation(web, "team", Some("b".into()))).await;
    world.placed(&web, "west").await;
}

#[tokio::test(start_paused = true)]
async fn a_workload_waits_for_the_one_beside_which_it_runs_and_follows_it() {
    let world = World::new(&["east", "west"]).await;
    let term = json!([{"selector": {"matchLabels": {"app": "db"}}}]);
    let spec = json!({"resources": [{"apiGroup": "apps", "names": ["web"]}], "with": term});
    world.policy(SHOP, "p", spec).await;
    world.deployment("web", json!({"containers": []})).await;
    let (web, db) = (shop("deployments.apps/shop/web"), shop("deployments.apps/shop/db"));
    world.settle().await;
    assert_eq!(words(world.get(&web).await.as_ref()), "");
    let object = json!({
        "metadata": {"labels": {"app": "db"}, "annotations": {"portolan.dev/pin": "west"}},
        "spec": {"replicas": 1, "template": {"spec": {"containers": []}}},
    });
    world.create(db.clone(), "apps/v1", "Deployment", object).await;
    world.placed(&db, "west").await;
    world.placed(&web, "west").await;
    world.ready(&web, "west", 2).await;
    world.ready(&db, "west", 1).await;
    world.pin(&db, "east").await;
    world.placed(&db, "east west").await;
    world.ready(&db, "east", 1).await;
    world.placed(&db, "east west-").await;
    world.placed(&web, "east west").await;
}

#[tokio::test(start_paused = true)]
async fn suspended_parts_rest_until_they_are_resumed() {
    let world = World::new(&["east", "west"]).await;
    let spec =
        |suspend: Value| json!({"resources": [{"apiGroup": "apps"}, {"kinds": ["ConfigMap"]}], "suspend": suspend});
    world.policy(SHOP, "p", spec(json!({"scheduling": true}))).await;
    world.deployment("web", json!({"containers": []})).await;
    let web = shop("deployments.apps/shop/web");
    let placed = placement_of(&web);
    let is = |reason: &'static str| move |p: Option<&Value>| p.is_some_and(|p| condition(p).0 == reason);
    world.until("SchedulingSuspended", &placed, is("SchedulingSuspended")).await;
    let policy = shop("clusterplacementpolicies.portolan.dev/p");
    world.change(&policy, |policy| policy["spec"] = spec(json!({"dispatchOn": ["east"]}))).await;
    world.placed(&web, "east").await;
    let suspended =
        |object: Option<&Value>| object.and_then(PlacementRecord::of).is_some_and(|r| !r.suspended.is_empty());
    world.until("dispatch suspended", &web, suspended).await;
    world
        .until("a note", &placed, |p| p.is_some_and(|p| condition(p).1.contains("dispatch to east is suspended")))
        .await;
    world.change(&policy, |policy| policy["spec"] = spec(json!({}))).await;
    world.until("dispatch resumed", &web, |object| !suspended(object)).await;
    world.placed(&web, "east").await;
}

#[tokio::test(start_paused = true)]
async fn a_policy_names_the_physical_clusters_that_it_cannot_reach() {
    let world = World::new(&["east"]).await;
    let spec = json!({"resources": [{"apiGroup": "apps"}], "clusters": {"names": ["west"]}, "suspend": {"dispatchOn": ["easst"]}});
    world.policy(SHOP, "p", spec).await;
    let policy = shop("clusterplacementpolicies.portolan.dev/p");
    let (_, message) = policy_condition(&world, &policy, "FullyEffective", "False").await;
    let expected = "spec.clusters.names: physical cluster \"west\" is not in reach; did you mean \"east\"?; \
                    spec.suspend.dispatchOn.names: physical cluster \"easst\" is not in reach; did you mean \"east\"?";
    assert_eq!(message, expected);
    world.physical("west", json!({}), true).await;
    world.physical("easst", json!({}), true).await;
    policy_condition(&world, &policy, "FullyEffective", "True").await;
}

#[tokio::test(start_paused = true)]
async fn followers_stay_while_scheduling_is_suspended() {
    let world = World::new(&["east", "west"]).await;
    let settings = shop("configmaps/shop/settings");
    let spec = |suspend: bool, names: Value| json!({"resources": [{"kinds": ["ConfigMap"]}], "clusters": {"names": names}, "suspend": {"scheduling": suspend}});
    world.policy(SHOP, "p", spec(false, json!(["west"]))).await;
    world.create(settings.clone(), "v1", "ConfigMap", json!({})).await;
    world.placed(&settings, "west").await;
    let policy = shop("clusterplacementpolicies.portolan.dev/p");
    world.change(&policy, |policy| policy["spec"] = spec(true, json!(["east"]))).await;
    world.settle().await;
    world.placed(&settings, "west").await;
    world.change(&policy, |policy| policy["spec"] = spec(false, json!(["east"]))).await;
    world.placed(&settings, "east west-").await;
}
