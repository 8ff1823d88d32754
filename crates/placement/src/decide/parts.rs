//! How many replicas each physical cluster gets.

use portolan_types::placement::DivideBy;

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

    /// Replicas that a copy has: as divided before, else as many as run.
    fn has(&self, cluster: &ClusterFacts) -> i64 {
        let (question, uid) = (self.ctx.question, &cluster.info.uid);
        let copy = question.previous.on(uid).filter(|_| self.ctx.is_here(cluster));
        let running = || question.ready.get(uid).copied().unwrap_or(0);
        copy.map_or(0, |copy| copy.replicas.unwrap_or_else(running))
    }

    /// Replicas of each that was taken. What does not fit in them takes further ones, best first.
    pub(super) fn share_out(&self, selection: &mut Selection<'a>) -> Vec<Option<i64>> {
        let Some(replicas) = self.workload().replicas.filter(|_| self.split != Split::Whole) else {
            return vec![None; selection.taken.len()];
        };
        loop {
            let parts = self.parts(replicas, &selection.taken);
            let fits = parts.iter().sum::<i64>() >= replicas;
            let spare = selection.left.iter().position(|(_, reason)| *reason == Reason::NotNeeded);
            let may = selection.taken.len() < self.ctx.rules.most() && !self.workload().single;
            match spare.filter(|_| !fits && may && self.workload().pin.is_none()) {
                Some(at) => selection.taken.push(selection.left.remove(at).0),
                None => return parts.into_iter().map(Some).collect(),
            }
        }
    }

    fn parts(&self, replicas: i64, taken: &[Candidate<'a>]) -> Vec<i64> {
        match self.split {
            Split::Whole => Vec::new(),
            Split::Spill => fill(replicas, taken.iter().map(|c| self.cap(c.facts))),
            Split::By(DivideBy::Capacity) => self.parts_by_capacity(replicas, taken),
            Split::By(by) => {
                let weight = |c: &Candidate| match (by, self.ctx.rules.winner) {
                    (DivideBy::Weight, Some(policy)) => u64::from(policy.policy.weight(&c.facts.info)),
                    _ => 1,
                };
                let share = |c: &Candidate<'a>| Share {
                    name: &c.facts.info.name,
                    weight: weight(c),
                    cap: self.cap(c.facts),
                    previous: self.has(c.facts),
                };
                divide(replicas, &taken.iter().map(share).collect::<Vec<_>>())
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
            cap: self.cap(taken[at].facts).map(|cap| cap - taken_off),
            previous,
        };
        let all = 0..taken.len();
        if total == 0 || taken.iter().any(|c| !c.here) {
            let shares: Vec<_> = all.map(|at| share(at, free(&taken[at]), 0, has[at])).collect();
            return divide(replicas, &shares);
        }
        if replicas <= total {
            let shares: Vec<_> = all.map(|at| Share { cap: Some(has[at]), ..share(at, has[at], 0, has[at]) }).collect();
            return divide(replicas, &shares);
        }
        let shares: Vec<_> = all.map(|at| share(at, free(&taken[at]) - has[at], has[at], 0)).collect();
        let more = divide(replicas - total, &shares);
        has.iter().zip(more).map(|(has, more)| has + more).collect()
    }
}

/// Gives each as much as fits, in order.
fn fill(replicas: i64, caps: impl Iterator<Item = Option<i64>>) -> Vec<i64> {
    let mut left = replicas;
    let give = |cap: Option<i64>| {
        let part = cap.map_or(left, |cap| cap.min(left));
        left -= part;
        part
    };
    caps.map(give).collect()
}
