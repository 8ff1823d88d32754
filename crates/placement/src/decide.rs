//! The decision: which physical clusters, with how many replicas each.

mod decision;
mod divisible;
mod held;
mod parts;
mod preference;

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
};

use portolan_types::{
    Uid,
    placement::{Count, DivideBy, PlacementRecord, Spread},
};

pub use self::decision::{Chosen, Decision, Outcome, Refusal, Rejected};
use self::parts::Division;
use crate::{
    facts::{ClusterFacts, amount},
    filters::Context,
    policy::{LeveledPolicy, Standing},
    reason::Reason,
    select::{Candidate, Selection, select},
    workload::{Moves, PinOn, Workload, contribution},
};

/// Everything that a decision depends on.
#[derive(Clone, Copy)]
pub struct Question<'a> {
    /// What is to be placed.
    pub workload: &'a Workload,
    /// Policies of its namespace, its logical cluster and all ancestors, in any order.
    pub policies: &'a [LeveledPolicy],
    /// Physical clusters in reach, and those of `previous`, in any order.
    pub clusters: &'a [ClusterFacts],
    /// Where it is.
    pub previous: &'a PlacementRecord,
    /// The default decision of its namespace, when there is one.
    pub home: &'a [Uid],
    /// Pods of each copy that has all replicas and no limit: as many as were admitted last, ready or not.
    pub existing: &'a BTreeMap<Uid, i64>,
    /// Seconds since the epoch, for taints that are tolerated for a time.
    pub now: i64,
}

/// Decides. Equal facts give an equal answer, in whatever order they come.
pub fn place(question: &Question) -> Decision {
    Planner::new(question).decide()
}

/// How replicas are shared out.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Split {
    /// Every copy has all.
    Whole,
    /// By the policy.
    By(DivideBy),
    /// The copy that outgrew its bounds keeps what fits, the rest goes to further ones.
    Spill,
}

/// The filters' context and what follows from it.
pub(crate) struct Planner<'a> {
    pub(crate) ctx: Context<'a>,
    pub(crate) clusters: Vec<&'a ClusterFacts>,
    split: Split,
}

impl<'a> Planner<'a> {
    pub(crate) fn new(question: &'a Question<'a>) -> Self {
        let ctx = Context::new(question);
        let mut clusters: Vec<_> = question.clusters.iter().collect();
        clusters.sort_by(|a, b| (&a.info.name, &a.info.uid).cmp(&(&b.info.name, &b.info.uid)));
        let by = divisible::divides_by(&ctx);
        let mut planner = Self { ctx, clusters, split: by.map_or(Split::Whole, Split::By) };
        if planner.outgrows_its_bounds() {
            planner.split = Split::Spill;
            planner.ctx.spills = true;
        }
        planner
    }

    fn workload(&self) -> &'a Workload {
        self.ctx.question.workload
    }

    /// Without a policy, a rolling workload that grew over its physical cluster's bounds is divided.
    fn outgrows_its_bounds(&self) -> bool {
        let workload = self.workload();
        let Some(replicas) = workload.replicas.filter(|_| self.ctx.rules.winner.is_none()) else { return false };
        let full = |c: &&ClusterFacts| self.ctx.is_here(c) && self.cap(c).is_some_and(|cap| cap < replicas);
        workload.moves == Moves::Surge && workload.pin.is_none() && self.clusters.iter().any(full)
    }

    /// How many physical clusters are wanted.
    fn count(&self) -> usize {
        let workload = self.workload();
        let wanted = match (&workload.pin, self.ctx.rules.winner) {
            (Some(pin), winner) => match winner.map(|p| p.policy.count()) {
                Some(Count::Exactly(0)) => 0,
                _ => pin.names.len(),
            },
            (None, None) => 1,
            (None, Some(policy)) => match policy.policy.count() {
                Count::All => usize::MAX,
                Count::Exactly(n) => n as usize,
            },
        };
        let most = if workload.single || divisible::runs_whole_on_one(&self.ctx) { 1 } else { usize::MAX };
        wanted.min(self.ctx.rules.most()).min(most)
    }

    fn decide(&self) -> Decision {
        let workload = self.workload();
        let count = self.count();
        if count == 0 && workload.moves != Moves::Stay {
            return self.answer(Vec::new(), Vec::new(), Outcome::Stopped);
        }
        if workload.finished {
            return self.leave_as_it_is();
        }
        let (candidates, mut rejected) = self.filter();
        let (candidates, preference) = self.prefer(candidates, count);
        rejected.extend(preference.left.iter().map(|(c, reason)| reject(c.facts, *reason)));
        let mut selection = self.select(candidates, count);
        let Division { parts, basis: divided_by } = self.share_out(&mut selection);
        let limits = self.limits(&selection.taken, &parts);
        rejected.extend(selection.left.iter().map(|(c, reason)| reject(c.facts, *reason)));
        let outcome = self.outcome(&selection, &parts, count, &limits);
        let lost = self.lost();
        let is_held = |c: &Candidate| c.held.is_some();
        let move_refused = !lost.is_empty() || (workload.keeps_volumes && selection.taken.iter().any(is_held));
        let held = selection.taken.iter().filter_map(|c| Some(held::line(workload, c.facts, c.held?)));
        let held = held.chain(lost.iter().map(|copy| held::line_of_lost(copy)));
        let lost = lost.iter().map(|copy| copy.uid.clone()).collect();
        let held = held.chain(divisible::note(&self.ctx)).chain(preference.note()).collect();
        let chosen = selection.taken.iter().zip(parts).map(|(c, replicas)| choose(c.facts, replicas)).collect();
        let answer = self.answer(chosen, rejected, outcome);
        let recheck_in = answer.recheck_in.into_iter().chain(preference.recheck_in).min();
        let preferred_since = preference.since;
        Decision { held, move_refused, lost, limits, divided_by, recheck_in, preferred_since, ..answer }
    }

    /// Every physical cluster is either a candidate or refused by the first filter it fails.
    fn filter(&self) -> (Vec<Candidate<'a>>, Vec<Rejected>) {
        let (mut candidates, mut rejected) = (Vec::new(), Vec::new());
        for cluster in &self.clusters {
            match self.ctx.refusal(cluster) {
                None => candidates.push(self.candidate(cluster, None)),
                Some((_, reason)) if self.holds(cluster, reason) => {
                    candidates.push(self.candidate(cluster, Some(reason)))
                }
                Some((_, reason)) => rejected.push(reject(cluster, reason)),
            }
        }
        (candidates, rejected)
    }

    fn select(&self, candidates: Vec<Candidate<'a>>, count: usize) -> Selection<'a> {
        let here = candidates.iter().filter(|c| c.here).count();
        // A started job is neither ended because fewer copies are wanted, nor run again because more are.
        let started = self.workload().moves == Moves::Stay && here > 0;
        // What is held back from moving does not come to where it would have moved.
        let held = candidates.iter().any(|c| c.held.is_some()) || !self.lost().is_empty();
        let (count, candidates, rest) = match (started, held) {
            (false, false) => (count, candidates, Vec::new()),
            _ => {
                let (stay, rest) = candidates.into_iter().partition(|c| c.here);
                (if started { here } else { count }, stay, rest)
            }
        };
        let (candidates, surplus) = self.without_surplus(candidates, count);
        let spread: Cow<[Spread]> = match self.ctx.rules.winner {
            Some(policy) if self.workload().pin.is_none() => Cow::Borrowed(&policy.policy.spec.spread),
            _ => Cow::Borrowed(&[]),
        };
        let mut selection = select(candidates, count, &spread);
        selection.left.extend(rest.into_iter().map(|c| (c, Reason::NotNeeded)));
        selection.left.extend(surplus);
        selection
    }

    fn candidate(&self, facts: &'a ClusterFacts, held: Option<Reason>) -> Candidate<'a> {
        let (question, uid) = (self.ctx.question, &facts.info.uid);
        let winner = self.ctx.rules.winner.filter(|_| question.workload.pin.is_none());
        // Its own weight must not make a physical cluster look fuller to what is there: it would move for being there.
        let taken = contribution(question.workload, question.previous);
        let own = taken.into_iter().find(|(on, _)| on == uid).map(|(_, own)| own).unwrap_or_default();
        let tier = winner.map_or(0, |p| match p.policy.standing(&facts.info) {
            Standing::Tier(tier) => tier,
            Standing::Excluded | Standing::NotNamed | Standing::NotSelected => 0,
        });
        Candidate {
            facts,
            keeps: false,
            here: self.ctx.is_here(facts),
            held,
            sibling: question.workload.siblings.contains(uid),
            home: question.home.contains(uid),
            tier,
            load: facts.load_percent_without(&own),
            pods: amount(&facts.used, "pods").minus(amount(&own, "pods")).units().max(0),
        }
    }

    /// What ended is not run again: it stays where it was, but does not hold a physical cluster that is being taken away.
    fn leave_as_it_is(&self) -> Decision {
        let stays = |c: &&&ClusterFacts| self.ctx.is_here(c) && !c.info.deleting;
        let (here, others): (Vec<_>, Vec<_>) = self.clusters.iter().partition(stays);
        let replicas = |c: &ClusterFacts| self.ctx.question.previous.on(&c.info.uid).and_then(|copy| copy.replicas);
        let chosen: Vec<_> = here.into_iter().map(|c| choose(c, replicas(c))).collect();
        let rejected = others.into_iter().map(|c| reject(c, Reason::Finished)).collect();
        let outcome = if chosen.is_empty() { Outcome::Finished } else { Outcome::Placed };
        self.answer(chosen, rejected, outcome)
    }

    fn answer(&self, mut chosen: Vec<Chosen>, mut rejected: Vec<Rejected>, outcome: Outcome) -> Decision {
        chosen.sort_by(|a, b| (&a.name, &a.uid).cmp(&(&b.name, &b.uid)));
        rejected.sort_by(|a, b| (&a.name, &a.uid).cmp(&(&b.name, &b.uid)));
        Decision {
            chosen,
            rejected,
            policy: self.ctx.rules.winner.map(|p| p.reference.clone()),
            outcome,
            held: Vec::new(),
            move_refused: false,
            lost: BTreeSet::new(),
            limits: BTreeMap::new(),
            preferred_since: None,
            divided_by: None,
            by: by(self.workload(), self.ctx.rules.winner),
            pinned_to: self.workload().pin.as_ref().map(|pin| pin.names.join(",")).unwrap_or_default(),
            recheck_in: self.ctx.next_taint(),
            generation: self.workload().generation,
        }
    }

    fn outcome(
        &self,
        selection: &Selection,
        parts: &[Option<i64>],
        count: usize,
        limits: &BTreeMap<Uid, i64>,
    ) -> Outcome {
        let taken = selection.taken.len();
        if taken == 0 {
            return Outcome::Unplaced;
        }
        let given: i64 = parts.iter().flatten().sum();
        let missing = self.workload().replicas.filter(|all| self.split != Split::Whole && given < *all);
        if let Some(all) = missing {
            return Outcome::Partly(format!("only {given} of {all} replicas fit the bounds"));
        }
        if let Some(line) = self.limit_line(&selection.taken, limits) {
            return Outcome::Partly(line);
        }
        match count == usize::MAX || taken >= count {
            true => Outcome::Placed,
            false => Outcome::Partly(format!("only {taken} of {count} physical clusters fit")),
        }
    }
}

fn choose(cluster: &ClusterFacts, replicas: Option<i64>) -> Chosen {
    Chosen { name: cluster.info.name.clone(), uid: cluster.info.uid.clone(), replicas }
}

fn reject(cluster: &ClusterFacts, reason: Reason) -> Rejected {
    Rejected { name: cluster.info.name.clone(), uid: cluster.info.uid.clone(), reason }
}

fn by(workload: &Workload, winner: Option<&LeveledPolicy>) -> String {
    match (&workload.pin, winner) {
        (Some(pin), _) if pin.on == PinOn::Object => "by its pin".into(),
        (Some(_), _) => "by its namespace's pin".into(),
        (None, Some(policy)) => format!("by {}", policy.title()),
        (None, None) => "by its namespace's default".into(),
    }
}

#[cfg(test)]
mod tests;
