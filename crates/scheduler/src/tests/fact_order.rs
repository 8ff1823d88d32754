//! Decisions and the order of writes: an object is decided with every fact that was written before it.

use portolan_store::{EventBatch, EventStream, StoreLayer};
use portolan_types::BoxFuture;
use tokio::sync::watch;

use super::*;

/// Store whose watches of one resource deliver nothing while they are held.
struct HeldWatches {
    store: DynStore,
    resource: GroupResource,
    held: watch::Receiver<bool>,
}

impl StoreLayer for HeldWatches {
    fn inner(&self) -> &DynStore {
        &self.store
    }

    fn watch(
        &self,
        scope: WatchScope,
        after: Option<ResourceVersion>,
    ) -> BoxFuture<'_, Result<Box<dyn EventStream>, StoreError>> {
        let is_held = matches!(&scope, WatchScope::Resource(resource, _) if *resource == self.resource);
        Box::pin(async move {
            let stream = self.store.watch(scope, after).await?;
            if !is_held {
                return Ok(stream);
            }
            Ok(Box::new(HeldStream { progress: stream.progress(), stream, held: self.held.clone() }) as _)
        })
    }
}

struct HeldStream {
    stream: Box<dyn EventStream>,
    progress: ResourceVersion,
    held: watch::Receiver<bool>,
}

impl EventStream for HeldStream {
    fn next(&mut self) -> BoxFuture<'_, Result<EventBatch, StoreError>> {
        Box::pin(async move {
            self.held.wait_for(|held| !held).await.expect("the test holds the sender");
            let batch = self.stream.next().await?;
            self.progress = batch.revision;
            Ok(batch)
        })
    }

    fn progress(&self) -> ResourceVersion {
        if *self.held.borrow() { self.progress } else { self.stream.progress() }
    }
}

/// World in which the watch of a resource is held while the sender holds `true`.
async fn world_without_events_of(held: &str) -> (World, watch::Sender<bool>) {
    let (sender, receiver) = watch::channel(true);
    let store: DynStore = Arc::new(HeldWatches { store: memory(), resource: resource(held), held: receiver });
    let world = World::on(store, Arc::new(UseByAll));
    world.create(shop("namespaces/shop"), "v1", "Namespace", json!({})).await;
    for name in ["east", "west"] {
        world.physical(name, json!({}), true).await;
    }
    world.run();
    tokio::time::sleep(Duration::from_secs(2)).await;
    (world, sender)
}

#[tokio::test(start_paused = true)]
async fn a_workload_waits_for_the_policy_that_was_written_before_it() {
    for policies in ["clusterplacementpolicies.portolan.dev", "placementpolicies.portolan.dev"] {
        let (world, held) = world_without_events_of(policies).await;
        let spec = json!({"resources": [{"apiGroup": "apps"}], "clusters": {"names": ["west"]}});
        let scope = if policies.starts_with("cluster") { "p" } else { "shop/p" };
        let kind = if policies.starts_with("cluster") { "ClusterPlacementPolicy" } else { "PlacementPolicy" };
        let policy = shop(&format!("{policies}/{scope}"));
        world.create(policy, "portolan.dev/v1alpha1", kind, json!({"spec": spec})).await;
        world.deployment("web", json!({"containers": []})).await;
        let web = shop("deployments.apps/shop/web");
        tokio::time::sleep(Duration::from_secs(10)).await;
        assert_eq!(words(world.get(&web).await.as_ref()), "", "the policy has not been observed");
        held.send_replace(false);
        world.until("placed", &web, |object| !words(object).is_empty()).await;
        assert_eq!(words(world.get(&web).await.as_ref()), "west");
    }
}

#[tokio::test(start_paused = true)]
async fn a_workload_waits_for_the_cordon_that_was_written_before_it() {
    let (world, held) = world_without_events_of("physicalclusters.portolan.dev").await;
    let east = key(LogicalClusterId::ROOT, "physicalclusters.portolan.dev/east");
    world.change(&east, |east| east["spec"]["unschedulable"] = true.into()).await;
    world.deployment("web", json!({"containers": []})).await;
    let web = shop("deployments.apps/shop/web");
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(words(world.get(&web).await.as_ref()), "", "the cordon has not been observed");
    held.send_replace(false);
    world.until("placed", &web, |object| !words(object).is_empty()).await;
    assert_eq!(words(world.get(&web).await.as_ref()), "west");
}

#[tokio::test(start_paused = true)]
async fn an_explanation_waits_for_the_policy_that_was_written_before_it() {
    let (world, held) = world_without_events_of("clusterplacementpolicies.portolan.dev").await;
    world.deployment("web", json!({"containers": []})).await;
    let web = shop("deployments.apps/shop/web");
    world.policy(SHOP, "p", json!({"resources": [{"apiGroup": "apps"}], "clusters": {"names": ["west"]}})).await;
    let behind = world.scheduler.explain_object(&web).await;
    assert!(matches!(behind, Err(crate::SchedulerError::Behind)), "{behind:?}");
    held.send_replace(false);
    let explained = world.scheduler.explain_object(&web).await.unwrap().unwrap();
    assert_eq!(explained["summary"], "placed on west by policy p", "{explained}");
}
