//! Drains on the memory store: the tests play the syncers, which report every replica ready at once.

use portolan_types::placement::{DrainMark, DrainStatus};

use super::*;
use crate::PlannedChange;

const DEPLOYMENTS: &str = "deployments.apps";

fn drain_key(name: &str) -> ObjectKey {
    key(LogicalClusterId::ROOT, &format!("drains.portolan.dev/{name}"))
}

fn deployment_key(name: &str) -> ObjectKey {
    shop(&format!("{DEPLOYMENTS}/shop/{name}"))
}

fn physical_key(name: &str) -> ObjectKey {
    key(LogicalClusterId::ROOT, &format!("physicalclusters.portolan.dev/{name}"))
}

fn mark(object: &Value) -> Option<Box<DrainMark>> {
    PlacementRecord::of(object).and_then(|record| record.drain)
}

impl World {
    async fn drain(&self, name: &str, spec: Value) {
        self.create(drain_key(name), "portolan.dev/v1alpha1", "Drain", json!({"spec": spec})).await;
    }

    async fn drain_status(&self, name: &str) -> DrainStatus {
        let drain = self.get(&drain_key(name)).await.unwrap();
        serde_json::from_value(drain.get("status").cloned().unwrap_or_default()).unwrap_or_default()
    }

    async fn set_drain(&self, name: &str, field: &str, value: Value) {
        self.change(&drain_key(name), |drain| {
            drain["spec"][field] = value.clone();
            drain["metadata"]["generation"] = (object::generation(drain) + 1).into();
        })
        .await;
    }

    async fn deployments(&self) -> Vec<(ObjectKey, Value)> {
        let scope = RangeScope::Cluster(SHOP, resource(DEPLOYMENTS));
        self.objects.list(scope).await.unwrap().0
    }

    /// Makes deployments that all run on `east`, ready.
    async fn deployments_on_east(&self, number: usize) {
        for n in 0..number {
            let name = format!("web-{n:02}");
            self.deployment(&name, json!({"containers": [{"name": "c"}]})).await;
            self.placed(&deployment_key(&name), "east").await;
        }
        self.sync().await;
    }

    /// Plays the syncers once: every active copy is ready, every leaving one is gone.
    async fn sync(&self) {
        self.settle().await;
        for (key, object) in self.deployments().await {
            let Some(record) = PlacementRecord::of(&object) else { continue };
            let all = object["spec"]["replicas"].as_i64().unwrap();
            for copy in record.active() {
                self.ready(&key, &copy.name, copy.replicas.unwrap_or(all)).await;
            }
            if record.clusters.iter().any(|copy| copy.phase == CopyPhase::Leaving) {
                self.confirm_gone(&key).await;
            }
        }
        self.settle().await;
    }

    /// Plays the syncers until the drain has a phase. Returns the largest number of objects that moved at once.
    async fn sync_until(&self, name: &str, phase: &str) -> i64 {
        let mut most = 0;
        for _ in 0..200 {
            let status = self.drain_status(name).await;
            most = most.max(status.counts.moving);
            if status.phase.word() == phase {
                return most;
            }
            self.sync().await;
        }
        panic!("{phase} never comes: {:#?}", self.drain_status(name).await);
    }

    async fn splits(&self) -> Vec<String> {
        self.deployments().await.iter().map(|(_, object)| words(Some(object))).collect()
    }
}

#[tokio::test(start_paused = true)]
async fn objects_leave_in_groups_and_return_exactly() {
    let world = World::new(&["east", "west"]).await;
    world.deployments_on_east(20).await;
    let before = world.splits().await;
    world.drain("empty-east", json!({"physicalClusters": ["east"], "budget": {"maxMoving": 3}})).await;
    let most = world.sync_until("empty-east", "Completed").await;
    assert_eq!(most, 3, "as many as may");
    assert_eq!(world.splits().await, vec!["west"; 20]);
    let status = world.drain_status("empty-east").await;
    assert_eq!((status.counts.total, status.counts.moved, status.unavailable_replicas), (20, 20, 0));
    let report = status.report.unwrap();
    assert_eq!(
        (report.summary.as_str(), report.most_unavailable),
        ("20 objects moved; nothing that Portolan placed is left", 0)
    );
    assert!(report.left.is_empty() && !report.revision.is_empty(), "the proof");
    let placement = world.placement(&deployment_key("web-00")).await.unwrap();
    let last = &placement["status"]["transitions"][0];
    assert_eq!(
        (&last["reason"], &last["actor"], &last["to"]),
        (&json!("Drain"), &json!("Drain root:empty-east"), &json!("west"))
    );
    assert!(last["revision"].as_str().is_some_and(|revision| revision.parse::<u64>().is_ok()));
    let progress = &world.get(&physical_key("east")).await.unwrap()["status"]["drain"];
    assert_eq!(*progress, json!({"name": "empty-east", "phase": "Completed", "done": 20, "total": 20}));
    world.deployment("late", json!({"containers": []})).await;
    world.placed(&deployment_key("late"), "west").await;
    world.set_drain("empty-east", "undo", true.into()).await;
    assert_eq!(world.sync_until("empty-east", "Undone").await, 3);
    world.sync().await;
    let after = world.splits().await;
    assert_eq!((&after[1..], after[0].as_str()), (&before[..], "west"), "what came later stays");
    let status = world.drain_status("empty-east").await;
    assert_eq!((status.counts.restored, status.report.unwrap().summary.as_str()), (20, "20 objects restored"));
    assert!(world.deployments().await.iter().all(|(_, object)| mark(object).is_none()), "no mark is left");
    assert_eq!(world.get(&physical_key("east")).await.unwrap()["status"].get("drain"), None);
}

#[tokio::test(start_paused = true)]
async fn a_pause_holds_and_another_scheduler_goes_on() {
    let world = World::new(&["east", "west"]).await;
    world.deployments_on_east(8).await;
    world.drain("d", json!({"physicalClusters": ["east"], "budget": {"maxMoving": 2}})).await;
    world.settle().await;
    world.sync().await;
    world.set_drain("d", "paused", true.into()).await;
    world.sync_until("d", "Paused").await;
    for _ in 0..3 {
        world.sync().await;
    }
    let paused = world.splits().await;
    let moved = paused.iter().filter(|split| *split == "west").count();
    assert!((1..8).contains(&moved), "it was in the middle: {paused:?}");
    for _ in 0..5 {
        world.sync().await;
        assert_eq!(world.splits().await, paused, "nothing more moves");
    }
    let (store, rights) = (world.store.clone(), Arc::new(UseByAll));
    drop(world);
    let world = World::on(store, rights);
    world.run();
    world.sync().await;
    assert_eq!(world.splits().await, paused, "nor by another scheduler");
    world.set_drain("d", "paused", false.into()).await;
    world.sync().await;
    let store = world.store.clone();
    drop(world);
    let world = World::on(store, Arc::new(UseByAll));
    world.run();
    assert!(world.sync_until("d", "Completed").await <= 2);
    world.set_drain("d", "undo", true.into()).await;
    world.sync_until("d", "Undone").await;
    assert_eq!(world.splits().await, vec!["east"; 8]);
}

#[tokio::test(start_paused = true)]
async fn an_abort_lets_moves_under_way_finish() {
    let world = World::new(&["east", "west"]).await;
    world.deployments_on_east(6).await;
    world.drain("d", json!({"physicalClusters": ["east"], "budget": {"maxMoving": 2}})).await;
    world.settle().await;
    assert_eq!(world.splits().await.iter().filter(|split| *split == "east west").count(), 2);
    world.set_drain("d", "abort", true.into()).await;
    world.sync_until("d", "Aborted").await;
    world.sync().await;
    assert_eq!(world.splits().await.iter().filter(|split| *split == "west").count(), 2);
    assert_eq!(world.splits().await.iter().filter(|split| *split == "east").count(), 4);
    world.deployment("late", json!({"containers": []})).await;
    world.placed(&deployment_key("late"), "east").await;
    world.set_drain("d", "undo", true.into()).await;
    world.sync_until("d", "Undone").await;
    assert_eq!(world.splits().await, vec!["east"; 7], "it takes objects again, also those that had moved");
}

#[tokio::test(start_paused = true)]
async fn divided_replicas_return_to_the_split_of_before() {
    let world = World::new(&["east", "north", "west"]).await;
    let replicas = json!({"mode": "Divide", "by": "Equal"});
    let spec = json!({"resources": [{"apiGroup": "apps", "kinds": ["Deployment"]}], "count": 2, "replicas": replicas});
    world.policy(SHOP, "two", spec).await;
    world.deployment("web", json!({"containers": []})).await;
    let web = deployment_key("web");
    world.placed(&web, "east*1 north*1").await;
    // It grows from the present split, which another division would not give.
    for wanted in [7, 5] {
        world
            .change(&web, |web| {
                web["spec"]["replicas"] = wanted.into();
                web["metadata"]["generation"] = (object::generation(web) + 1).into();
            })
            .await;
        world.sync().await;
    }
    let before = words(world.get(&web).await.as_ref());
    world.drain("d", json!({"physicalClusters": ["east"]})).await;
    world.sync_until("d", "Completed").await;
    let moved = words(world.get(&web).await.as_ref());
    assert!(moved.starts_with("north*") && moved.contains("west*"), "{moved}");
    world.set_drain("d", "undo", true.into()).await;
    world.sync_until("d", "Undone").await;
    world.sync().await;
    assert_eq!(words(world.get(&web).await.as_ref()), before);
}

#[tokio::test(start_paused = true)]
async fn undo_lists_changed_objects_and_returns_the_rest() {
    let world = World::new(&["east", "north", "west"]).await;
    world.deployments_on_east(4).await;
    world.drain("d", json!({"physicalClusters": ["east"]})).await;
    world.sync_until("d", "Completed").await;
    let other = if world.splits().await[1] == "west" { "north" } else { "west" };
    world.pin(&deployment_key("web-01"), other).await;
    for _ in 0..3 {
        world.sync().await;
    }
    world.set_drain("d", "undo", true.into()).await;
    world.sync_until("d", "Undone").await;
    let splits = world.splits().await;
    assert_eq!((splits[0].as_str(), splits[1].as_str(), splits[2].as_str()), ("east", other, "east"));
    let status = world.drain_status("d").await;
    let report = status.report.unwrap();
    assert_eq!((status.counts.restored, status.counts.changed), (3, 1));
    assert_eq!(report.summary, "3 objects restored, 1 not: something has changed since");
    assert_eq!((report.exceptions[0].name.as_str(), report.exceptions[0].reason.as_str()), ("web-01", "MovedSince"));
}

#[tokio::test(start_paused = true)]
async fn an_object_that_its_policy_brings_back_before_its_turn_is_restored() {
    let world = World::new(&["east", "north", "west"]).await;
    let clusters = json!({"names": ["east"], "fallback": [{}]});
    world.policy(SHOP, "east-first", json!({"resources": [{"apiGroup": "apps"}], "clusters": clusters})).await;
    world.deployments_on_east(4).await;
    world.drain("d", json!({"physicalClusters": ["east"], "budget": {"maxMoving": 1}})).await;
    world.sync_until("d", "Completed").await;
    world.set_drain("d", "undo", true.into()).await;
    world.sync_until("d", "Undone").await;
    assert_eq!(world.splits().await, ["east"; 4]);
    let counts = world.drain_status("d").await.counts;
    assert_eq!((counts.restored, counts.changed), (4, 0));
}

#[tokio::test(start_paused = true)]
async fn objects_that_cannot_move_are_blocked_skipped_or_forced() {
    for (when_blocked, phase, states) in [
        (
            "Wait",
            "Blocked",
            vec![("lonely", "Blocked", "Pinned"), ("once", "Blocked", "Budget"), ("data", "Blocked", "Volumes")],
        ),
        (
            "Skip",
            "Completed",
            vec![("lonely", "Skipped", "Pinned"), ("once", "Skipped", "Budget"), ("data", "Skipped", "Volumes")],
        ),
        ("Force", "Blocked", vec![("lonely", "Blocked", "Pinned"), ("once", "Moved", ""), ("data", "Moved", "")]),
    ] {
        let world = World::new(&["east", "west"]).await;
        world.deployments_on_east(1).await;
        world.deployment("lonely", json!({"containers": []})).await;
        world.pin(&deployment_key("lonely"), "east").await;
        let claim = json!({"spec": {"accessModes": ["ReadWriteOnce"]}});
        world.create(shop("persistentvolumeclaims/shop/data"), "v1", "PersistentVolumeClaim", claim).await;
        let volumes = json!([{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]);
        world.deployment("data", json!({"containers": [], "volumes": volumes})).await;
        let once = json!({"spec": {"replicas": 2, "strategy": {"type": "Recreate"}, "template": {"spec": {"containers": []}}}});
        world.create(deployment_key("once"), "apps/v1", "Deployment", once).await;
        for name in ["lonely", "data", "once"] {
            world.placed(&deployment_key(name), "east").await;
        }
        world.sync().await;
        world.drain("d", json!({"physicalClusters": ["east"], "whenBlocked": when_blocked})).await;
        world.sync_until("d", phase).await;
        world.sync().await;
        let status = world.drain_status("d").await;
        let state = |name: &str| {
            let row = status.objects.iter().find(|row| row.name == name).unwrap();
            (json!(row.state), row.reason.clone())
        };
        for (name, expected, reason) in states {
            assert_eq!(state(name), (json!(expected), reason.to_owned()), "{when_blocked}: {name}");
        }
        assert_eq!(state("web-00").0, "Moved", "{when_blocked}");
        if when_blocked == "Wait" {
            let blocked = status.conditions.iter().find(|condition| condition.kind == "Blocked").unwrap();
            assert_eq!((blocked.status.as_str(), blocked.reason.as_str()), ("True", "ObjectsBlocked"));
            assert!(blocked.message.contains("deployments.apps/data in shop (Volumes:"), "{}", blocked.message);
            world.pin(&deployment_key("lonely"), "west").await;
            world.set_drain("d", "budget", json!({"maxUnavailable": 2})).await;
            let abandon = |object: &mut Value| {
                object::set_annotation(object, "portolan.dev/abandon-volumes", Some("true".into()))
            };
            world.change(&deployment_key("data"), abandon).await;
            world.sync_until("d", "Completed").await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn drains_that_cannot_start_say_why() {
    let world = World::new(&["east", "west"]).await;
    world.deployments_on_east(3).await;
    let accepted = |status: &DrainStatus| {
        let condition = status.conditions.iter().find(|condition| condition.kind == "Accepted").unwrap();
        (status.phase.word(), condition.status.clone(), condition.reason.clone())
    };
    let refused = |reason: &str| ("Planned", "False".to_owned(), reason.to_owned());
    world.drain("unknown", json!({"physicalClusters": ["nowhere"]})).await;
    world.drain("paused", json!({"physicalClusters": ["east"], "paused": true})).await;
    world.settle().await;
    assert_eq!(accepted(&world.drain_status("unknown").await), refused("UnknownCluster"));
    assert_eq!(accepted(&world.drain_status("paused").await), ("Planned", "True".to_owned(), "Paused".to_owned()));
    assert_eq!(world.splits().await, vec!["east"; 3]);
    world.drain("first", json!({"physicalClusters": ["east"], "budget": {"maxMoving": 1}})).await;
    world.settle().await;
    world.drain("second", json!({"physicalClusters": ["west", "east"]})).await;
    world.settle().await;
    assert_eq!(accepted(&world.drain_status("second").await), refused("DrainedByOther"));
    world.store.commit(Transaction::one(drain_key("second"), Expect::Anything, None)).await.unwrap();
    world.sync_until("first", "Completed").await;
    let again = json!({"physicalClusters": ["east"]});
    world.drain("again", again).await;
    world.sync_until("again", "Completed").await;
    let status = world.drain_status("again").await;
    assert_eq!(
        (status.counts.total, status.report.unwrap().summary.as_str()),
        (0, "0 objects moved; nothing that Portolan placed is left")
    );
    world.physical("nowhere", json!({}), true).await;
    world.sync_until("unknown", "Completed").await;
}

#[tokio::test(start_paused = true)]
async fn a_drain_starts_only_with_the_plan_that_it_expects() {
    let world = World::new(&["east", "west"]).await;
    world.deployments_on_east(3).await;
    world.drain("d", json!({"physicalClusters": ["east"], "expectPlan": "another"})).await;
    world.settle().await;
    let status = world.drain_status("d").await;
    let plan = status.plan.unwrap();
    assert_eq!((status.phase.word(), plan.moves, plan.refused), ("Planned", 3, 0));
    let accepted = status.conditions.iter().find(|condition| condition.kind == "Accepted").unwrap();
    assert_eq!((accepted.status.as_str(), accepted.reason.as_str()), ("False", "PlanChanged"));
    for _ in 0..3 {
        world.sync().await;
    }
    assert_eq!(world.splits().await, vec!["east"; 3], "it stays refused");
    world.set_drain("d", "expectPlan", plan.hash.into()).await;
    world.sync_until("d", "Completed").await;
    assert_eq!(world.splits().await, vec!["west"; 3]);
}

#[tokio::test(start_paused = true)]
async fn a_mark_keeps_no_deleted_object() {
    let world = World::new(&["east", "west"]).await;
    world.deployments_on_east(1).await;
    world.drain("d", json!({"physicalClusters": ["east"]})).await;
    world.sync_until("d", "Completed").await;
    let mark = mark(&world.get(&deployment_key("web-00")).await.unwrap());
    // Between its physical clusters an object that must not run twice has no copies.
    let mut pod = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}, "spec": {"containers": []}});
    PlacementRecord { drain: mark, ..PlacementRecord::default() }.write_to(&mut pod);
    let key = shop("pods/shop/p");
    world.create(key.clone(), "v1", "Pod", pod).await;
    world.until("it is gone", &key, |pod| pod.is_none()).await;
}

#[tokio::test(start_paused = true)]
async fn a_deleted_drain_leaves_no_marks() {
    let world = World::new(&["east", "west"]).await;
    world.deployments_on_east(3).await;
    world.drain("d", json!({"physicalClusters": ["east"]})).await;
    world.sync_until("d", "Completed").await;
    assert!(world.deployments().await.iter().all(|(_, object)| mark(object).is_some()));
    let gone = Transaction::one(drain_key("d"), Expect::Anything, None);
    world.store.commit(gone).await.unwrap();
    world.settle().await;
    world.settle().await;
    assert!(world.deployments().await.iter().all(|(_, object)| mark(object).is_none()));
    assert_eq!(world.get(&physical_key("east")).await.unwrap()["status"].get("drain"), None);
    assert_eq!(world.splits().await, vec!["west"; 3], "nothing moves back by itself");
}

#[tokio::test(start_paused = true)]
async fn a_physical_cluster_goes_once_it_is_proven_empty() {
    let world = World::new(&["east", "west"]).await;
    world.deployments_on_east(3).await;
    world.drain("d", json!({"physicalClusters": ["east"], "budget": {"maxMoving": 1}})).await;
    world.settle().await;
    let east = physical_key("east");
    world.change(&east, |east| east["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into()).await;
    world.settle().await;
    assert_eq!(world.splits().await.iter().filter(|split| *split == "east").count(), 2, "it leaves as the drain says");
    let scope = WatchScope::Resource(east.resource.clone(), None);
    let mut stream = world.store.watch(scope, None).await.unwrap();
    world.sync_until("d", "Completed").await;
    world.settle().await;
    let mut proof = String::new();
    while let Ok(Ok(batch)) = tokio::time::timeout(Duration::from_secs(5), stream.next()).await {
        for event in batch.events.iter().filter(|event| event.key == east) {
            let object: Value = serde_json::from_slice(event.record.body()).unwrap();
            let conditions = object["status"]["conditions"].as_array().unwrap();
            let drained = conditions.iter().find(|c| c["type"] == "Drained" && c["status"] == "True");
            proof = drained.map(|c| c["message"].as_str().unwrap().to_owned()).unwrap_or(proof);
        }
    }
    assert!(proof.starts_with("nothing that Portolan placed was left at revision "), "{proof:?}");
    assert!(world.get(&east).await.is_none());
}

#[tokio::test(start_paused = true)]
async fn deleted_placements_are_recreated_with_their_history() {
    let world = World::new(&["east", "west"]).await;
    world.deployments_on_east(1).await;
    let (web, placement) = (deployment_key("web-00"), placement_of(&deployment_key("web-00")));
    let before = world.get(&placement).await.unwrap();
    world.store.commit(Transaction::one(placement.clone(), Expect::Anything, None)).await.unwrap();
    world.settle().await;
    let after = world.get(&placement).await.unwrap();
    assert_eq!(after["status"], before["status"], "the reports of the syncers are still there");
    assert_ne!(after["metadata"]["uid"], before["metadata"]["uid"]);
    assert_eq!(after["spec"]["object"]["uid"], *object::meta_text(&world.get(&web).await.unwrap(), "uid"));
}

#[tokio::test(start_paused = true)]
async fn an_object_that_ends_on_its_way_frees_its_place() {
    let world = World::new(&["east", "west"]).await;
    world.deployments_on_east(2).await;
    world.drain("d", json!({"physicalClusters": ["east"], "budget": {"maxMoving": 1}})).await;
    world.settle().await;
    assert_eq!(world.splits().await, ["east west", "east"]);
    let spec = json!({"resources": [{"apiGroup": "apps", "kinds": ["Deployment"], "names": ["web-00"]}], "count": 0});
    world.policy(SHOP, "none", spec).await;
    world.sync_until("d", "Completed").await;
    assert_eq!(world.splits().await, ["", "west"]);
    assert_eq!(world.drain_status("d").await.unavailable_replicas, 0);
}

#[tokio::test(start_paused = true)]
async fn a_job_that_has_ended_is_left_behind_by_no_drain() {
    let world = World::new(&["east", "west"]).await;
    world.deployments_on_east(2).await;
    let job = shop("jobs.batch/shop/done");
    let spec = json!({"spec": {"template": {"spec": {"containers": []}}}});
    world.create(job.clone(), "batch/v1", "Job", spec).await;
    world.placed(&job, "east").await;
    let complete = json!({"conditions": [{"type": "Complete", "status": "True"}]});
    world.change(&job, |job| job["status"] = complete.clone()).await;
    world.settle().await;
    let drain = PlannedChange::Drain { key: physical_key("east"), force: false };
    let plan = world.scheduler.plan(LogicalClusterId::ROOT, &[drain]).await.unwrap();
    assert_eq!(plan.counts().moves, 3, "{plan:#?}");
    world.drain("d", json!({"physicalClusters": ["east"], "budget": {"maxMoving": 3}})).await;
    world.placed(&job, "east-").await;
    world.confirm_gone(&job).await;
    world.sync_until("d", "Completed").await;
    assert_eq!(world.splits().await, ["west"; 2]);
    let status = world.drain_status("d").await;
    assert_eq!((status.plan.unwrap().moves, status.counts.moved), (3, 3));
    assert_eq!(condition(&world.placement(&job).await.unwrap()).0, "Finished");
}

#[tokio::test(start_paused = true)]
async fn a_drain_waits_for_an_object_that_is_deleted_on_its_way() {
    let world = World::new(&["east", "west"]).await;
    world.deployments_on_east(1).await;
    world.drain("d", json!({"physicalClusters": ["east"]})).await;
    world.settle().await;
    let web = deployment_key("web-00");
    world.change(&web, |web| web["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into()).await;
    for _ in 0..3 {
        world.settle().await;
    }
    let status = world.drain_status("d").await;
    assert_eq!((status.phase.word(), status.counts.pending), ("Running", 1), "its copy is still there");
    world.store.commit(Transaction::one(web, Expect::Anything, None)).await.unwrap();
    world.sync_until("d", "Completed").await;
}

/// The rights in one logical cluster, known or not.
struct KnownRights(Arc<std::sync::atomic::AtomicBool>);

impl crate::UseRights for KnownRights {
    fn may_use(&self, _: LogicalClusterId, _: LogicalClusterId, _: &str) -> bool {
        true
    }

    fn are_known(&self, home: LogicalClusterId) -> bool {
        home != OTHER || self.0.load(std::sync::atomic::Ordering::SeqCst)
    }
}

#[tokio::test(start_paused = true)]
async fn an_undecidable_object_delays_no_other() {
    let known = Arc::new(std::sync::atomic::AtomicBool::new(true));
    let world = World::with_rights(&["east", "west"], Arc::new(KnownRights(known.clone()))).await;
    world.deployments_on_east(2).await;
    world.create(key(OTHER, "namespaces/shop"), "v1", "Namespace", json!({})).await;
    let lame = key(OTHER, "deployments.apps/shop/lame");
    let metadata = json!({"annotations": {"portolan.dev/pin": "east"}});
    let spec = json!({"replicas": 1, "template": {"spec": {"containers": []}}});
    world.create(lame.clone(), "apps/v1", "Deployment", json!({"metadata": metadata, "spec": spec})).await;
    world.placed(&lame, "east").await;
    world.change(&lame, |lame| object::set_annotation(lame, "portolan.dev/pin", None)).await;
    let own = json!({"spec": {"unschedulable": true}});
    let own_key = key(OTHER, "physicalclusters.portolan.dev/own");
    world.create(own_key, "portolan.dev/v1alpha1", "PhysicalCluster", own).await;
    world.settle().await;
    known.store(false, std::sync::atomic::Ordering::SeqCst);
    world.drain("d", json!({"physicalClusters": ["east"], "whenBlocked": "Skip"})).await;
    world.sync_until("d", "Blocked").await;
    assert_eq!(world.splits().await, ["west"; 2]);
    let status = world.drain_status("d").await;
    let row = status.objects.iter().find(|row| row.name == "lame").unwrap();
    assert_eq!((json!(row.state), row.reason.as_str()), (json!("Blocked"), "Unreadable"), "it is not skipped");
    known.store(true, std::sync::atomic::Ordering::SeqCst);
    world.placed(&lame, "east- west").await;
}

/// Another scheduler on the store of a world, without events: it knows only the facts that the test passes.
async fn without_events(world: World, shown: &[&str]) -> World {
    world.stop.cancel();
    let next = World::on(world.store.clone(), Arc::new(UseByAll));
    for text in shown {
        next.show(text).await;
    }
    next
}

impl World {
    async fn show(&self, text: &str) {
        let scope = RangeScope::AllClusters(resource(text));
        let page = self.store.range(portolan_store::RangeRequest::all(scope)).await.unwrap();
        for stored in &page.objects {
            crate::observe::observe_listed(&self.scheduler.ctx, stored);
        }
    }

    async fn reconcile_drain(&self, name: &str) {
        crate::drain::reconcile_drain(&self.scheduler.ctx, &drain_key(name)).await.unwrap();
    }
}

const FACTS: [&str; 2] = ["physicalclusters.portolan.dev", "drains.portolan.dev"];

#[tokio::test(start_paused = true)]
async fn a_mark_that_no_event_has_shown_yet_stays_and_counts() {
    let world = World::new(&["east", "west"]).await;
    world.deployments_on_east(3).await;
    world.drain("d", json!({"physicalClusters": ["east"], "budget": {"maxMoving": 1}})).await;
    world.settle().await;
    assert_eq!(world.splits().await, ["east west", "east", "east"]);
    let before = mark(&world.get(&deployment_key("web-00")).await.unwrap());
    let world = without_events(world, &FACTS).await;
    world.reconcile_drain("d").await;
    let marks: Vec<_> = world.deployments().await.iter().map(|(_, object)| mark(object)).collect();
    assert_eq!(marks, [before, None, None], "it is the only one that moves, and returns to the split of before");
}

#[tokio::test(start_paused = true)]
async fn an_undo_waits_until_the_cordon_is_known_to_be_gone() {
    let world = World::new(&["east", "west"]).await;
    world.deployments_on_east(2).await;
    world.drain("d", json!({"physicalClusters": ["east"]})).await;
    world.sync_until("d", "Completed").await;
    let world = without_events(world, &[FACTS[0], FACTS[1], DEPLOYMENTS]).await;
    world.set_drain("d", "undo", true.into()).await;
    world.reconcile_drain("d").await;
    let status = world.drain_status("d").await;
    assert_eq!((status.phase.word(), status.counts.changed), ("Completed", 0), "it is cordoned as far as is known");
    world.show(FACTS[1]).await;
    world.reconcile_drain("d").await;
    let status = world.drain_status("d").await;
    assert_eq!((status.phase.word(), status.counts.moving), ("Running", 2));
}

#[tokio::test(start_paused = true)]
async fn of_two_drains_created_together_one_waits() {
    let world = World::new(&["east", "west"]).await;
    world.deployments_on_east(3).await;
    for name in ["one", "two"] {
        world.drain(name, json!({"physicalClusters": ["east"], "budget": {"maxMoving": 1}})).await;
    }
    world.settle().await;
    let (one, two) = (world.drain_status("one").await, world.drain_status("two").await);
    let started = [&one, &two].iter().filter(|status| status.start_time.is_some()).count();
    assert_eq!(started, 1, "{one:#?} {two:#?}");
    for name in ["one", "two"] {
        world.sync_until(name, "Completed").await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_undo_waits_for_a_cause_that_passes() {
    for (when_blocked, phase) in [("Wait", "Blocked"), ("Skip", "Undone")] {
        let world = World::new(&["east", "west"]).await;
        world.deployments_on_east(2).await;
        world.drain("d", json!({"physicalClusters": ["east"], "whenBlocked": when_blocked})).await;
        world.sync_until("d", "Completed").await;
        let set_ready =
            |word: &'static str| move |east: &mut Value| east["status"]["conditions"][0]["status"] = word.into();
        world.change(&physical_key("east"), set_ready("False")).await;
        world.settle().await;
        world.set_drain("d", "undo", true.into()).await;
        world.sync_until("d", phase).await;
        let status = world.drain_status("d").await;
        let counted = (status.counts.blocked, status.counts.changed, status.objects[0].reason.as_str());
        let expected = if when_blocked == "Wait" { (2, 0, "NotReady") } else { (0, 2, "NotReady") };
        assert_eq!(counted, expected, "{when_blocked}");
        world.change(&physical_key("east"), set_ready("True")).await;
        world.sync_until("d", "Undone").await;
        world.sync().await;
        let back = if when_blocked == "Wait" { "east" } else { "west" };
        assert_eq!(world.splits().await, vec![back; 2], "{when_blocked}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_undo_waits_for_the_home_of_an_object_that_is_leaving() {
    for paused in [false, true] {
        let world = World::new(&["east", "west"]).await;
        world.deployments_on_east(1).await;
        world.drain("d", json!({"physicalClusters": ["east"]})).await;
        world.settle().await;
        assert_eq!(world.splits().await, ["east west"], "it is leaving");
        let set_ready =
            |word: &'static str| move |east: &mut Value| east["status"]["conditions"][0]["status"] = word.into();
        world.change(&physical_key("east"), set_ready("False")).await;
        world.settle().await;
        world.set_drain("d", "paused", paused.into()).await;
        world.set_drain("d", "undo", true.into()).await;
        for _ in 0..3 {
            world.settle().await;
            let status = world.drain_status("d").await;
            assert_ne!(status.phase.word(), "Undone", "paused: {paused}; {:?}", status.counts);
            assert_eq!(status.counts.total, 1, "paused: {paused}; {:?}", status.counts);
        }
        world.change(&physical_key("east"), set_ready("True")).await;
        world.set_drain("d", "paused", false.into()).await;
        world.sync_until("d", "Undone").await;
        world.sync().await;
        assert_eq!(world.splits().await, ["east"], "paused: {paused}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_object_that_is_not_blocked_any_more_leaves_soon() {
    for case in ["a pin", "a policy", "no room"] {
        let world = World::new(&["east"]).await;
        let one_cpu = || json!({"containers": [{"resources": {"requests": {"cpu": "1"}}}]});
        world.deployment("web", one_cpu()).await;
        world.placed(&deployment_key("web"), "east").await;
        world.physical("west", json!({"bounds": {"cpu": "3"}}), true).await;
        let (web, other) = (deployment_key("web"), deployment_key("other"));
        let policy = shop("clusterplacementpolicies.portolan.dev/stay");
        match case {
            "a pin" => world.pin(&web, "east").await,
            "a policy" => {
                let spec = json!({"resources": [{"apiGroup": "apps"}], "clusters": {"names": ["east"]}});
                world.policy(SHOP, "stay", spec).await;
            }
            _ => {
                let spec = json!({"replicas": 2, "template": {"spec": one_cpu()}});
                let pinned = json!({"metadata": {"annotations": {"portolan.dev/pin": "west"}}, "spec": spec});
                world.create(other.clone(), "apps/v1", "Deployment", pinned).await;
                world.placed(&other, "west").await;
            }
        }
        world.sync().await;
        world.drain("d", json!({"physicalClusters": ["east"]})).await;
        world.sync_until("d", "Blocked").await;
        world.settle().await;
        world.settle().await;
        assert_eq!(world.drain_status("d").await.counts.blocked, 1, "{case}");
        match case {
            "a pin" => world.change(&web, |web| object::set_annotation(web, "portolan.dev/pin", None)).await,
            "a policy" => drop(world.store.commit(Transaction::one(policy, Expect::Present, None)).await.unwrap()),
            _ => drop(world.store.commit(Transaction::one(other, Expect::Present, None)).await.unwrap()),
        }
        let leaves = world.until(case, &web, |web| words(web).contains("west"));
        assert!(tokio::time::timeout(Duration::from_secs(4), leaves).await.is_ok(), "{case}: only a later look saw it");
    }
}

#[tokio::test(start_paused = true)]
async fn an_undo_lists_what_another_drain_has_moved_since_and_that_one_can_be_undone_first() {
    let world = World::new(&["east", "north", "west"]).await;
    world.deployments_on_east(3).await;
    world.drain("first", json!({"physicalClusters": ["east"]})).await;
    world.sync_until("first", "Completed").await;
    let between = world.splits().await;
    let to = between[0].clone();
    world.drain("second", json!({"physicalClusters": [to]})).await;
    world.sync_until("second", "Completed").await;
    let moved = between.iter().filter(|split| **split == to).count();
    world.set_drain("first", "undo", true.into()).await;
    world.sync_until("first", "Undone").await;
    let status = world.drain_status("first").await;
    assert_eq!((status.counts.changed as usize, status.counts.restored as usize), (moved, 3 - moved));
    let report = status.report.unwrap();
    assert_eq!(report.exceptions.len(), moved);
    assert!(report.exceptions[0].message.contains("Drain root:second has moved it since"), "{report:#?}");
}

#[tokio::test(start_paused = true)]
async fn drains_are_undone_in_turn_to_the_splits_of_before() {
    let world = World::new(&["east", "north", "west"]).await;
    world.deployments_on_east(3).await;
    world.drain("first", json!({"physicalClusters": ["east"]})).await;
    world.sync_until("first", "Completed").await;
    let between = world.splits().await;
    world.drain("second", json!({"physicalClusters": [between[0]]})).await;
    world.sync_until("second", "Completed").await;
    world.set_drain("second", "undo", true.into()).await;
    world.sync_until("second", "Undone").await;
    world.sync().await;
    assert_eq!(world.splits().await, between);
    world.set_drain("first", "undo", true.into()).await;
    world.sync_until("first", "Undone").await;
    world.sync().await;
    assert_eq!(world.splits().await, vec!["east"; 3]);
    assert!(world.deployments().await.iter().all(|(_, object)| mark(object).is_none()), "no mark is left");
}

#[tokio::test(start_paused = true)]
async fn an_undo_can_be_aborted() {
    let world = World::new(&["east", "west"]).await;
    world.deployments_on_east(6).await;
    world.drain("d", json!({"physicalClusters": ["east"], "budget": {"maxMoving": 2}})).await;
    world.sync_until("d", "Completed").await;
    world.set_drain("d", "undo", true.into()).await;
    world.settle().await;
    assert_eq!(world.splits().await.iter().filter(|split| *split == "east west").count(), 2);
    world.set_drain("d", "abort", true.into()).await;
    world.sync_until("d", "Aborted").await;
    for _ in 0..3 {
        world.sync().await;
    }
    assert_eq!(world.splits().await.iter().filter(|split| *split == "east").count(), 2, "those under way returned");
    assert_eq!(world.splits().await.iter().filter(|split| *split == "west").count(), 4);
    world.drain("next", json!({"physicalClusters": ["east"]})).await;
    world.sync_until("next", "Completed").await;
}

#[tokio::test(start_paused = true)]
async fn the_reads_of_a_drain_grow_with_its_objects_and_not_with_their_square() {
    let mut reads = Vec::new();
    for number in [40, 160] {
        let world = World::new(&["east", "west"]).await;
        world.deployments_on_east(number).await;
        world.drain("d", json!({"physicalClusters": ["east"], "budget": {"maxMoving": 20}})).await;
        let before = world.scheduler.ctx.drain_scans.looks();
        world.sync_until("d", "Completed").await;
        reads.push(world.scheduler.ctx.drain_scans.looks() - before);
    }
    assert!(reads[1] <= 6 * reads[0], "four times the objects took {reads:?} looks");
}
