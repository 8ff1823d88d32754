//! Ordinals at a step: a copy gets none that another one may still have.

use std::collections::{BTreeMap, BTreeSet};

use portolan_types::{
    Uid,
    placement::{CopyPhase, OrdinalRange, PlacementRecord},
};

use super::TransitionBuilder;
use crate::legal_steps::whole_copies;

impl TransitionBuilder<'_> {
    /// Returns the ranges after this step, and limits each copy to those of its range. A copy gets its decided range
    /// once no other copy of the record has an ordinal of it. An undivided copy has every ordinal until it is gone.
    pub(super) fn settle_ordinals(&mut self, previous: &PlacementRecord) -> BTreeMap<Uid, OrdinalRange> {
        // An entry may outlive its copy, and another stay of that one does not have its ordinals.
        let is_there = |uid: &Uid| previous.on(uid).is_some() && self.copies.iter().any(|copy| copy.uid == *uid);
        let had = previous.ordinals.iter().filter(|(uid, _)| is_there(uid));
        let mut ranges: BTreeMap<Uid, OrdinalRange> = had.map(|(uid, range)| (uid.clone(), *range)).collect();
        let whole: BTreeSet<&Uid> = whole_copies(previous).filter(|uid| is_there(uid)).collect();
        let is_active = |uid: &Uid| self.copies.iter().any(|c| c.uid == *uid && c.phase == CopyPhase::Active);
        for (uid, range) in self.decision.ordinals.iter().filter(|(uid, _)| is_active(uid)) {
            if whole.is_empty() && !ranges.iter().any(|(other, theirs)| other != uid && theirs.overlaps(*range)) {
                ranges.insert(uid.clone(), *range);
            }
        }
        if !ranges.is_empty() || !self.decision.ordinals.is_empty() {
            self.limit_to_ranges(&mut ranges, &whole);
        }
        ranges
    }

    /// Gives each active copy the pods of its range. One that is to have every ordinal gets them once no other copy
    /// has any.
    fn limit_to_ranges(&mut self, ranges: &mut BTreeMap<Uid, OrdinalRange>, whole: &BTreeSet<&Uid>) {
        let wanted = self.workload.ordinals();
        for copy in self.copies.iter_mut().filter(|copy| copy.phase == CopyPhase::Active) {
            let others = ranges.iter().any(|(uid, range)| *uid != copy.uid && range.count() > 0);
            if whole.contains(&copy.uid) || (copy.replicas.is_none() && !others) {
                copy.replicas = None;
                ranges.remove(&copy.uid);
                continue;
            }
            let own = ranges.get(&copy.uid).map_or(0, |range| range.within(wanted).count());
            copy.replicas = Some(copy.replicas.unwrap_or(own).min(own));
        }
    }
}
