//! End of the steps towards a decision.

use std::collections::BTreeSet;

use portolan_placement::{DecisionOutcome, PlacementDecision, Workload};
use portolan_types::{
    Uid,
    placement::{CopyPhase, PlacedCopy, PlacementRecord},
};

/// Facts on which the end of the steps depends.
pub(super) struct SettleFacts<'a> {
    pub(super) workload: &'a Workload,
    pub(super) decision: &'a PlacementDecision,
    /// Physical clusters that answer.
    pub(super) up: &'a BTreeSet<Uid>,
    /// Physical clusters that do not exist.
    pub(super) gone: &'a BTreeSet<Uid>,
    /// Epoch of copies that arrive.
    pub(super) epoch: u64,
}

impl SettleFacts<'_> {
    /// Returns the record once all steps towards the decision are taken: copies that should exist are ready, and those
    /// that left are gone.
    pub(super) fn settle(&self, record: &PlacementRecord) -> PlacementRecord {
        let decision = self.decision;
        if record.is_projected() {
            return record.clone();
        }
        if decision.is_to_end() {
            return PlacementRecord { clusters: Vec::new(), policy: None, divided_by: None, ..record.clone() };
        }
        let is_lost = |copy: &&PlacedCopy| decision.lost.contains(&copy.uid);
        let is_there = |copy: &&PlacedCopy| copy.phase == CopyPhase::Active && !self.gone.contains(&copy.uid);
        if decision.chosen.is_empty() || self.waits_for_proof(record) {
            let clusters = record.clusters.iter().filter(|copy| is_there(copy) || is_lost(copy)).cloned().collect();
            return PlacementRecord { clusters, ..record.clone() };
        }
        let arrived = |chosen: &portolan_placement::ChosenCluster| PlacedCopy {
            name: chosen.name.clone(),
            uid: chosen.uid.clone(),
            phase: CopyPhase::Active,
            replicas: chosen.replicas,
            epoch: record.on(&chosen.uid).filter(is_there).map_or(self.epoch, |copy| copy.epoch),
        };
        let mut clusters: Vec<PlacedCopy> = decision.chosen.iter().map(arrived).collect();
        let is_chosen = |copy: &PlacedCopy| decision.chosen.iter().any(|chosen| chosen.uid == copy.uid);
        clusters.extend(record.clusters.iter().filter(|copy| is_lost(copy) && !is_chosen(copy)).cloned());
        clusters.sort_by(|a, b| (&a.name, &a.uid).cmp(&(&b.name, &b.uid)));
        PlacementRecord {
            clusters,
            policy: decision.policy.clone(),
            divided_by: decision.divided_by.clone(),
            limits: decision.limits.clone(),
            ordinals: decision.ordinals.clone(),
            preferred_since: decision.preferred_since,
            generation: decision.generation,
            awaited: Vec::new(),
            ..record.clone()
        }
    }

    /// Returns true for an object that must not run twice, with a copy that should leave a physical cluster that does
    /// not answer: nothing proves that the copy has ended.
    pub(super) fn waits_for_proof(&self, record: &PlacementRecord) -> bool {
        let is_chosen = |copy: &PlacedCopy| self.decision.chosen.iter().any(|chosen| chosen.uid == copy.uid);
        let may_run = |copy: &PlacedCopy| !self.up.contains(&copy.uid) && !self.gone.contains(&copy.uid);
        let arrives = self
            .decision
            .chosen
            .iter()
            .any(|chosen| record.on(&chosen.uid).is_none_or(|copy| copy.phase != CopyPhase::Active));
        self.workload.moves.one_at_a_time()
            && arrives
            && record.clusters.iter().any(|copy| !is_chosen(copy) && may_run(copy))
    }

    /// Returns the reason for which the object would not be placed as wanted, in one word and in one sentence.
    pub(super) fn refusal(&self, record: &PlacementRecord) -> Option<(&'static str, String)> {
        let decision = self.decision;
        let stays = || decision.held.iter().filter(|line| line.starts_with("stays on ")).cloned().collect::<Vec<_>>();
        if self.waits_for_proof(record) {
            let why = "two must not run at once, and a copy is on a physical cluster that does not answer";
            return Some(("NotProvenGone", why.to_owned()));
        }
        match &decision.outcome {
            DecisionOutcome::Refused(_) | DecisionOutcome::Stopped | DecisionOutcome::Finished => None,
            DecisionOutcome::Suspended(hold) => Some((hold.reason, hold.message.clone())),
            _ if decision.move_refused => Some(("MoveRefused", decision.held.join("; "))),
            DecisionOutcome::Unplaced => Some(("NoClusterFits", decision.summary())),
            DecisionOutcome::Partly(what) => Some(("PartlyPlaced", what.clone())),
            DecisionOutcome::Placed if !stays().is_empty() => Some(("Held", stays().join("; "))),
            DecisionOutcome::Placed => None,
        }
    }
}
