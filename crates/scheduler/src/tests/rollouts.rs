//! Rollouts of a template over the stages of a policy.

use super::{failover::Fleet, *};

fn web() -> ObjectKey {
    shop("deployments.apps/shop/web")
}

/// Names of the physical clusters that get no change yet.
fn held_clusters(object: Option<&Value>) -> Vec<String> {
    let record = object.and_then(PlacementRecord::of).unwrap_or_default();
    let state = record.rollout.clone().unwrap_or_default();
    record.clusters.iter().filter(|copy| state.held.contains(&copy.uid)).map(|copy| copy.name.clone()).collect()
}

impl World {
    /// Reports two available replicas of each copy, and of those that are not held that they have the template.
    async fn report_rollout(&self) {
        let held = held_clusters(self.get(&web()).await.as_ref());
        self.change(&placement_of(&web()), |placement| {
            for copy in placement["status"]["clusters"].as_array_mut().unwrap() {
                let is_held = held.iter().any(|name| copy["name"] == **name);
                (copy["ready"], copy["available"], copy["desired"]) = (2.into(), 2.into(), 2.into());
                copy["updated"] = if is_held { 0 } else { 2 }.into();
            }
        })
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_new_template_goes_to_one_stage_after_the_other() {
    let world = Fleet::start(&["east", "north", "west"]).await;
    let rollout = json!({"stages": [{"name": "canary", "names": ["north"], "approval": true}]});
    let spec = json!({"resources": [{"apiGroup": "apps"}], "count": "All", "rollout": rollout});
    world.policy(SHOP, "p", spec).await;
    world.deployment("web", json!({"containers": [{"name": "c", "image": "1"}]})).await;
    world.placed(&web(), "east north west").await;
    world.report_rollout().await;
    world
        .change(&web(), |web| {
            web["spec"]["template"]["spec"]["containers"][0]["image"] = "2".into();
            web["metadata"]["generation"] = 2.into();
        })
        .await;
    world.until("the first stage", &web(), |web| held_clusters(web) == ["east", "west"]).await;
    world.report_rollout().await;
    let is_asked = |placement: Option<&Value>| {
        placement.is_some_and(|placement| condition(placement).1.contains("waits for an approval of stage canary"))
    };
    world.until("the question", &placement_of(&web()), is_asked).await;
    let placement = world.placement(&web()).await.unwrap();
    assert_eq!(condition(&placement).0, "RollingOut");
    let waiting = placement["status"]["waitingFor"].as_str().unwrap();
    let (_, value) = waiting.split_once("portolan.dev/approve-rollout: ").unwrap();
    let value = value.split(' ').next().unwrap().to_owned();
    world.change(&web(), |web| object::set_annotation(web, "portolan.dev/approve-rollout", Some(value.clone()))).await;
    world.until("the rest", &web(), |web| held_clusters(web).is_empty()).await;
    world.report_rollout().await;
    let is_done = |placement: Option<&Value>| placement.is_some_and(|placement| condition(placement).0 == "Placed");
    world.until("its end", &placement_of(&web()), is_done).await;
}
