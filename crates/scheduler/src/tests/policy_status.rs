//! Conditions of policies.

use super::*;

/// Waits until the condition of a policy has a status, and returns its reason and message.
pub(super) async fn policy_condition(world: &World, policy: &ObjectKey, kind: &str, status: &str) -> (String, String) {
    let find = |policy: Option<&Value>| {
        let conditions = policy?["status"]["conditions"].as_array()?;
        let found = conditions.iter().find(|c| c["type"] == kind && c["status"] == status)?;
        Some((found["reason"].as_str()?.to_owned(), found["message"].as_str()?.to_owned()))
    };
    world.until(kind, policy, |policy| find(policy).is_some()).await;
    find(world.get(policy).await.as_ref()).unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_policy_with_an_excessive_patch_has_a_condition_until_it_changes() {
    let world = World::new(&["east"]).await;
    let copy = |n: usize| json!({"op": "copy", "from": "/metadata", "path": format!("/metadata/annotations/x{n}")});
    let doubling: Vec<Value> = (0..40).map(copy).collect();
    let resources = json!([{"apiGroup": "apps"}]);
    world.policy(SHOP, "p", json!({"resources": resources, "overrides": [{"patch": doubling}]})).await;
    world.deployment("web", json!({"containers": []})).await;
    let web = shop("deployments.apps/shop/web");
    world.placed(&web, "east").await;
    let policy = shop("clusterplacementpolicies.portolan.dev/p");
    let (reason, message) = policy_condition(&world, &policy, "OverridesWithinBudget", "False").await;
    assert_eq!(reason, "BudgetExceeded");
    let start = "overrides exceed their budget for deployments/web in shop: ";
    assert!(message.starts_with(start), "{message}");
    let harmless = json!([{"patch": [{"op": "add", "path": "/spec/paused", "value": true}]}]);
    world.change(&policy, |policy| policy["spec"]["overrides"] = harmless.clone()).await;
    let (reason, message) = policy_condition(&world, &policy, "OverridesWithinBudget", "True").await;
    assert_eq!((&*reason, &*message), ("WithinBudget", ""));
}

#[tokio::test(start_paused = true)]
async fn a_stored_policy_that_cannot_be_read_is_set_aside_with_a_condition() {
    let world = World::new(&["east"]).await;
    world.policy(SHOP, "p", json!({"resources": [{"apiGroup": "apps"}], "count": 5_000_000_000_u64})).await;
    let policy = shop("clusterplacementpolicies.portolan.dev/p");
    let (reason, message) = policy_condition(&world, &policy, "Accepted", "False").await;
    assert_eq!(reason, "Invalid");
    assert!(message.starts_with("the spec cannot be read: "), "{message}");
    world.deployment("web", json!({"containers": []})).await;
    world.placed(&shop("deployments.apps/shop/web"), "east").await;
}

#[tokio::test(start_paused = true)]
async fn a_physical_cluster_whose_spec_cannot_be_read_takes_nothing() {
    let world = World::new(&["west"]).await;
    let spec = json!({"connection": {"simulated": {"nodes": 5_000_000_000_u64}}});
    world.physical("east", spec, true).await;
    world.deployment("web", json!({"containers": []})).await;
    world.placed(&shop("deployments.apps/shop/web"), "west").await;
}

#[tokio::test(start_paused = true)]
async fn a_policy_names_its_parts_without_effect_in_a_condition() {
    let world = World::new(&["east"]).await;
    let resources = json!([{"apiGroup": "apps", "kinds": ["Deploymnet"]}, {"kinds": ["ConfigMap"]}]);
    world.policy(SHOP, "p", json!({"resources": resources, "overrides": [{"env": {"A": "b"}}]})).await;
    let policy = shop("clusterplacementpolicies.portolan.dev/p");
    let (reason, message) = policy_condition(&world, &policy, "FullyEffective", "False").await;
    assert_eq!(reason, "PartsWithoutEffect");
    for part in
        ["spec.resources: no namespaced kind \"Deploymnet\"", "spec.overrides[0]: env has no effect on ConfigMap"]
    {
        assert!(message.contains(part), "{message}");
    }
}

/// Rights whose first answer is a panic.
struct PanicOnce(std::sync::atomic::AtomicBool);

impl crate::UseRights for PanicOnce {
    fn may_use(&self, _: LogicalClusterId, _: LogicalClusterId, _: &str) -> bool {
        assert!(self.0.swap(true, std::sync::atomic::Ordering::SeqCst), "the first answer");
        true
    }
}

#[tokio::test(start_paused = true)]
async fn an_object_on_which_a_worker_panics_is_tried_again_and_keeps_no_other_waiting() {
    let world = World::with_rights(&["east"], Arc::new(PanicOnce(false.into()))).await;
    for name in ["a", "b"] {
        world.deployment(name, json!({"containers": []})).await;
    }
    for name in ["a", "b"] {
        world.placed(&shop(&format!("deployments.apps/shop/{name}")), "east").await;
    }
}
