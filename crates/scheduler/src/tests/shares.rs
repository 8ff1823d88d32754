//! Autoscalers and disruption budgets of divided workloads.

use super::*;

/// Values that are patched into the copies, as `east 2,5`.
fn shares(object: Option<&Value>) -> Vec<String> {
    let record = object.and_then(PlacementRecord::of).unwrap_or_default();
    let share = |one: &portolan_types::placement::PlacedOverride| {
        let values: Vec<String> = one.change.patch.iter().map(|operation| operation["value"].to_string()).collect();
        format!("{} {}", one.on[0].trim_start_matches("physicalclusters-"), values.join(","))
    };
    record.overrides.iter().map(share).collect()
}

async fn set(world: &World, key: &ObjectKey, pointer: &str, value: i64) {
    world
        .change(key, |object| {
            *object.pointer_mut(pointer).unwrap() = value.into();
            let generation = object::generation(object) + 1;
            object["metadata"]["generation"] = generation.into();
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn the_numbers_of_autoscalers_and_budgets_follow_the_division() {
    let world = World::new(&["east", "west"]).await;
    let resources = json!([{"apiGroup": "apps", "kinds": ["Deployment"]}]);
    world.policy(SHOP, "p", json!({"resources": resources, "count": "All", "replicas": {"mode": "Divide"}})).await;
    let labels = json!({"app": "web"});
    let spec = json!({"replicas": 4, "template": {"metadata": {"labels": labels}, "spec": {"containers": []}}});
    let (web, scaler, budget) = (
        shop("deployments.apps/shop/web"),
        shop("horizontalpodautoscalers.autoscaling/shop/web"),
        shop("poddisruptionbudgets.policy/shop/web"),
    );
    world.create(web.clone(), "apps/v1", "Deployment", json!({"spec": spec})).await;
    world.placed(&web, "east*2 west*2").await;
    let target = json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"});
    let bounds = json!({"spec": {"minReplicas": 3, "maxReplicas": 10, "scaleTargetRef": target}});
    world.create(scaler.clone(), "autoscaling/v2", "HorizontalPodAutoscaler", bounds).await;
    let least = json!({"spec": {"minAvailable": 3, "selector": {"matchLabels": labels}}});
    world.create(budget.clone(), "policy/v1", "PodDisruptionBudget", least).await;
    world.until("parts", &scaler, |object| shares(object) == ["east 2,5", "west 1,5"]).await;
    world.until("parts", &budget, |object| shares(object) == ["east 1", "west 1"]).await;
    let placement = world.placement(&budget).await.unwrap();
    let (_, message) = condition(&placement);
    assert!(message.starts_with("each physical cluster counts its own pods"), "{message}");
    set(&world, &scaler, "/spec/maxReplicas", 6).await;
    world.until("parts of another maximum", &scaler, |object| shares(object) == ["east 2,3", "west 1,3"]).await;
    // A drain: the staying copy must be able to reach its share.
    let west = key(LogicalClusterId::ROOT, "physicalclusters.portolan.dev/west");
    world.ready(&web, "east", 2).await;
    world.ready(&web, "west", 2).await;
    let taint = json!([{"key": "m", "effect": "NoExecute"}]);
    world.change(&west, |west| west["spec"]["taints"] = taint.clone()).await;
    world.placed(&web, "east*4 west*2").await;
    world.until("what is to stay reaches its part", &scaler, |object| shares(object) == ["east 4,4", "west 2,2"]).await;
    world.ready(&web, "east", 4).await;
    world.placed(&web, "east*4 west-").await;
    world.until("one copy has all", &scaler, |object| shares(object).is_empty()).await;
    world.until("one copy has all", &budget, |object| shares(object).is_empty()).await;
}

#[tokio::test(start_paused = true)]
async fn an_autoscaler_gets_the_limit_of_its_target_and_loses_it_with_that() {
    let world = World::new(&[]).await;
    world.physical("west", json!({"bounds": {"cpu": "7"}}), true).await;
    let container = json!({"resources": {"requests": {"cpu": "500m"}}});
    world.deployment("web", json!({"containers": [container]})).await;
    let (web, scaler) = (shop("deployments.apps/shop/web"), shop("horizontalpodautoscalers.autoscaling/shop/web"));
    world.placed(&web, "west").await;
    world.pin(&web, "west").await;
    let target = json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"});
    let bounds = json!({"spec": {"minReplicas": 2, "maxReplicas": 30, "scaleTargetRef": target}});
    world.create(scaler.clone(), "autoscaling/v2", "HorizontalPodAutoscaler", bounds).await;
    world.placed(&scaler, "west").await;
    assert_eq!(shares(world.get(&scaler).await.as_ref()), Vec::<String>::new());
    let scale = |replicas: i64| {
        move |object: &mut Value| {
            // Reports the replicas that an autoscaler downstream has chosen, as the syncer does.
            let mut record = PlacementRecord::of(object).unwrap();
            record.autoscaled = Some(replicas);
            record.write_to(object);
            object["spec"]["replicas"] = replicas.into();
            let generation = object::generation(object) + 1;
            object["metadata"]["generation"] = generation.into();
        }
    };
    world.change(&web, scale(20)).await;
    world.until("its limit", &scaler, |object| shares(object) == ["west 2,14"]).await;
    // The autoscaler obeys, and keeps its limit.
    world.change(&web, scale(14)).await;
    world.settle().await;
    assert_eq!(shares(world.get(&scaler).await.as_ref()), ["west 2,14"]);
    world.change(&web, scale(3)).await;
    world.until("no limit", &scaler, |object| shares(object).is_empty()).await;
}
