//! Ordinals of the copies of a divided StatefulSet: one range per physical cluster.
//!
//! A copy keeps every ordinal that it has had until it is gone, so that no ordinal runs twice. Ordinals that no copy
//! has are divided, by the policy's weights, among the copies of adjacent ranges and the copies without a range. A copy
//! that is to leave counts as gone here; the transition waits until it is gone.

use std::collections::BTreeMap;

use portolan_types::{
    Uid,
    placement::{OrdinalRange, PlacedCopy},
};

use super::{PlacementPlanner, division_support, held_copies, replica_split};
use crate::{
    divide::{ReplicaShare, divide},
    select::Candidate,
};

/// Copies that may take some of the ordinals that no copy has, by their position in the selection.
struct GapTakers {
    /// Copy of the last range before the gap, which is the ordinals that no copy has.
    before: Option<usize>,
    /// Copies without a range.
    new: Vec<usize>,
    /// Copy of the first range after the gap.
    after: Option<usize>,
}

/// Planner of the ranges of the chosen copies.
struct RangeBuilder<'p, 'a> {
    planner: &'p PlacementPlanner<'a>,
    taken: &'p [Candidate<'a>],
    wanted: OrdinalRange,
    /// Ranges by the position in the selection.
    ranges: BTreeMap<usize, OrdinalRange>,
    /// Ranges of copies that are lost with their physical cluster, and may not be made again.
    lost: Vec<OrdinalRange>,
}

/// Returns the ranges of the chosen copies; `None` for an object that is not divided by ordinals.
pub(super) fn assign(planner: &PlacementPlanner, taken: &[Candidate]) -> Option<BTreeMap<Uid, OrdinalRange>> {
    if !division_support::has_ordinals(&planner.workload().kind) || is_divided_alike(planner) {
        return None;
    }
    let previous = planner.ctx.question.previous;
    let had = |c: &Candidate| {
        let uid = &c.facts.info.uid;
        previous.on(uid).and_then(|_| previous.ordinals.get(uid).copied())
    };
    let lost =
        held_copies::lost_copies(planner).into_iter().filter_map(|copy| previous.ordinals.get(&copy.uid).copied());
    let mut builder = RangeBuilder {
        planner,
        taken,
        wanted: planner.workload().ordinals(),
        ranges: taken.iter().enumerate().filter_map(|(at, c)| Some((at, had(c)?))).collect(),
        lost: lost.collect(),
    };
    builder.gaps().into_iter().for_each(|gap| builder.fill(gap));
    let named = builder.ranges.iter().map(|(at, range)| (taken[*at].facts.info.uid.clone(), *range));
    Some(named.collect())
}

/// Returns true for a set whose copies each count their ordinals from the first one, as an earlier version divided it.
fn is_divided_alike(planner: &PlacementPlanner) -> bool {
    let previous = planner.ctx.question.previous;
    let counts_alone = |copy: &PlacedCopy| copy.replicas.is_some_and(|replicas| replicas > 0);
    previous.ordinals.is_empty() && previous.clusters.iter().any(counts_alone)
}

/// Returns the replicas of each copy: the wanted ordinals of its range, within its bounds.
pub(super) fn parts(
    planner: &PlacementPlanner,
    taken: &[Candidate],
    ordinals: &BTreeMap<Uid, OrdinalRange>,
) -> Vec<i64> {
    let wanted = planner.workload().ordinals();
    let part = |(c, share): (&Candidate, ReplicaShare)| {
        let range = ordinals.get(&c.facts.info.uid);
        range.map_or(0, |range| range.within(wanted).count()).min(share.cap.unwrap_or(i64::MAX))
    };
    taken.iter().zip(replica_split::shares_within(planner, taken)).map(part).collect()
}

/// Returns the number of wanted ordinals that have a copy.
pub(super) fn replicas_with_ordinals(planner: &PlacementPlanner, ordinals: &BTreeMap<Uid, OrdinalRange>) -> i64 {
    ordinals.values().map(|range| range.within(planner.workload().ordinals()).count()).sum()
}

impl RangeBuilder<'_, '_> {
    /// Returns the wanted ordinals that no copy has, in order.
    fn gaps(&self) -> Vec<OrdinalRange> {
        let mut owned: Vec<OrdinalRange> = self.ranges.values().chain(&self.lost).copied().collect();
        owned.sort_unstable_by_key(|range| range.first);
        let mut gaps = Vec::new();
        let mut next = self.wanted.first;
        for range in owned.iter().filter(|range| range.count() > 0) {
            gaps.push(OrdinalRange { first: next, end: range.first.min(self.wanted.end) });
            next = next.max(range.end);
        }
        gaps.push(OrdinalRange { first: next, end: self.wanted.end });
        gaps.retain(|gap| gap.count() > 0);
        gaps
    }

    /// Divides the ordinals of a gap.
    fn fill(&mut self, gap: OrdinalRange) {
        let takers = self.takers(gap);
        let more = self.divided(gap.count(), &takers);
        let of = |at: usize| more.get(&at).copied().unwrap_or(0);
        let mut next = gap.first;
        for at in takers.before.into_iter().chain(takers.new.iter().copied()).filter(|at| of(*at) > 0) {
            let first = self.ranges.get(&at).filter(|range| range.count() > 0).map_or(next, |range| range.first);
            next += of(at);
            self.ranges.insert(at, OrdinalRange { first, end: next });
        }
        if let Some(at) = takers.after.filter(|at| of(*at) > 0)
            && let Some(range) = self.ranges.get_mut(&at)
        {
            range.first = gap.end - of(at);
        }
    }

    fn takers(&self, gap: OrdinalRange) -> GapTakers {
        let owns = |at: usize| self.ranges.get(&at).filter(|range| range.count() > 0);
        let all = || 0..self.taken.len();
        let mut new: Vec<usize> = all().filter(|at| owns(*at).is_none()).collect();
        new.sort_by_key(|at| (&self.taken[*at].facts.info.name, &self.taken[*at].facts.info.uid));
        let lost = || self.lost.iter().filter(|range| range.count() > 0);
        let ranges = || all().filter_map(|at| Some((Some(at), owns(at)?))).chain(lost().map(|range| (None, range)));
        let before = ranges().filter(|(_, range)| range.end <= gap.first).max_by_key(|(_, range)| range.end);
        let after = ranges().filter(|(_, range)| range.first >= gap.end).min_by_key(|(_, range)| range.first);
        GapTakers { before: before.and_then(|(at, _)| at), new, after: after.and_then(|(at, _)| at) }
    }

    /// Returns the ordinals that each recipient gets in addition to its own. The groups of an overflow are filled in
    /// order.
    fn divided(&self, count: i64, takers: &GapTakers) -> BTreeMap<usize, i64> {
        let shares = replica_split::shares_of_ordinals(self.planner, self.taken);
        let all: Vec<usize> = takers.before.into_iter().chain(takers.new.iter().copied()).chain(takers.after).collect();
        let group = |at: usize| if self.planner.overflows() { self.taken[at].tier } else { 0 };
        let mut groups: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        all.into_iter().for_each(|at| groups.entry(group(at)).or_default().push(at));
        let (mut more, mut left) = (BTreeMap::new(), count);
        for members in groups.values() {
            let has: Vec<i64> = members.iter().map(|at| self.has(*at)).collect();
            let total = has.iter().sum::<i64>() + left;
            let given = divide(total, &grown_shares(total, members, &shares, &has));
            for ((at, has), given) in members.iter().zip(has).zip(given) {
                let extra = (given - has).clamp(0, left);
                left -= extra;
                more.insert(*at, extra);
            }
        }
        more
    }

    /// Returns the wanted ordinals that a copy has.
    fn has(&self, at: usize) -> i64 {
        self.ranges.get(&at).map_or(0, |range| range.within(self.wanted).count())
    }
}

/// Returns shares that keep present replicas, and reach the policy's minimum as far as the total allows.
fn grown_shares<'s>(total: i64, members: &[usize], shares: &[ReplicaShare<'s>], has: &[i64]) -> Vec<ReplicaShare<'s>> {
    let least = |(at, has): (&usize, &i64)| shares[*at].floor.max(*has);
    let fits = members.iter().zip(has).map(least).fold(0, i64::saturating_add) <= total;
    let share = |(at, has): (&usize, &i64)| ReplicaShare {
        floor: if fits { least((at, has)) } else { *has },
        previous: *has,
        ..shares[*at].clone()
    };
    members.iter().zip(has).map(share).collect()
}

#[cfg(test)]
mod tests;
