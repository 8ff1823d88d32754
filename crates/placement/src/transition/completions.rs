//! Completions at a step: those of a divided Job that no copy has are shared by the copies that arrive.

use std::collections::BTreeMap;

use portolan_types::{
    Uid,
    placement::{CopyPhase, PlacedCopy, PlacementRecord},
};

use super::TransitionBuilder;
use crate::divide::{ReplicaShare, divide};

impl TransitionBuilder<'_> {
    /// Returns the completions of each copy after this step. Existing copies keep theirs, and those that arrive
    /// share the rest, in proportion to the pods that they run at once.
    pub(super) fn settle_completions(&self, previous: &PlacementRecord) -> BTreeMap<Uid, i64> {
        let is_same_stay = |copy: &PlacedCopy| previous.on(&copy.uid).is_some_and(|before| before.epoch == copy.epoch);
        let kept = self.copies.iter().filter(|copy| is_same_stay(copy));
        let kept = kept.filter_map(|copy| Some((copy.uid.clone(), *previous.completions.get(&copy.uid)?)));
        let mut all: BTreeMap<Uid, i64> = kept.collect();
        let lacks = |copy: &&PlacedCopy| copy.phase == CopyPhase::Active && !all.contains_key(&copy.uid);
        let new = self.copies.iter().filter(lacks).filter_map(|copy| Some((copy, copy.replicas?)));
        let new: Vec<(&PlacedCopy, i64)> = new.collect();
        let Some(wanted) = self.workload.completions.filter(|_| !new.is_empty()) else { return all };
        let rest = wanted.saturating_sub(all.values().fold(0, |sum, own| sum.saturating_add(*own))).max(0);
        let shares: Vec<ReplicaShare> = new.iter().map(|(copy, pods)| share_of(copy, *pods, rest)).collect();
        let parts = divide(rest, &shares);
        let parts = new.iter().zip(parts).map(|((copy, _), part)| (copy.uid.clone(), part));
        all.extend(parts);
        all
    }
}

/// Returns the share of a copy by its pods: one completion at least, if there are any. A paused Job has no pods.
fn share_of(copy: &PlacedCopy, pods: i64, rest: i64) -> ReplicaShare<'_> {
    let weight = pods.max(1).unsigned_abs();
    ReplicaShare { name: &copy.name, weight, floor: rest.min(1), cap: None, previous: 0 }
}
