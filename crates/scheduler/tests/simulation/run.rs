//! One run: chaos, then calm, then a drain and its undo under faults.

use std::{sync::Arc, time::Duration};

use portolan_types::placement::PlacementRecord;
use serde_json::json;
use tokio::task::{AbortHandle, JoinSet};

use crate::{
    admin::{Admin, app, calm_policy, drain, policy, sabotage},
    cluster::{Fleet, PhysicalCluster, wanted},
    dice::Dice,
    invariants::{Findings, Invariant, watch, words},
    plane::{ControlPlane, root, shop},
    planted::PlantedBug,
    syncer::{Syncer, SyncerParts},
};

pub(crate) const NAMES: [&str; 3] = ["east", "north", "west"];
/// The first two are divided by the policy, the last one has a home.
pub(crate) const APPS: [&str; 3] = ["web", "api", "worker"];
/// Acts of each of two administrators.
const ACTS: u64 = 8;
/// Time until the state must be correct after the last fault: a lost physical cluster has to answer for a while, and
/// fallbacks and moves have delays.
const SETTLED: Duration = Duration::from_secs(1_800);

/// Time without a change after which a state is the final one.
const QUIET: Duration = Duration::from_secs(60);

/// Run of a seed.
struct Run {
    parts: Arc<SyncerParts>,
    dice: Dice,
    tasks: JoinSet<()>,
    syncers: Vec<AbortHandle>,
}

/// Runs a seed, and returns the violations.
pub(crate) async fn run(seed: u64, bug: Option<PlantedBug>) -> Vec<(Invariant, String)> {
    let mut run = Run::start(seed, bug).await;
    run.chaos().await;
    run.calm().await;
    if run.parts.findings.all().is_empty() {
        run.drain_and_undo().await;
    }
    run.parts.findings.all()
}

impl Run {
    async fn start(seed: u64, bug: Option<PlantedBug>) -> Self {
        let fleet = Fleet { clusters: NAMES.map(PhysicalCluster::new) };
        let parts = SyncerParts { plane: ControlPlane::new(seed), fleet, findings: Findings::default(), bug };
        let mut run =
            Self { parts: Arc::new(parts), dice: Dice::new(seed), tasks: JoinSet::new(), syncers: Vec::new() };
        run.set_up().await;
        let parts = run.parts.clone();
        run.tasks.spawn(async move { watch(&parts.plane, &parts.findings).await });
        for number in 0..NAMES.len() {
            let (parts, dice) = (run.parts.clone(), run.dice.fork());
            run.tasks.spawn(async move {
                loop {
                    tokio::time::sleep(Duration::from_millis(700)).await;
                    parts.fleet.clusters[number].run_controllers(&dice);
                }
            });
            let syncer = run.syncer(number);
            run.syncers.push(syncer);
        }
        run.parts.plane.restart_scheduler();
        run
    }

    fn syncer(&mut self, number: usize) -> AbortHandle {
        let syncer = Syncer::new(self.parts.clone(), number, self.dice.fork());
        self.tasks.spawn(syncer.run())
    }

    async fn set_up(&self) {
        let plane = &self.parts.plane;
        plane.create(shop("namespaces/shop"), "v1", "Namespace", json!({})).await;
        for name in NAMES {
            let status = json!({"version": "v1.36.0", "conditions": [{"type": "Ready", "status": "True"}]});
            let key = root(&format!("physicalclusters.portolan.dev/{name}"));
            let object = json!({"spec": {}, "status": status});
            plane.create(key, "portolan.dev/v1alpha1", "PhysicalCluster", object).await;
        }
        plane.create(policy(), "portolan.dev/v1alpha1", "ClusterPlacementPolicy", json!({"spec": calm_policy()})).await;
        for name in APPS {
            let replicas = 1 + self.dice.roll(8);
            let template =
                json!({"metadata": {"labels": {"app": name}}, "spec": {"containers": [{"name": "c", "image": "c:1"}]}});
            let selector = json!({"matchLabels": {"app": name}});
            let spec = json!({"replicas": replicas, "selector": selector, "template": template});
            plane.create(app(name), "apps/v1", "Deployment", json!({"spec": spec})).await;
        }
    }

    /// Phase in which administrators act and faults occur.
    async fn chaos(&mut self) {
        let mut admins = JoinSet::new();
        for number in 0..2 {
            admins.spawn(Admin::new(self.parts.clone(), number, self.dice.fork()).run(ACTS));
        }
        let bug = self.parts.bug.filter(|bug| *bug != PlantedBug::ForgottenSplit);
        if let Some(bug) = bug {
            let (parts, dice) = (self.parts.clone(), self.dice.fork());
            admins.spawn(async move { sabotage(&parts, bug, &dice).await });
        }
        while !admins.is_empty() {
            tokio::time::sleep(self.dice.millis(15_000)).await;
            self.break_something(90);
            while admins.try_join_next().is_some() {}
        }
    }

    /// Injects one fault, or ends one. A physical cluster is cut off for up to `seconds`.
    fn break_something(&mut self, seconds: u64) {
        let number = usize::try_from(self.dice.roll(NAMES.len() as u64)).expect("three");
        match self.dice.roll(6) {
            0 => self.parts.plane.restart_scheduler(),
            1 => {
                self.syncers[number].abort();
                self.syncers[number] = self.syncer(number);
            }
            2 | 3 => {
                let (parts, time) = (self.parts.clone(), Duration::from_secs(1 + self.dice.roll(seconds)));
                parts.fleet.clusters[number].set_cut(true);
                self.tasks.spawn(async move {
                    tokio::time::sleep(time).await;
                    parts.fleet.clusters[number].set_cut(false);
                });
            }
            _ => {}
        }
    }

    /// Ends all faults and waits until the system settles.
    async fn calm(&mut self) {
        tokio::time::sleep(Duration::from_secs(100)).await;
        self.parts.fleet.clusters.iter().for_each(|cluster| cluster.set_cut(false));
        Admin::new(self.parts.clone(), 0, self.dice.fork()).tidy().await;
        if !self.settles().await {
            let seen = self.describe_apps().await;
            self.parts.findings.report(Invariant::Sums, format!("it does not settle: {seen}"));
        }
    }

    /// Waits until each app runs as its policy says, with as many replicas as are wanted, and stays so for a while.
    async fn settles(&self) -> bool {
        let parts = &self.parts;
        parts.plane.until(SETTLED, || async { parts.fleet.is_settled() && self.stays_as_wanted().await }).await
    }

    async fn stays_as_wanted(&self) -> bool {
        if !self.is_as_wanted().await {
            return false;
        }
        let before = self.splits().await;
        tokio::time::sleep(QUIET).await;
        self.is_as_wanted().await && self.splits().await == before
    }

    async fn is_as_wanted(&self) -> bool {
        for name in APPS {
            let key = app(name);
            let Some(object) = self.parts.plane.get(&key).await else { return false };
            let record = PlacementRecord::of(&object).unwrap_or_default();
            let all = wanted(&object);
            let copies = if name == "worker" { 1 } else { 2.min(usize::try_from(all).expect("a few")) };
            let runs = |cluster: &&PhysicalCluster| cluster.read(&key).is_some();
            let running = self.parts.fleet.clusters.iter().filter(runs).count();
            let settled = record.clusters.len() == record.active().count();
            let sum: i64 = record.active().map(|copy| record.replicas_of(copy, all)).sum();
            if !settled || sum != all || self.parts.fleet.ready(&key) != all || running != record.clusters.len() {
                return false;
            }
            if record.clusters.len() != copies && record.clusters.len() != 2 {
                return false;
            }
        }
        true
    }

    async fn describe_apps(&self) -> String {
        let mut told = Vec::new();
        for name in APPS {
            let object = self.parts.plane.get(&app(name)).await.unwrap_or_default();
            let record = PlacementRecord::of(&object).unwrap_or_default();
            let ready: Vec<_> =
                self.parts.fleet.clusters.iter().map(|one| format!("{}={}", one.name, one.ready(&app(name)))).collect();
            told.push(format!("{name} wants {}, is on {}, ready {}", wanted(&object), words(&record), ready.join(" ")));
        }
        told.join("; ")
    }

    /// Returns the physical clusters and replicas of each app. A copy of no replicas runs nothing, and does not count.
    async fn splits(&self) -> Vec<String> {
        let mut splits = Vec::new();
        for name in APPS {
            let object = self.parts.plane.get(&app(name)).await.unwrap_or_default();
            let record = words(&PlacementRecord::of(&object).unwrap_or_default());
            let mut words: Vec<&str> = record.split(' ').filter(|word| !word.ends_with("*0")).collect();
            words.sort_unstable();
            splits.push(format!("{name} on {}", words.join(" ")));
        }
        splits
    }

    /// A drain and its undo, while schedulers and syncers crash and connections break for a moment.
    async fn drain_and_undo(&mut self) {
        let before = self.splits().await;
        let name = self.dice.pick(&NAMES);
        let key = drain("last");
        let spec = json!({"physicalClusters": [name], "budget": {"maxMoving": 1 + self.dice.roll(3)}});
        self.parts.plane.create(key.clone(), "portolan.dev/v1alpha1", "Drain", json!({"spec": spec})).await;
        self.reach("Completed").await;
        if self.parts.bug == Some(PlantedBug::ForgottenSplit) {
            sabotage(&self.parts.clone(), PlantedBug::ForgottenSplit, &self.dice).await;
        }
        self.parts.plane.edit(&key, |spec| spec["undo"] = true.into()).await;
        self.reach("Undone").await;
        self.settles().await;
        let after = self.splits().await;
        if before != after {
            let what = format!("before a drain of {name}: {before:?}; after its undo: {after:?}");
            self.parts.findings.report(Invariant::ExactUndo, what);
        }
    }

    /// Waits for a phase of the drain, and injects faults meanwhile.
    async fn reach(&mut self, phase: &str) {
        for _ in 0..400 {
            let found = self.parts.plane.get(&drain("last")).await.unwrap_or_default();
            if found["status"]["phase"] == phase {
                return;
            }
            tokio::time::sleep(Duration::from_secs(3)).await;
            if self.dice.hits(4) {
                self.break_something(15);
            }
        }
        let found = self.parts.plane.get(&drain("last")).await.unwrap_or_default();
        let what = format!("the drain is never {phase}: {}", found["status"]);
        self.parts.findings.report(Invariant::ExactUndo, what);
    }
}
