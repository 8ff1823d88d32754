//! Syncers of a run: the decisions of the product's syncer, with reads that lag behind, and a connection that breaks.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use portolan_store::{RangeRequest, RangeScope};
use portolan_syncer::{
    SyncRules, plan,
    plan::{CopyDecision, PlanInput, SyncTarget, UpstreamState},
    transform::{AcceptedAudiences, MissingFields},
};
use portolan_types::{
    GroupVersionKind, ObjectKey, object,
    placement::{CopyPhase, PlacementRecord},
    upstream::{UnplacedObject, UpstreamObject},
};
use serde_json::Value;

use crate::{
    cluster::{CopyDebt, Fleet, PhysicalCluster, epoch_of, wanted},
    dice::Dice,
    invariants::{Findings, Invariant},
    plane::ControlPlane,
    planted::PlantedBug,
};

/// Time without an answer after which a physical cluster is reported as unreachable.
const UNREACHABLE: Duration = Duration::from_secs(40);
/// Time without an answer after which leaving copies become debts.
const GIVEN_UP: Duration = Duration::from_secs(60);

/// Parts that all syncers of a run share.
pub(crate) struct SyncerParts {
    pub(crate) plane: ControlPlane,
    pub(crate) fleet: Fleet,
    pub(crate) findings: Findings,
    pub(crate) bug: Option<PlantedBug>,
}

/// Syncer of one physical cluster. A crash loses what it has in memory.
pub(crate) struct Syncer {
    parts: Arc<SyncerParts>,
    number: usize,
    dice: Dice,
    epoch: u64,
    unbroken: u64,
    /// Objects that it has seen placed.
    seen: BTreeSet<ObjectKey>,
}

impl Syncer {
    pub(crate) fn new(parts: Arc<SyncerParts>, number: usize, dice: Dice) -> Self {
        Self { parts, number, dice, epoch: 1, unbroken: 0, seen: BTreeSet::new() }
    }

    fn cluster(&self) -> &PhysicalCluster {
        &self.parts.fleet.clusters[self.number]
    }

    /// Syncs as long as it lives.
    pub(crate) async fn run(mut self) {
        loop {
            tokio::time::sleep(self.dice.millis(1_500)).await;
            match self.cluster().cut_for() {
                Some(gone) => {
                    self.unbroken = 0;
                    self.bear_silence(gone).await;
                }
                None => self.sync().await,
            }
        }
    }

    async fn sync(&mut self) {
        self.unbroken += 1;
        self.parts.plane.heartbeat(&self.cluster().uid, self.unbroken).await;
        for debt in self.cluster().take_debts() {
            self.settle_debt(&debt);
        }
        for key in self.keys().await {
            self.reconcile(&key).await;
            if self.cluster().cut_for().is_some() {
                return;
            }
        }
    }

    /// Returns the objects that are placed here, and those with a copy here.
    async fn keys(&self) -> BTreeSet<ObjectKey> {
        let scope = RangeScope::PlacedOn(self.cluster().uid.to_string());
        let placed = self.parts.plane.store.range(RangeRequest::all(scope)).await.expect("the store is in memory");
        let placed = placed.objects.into_iter().map(|stored| stored.key);
        let workloads = placed.filter(|key| matches!(&*key.resource.resource, "deployments" | "statefulsets"));
        workloads.chain(self.cluster().keys()).collect()
    }

    async fn read(&self, key: &ObjectKey) -> Option<UpstreamObject> {
        let (object, revision) = self.parts.plane.objects.get_value(key).await.expect("the store is in memory")?;
        let kind = object["kind"].as_str().unwrap_or_default().to_owned();
        let kind = GroupVersionKind::new("apps", "v1", kind);
        Some(UpstreamObject { key: key.clone(), revision, kind, object, is_held: false, scale: None })
    }

    async fn reconcile(&mut self, key: &ObjectKey) {
        let upstream = self.read(key).await;
        let downstream = self.cluster().read(key);
        let decision = self.decide(key, upstream.as_ref(), downstream.as_ref());
        if upstream.is_some() {
            self.seen.insert(key.clone());
        }
        // Upstream moves on while the request is on its way.
        if self.dice.hits(2) {
            tokio::time::sleep(self.dice.millis(2_000)).await;
        }
        if self.cluster().cut_for().is_none() {
            self.execute(key, decision, downstream.as_ref()).await;
        }
    }

    fn decide(&self, key: &ObjectKey, upstream: Option<&UpstreamObject>, downstream: Option<&Value>) -> CopyDecision {
        let uid = &self.cluster().uid;
        let unplaced;
        let lost = self.parts.bug == Some(PlantedBug::AbsenceIsDeletion) && self.dice.hits(50);
        let upstream = match upstream.filter(|_| !lost) {
            None => UpstreamState::Removed { seen: self.seen.contains(key) },
            Some(found) => {
                let record = PlacementRecord::of(&found.object);
                if record.as_ref().is_some_and(|record| record.on(uid).is_some()) {
                    UpstreamState::Present(found)
                } else {
                    unplaced = UnplacedObject { uid: object::uid(&found.object), has_record: record.is_some() };
                    UpstreamState::NotPlaced(&unplaced)
                }
            }
        };
        let kind = if &*key.resource.resource == "deployments" { "Deployment" } else { "StatefulSet" };
        let kind = GroupVersionKind::new("apps", "v1", kind);
        plan(
            &SyncTarget { physical: uid, syncer_epoch: self.epoch, rules: &SyncRules::new(&[]) },
            &PlanInput {
                key,
                upstream,
                downstream,
                namespace: Some("shop-downstream"),
                served: Some((&kind, true)),
                autoscaled: false,
                settled: false,
                newest_syncer: self.epoch,
                lacking: &MissingFields::default(),
                audiences: &AcceptedAudiences::Unknown(String::new()),
                pods: None,
            },
        )
    }

    async fn execute(&self, key: &ObjectKey, decision: CopyDecision, downstream: Option<&Value>) {
        let (cluster, findings) = (self.cluster(), &self.parts.findings);
        match decision {
            CopyDecision::Create(body) => self.parts.fleet.write(cluster, key, self.planted(body), findings),
            CopyDecision::Apply(update) => self.parts.fleet.write(cluster, key, self.planted(update.body), findings),
            CopyDecision::Delete(deletion) => {
                self.check_deletion(key, downstream).await;
                self.parts.fleet.delete(cluster, key, Some(&deletion.resource_version), findings);
            }
            CopyDecision::ConfirmGone { epoch, .. } => self.parts.plane.release(key, &cluster.uid, epoch).await,
            CopyDecision::Keep => {
                let epoch = downstream.map_or(0, epoch_of);
                let ready = cluster.ready(key);
                self.parts.plane.report(key, &cluster.uid, epoch, ready).await;
                // A report about a leaving copy arrives too late for the decision.
                if self.is_active(key, epoch).await {
                    cluster.note_report(key, ready);
                }
            }
            other => {
                let is_odd = matches!(other, CopyDecision::Refuse(_) | CopyDecision::Fenced | CopyDecision::Projected);
                assert!(!is_odd, "{key}: {other:?}");
            }
        }
    }

    fn planted(&self, mut body: Value) -> Value {
        if self.parts.bug == Some(PlantedBug::ExtraReplica) {
            body["spec"]["replicas"] = (wanted(&body) + 1).into();
        }
        body
    }

    /// Returns true while the copy of this epoch is to stay.
    async fn is_active(&self, key: &ObjectKey, epoch: u64) -> bool {
        let object = self.parts.plane.get(key).await;
        let record = object.as_ref().and_then(PlacementRecord::of).unwrap_or_default();
        record.active().any(|copy| copy.uid == self.cluster().uid && copy.epoch == epoch)
    }

    /// Checks that the object is not placed here for the stay of the copy that is deleted.
    async fn check_deletion(&self, key: &ObjectKey, downstream: Option<&Value>) {
        let epoch = downstream.map_or(0, epoch_of);
        if self.is_active(key, epoch).await {
            let name = self.cluster().name;
            self.parts.findings.report(
                Invariant::NoWrongfulDeletion,
                format!("{name} deletes the copy of {key} with epoch {epoch}, which is active"),
            );
        }
    }

    /// Acts like a worker whose physical cluster does not answer.
    async fn bear_silence(&self, gone: Duration) {
        if gone < UNREACHABLE {
            return;
        }
        let cluster = self.cluster();
        for key in self.keys().await {
            let Some(object) = self.parts.plane.get(&key).await else { continue };
            let record = PlacementRecord::of(&object).unwrap_or_default();
            let Some(copy) = record.on(&cluster.uid).cloned() else { continue };
            self.parts.plane.report(&key, &cluster.uid, copy.epoch, 0).await;
            cluster.note_report(&key, 0);
            let may_run_twice = &*key.resource.resource == "deployments";
            if copy.phase == CopyPhase::Leaving && may_run_twice && gone >= GIVEN_UP {
                cluster.add_debt(CopyDebt { key: key.clone(), epoch: copy.epoch });
                self.parts.plane.release(&key, &cluster.uid, copy.epoch).await;
            }
        }
    }

    /// Deletes a copy that was given up, unless it has started another stay.
    fn settle_debt(&self, debt: &CopyDebt) {
        let cluster = self.cluster();
        let Some(copy) = cluster.read(&debt.key) else { return };
        if epoch_of(&copy) <= debt.epoch {
            self.parts.fleet.delete(cluster, &debt.key, None, &self.parts.findings);
        }
    }
}
