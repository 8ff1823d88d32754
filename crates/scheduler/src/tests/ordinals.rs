//! StatefulSets whose copies share ordinals, from the policy to drains, undo and autoscalers.

use portolan_types::placement::OrdinalRange;

use super::*;

fn db() -> ObjectKey {
    shop("statefulsets.apps/shop/db")
}

/// Ordinals of the copies, as `east 0..3`.
fn ordinals(object: Option<&Value>) -> Vec<String> {
    let record = object.and_then(PlacementRecord::of).unwrap_or_default();
    let wanted = object.map(OrdinalRange::of);
    let range = |copy: &portolan_types::placement::PlacedCopy| {
        let range = record.ordinals.get(&copy.uid)?.within(wanted?);
        Some(format!("{} {}..{}", copy.name, range.first, range.end))
    };
    record.clusters.iter().filter_map(range).collect()
}

impl World {
    /// A set of six pods, divided over two physical clusters of three.
    async fn divided_set() -> Self {
        let world = Self::new(&["east", "north", "west"]).await;
        let resources = json!([{"apiGroup": "apps", "kinds": ["StatefulSet"]}]);
        world.policy(SHOP, "p", json!({"resources": resources, "count": 2, "replicas": {"mode": "Divide"}})).await;
        let spec = json!({"replicas": 6, "serviceName": "db", "template": {"spec": {"containers": []}}});
        world.create(db(), "apps/v1", "StatefulSet", json!({"spec": spec})).await;
        world.placed(&db(), "east*3 north*3").await;
        assert_eq!(ordinals(world.get(&db()).await.as_ref()), ["east 0..3", "north 3..6"]);
        world
    }

    /// A set of six pods that ran whole on east before a policy would divide it.
    async fn whole_set() -> Self {
        let world = Self::new(&["east", "north", "west"]).await;
        let spec = json!({"replicas": 6, "serviceName": "db", "template": {"spec": {"containers": []}}});
        world.create(db(), "apps/v1", "StatefulSet", json!({"spec": spec})).await;
        world.placed(&db(), "east").await;
        let resources = json!([{"apiGroup": "apps", "kinds": ["StatefulSet"]}]);
        world.policy(SHOP, "p", json!({"resources": resources, "count": 2, "replicas": {"mode": "Divide"}})).await;
        world.sync_set().await;
        world.placed(&db(), "east").await;
        world
    }

    async fn drain_east(&self) -> ObjectKey {
        let drain = key(LogicalClusterId::ROOT, "drains.portolan.dev/d");
        let spec = json!({"spec": {"physicalClusters": ["east"], "budget": {"maxUnavailable": 6}}});
        self.create(drain.clone(), "portolan.dev/v1alpha1", "Drain", spec).await;
        drain
    }

    async fn set_in_drain(&self, drain: &ObjectKey, field: &str) {
        self.change(drain, |drain| {
            drain["spec"][field] = true.into();
            drain["metadata"]["generation"] = (object::generation(drain) + 1).into();
        })
        .await;
    }

    async fn scale_set(&self, replicas: i64) {
        self.change(&db(), |set| {
            set["spec"]["replicas"] = replicas.into();
            set["metadata"]["generation"] = (object::generation(set) + 1).into();
        })
        .await;
    }

    async fn sync_set_until(&self, drain: &ObjectKey, phase: &str) {
        for _ in 0..50 {
            if self.get(drain).await.unwrap()["status"]["phase"] == phase {
                return;
            }
            self.sync_set().await;
        }
        let (drain, set) = (self.get(drain).await.unwrap(), self.get(&db()).await);
        panic!("{phase} never comes: {:#}, {}", drain["status"], words(set.as_ref()));
    }

    /// The syncer proves which copies are gone, and reports the others as ready.
    async fn sync_set(&self) {
        for _ in 0..4 {
            self.settle().await;
            self.confirm_gone(&db()).await;
            self.settle().await;
            let record = self.get(&db()).await.as_ref().and_then(PlacementRecord::of).unwrap();
            for copy in &record.clusters {
                self.ready(&db(), &copy.name, copy.replicas.unwrap_or(6)).await;
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_ordinal_moves_only_once_its_copy_is_gone() {
    let world = World::divided_set().await;
    let east = key(LogicalClusterId::ROOT, "physicalclusters.portolan.dev/east");
    let taint = json!([{"key": "m", "effect": "NoExecute"}]);
    world.change(&east, |east| east["spec"]["taints"] = taint.clone()).await;
    world.placed(&db(), "east- north*3").await;
    world.scale_set(8).await;
    world.settle().await;
    let found = world.get(&db()).await;
    assert_eq!(ordinals(found.as_ref())[0], "east 0..3", "it has them until it is gone");
    assert!(!words(found.as_ref()).contains("west"), "nothing arrives before");
    world.confirm_gone(&db()).await;
    world.until("its ordinals move", &db(), |set| ordinals(set) == ["north 3..8", "west 0..3"]).await;
}

#[tokio::test(start_paused = true)]
async fn a_set_that_shrinks_and_grows_has_each_ordinal_where_it_was() {
    let world = World::divided_set().await;
    world.scale_set(2).await;
    world.placed(&db(), "east*2 north*0").await;
    world.scale_set(7).await;
    world.placed(&db(), "east*3 north*4").await;
    assert_eq!(ordinals(world.get(&db()).await.as_ref()), ["east 0..3", "north 3..7"]);
}

#[tokio::test(start_paused = true)]
async fn a_drain_takes_ordinals_along_and_its_undo_brings_them_back() {
    let world = World::divided_set().await;
    world.sync_set().await;
    let drain = world.drain_east().await;
    world.sync_set_until(&drain, "Completed").await;
    assert_eq!(ordinals(world.get(&db()).await.as_ref()), ["north 3..6", "west 0..3"]);
    world.set_in_drain(&drain, "undo").await;
    world.sync_set_until(&drain, "Undone").await;
    assert_eq!(ordinals(world.get(&db()).await.as_ref()), ["east 0..3", "north 3..6"]);
}

#[tokio::test(start_paused = true)]
async fn a_whole_set_stays_whole_through_a_drain_and_its_undo() {
    let world = World::whole_set().await;
    let drain = world.drain_east().await;
    world.sync_set_until(&drain, "Completed").await;
    world.placed(&db(), "north").await;
    world.set_in_drain(&drain, "undo").await;
    world.sync_set_until(&drain, "Undone").await;
    world.placed(&db(), "east").await;
    assert!(ordinals(world.get(&db()).await.as_ref()).is_empty(), "it is not divided");
}

#[tokio::test(start_paused = true)]
async fn a_whole_set_stays_whole_when_its_drain_is_undone_while_it_leaves() {
    let world = World::whole_set().await;
    let drain = world.drain_east().await;
    world.placed(&db(), "east-").await;
    world.set_in_drain(&drain, "undo").await;
    world.sync_set_until(&drain, "Undone").await;
    world.placed(&db(), "east").await;
}

#[tokio::test(start_paused = true)]
async fn a_whole_set_stays_whole_when_its_drain_is_aborted_while_it_leaves() {
    let world = World::whole_set().await;
    let drain = world.drain_east().await;
    world.placed(&db(), "east-").await;
    world.set_in_drain(&drain, "abort").await;
    world.sync_set_until(&drain, "Aborted").await;
    let found = words(world.get(&db()).await.as_ref());
    assert!(["east", "north", "west"].contains(&&*found), "{found}");
}

#[tokio::test(start_paused = true)]
async fn an_autoscaler_changes_no_part_of_a_set_with_ordinals() {
    let world = World::divided_set().await;
    let scaler = shop("horizontalpodautoscalers.autoscaling/shop/db");
    let target = json!({"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "db"});
    let bounds = json!({"spec": {"minReplicas": 1, "maxReplicas": 30, "scaleTargetRef": target}});
    world.create(scaler.clone(), "autoscaling/v2", "HorizontalPodAutoscaler", bounds).await;
    let fixed = |object: Option<&Value>| {
        let record = object.and_then(PlacementRecord::of).unwrap_or_default();
        let parts = record.overrides.iter().flat_map(|one| one.change.patch.iter().map(|patch| patch["value"].clone()));
        parts.collect::<Vec<_>>() == [3, 3, 3, 3]
    };
    world.until("bounds of one number", &scaler, fixed).await;
}
