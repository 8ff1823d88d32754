//! Replicas of each chosen physical cluster, and the basis of the division.

use std::collections::BTreeMap;

use portolan_types::{
    Uid,
    placement::{DivideBy, DivisionBasis, OrdinalRange, PlacedCopy},
};

use super::{PlacementPlanner, ReplicaSplit, job_parts, ordinal_shares, overflow};
use crate::{
    cluster_facts::ClusterFacts,
    divide::{ReplicaShare, divide},
    exclusion_reason::ExclusionReason,
    select::{Candidate, ClusterSelection},
};

/// Returns the most replicas that the bounds allow a copy; never less than it has.
pub(super) fn cap(planner: &PlacementPlanner, cluster: &ClusterFacts) -> Option<i64> {
    let room = planner.ctx.room(cluster, &cluster.info.bounds)?;
    Some(room.max(has(planner, cluster)))
}

/// Returns the least and most replicas that the deciding policy sets for a copy.
fn set_limits(planner: &PlacementPlanner, cluster: &ClusterFacts) -> (i64, Option<i64>) {
    match (planner.split, planner.ctx.rules.winner) {
        (ReplicaSplit::By(_), Some(policy)) => policy.policy.replica_limits(&cluster.info),
        _ => (0, None),
    }
}

/// Returns the most replicas that the deciding policy sets for a copy.
pub(super) fn most(planner: &PlacementPlanner, cluster: &ClusterFacts) -> Option<i64> {
    set_limits(planner, cluster).1
}

/// Bounds of the part of one physical cluster.
#[derive(Clone, Copy)]
struct PartBounds {
    least: i64,
    cap: Option<i64>,
    has: i64,
}

/// Returns the bounds of a part: by the policy, by the bounds of the physical cluster and, where the replicas fill one
/// group after the other, by its nodes.
fn part_bounds(planner: &PlacementPlanner, cluster: &ClusterFacts) -> PartBounds {
    let has = has(planner, cluster);
    let (least, most) = set_limits(planner, cluster);
    // A group that is filled uses the available room.
    let least = if planner.overflows() { 0 } else { least };
    let nodes = planner.overflows().then(|| planner.ctx.room(cluster, &cluster.info.allocatable)).flatten();
    let cap = [cap(planner, cluster), nodes.map(|room| room.max(has)), most].into_iter().flatten().min();
    PartBounds { least, cap: cap.map(|cap| cap.max(0)), has }
}

/// Returns the replicas that a copy has: as divided or limited before, else as many as exist. Those that are not
/// ready or cannot be seen count.
fn has(planner: &PlacementPlanner, cluster: &ClusterFacts) -> i64 {
    let (question, uid) = (planner.ctx.question, &cluster.info.uid);
    let copy = question.previous.on(uid).filter(|_| planner.ctx.is_here(cluster));
    let existing = || question.existing.get(uid).copied().unwrap_or(0);
    let admitted = |copy: &PlacedCopy| copy.replicas.or_else(|| question.previous.limits.get(uid).copied());
    copy.map_or(0, |copy| admitted(copy).unwrap_or_else(existing))
}

/// Returns the limits of copies whose bounds admit fewer replicas than they should have. Running pods stay. A copy
/// that a downstream autoscaler scales is limited as soon as it has as many as fit, also if the replicas are
/// divided.
pub(super) fn limits<'a>(
    planner: &PlacementPlanner<'a>,
    taken: &[Candidate<'a>],
    parts: &[Option<i64>],
) -> BTreeMap<Uid, i64> {
    let Some(replicas) = planner.workload().replicas.filter(|_| !planner.workload().is_job()) else {
        return BTreeMap::new();
    };
    let is_scaled = planner.ctx.question.previous.autoscaled.is_some();
    if planner.split != ReplicaSplit::Whole && !is_scaled {
        return BTreeMap::new();
    }
    let limit = |(c, part): (&Candidate<'a>, &Option<i64>)| {
        let wanted = part.unwrap_or(replicas);
        let cap = part_bounds(planner, c.facts)
            .cap
            .filter(|cap| c.here && (*cap < wanted || (is_scaled && *cap == wanted)))?;
        Some((c.facts.info.uid.clone(), cap.max(0)))
    };
    taken.iter().zip(parts).filter_map(limit).collect()
}

/// Returns the sentence about copies that the bounds keep from growing.
pub(super) fn limit_line<'a>(
    planner: &PlacementPlanner<'a>,
    taken: &[Candidate<'a>],
    limits: &BTreeMap<Uid, i64>,
) -> Option<String> {
    let is_limited = planner.split == ReplicaSplit::Whole && !planner.workload().is_job();
    let replicas = planner.workload().replicas.filter(|_| is_limited)?;
    let line = |c: &Candidate<'a>| {
        let limit = limits.get(&c.facts.info.uid).filter(|limit| **limit < replicas)?;
        Some(format!("only {limit} of {replicas} replicas fit the bounds of {}", c.facts.info.name))
    };
    let lines: Vec<String> = taken.iter().filter_map(line).collect();
    (!lines.is_empty()).then(|| lines.join(", "))
}

/// Divides the replicas over the chosen physical clusters. What does not fit goes to further ones, best first.
pub(super) fn share_out<'a>(planner: &PlacementPlanner<'a>, selection: &mut ClusterSelection<'a>) -> Division {
    let Some(replicas) = planner.workload().replicas.filter(|_| planner.split != ReplicaSplit::Whole) else {
        return Division { parts: vec![None; selection.taken.len()], basis: None, ordinals: BTreeMap::new() };
    };
    if job_parts::are_kept(&planner.ctx) {
        let basis = planner.ctx.question.previous.divided_by.clone();
        let parts = job_parts::parallel(planner, &selection.taken).into_iter().map(Some).collect();
        return Division { parts, basis, ordinals: BTreeMap::new() };
    }
    loop {
        leave_too_small(planner, replicas, selection);
        let basis = basis(planner, &selection.taken);
        let ordinals = ordinal_shares::assign(planner, &selection.taken);
        let parts = match &ordinals {
            Some(ordinals) => ordinal_shares::parts(planner, &selection.taken, ordinals),
            None => parts(planner, replicas, &selection.taken, basis.as_ref()),
        };
        // Another copy would not get the ordinals of those that are here.
        let given =
            ordinals.as_ref().map_or(parts.iter().sum(), |all| ordinal_shares::replicas_with_ordinals(planner, all));
        let fits = given >= replicas;
        let spare = selection.left.iter().position(|(_, reason)| *reason == ExclusionReason::NotNeeded);
        let may = selection.taken.len() < planner.ctx.rules.most() && !planner.workload().single;
        let may = may && selection.lack.is_none() && !planner.overflows() && !planner.workload().is_job();
        match spare.filter(|_| !fits && may && planner.workload().pin.is_none()) {
            Some(at) => selection.taken.push(selection.left.remove(at).0),
            None => {
                let division = Division {
                    parts: parts.into_iter().map(Some).collect(),
                    basis,
                    ordinals: ordinals.unwrap_or_default(),
                };
                return division.without_unused(planner, selection);
            }
        }
    }
}

/// Leaves the physical clusters, the worst first, on which a copy would have fewer replicas than the policy sets.
fn leave_too_small(planner: &PlacementPlanner, replicas: i64, selection: &mut ClusterSelection) {
    for at in (0..selection.taken.len()).rev() {
        let candidate = &selection.taken[at];
        let bounds = part_bounds(planner, candidate.facts);
        if !candidate.here && bounds.cap.is_some_and(|cap| cap < bounds.least) {
            leave(selection, at, ExclusionReason::TooFewReplicas);
        }
    }
    let needed = |taken: &[Candidate]| -> i64 {
        taken.iter().map(|c| part_bounds(planner, c.facts).least).fold(0, i64::saturating_add)
    };
    while selection.taken.len() > 1 && needed(&selection.taken) > replicas {
        let Some(at) = selection.taken.iter().rposition(|c| c.held.is_none()) else { break };
        leave(selection, at, ExclusionReason::TooFewReplicas);
    }
}

fn leave(selection: &mut ClusterSelection, at: usize, reason: ExclusionReason) {
    let candidate = selection.taken.remove(at);
    selection.left.push((candidate, reason));
}

/// Returns the inputs of a division other than the total: the physical clusters with their weights, groups and limits.
fn basis<'a>(planner: &PlacementPlanner<'a>, taken: &[Candidate<'a>]) -> Option<DivisionBasis> {
    let ReplicaSplit::By(by) = planner.split else { return None };
    let uid = |c: &Candidate<'a>| c.facts.info.uid.clone();
    let weights = taken.iter().map(|c| (uid(c), weight(planner, c))).collect();
    let groups = taken.iter().filter(|_| planner.overflows()).map(|c| (uid(c), c.tier)).collect();
    let limits = taken.iter().map(|c| (uid(c), set_limits(planner, c.facts)));
    let limits = limits.filter(|(_, limits)| *limits != (0, None)).collect();
    Some(DivisionBasis { by, weights, groups, limits })
}

fn weight<'a>(planner: &PlacementPlanner<'a>, candidate: &Candidate<'a>) -> u64 {
    match (planner.split, planner.ctx.rules.winner) {
        (ReplicaSplit::By(DivideBy::Weight), Some(policy)) => u64::from(policy.policy.weight(&candidate.facts.info)),
        _ => 1,
    }
}

fn parts<'a>(
    planner: &PlacementPlanner<'a>,
    replicas: i64,
    taken: &[Candidate<'a>],
    basis: Option<&DivisionBasis>,
) -> Vec<i64> {
    let previous = planner.ctx.question.previous.divided_by.as_ref();
    match planner.split {
        ReplicaSplit::Whole => Vec::new(),
        ReplicaSplit::Spill => parts_by_room(planner, replicas, taken),
        ReplicaSplit::By(_) if planner.overflows() => {
            let is_same = basis.zip(previous).is_some_and(|(basis, previous)| continues(previous, basis));
            overflow::parts_by_group(planner, replicas, taken, is_same)
        }
        ReplicaSplit::By(DivideBy::Capacity) => parts_by_capacity(planner, replicas, taken),
        ReplicaSplit::By(_) => {
            // Only the total has changed: the division starts from the present replicas. Otherwise the weights
            // alone count.
            let is_same = basis.is_some() && basis == previous;
            divided(replicas, without_excess(replicas, shares_within(planner, taken)), is_same)
        }
    }
}

/// Returns true if the physical clusters of a division still have the same group, weight and limits. Physical clusters
/// may have been removed or added since.
fn continues(previous: &DivisionBasis, basis: &DivisionBasis) -> bool {
    let stays = |uid: &&Uid| basis.weights.contains_key(*uid);
    previous.by == basis.by
        && previous.groups.len() == previous.weights.len()
        && previous.weights.keys().filter(stays).all(|uid| {
            previous.weights.get(uid) == basis.weights.get(uid)
                && previous.groups.get(uid) == basis.groups.get(uid)
                && previous.limits.get(uid) == basis.limits.get(uid)
        })
}

/// Returns the shares of the chosen physical clusters. The room of a group that is filled has no other use than to be
/// divided by, so that it is a fixed weight there.
pub(super) fn shares_within<'a, 'c>(
    planner: &PlacementPlanner<'a>,
    taken: &'c [Candidate<'a>],
) -> Vec<ReplicaShare<'c>> {
    let share = |c: &'c Candidate<'a>| {
        let PartBounds { least, cap, has } = part_bounds(planner, c.facts);
        let floor = cap.map_or(least, |cap| least.min(cap));
        let weight = match (planner.split, cap) {
            (ReplicaSplit::By(DivideBy::Capacity), Some(cap)) => cap.unsigned_abs(),
            _ => weight(planner, c),
        };
        ReplicaShare { name: &c.facts.info.name, weight, floor, cap, previous: has }
    };
    taken.iter().map(share).collect()
}

/// Drops the least replicas of the policy if there are fewer replicas altogether.
fn without_excess(replicas: i64, shares: Vec<ReplicaShare>) -> Vec<ReplicaShare> {
    let least = shares.iter().map(|share| share.floor).fold(0, i64::saturating_add);
    if least <= replicas {
        return shares;
    }
    shares.into_iter().map(|share| ReplicaShare { floor: 0, ..share }).collect()
}

/// Divides by the weights alone or, if only the total has changed, starting from the present replicas.
pub(super) fn divided(replicas: i64, shares: Vec<ReplicaShare>, is_same: bool) -> Vec<i64> {
    let present: i64 = shares.iter().map(|share| share.previous).sum();
    let shares: Vec<_> = match (is_same, replicas >= present) {
        (false, _) => shares,
        (true, true) => shares.into_iter().map(grown).collect(),
        (true, false) => shares.into_iter().map(shrunk).collect(),
    };
    divide(replicas, &shares)
}

/// Divides by free room. Free room changes all the time, so only growth is divided by it, or all replicas when a
/// copy is created or removed, or has other replicas than the policy's limits allow.
fn parts_by_capacity(planner: &PlacementPlanner, replicas: i64, taken: &[Candidate]) -> Vec<i64> {
    let bounds: Vec<PartBounds> = taken.iter().map(|c| part_bounds(planner, c.facts)).collect();
    let total: i64 = bounds.iter().map(|bounds| bounds.has).sum();
    let free = |c: &Candidate| free_room(planner, c, replicas);
    let share = |at: usize, weight: i64, taken_off: i64, previous: i64| ReplicaShare {
        name: &taken[at].facts.info.name,
        weight: weight.max(0).unsigned_abs(),
        floor: bounds[at].cap.map_or(bounds[at].least, |cap| bounds[at].least.min(cap)) - taken_off,
        cap: bounds[at].cap.map(|cap| cap - taken_off),
        previous,
    };
    let has = |at: usize| bounds[at].has;
    let all = 0..taken.len();
    let is_out =
        |b: &PartBounds| b.has < b.least.min(b.cap.unwrap_or(i64::MAX)) || b.cap.is_some_and(|cap| b.has > cap);
    if total == 0 || taken.iter().any(|c| !c.here) || bounds.iter().any(is_out) {
        let shares: Vec<_> = all.map(|at| share(at, free(&taken[at]), 0, has(at))).collect();
        return divide(replicas, &without_excess(replicas, shares));
    }
    if replicas <= total {
        let shares: Vec<_> = all.map(|at| shrunk(share(at, has(at), 0, has(at)))).collect();
        return divide(replicas, &without_excess(replicas, shares));
    }
    let shares: Vec<_> = all.map(|at| share(at, free(&taken[at]) - has(at), has(at), 0)).collect();
    let more = divide(replicas - total, &shares);
    bounds.iter().zip(more).map(|(bounds, more)| bounds.has + more).collect()
}

/// Returns the replicas that have room on a physical cluster, those that are there included; `replicas` if nothing
/// limits them.
fn free_room(planner: &PlacementPlanner, candidate: &Candidate, replicas: i64) -> i64 {
    let info = &candidate.facts.info;
    let rooms = [&info.bounds, &info.allocatable].map(|limits| planner.ctx.room(candidate.facts, limits));
    rooms.into_iter().flatten().min().unwrap_or(replicas).max(0)
}

/// Returns the shares of the chosen physical clusters in ordinals that no copy has.
pub(super) fn shares_of_ordinals<'a, 'c>(
    planner: &PlacementPlanner<'a>,
    taken: &'c [Candidate<'a>],
) -> Vec<ReplicaShare<'c>> {
    let mut shares = shares_within(planner, taken);
    if planner.split == ReplicaSplit::By(DivideBy::Capacity) {
        let replicas = planner.workload().replicas.unwrap_or(1);
        for (share, candidate) in shares.iter_mut().zip(taken) {
            share.weight = free_room(planner, candidate, replicas).unsigned_abs();
        }
    }
    shares
}

/// Gives each as many as fit, best first. Present replicas stay as far as the total allows.
fn parts_by_room(planner: &PlacementPlanner, replicas: i64, taken: &[Candidate]) -> Vec<i64> {
    let mut parts: Vec<i64> = taken.iter().map(|c| has(planner, c.facts)).collect();
    let mut left = replicas - parts.iter().sum::<i64>();
    for (part, candidate) in parts.iter_mut().zip(taken) {
        let room = cap(planner, candidate.facts).map_or(i64::MAX, |cap| cap.saturating_sub(*part).max(0));
        let more = left.clamp(0, room);
        (*part, left) = (*part + more, left - more);
    }
    // The last chosen ones shrink first.
    for part in parts.iter_mut().rev() {
        let less = (-left).clamp(0, *part);
        (*part, left) = (*part - less, left + less);
    }
    parts
}

/// Replicas of each physical cluster that was taken, and what they are divided by.
pub(super) struct Division {
    pub(super) parts: Vec<Option<i64>>,
    /// `PlacementRecord::divided_by` once every copy has its part.
    pub(super) basis: Option<DivisionBasis>,
    /// Ordinals of each copy of a StatefulSet.
    pub(super) ordinals: BTreeMap<Uid, OrdinalRange>,
}

impl Division {
    /// Leaves out the physical clusters that get nothing, if the replicas fill groups in their order. A Job has no part
    /// without a pod.
    fn without_unused<'a>(mut self, planner: &PlacementPlanner<'a>, selection: &mut ClusterSelection<'a>) -> Self {
        let first = selection.taken.iter().map(|c| c.tier).min();
        let has_any = self.parts.iter().flatten().any(|part| *part > 0);
        let leaves_some = planner.overflows() || planner.workload().is_job();
        for at in (0..self.parts.len()).rev().filter(|_| leaves_some) {
            let candidate = &selection.taken[at];
            let is_further = Some(candidate.tier) > first || (has_any && !candidate.here);
            if self.parts.get(at) == Some(&Some(0)) && is_further && candidate.held.is_none() {
                selection.left.push((selection.taken.remove(at), ExclusionReason::NotNeeded));
                self.parts.remove(at);
            }
        }
        let is_used = |uid: &Uid| selection.taken.iter().any(|c| c.facts.info.uid == *uid);
        self.ordinals.retain(|uid, _| is_used(uid));
        if let Some(basis) = &mut self.basis {
            basis.weights.retain(|uid, _| is_used(uid));
            basis.groups.retain(|uid, _| is_used(uid));
            basis.limits.retain(|uid, _| is_used(uid));
        }
        self
    }
}

fn grown(share: ReplicaShare<'_>) -> ReplicaShare<'_> {
    ReplicaShare { floor: share.previous.max(share.floor), ..share }
}

fn shrunk(share: ReplicaShare<'_>) -> ReplicaShare<'_> {
    ReplicaShare { cap: Some(share.previous), floor: share.floor.min(share.previous), ..share }
}
