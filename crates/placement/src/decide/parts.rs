//! How many replicas each physical cluster gets.

use std::collections::BTreeMap;

use portolan_types::{
    Uid,
    placement::{DivideBy, DivisionBasis, PlacedCopy},
};

use super::{Planner, Split};
use crate::{
    divide::{Share, divide},
    facts::ClusterFacts,
    reason::Reason,
    select::{Candidate, Selection},
};

impl<'a> Planner<'a> {
    /// The most replicas that the bounds allow a copy; never less than it has.
    pub(super) fn cap(&self, cluster: &ClusterFacts) -> Option<i64> {
        let room = self.ctx.room(cluster, &cluster.info.bounds)?;
        Some(room.max(self.has(cluster)))
    }

    /// Replicas that a copy has: as divided or limited before, else as many as exist. Those that are not ready count, as do
    /// those of a physical cluster that cannot be reached.
    fn has(&self, cluster: &ClusterFacts) -> i64 {
        let (question, uid) = (self.ctx.question, &cluster.info.uid);
        let copy = question.previous.on(uid).filter(|_| self.ctx.is_here(cluster));
        let existing = || question.existing.get(uid).copied().unwrap_or(0);
        let admitted = |copy: &PlacedCopy| copy.replicas.or_else(|| question.previous.limits.get(uid).copied());
        copy.map_or(0, |copy| admitted(copy).unwrap_or_else(existing))
    }

    /// Limits of the copies whose bounds do not admit as many replicas as each should have. What runs stays. What autoscalers
    /// on the physical clusters scale has a limit as soon as it has as many as fit, also where the replicas are divided.
    pub(super) fn limits(&self, taken: &[Candidate<'a>], parts: &[Option<i64>]) -> BTreeMap<Uid, i64> {
        let Some(replicas) = self.workload().replicas else { return BTreeMap::new() };
        let is_scaled = self.ctx.question.previous.autoscaled.is_some();
        if self.split != Split::Whole && !is_scaled {
            return BTreeMap::new();
        }
        let limit = |(c, part): (&Candidate<'a>, &Option<i64>)| {
            let wanted = part.unwrap_or(replicas);
            let cap = self.cap(c.facts).filter(|cap| c.here && (*cap < wanted || (is_scaled && *cap == wanted)))?;
            Some((c.facts.info.uid.clone(), cap.max(0)))
        };
        taken.iter().zip(parts).filter_map(limit).collect()
    }

    /// Returns the sentence about copies that the bounds keep from growing.
    pub(super) fn limit_line(&self, taken: &[Candidate<'a>], limits: &BTreeMap<Uid, i64>) -> Option<String> {
        let replicas = self.workload().replicas.filter(|_| self.split == Split::Whole)?;
        let line = |c: &Candidate<'a>| {
            let limit = limits.get(&c.facts.info.uid).filter(|limit| **limit < replicas)?;
            Some(format!("only {limit} of {replicas} replicas fit the bounds of {}", c.facts.info.name))
        };
        let lines: Vec<String> = taken.iter().filter_map(line).collect();
        (!lines.is_empty()).then(|| lines.join(", "))
    }

    /// Replicas of each that was taken. What does not fit in them takes further ones, best first.
    pub(super) fn share_out(&self, selection: &mut Selection<'a>) -> Division {
        let Some(replicas) = self.workload().replicas.filter(|_| self.split != Split::Whole) else {
            return Division { parts: vec![None; selection.taken.len()], basis: None };
        };
        loop {
            let basis = self.basis(&selection.taken);
            let parts = self.parts(replicas, &selection.taken, basis.as_ref());
            let fits = parts.iter().sum::<i64>() >= replicas;
            let spare = selection.left.iter().position(|(_, reason)| *reason == Reason::NotNeeded);
            let may = selection.taken.len() < self.ctx.rules.most() && !self.workload().single;
            match spare.filter(|_| !fits && may && self.workload().pin.is_none()) {
                Some(at) => selection.taken.push(selection.left.remove(at).0),
                None => return Division { parts: parts.into_iter().map(Some).collect(), basis },
            }
        }
    }

    /// Returns what a division is made by, besides the total: the physical clusters with their weights.
    fn basis(&self, taken: &[Candidate<'a>]) -> Option<DivisionBasis> {
        let Split::By(by) = self.split else { return None };
        let weights = taken.iter().map(|c| (c.facts.info.uid.clone(), self.weight(by, c))).collect();
        Some(DivisionBasis { by, weights })
    }

    fn weight(&self, by: DivideBy, candidate: &Candidate<'a>) -> u64 {
        match (by, self.ctx.rules.winner) {
            (DivideBy::Weight, Some(policy)) => u64::from(policy.policy.weight(&candidate.facts.info)),
            _ => 1,
        }
    }

    fn parts(&self, replicas: i64, taken: &[Candidate<'a>], basis: Option<&DivisionBasis>) -> Vec<i64> {
        match self.split {
            Split::Whole => Vec::new(),
            Split::Spill => self.parts_by_room(replicas, taken),
            Split::By(DivideBy::Capacity) => self.parts_by_capacity(replicas, taken),
            Split::By(by) => {
                let share = |c: &Candidate<'a>| Share {
                    name: &c.facts.info.name,
                    weight: self.weight(by, c),
                    floor: 0,
                    cap: self.cap(c.facts),
                    previous: self.has(c.facts),
                };
                let shares: Vec<Share> = taken.iter().map(share).collect();
                let present: i64 = shares.iter().map(|share| share.previous).sum();
                // Only the total has changed: what is there is where it starts from. Otherwise the weights alone count.
                match basis.is_some() && basis == self.ctx.question.previous.divided_by.as_ref() {
                    true if replicas >= present => divide(replicas, &shares.into_iter().map(grown).collect::<Vec<_>>()),
                    true => divide(replicas, &shares.into_iter().map(shrunk).collect::<Vec<_>>()),
                    false => divide(replicas, &shares),
                }
            }
        }
    }

    /// What is free changes all the time, so only what is new is shared out by it: growth, or all when a copy comes or goes.
    fn parts_by_capacity(&self, replicas: i64, taken: &[Candidate]) -> Vec<i64> {
        let has: Vec<i64> = taken.iter().map(|c| self.has(c.facts)).collect();
        let total: i64 = has.iter().sum();
        let free = |c: &Candidate| {
            let rooms = [&c.facts.info.bounds, &c.facts.info.allocatable].map(|limits| self.ctx.room(c.facts, limits));
            rooms.into_iter().flatten().min().unwrap_or(replicas).max(0)
        };
        let share = |at: usize, weight: i64, taken_off: i64, previous: i64| Share {
            name: &taken[at].facts.info.name,
            weight: weight.max(0).unsigned_abs(),
            floor: 0,
            cap: self.cap(taken[at].facts).map(|cap| cap - taken_off),
            previous,
        };
        let all = 0..taken.len();
        if total == 0 || taken.iter().any(|c| !c.here) {
            let shares: Vec<_> = all.map(|at| share(at, free(&taken[at]), 0, has[at])).collect();
            return divide(replicas, &shares);
        }
        if replicas <= total {
            let shares: Vec<_> = all.map(|at| shrunk(share(at, has[at], 0, has[at]))).collect();
            return divide(replicas, &shares);
        }
        let shares: Vec<_> = all.map(|at| share(at, free(&taken[at]) - has[at], has[at], 0)).collect();
        let more = divide(replicas - total, &shares);
        has.iter().zip(more).map(|(has, more)| has + more).collect()
    }

    /// Gives each as much as fits, best first. What is there stays as far as the total allows.
    fn parts_by_room(&self, replicas: i64, taken: &[Candidate]) -> Vec<i64> {
        let mut parts: Vec<i64> = taken.iter().map(|c| self.has(c.facts)).collect();
        let mut left = replicas - parts.iter().sum::<i64>();
        for (part, candidate) in parts.iter_mut().zip(taken) {
            let room = self.cap(candidate.facts).map_or(i64::MAX, |cap| cap.saturating_sub(*part).max(0));
            let more = left.clamp(0, room);
            (*part, left) = (*part + more, left - more);
        }
        // The last that were taken shrink first.
        for part in parts.iter_mut().rev() {
            let less = (-left).clamp(0, *part);
            (*part, left) = (*part - less, left + less);
        }
        parts
    }
}

/// Replicas of each physical cluster that was taken, and what they are divided by.
pub(super) struct Division {
    pub(super) parts: Vec<Option<i64>>,
    /// `PlacementRecord::divided_by` once every copy has its part.
    pub(super) basis: Option<DivisionBasis>,
}

fn grown(share: Share<'_>) -> Share<'_> {
    Share { floor: share.previous, ..share }
}

fn shrunk(share: Share<'_>) -> Share<'_> {
    Share { cap: Some(share.previous), ..share }
}
