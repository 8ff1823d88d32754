//! Physical clusters that are lost, flap and return. The tests play the workers: they write heartbeats.

use std::collections::BTreeSet;

use portolan_types::{Clock, annotations};
use tokio::time::Instant;

use super::*;
use crate::{EvictionRates, FailoverTiming};

/// Wall clock that follows the runtime's time.
pub(super) struct SimulatedClock {
    start: jiff::Timestamp,
    at: Instant,
}

impl SimulatedClock {
    pub(super) fn start() -> Arc<Self> {
        Arc::new(Self { start: jiff::Timestamp::from_second(1_800_000_000).unwrap(), at: Instant::now() })
    }
}

impl Clock for SimulatedClock {
    fn now(&self) -> jiff::Timestamp {
        self.start + self.at.elapsed()
    }
}

/// A world whose physical clusters have workers.
pub(super) struct Fleet {
    world: World,
    /// Names of physical clusters that do not answer.
    silent: Arc<std::sync::Mutex<BTreeSet<String>>>,
}

impl std::ops::Deref for Fleet {
    type Target = World;

    fn deref(&self) -> &World {
        &self.world
    }
}

pub(super) fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

fn physical_key(name: &str) -> ObjectKey {
    key(LogicalClusterId::ROOT, &format!("physicalclusters.portolan.dev/{name}"))
}

impl Fleet {
    pub(super) async fn start(names: &[&str]) -> Self {
        Self::with(names, FailoverTiming::default()).await
    }

    async fn with(names: &[&str], timing: FailoverTiming) -> Self {
        let seams = Seams { clock: SimulatedClock::start(), ..Seams::seeded(1, jiff::Timestamp::UNIX_EPOCH) };
        let world = World::within(memory(), Arc::new(UseByAll), seams, timing);
        world.create(shop("namespaces/shop"), "v1", "Namespace", json!({})).await;
        let silent: Arc<std::sync::Mutex<BTreeSet<String>>> = Arc::default();
        for name in names {
            world.physical(name, json!({}), true).await;
            let (objects, silent, stop) = (world.objects.clone(), silent.clone(), world.stop.clone());
            tokio::spawn(beat(objects, (*name).to_owned(), silent, stop));
        }
        world.run();
        tokio::time::sleep(seconds(60)).await;
        Self { world, silent }
    }

    fn lose(&self, names: &[&str]) {
        self.silent.lock().unwrap().extend(names.iter().map(|name| (*name).to_owned()));
    }

    fn bring_back(&self, names: &[&str]) {
        self.silent.lock().unwrap().retain(|name| !names.contains(&name.as_str()));
    }

    async fn is_tainted(&self, name: &str) -> bool {
        let physical = self.get(&physical_key(name)).await.unwrap();
        let taints = physical["status"]["taints"].as_array().cloned().unwrap_or_default();
        taints.iter().any(|taint| taint["key"] == annotations::UNREACHABLE_TAINT && taint["effect"] == "NoExecute")
    }

    async fn condition(&self, name: &str, kind: &str) -> (String, String) {
        let physical = self.get(&physical_key(name)).await.unwrap();
        let conditions = physical["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let found = conditions.into_iter().find(|condition| condition["type"] == kind).unwrap_or_default();
        let text = |field: &str| found[field].as_str().unwrap_or_default().to_owned();
        (text("status"), text("reason"))
    }

    async fn words(&self, key: &ObjectKey) -> String {
        words(self.get(key).await.as_ref())
    }

    /// A policy for everything, with tolerations of the taint.
    async fn tolerate(&self, toleration: Value, more: Value) {
        let mut spec = json!({"resources": [{"apiGroup": "*"}], "tolerations": [toleration]});
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        self.policy(SHOP, "tolerant", spec).await;
        self.settle().await;
    }
}

fn tolerated(seconds: Option<i64>) -> Value {
    let key = annotations::UNREACHABLE_TAINT;
    match seconds {
        Some(seconds) => json!({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds}),
        None => json!({"key": key, "operator": "Exists"}),
    }
}

/// Writes the heartbeats of a physical cluster, as its worker does.
async fn beat(
    objects: ObjectClient,
    name: String,
    silent: Arc<std::sync::Mutex<BTreeSet<String>>>,
    stop: CancellationToken,
) {
    let uid = format!("physicalclusters-{name}");
    let at = ObjectKey::cluster_scoped(LogicalClusterId::SYSTEM, crate::heartbeats(), uid.parse().unwrap());
    let mut unbroken = 0_u64;
    while !stop.is_cancelled() {
        let answers = !silent.lock().unwrap().contains(&name);
        unbroken = if answers { unbroken + 1 } else { 0 };
        if answers {
            let object = json!({"metadata": {"name": uid}, "unbroken": unbroken});
            let record = portolan_types::Record::of(&object);
            objects.store().commit(Transaction::one(at.clone(), Expect::Anything, Some(record))).await.unwrap();
        }
        // Like a worker, it checks sooner while there is no answer.
        tokio::time::sleep(if answers { seconds(7) } else { Duration::from_millis(700) }).await;
    }
}

fn web() -> ObjectKey {
    shop("deployments.apps/shop/web")
}

async fn place_web(fleet: &Fleet) {
    fleet.deployment("web", json!({"containers": []})).await;
    fleet.placed(&web(), "east").await;
    fleet.ready(&web(), "east", 2).await;
}

#[tokio::test(start_paused = true)]
async fn one_of_three_is_lost_for_a_minute_and_comes_back() {
    let fleet = Fleet::start(&["east", "north", "west"]).await;
    fleet.tolerate(tolerated(Some(20)), json!({})).await;
    place_web(&fleet).await;
    fleet.lose(&["east"]);
    tokio::time::sleep(seconds(25)).await;
    assert!(!fleet.is_tainted("east").await, "a few heartbeats are missing");
    tokio::time::sleep(seconds(20)).await;
    assert!(fleet.is_tainted("east").await);
    assert_eq!(fleet.condition("east", "Ready").await, ("Unknown".into(), "NoHeartbeat".into()));
    assert_eq!(fleet.words(&web()).await, "east", "it is tolerated for 20 s");
    tokio::time::sleep(seconds(30)).await;
    assert_eq!(fleet.words(&web()).await, "east north", "then a copy arrives elsewhere");
    fleet.bring_back(&["east"]);
    tokio::time::sleep(seconds(20)).await;
    assert!(fleet.is_tainted("east").await, "it has to be well for a while");
    tokio::time::sleep(seconds(30)).await;
    assert!(!fleet.is_tainted("east").await);
    assert_eq!(fleet.condition("east", "Ready").await, ("True".into(), "Reachable".into()));
    assert_eq!(fleet.condition("east", "FailoverSuspended").await.0, "", "it never was");
    // The copy on east is as it was, and the move is called off.
    fleet.ready(&web(), "east", 2).await;
    fleet.placed(&web(), "east north-").await;
    fleet.confirm_gone(&web()).await;
    fleet.placed(&web(), "east").await;
}

#[tokio::test(start_paused = true)]
async fn an_object_that_runs_elsewhere_leaves_the_lost_physical_cluster() {
    let fleet = Fleet::start(&["east", "north", "west"]).await;
    place_web(&fleet).await;
    fleet.lose(&["east"]);
    tokio::time::sleep(seconds(320)).await;
    assert_eq!(fleet.words(&web()).await, "east", "the default is 300 s after the taint");
    tokio::time::sleep(seconds(40)).await;
    assert_eq!(fleet.words(&web()).await, "east north", "{:#?}", fleet.placement(&web()).await);
    fleet.ready(&web(), "north", 2).await;
    fleet.placed(&web(), "east- north").await;
    let placement = fleet.placement(&web()).await.unwrap();
    assert_eq!(placement["status"]["transitions"][0]["to"], "north");
    let stats = fleet.scheduler.failover_stats();
    assert_eq!((stats.lost, stats.suspended, stats.evictions), (1, 0, 1), "{stats:?}");
}

#[tokio::test(start_paused = true)]
async fn a_loss_that_is_tolerated_for_ever_moves_nothing() {
    let fleet = Fleet::start(&["east", "north", "west"]).await;
    fleet.tolerate(tolerated(None), json!({})).await;
    place_web(&fleet).await;
    fleet.lose(&["east"]);
    tokio::time::sleep(seconds(100_000)).await;
    assert!(fleet.is_tainted("east").await);
    assert_eq!(fleet.words(&web()).await, "east");
}

#[tokio::test(start_paused = true)]
async fn nothing_leaves_while_most_are_lost_at_once() {
    let fleet = Fleet::start(&["east", "north", "west"]).await;
    fleet.tolerate(tolerated(Some(20)), json!({})).await;
    place_web(&fleet).await;
    fleet.lose(&["east", "north"]);
    tokio::time::sleep(seconds(10_000)).await;
    assert_eq!(fleet.words(&web()).await, "east");
    for name in ["east", "north"] {
        assert!(!fleet.is_tainted(name).await, "{name}");
        assert_eq!(fleet.condition(name, "Ready").await.0, "Unknown", "{name}");
        let expected = ("True".to_owned(), "MostClustersLost".to_owned());
        assert_eq!(fleet.condition(name, "FailoverSuspended").await, expected, "{name}");
    }
    assert_eq!(fleet.scheduler.failover_stats().suspended, 2);
    let resource = GroupResource::new("", "events");
    let scope = RangeScope::Cluster(LogicalClusterId::ROOT, resource);
    let events = fleet.store.range(portolan_store::RangeRequest::all(scope)).await.unwrap().objects;
    let reasons: Vec<_> =
        events.iter().map(|event| event.to_value().unwrap()["reason"].as_str().unwrap().to_owned()).collect();
    assert_eq!(reasons, ["FailoverSuspended", "FailoverSuspended"]);
    // One of them is heard again: the other one is a loss like any other, and its time begins then.
    fleet.bring_back(&["north"]);
    tokio::time::sleep(seconds(50)).await;
    assert!(fleet.is_tainted("east").await);
    assert_eq!(fleet.condition("east", "FailoverSuspended").await.0, "False");
    tokio::time::sleep(seconds(40)).await;
    assert_eq!(fleet.words(&web()).await, "east north");
}

#[tokio::test(start_paused = true)]
async fn a_second_loss_in_time_calls_the_first_one_off() {
    let fleet = Fleet::start(&["east", "north", "west"]).await;
    place_web(&fleet).await;
    fleet.lose(&["east"]);
    tokio::time::sleep(seconds(100)).await;
    assert!(fleet.is_tainted("east").await);
    fleet.lose(&["north"]);
    tokio::time::sleep(seconds(1_000)).await;
    assert!(!fleet.is_tainted("east").await);
    assert_eq!(fleet.words(&web()).await, "east");
}

#[tokio::test(start_paused = true)]
async fn a_flapping_cluster_changes_no_state() {
    let fleet = Fleet::start(&["east", "north", "west"]).await;
    place_web(&fleet).await;
    let flap = async |rounds: usize| {
        for round in 0..rounds {
            if round % 2 == 0 {
                fleet.lose(&["east"])
            } else {
                fleet.bring_back(&["east"])
            }
            tokio::time::sleep(seconds(1)).await;
        }
    };
    flap(600).await;
    assert!(!fleet.is_tainted("east").await, "some of its heartbeats come through");
    fleet.lose(&["east"]);
    tokio::time::sleep(seconds(60)).await;
    assert!(fleet.is_tainted("east").await);
    flap(200).await;
    assert!(fleet.is_tainted("east").await, "it has to answer without a break");
    fleet.bring_back(&["east"]);
    tokio::time::sleep(seconds(60)).await;
    assert!(!fleet.is_tainted("east").await);
    assert_eq!(fleet.words(&web()).await, "east");
}

#[tokio::test(start_paused = true)]
async fn run_once_objects_stay_until_a_user_writes_them_off() {
    let fleet = Fleet::start(&["east", "north", "west"]).await;
    let db = shop("statefulsets.apps/shop/db");
    let spec = json!({"replicas": 1, "template": {"spec": {"containers": []}}});
    fleet.create(db.clone(), "apps/v1", "StatefulSet", json!({"spec": spec})).await;
    let report = shop("cronjobs.batch/shop/report");
    let spec = json!({"schedule": "* * * * *", "jobTemplate": {"spec": {"template": {"spec": {"containers": []}}}}});
    fleet.create(report.clone(), "batch/v1", "CronJob", json!({"spec": spec})).await;
    for key in [&db, &report] {
        fleet.placed(key, "east").await;
    }
    fleet.tolerate(tolerated(Some(20)), json!({})).await;
    fleet.lose(&["east"]);
    tokio::time::sleep(seconds(1_000)).await;
    for key in [&db, &report] {
        assert_eq!(fleet.words(key).await, "east", "{key}");
        let (_, message) = condition(&fleet.placement(key).await.unwrap());
        assert!(message.contains("the annotation portolan.dev/write-off: east declares it"), "{message}");
    }
    fleet.change(&db, |object| object::set_annotation(object, annotations::WRITE_OFF, Some("east".into()))).await;
    fleet.placed(&db, "east-").await;
    fleet.confirm_gone(&db).await;
    fleet.placed(&db, "north").await;
    fleet.bring_back(&["east"]);
    tokio::time::sleep(seconds(100)).await;
    assert_eq!(fleet.words(&report).await, "east", "it was never moved, and runs on");
}

#[tokio::test(start_paused = true)]
async fn evictions_have_a_rate_and_end_with_the_loss() {
    let evictions = EvictionRates { per_cluster: 0.1, in_total: 1.0, burst: 2 };
    let fleet =
        Fleet::with(&["east", "north", "west"], FailoverTiming { evictions, ..FailoverTiming::default() }).await;
    let names: Vec<String> = (0..20).map(|number| format!("d{number}")).collect();
    let keys: Vec<_> = names.iter().map(|name| shop(&format!("deployments.apps/shop/{name}"))).collect();
    for (name, key) in names.iter().zip(&keys) {
        fleet.deployment(name, json!({"containers": []})).await;
        fleet.placed(key, "east").await;
    }
    fleet.tolerate(tolerated(Some(20)), json!({})).await;
    let moving = async || {
        let mut count = 0;
        for key in &keys {
            count += usize::from(fleet.words(key).await != "east");
        }
        count
    };
    fleet.lose(&["east"]);
    tokio::time::sleep(seconds(70)).await;
    let first = moving().await;
    assert!((2..=4).contains(&first), "{first} in a burst");
    tokio::time::sleep(seconds(50)).await;
    let then = moving().await - first;
    assert!((4..=6).contains(&then), "{then} in 50 s");
    assert!(fleet.scheduler.failover_stats().waiting > 0);
    fleet.bring_back(&["east"]);
    tokio::time::sleep(seconds(100)).await;
    let last = moving().await;
    assert!(last < 16, "{last}: those that have not moved stay");
    tokio::time::sleep(seconds(1_000)).await;
    assert_eq!(fleet.scheduler.failover_stats().waiting, 0);
    assert!(moving().await <= last);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_stood_still_finds_nothing_lost() {
    let fleet = Fleet::start(&["east", "north", "west"]).await;
    place_web(&fleet).await;
    // No task is polled while the time jumps.
    tokio::time::advance(seconds(3_600)).await;
    tokio::time::sleep(seconds(30)).await;
    for name in ["east", "north", "west"] {
        assert!(!fleet.is_tainted(name).await, "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_new_leader_keeps_the_time_of_the_taint() {
    let fleet = Fleet::start(&["east", "north", "west"]).await;
    place_web(&fleet).await;
    fleet.lose(&["east"]);
    tokio::time::sleep(seconds(200)).await;
    assert!(fleet.is_tainted("east").await);
    fleet.scheduler.lead(false);
    let parts = SchedulerParts {
        store: fleet.store.clone(),
        seams: fleet.seams.clone(),
        tree: Arc::new(Tree),
        rights: Arc::new(UseByAll),
        kinds: Arc::new(Kinds),
        gate: None,
        failover: FailoverTiming::default(),
    };
    let (next, stop) = (Scheduler::new(parts), fleet.stop.clone());
    tokio::spawn(async move { next.run(stop).await });
    tokio::time::sleep(seconds(100)).await;
    assert!(fleet.is_tainted("east").await);
    assert_eq!(fleet.words(&web()).await, "east");
    tokio::time::sleep(seconds(60)).await;
    assert_eq!(fleet.words(&web()).await, "east north", "300 s after the taint, not after the new leader");
}

#[tokio::test(start_paused = true)]
async fn lost_physical_clusters_of_a_tenant_delay_no_other_tenant() {
    let fleet = Fleet::start(&["east", "north", "west"]).await;
    place_web(&fleet).await;
    for number in 0..9 {
        let name = format!("own{number}");
        let own = key(OTHER, &format!("physicalclusters.portolan.dev/{name}"));
        let status = json!({"version": "v1.36.0", "conditions": [{"type": "Ready", "status": "True"}]});
        fleet.create(own, "portolan.dev/v1alpha1", "PhysicalCluster", json!({"spec": {}, "status": status})).await;
    }
    fleet.lose(&["east"]);
    tokio::time::sleep(seconds(60)).await;
    assert!(fleet.is_tainted("east").await);
    let own = fleet.get(&key(OTHER, "physicalclusters.portolan.dev/own0")).await.unwrap();
    assert!(own["status"]["taints"].is_null(), "{own}");
    assert!(own.to_string().contains("MostClustersLost"), "{own}");
}

/// Random losses and returns of three physical clusters, with workers that lag.
struct LossSimulation {
    fleet: Fleet,
    seams: Seams,
    db: ObjectKey,
    seed: u64,
}

const NAMES: [&str; 3] = ["east", "north", "west"];

impl LossSimulation {
    async fn start(seed: u64) -> Self {
        let fleet = Fleet::start(&NAMES).await;
        fleet.tolerate(tolerated(Some(20)), json!({})).await;
        place_web(&fleet).await;
        let db = shop("statefulsets.apps/shop/db");
        let spec = json!({"replicas": 1, "template": {"spec": {"containers": []}}});
        fleet.create(db.clone(), "apps/v1", "StatefulSet", json!({"spec": spec})).await;
        fleet.until("the set", &db, |object| !words(object).is_empty()).await;
        Self { fleet, seams: Seams::seeded(seed, jiff::Timestamp::UNIX_EPOCH), db, seed }
    }

    fn dice(&self, sides: u8) -> u8 {
        let mut byte = [0];
        self.seams.entropy.fill(&mut byte);
        byte[0] % sides
    }

    fn is_silent(&self, name: &str) -> bool {
        self.fleet.silent.lock().unwrap().contains(name)
    }

    /// Loses or brings back some physical clusters, and lets the workers of the others work.
    async fn turn(&self) {
        let name = NAMES[usize::from(self.dice(3))];
        match self.dice(4) {
            0 => self.fleet.lose(&[name]),
            1 => self.fleet.lose(&NAMES),
            _ => self.fleet.bring_back(&[name]),
        }
        tokio::time::sleep(seconds(u64::from(self.dice(90)) + 1)).await;
        for key in [&web(), &self.db] {
            let record = self.fleet.get(key).await.as_ref().and_then(PlacementRecord::of).unwrap_or_default();
            for copy in record.clusters.iter().filter(|copy| !self.is_silent(&copy.name)) {
                match copy.phase {
                    CopyPhase::Leaving => self.confirm(key, &copy.name).await,
                    _ if self.dice(2) == 0 => self.fleet.ready(key, &copy.name, 2).await,
                    _ => {}
                }
            }
        }
    }

    async fn confirm(&self, key: &ObjectKey, name: &str) {
        self.fleet
            .change(key, |object| {
                let mut record = PlacementRecord::of(object).unwrap();
                record.clusters.retain(|c| c.phase != CopyPhase::Leaving || c.name != name);
                record.write_to(object);
            })
            .await;
    }

    async fn check(&self, db_before: &str) {
        let (web, db) = (self.fleet.words(&web()).await, self.fleet.words(&self.db).await);
        let seed = self.seed;
        assert!(web.split_whitespace().any(|copy| !copy.ends_with('-')), "seed {seed}: {web:?} runs nowhere");
        assert_eq!(db, db_before, "seed {seed}: what must run once moved without a word");
        let tainted = {
            let mut tainted = 0;
            for name in NAMES {
                tainted += usize::from(self.fleet.is_tainted(name).await);
            }
            tainted
        };
        assert!(tainted <= 1, "seed {seed}: {tainted} of three are tainted, which is most");
    }
}

#[tokio::test(start_paused = true)]
async fn random_losses_keep_run_once_objects_and_one_copy_of_others() {
    for seed in 0..12 {
        let simulation = LossSimulation::start(seed).await;
        let db = simulation.fleet.words(&simulation.db).await;
        for _ in 0..25 {
            simulation.turn().await;
            simulation.check(&db).await;
        }
        // Left alone, all is well again.
        simulation.fleet.bring_back(&NAMES);
        for _ in 0..20 {
            tokio::time::sleep(seconds(30)).await;
            let record = simulation.fleet.get(&web()).await.as_ref().and_then(PlacementRecord::of).unwrap_or_default();
            for copy in &record.clusters {
                match copy.phase {
                    CopyPhase::Leaving => simulation.confirm(&web(), &copy.name).await,
                    _ => simulation.fleet.ready(&web(), &copy.name, 2).await,
                }
            }
        }
        let settled = simulation.fleet.words(&web()).await;
        assert_eq!(settled.split_whitespace().count(), 1, "seed {seed}: {settled}");
        for name in NAMES {
            assert!(!simulation.fleet.is_tainted(name).await, "seed {seed}: {name}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_time_of_the_last_heartbeat_is_in_the_status() {
    let fleet = Fleet::start(&["east"]).await;
    let age = async |fleet: &Fleet| {
        let physical = fleet.get(&physical_key("east")).await.unwrap();
        let time: jiff::Timestamp = physical["status"]["heartbeatTime"].as_str().unwrap().parse().unwrap();
        fleet.seams.clock.now().as_second() - time.as_second()
    };
    for _ in 0..5 {
        tokio::time::sleep(seconds(100)).await;
        assert!((0..=70).contains(&age(&fleet).await), "{}", age(&fleet).await);
    }
    let revision = object::meta_text(&fleet.get(&physical_key("east")).await.unwrap(), "resourceVersion").to_owned();
    tokio::time::sleep(seconds(30)).await;
    fleet.lose(&["east"]);
    tokio::time::sleep(seconds(600)).await;
    assert!(age(&fleet).await >= 590, "{}", age(&fleet).await);
    assert_ne!(object::meta_text(&fleet.get(&physical_key("east")).await.unwrap(), "resourceVersion"), revision);
}
