//! Jobs whose copies share their completions, from the policy to a drain and its undo.

use super::*;

fn work() -> ObjectKey {
    shop("jobs.batch/shop/work")
}

/// Completions of the copies, as `east 3`.
fn completions(object: Option<&Value>) -> Vec<String> {
    let record = object.and_then(PlacementRecord::of).unwrap_or_default();
    let of = |copy: &portolan_types::placement::PlacedCopy| {
        Some(format!("{} {}", copy.name, record.completions.get(&copy.uid)?))
    };
    record.clusters.iter().filter_map(of).collect()
}

impl World {
    /// A Job of seven completions and four pods at once, divided over two of three physical clusters.
    async fn divided_job() -> Self {
        let world = Self::new(&["east", "north", "west"]).await;
        let resources = json!([{"apiGroup": "batch", "kinds": ["Job"]}]);
        world.policy(SHOP, "p", json!({"resources": resources, "count": 2, "replicas": {"mode": "Divide"}})).await;
        let spec = json!({"completions": 7, "parallelism": 4, "template": {"spec": {"containers": []}}});
        world.create(work(), "batch/v1", "Job", json!({"spec": spec})).await;
        world.placed(&work(), "east*2 north*2").await;
        assert_eq!(completions(world.get(&work()).await.as_ref()), ["east 4", "north 3"]);
        world
    }

    async fn drain_of_job(&self) -> ObjectKey {
        let drain = key(LogicalClusterId::ROOT, "drains.portolan.dev/d");
        let spec = json!({"spec": {"physicalClusters": ["east"]}});
        self.create(drain.clone(), "portolan.dev/v1alpha1", "Drain", spec).await;
        drain
    }
}

#[tokio::test(start_paused = true)]
async fn the_part_of_a_drained_job_moves_and_comes_back() {
    let world = World::divided_job().await;
    let drain = world.drain_of_job().await;
    world.until("its part leaves", &work(), |job| words(job) == "east- north*2").await;
    world.settle().await;
    assert_eq!(completions(world.get(&work()).await.as_ref()), ["east 4", "north 3"], "its pods may still run");
    world.confirm_gone(&work()).await;
    world.placed(&work(), "north*2 west*2").await;
    assert_eq!(completions(world.get(&work()).await.as_ref()), ["north 3", "west 4"]);
    world.until("its end", &drain, |drain| drain.is_some_and(|drain| drain["status"]["phase"] == "Completed")).await;
    world
        .change(&drain, |drain| {
            drain["spec"]["undo"] = true.into();
            drain["metadata"]["generation"] = 2.into();
        })
        .await;
    world.until("its part leaves", &work(), |job| words(job) == "north*2 west-").await;
    world.confirm_gone(&work()).await;
    world.placed(&work(), "east*2 north*2").await;
    assert_eq!(completions(world.get(&work()).await.as_ref()), ["east 4", "north 3"]);
    world.until("its undo", &drain, |drain| drain.is_some_and(|drain| drain["status"]["phase"] == "Undone")).await;
}

#[tokio::test(start_paused = true)]
async fn the_parts_of_a_started_job_stay() {
    let world = World::divided_job().await;
    world.change(&work(), |job| job["status"] = json!({"startTime": "2026-01-01T00:00:00Z", "active": 4})).await;
    let drain = world.drain_of_job().await;
    let is_blocked = |drain: Option<&Value>| drain.is_some_and(|drain| drain["status"]["phase"] == "Blocked");
    world.until("its block", &drain, is_blocked).await;
    assert_eq!(world.get(&drain).await.unwrap()["status"]["objects"][0]["reason"], "StartedJob");
    world
        .change(&work(), |job| {
            job["spec"]["parallelism"] = 6.into();
            job["metadata"]["generation"] = 2.into();
        })
        .await;
    world.placed(&work(), "east*3 north*3").await;
    assert_eq!(completions(world.get(&work()).await.as_ref()), ["east 4", "north 3"]);
}
