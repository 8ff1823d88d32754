//! The decision: physical clusters, with a number of replicas each.

mod cluster_tiers;
mod decision;
mod division_support;
mod held_copies;
mod job_parts;
mod ordinal_shares;
mod overflow;
mod replica_split;

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
};

use portolan_types::{
    Uid,
    placement::{ClusterCount, DivideBy, PlacementRecord, TopologySpread, VolumeStrategy},
};

pub use self::decision::{
    ChosenCluster, DecisionHold, DecisionOutcome, PlacementDecision, PodRefusal, RejectedCluster,
};
pub(crate) use self::division_support::{PER_NODE, WHOLE_ON_ONE, divides_by};
use self::replica_split::Division;
use crate::{
    cluster_facts::{ClusterFacts, ClusterInfo, amount},
    exclusion_reason::ExclusionReason,
    filters::FilterContext,
    policy::{ApplicablePolicies, LeveledPolicy, SelectorMatch},
    select::{Candidate, ClusterSelection, select},
    workload::{MoveStrategy, PinScope, Workload, contribution},
};

/// Inputs of a decision.
#[derive(Clone, Copy)]
pub struct PlacementInputs<'a> {
    /// Workload to be placed.
    pub workload: &'a Workload,
    /// Policies of its namespace, its logical cluster and all ancestors, in any order.
    pub policies: &'a [LeveledPolicy],
    /// Physical clusters in reach, and those of `previous`, in any order.
    pub clusters: &'a [ClusterFacts],
    /// Record of its present copies.
    pub previous: &'a PlacementRecord,
    /// Physical clusters of the default decision of its namespace, if there is one.
    pub home: &'a [Uid],
    /// Pods of each copy that has all replicas and no limit: as many as were admitted last, ready or not.
    pub existing: &'a BTreeMap<Uid, i64>,
    /// Seconds since the epoch, for taints that are tolerated for a time.
    pub now: i64,
}

/// Decides. Equal inputs give an equal answer, in any order.
pub fn place(question: &PlacementInputs) -> PlacementDecision {
    PlacementPlanner::new(question).decide()
}

/// Way in which replicas are divided.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ReplicaSplit {
    /// Each copy has all replicas.
    Whole,
    /// Divided as the policy says.
    By(DivideBy),
    /// The copy that outgrew its bounds keeps as many as fit, and further ones get the rest.
    Spill,
}

/// Filter context, and the facts derived from it.
pub(crate) struct PlacementPlanner<'a> {
    pub(crate) ctx: FilterContext<'a>,
    pub(crate) clusters: Vec<&'a ClusterFacts>,
    split: ReplicaSplit,
}

impl<'a> PlacementPlanner<'a> {
    pub(crate) fn new(question: &'a PlacementInputs<'a>) -> Self {
        let ctx = FilterContext::new(question);
        let mut clusters: Vec<_> = question.clusters.iter().collect();
        clusters.sort_by(|a, b| (&a.info.name, &a.info.uid).cmp(&(&b.info.name, &b.info.uid)));
        let by = division_support::divides_by(&ctx);
        let mut planner = Self { ctx, clusters, split: by.map_or(ReplicaSplit::Whole, ReplicaSplit::By) };
        if planner.outgrows_its_bounds() {
            planner.split = ReplicaSplit::Spill;
            planner.ctx.spills = true;
        }
        planner
    }

    /// Plans as if a physical cluster passed every filter.
    pub(crate) fn admitting(question: &'a PlacementInputs<'a>, uid: &'a Uid) -> Self {
        let mut planner = Self::new(question);
        planner.ctx.admitted = Some(uid);
        planner
    }

    pub(crate) fn workload(&self) -> &'a Workload {
        self.ctx.question.workload
    }

    /// Returns true if data on volumes keep the workload where it is: they were not given up by the deciding policy
    /// either.
    pub(crate) fn keeps_volumes(&self) -> bool {
        let strategy = self.ctx.rules.winner.map(|policy| policy.policy.spec.volumes.strategy);
        let abandons = strategy == Some(VolumeStrategy::Recreate) && !self.workload().refuses_moves;
        self.workload().keeps_volumes && !abandons
    }

    /// Returns the sentence about data that stay behind, if the deciding policy gives them up.
    fn abandoned(&self, selection: &ClusterSelection) -> Option<String> {
        let policy = self.ctx.rules.winner.filter(|_| self.workload().keeps_volumes && !self.keeps_volumes())?;
        let stays = |uid: &Uid| selection.taken.iter().any(|c| c.facts.info.uid == *uid);
        let left = self.ctx.question.previous.active().filter(|copy| !stays(&copy.uid));
        let names: Vec<&str> = left.map(|copy| copy.name.as_str()).collect();
        (!names.is_empty() && !selection.taken.is_empty()).then(|| {
            let title = policy.title();
            format!(
                "the data on its volumes on {} are abandoned, as {title} says (volumes.strategy: Recreate)",
                names.join(",")
            )
        })
    }

    /// Returns true for a rolling workload without a policy that outgrew the bounds of its physical cluster.
    fn outgrows_its_bounds(&self) -> bool {
        let workload = self.workload();
        let Some(replicas) = workload.replicas.filter(|_| self.ctx.rules.winner.is_none()) else { return false };
        let full =
            |c: &&ClusterFacts| self.ctx.is_here(c) && replica_split::cap(self, c).is_some_and(|cap| cap < replicas);
        workload.moves == MoveStrategy::Surge && workload.pin.is_none() && self.clusters.iter().any(full)
    }

    /// Returns the number of physical clusters that are wanted.
    fn count(&self) -> usize {
        let workload = self.workload();
        let wanted = match (&workload.pin, self.ctx.rules.winner) {
            (Some(pin), winner) => match winner.map(|p| p.policy.count()) {
                Some(ClusterCount::Exactly(0)) => 0,
                _ => pin.names.len(),
            },
            (None, None) => 1,
            (None, Some(policy)) => match policy.policy.count() {
                ClusterCount::All => usize::MAX,
                ClusterCount::Exactly(n) => n as usize,
            },
        };
        let most = match workload.replicas.filter(|_| workload.is_job() && self.split != ReplicaSplit::Whole) {
            _ if workload.single || division_support::runs_whole_on_one(&self.ctx) => 1,
            // A part without a pod would not end.
            Some(at_once) => usize::try_from(at_once).unwrap_or(1).max(1),
            None => usize::MAX,
        };
        wanted.min(self.ctx.rules.most()).min(most)
    }

    pub(crate) fn decide(&self) -> PlacementDecision {
        let workload = self.workload();
        if let Some(hold) = self.hold() {
            return self.leave_undecided(hold);
        }
        let count = self.count();
        if count == 0 && workload.moves != MoveStrategy::Stay {
            return self.answer(Vec::new(), Vec::new(), DecisionOutcome::Stopped);
        }
        if workload.finished {
            return self.leave_as_it_is();
        }
        let (candidates, mut rejected) = self.filter();
        let (mut candidates, preference) = cluster_tiers::prefer(self, candidates, count);
        rejected.extend(preference.left.iter().map(|(c, reason)| reject(c.facts, *reason)));
        job_parts::hold(self, &mut candidates, &mut rejected);
        let mut selection = self.select(candidates, count);
        let Division { parts, basis: divided_by, ordinals } = replica_split::share_out(self, &mut selection);
        let limits = replica_split::limits(self, &selection.taken, &parts);
        rejected.extend(selection.left.iter().map(|(c, reason)| reject(c.facts, *reason)));
        let count = if job_parts::are_kept(&self.ctx) { selection.taken.len() } else { count };
        let outcome = self.outcome(&selection, &parts, count, &limits);
        let lost = held_copies::lost_copies(self);
        let is_held = |c: &Candidate| c.held.is_some();
        let move_refused = !lost.is_empty() || (self.keeps_volumes() && selection.taken.iter().any(is_held));
        let held = selection.taken.iter().filter_map(|c| Some(held_copies::line(self, c.facts, c.held?)));
        let held = held.chain(lost.iter().map(|copy| held_copies::line_of_lost(copy)));
        let lost = lost.iter().map(|copy| copy.uid.clone()).collect();
        let held = held.chain(division_support::note(&self.ctx)).chain(preference.note());
        let held = held.chain(self.suspended_dispatch(&selection)).collect();
        let abandoned = self.abandoned(&selection);
        let chosen = selection.taken.iter().zip(parts).map(|(c, replicas)| choose(c.facts, replicas)).collect();
        let answer = self.answer(chosen, rejected, outcome);
        let recheck_in = answer.recheck_in.into_iter().chain(preference.recheck_in).min();
        let preferred_since = preference.since;
        PlacementDecision {
            held,
            abandoned,
            move_refused,
            lost,
            limits,
            ordinals,
            divided_by,
            recheck_in,
            preferred_since,
            ..answer
        }
    }

    /// Returns the reason for which nothing is decided: a policy suspends it, or it is not known if the deciding one is
    /// about the workload.
    fn hold(&self) -> Option<DecisionHold> {
        let mut suspending = self.ctx.rules.suspensions().filter(|(_, suspension)| suspension.scheduling);
        if let Some((policy, _)) = suspending.next() {
            let message = format!("scheduling is suspended by {}", policy.title());
            return Some(DecisionHold { reason: "SchedulingSuspended", message });
        }
        let undecided = self.ctx.rules.undecided.clone();
        undecided.map(|message| DecisionHold { reason: "ExpressionFailed", message })
    }

    /// Decides nothing: the record stays unchanged.
    fn leave_undecided(&self, hold: DecisionHold) -> PlacementDecision {
        let previous = self.ctx.question.previous;
        let answer = self.answer(Vec::new(), Vec::new(), DecisionOutcome::Suspended(hold));
        let policy = if previous.clusters.is_empty() { answer.policy.clone() } else { previous.policy.clone() };
        PlacementDecision { policy, preferred_since: previous.preferred_since, recheck_in: None, ..answer }
    }

    /// Returns a sentence about the chosen physical clusters to which nothing is sent.
    fn suspended_dispatch(&self, selection: &ClusterSelection) -> Option<String> {
        let of = |c: &Candidate| {
            let policy = dispatch_suspension(&self.ctx.rules, &c.facts.info)?;
            Some((c.facts.info.name.clone(), policy.title()))
        };
        let found: BTreeMap<String, String> = selection.taken.iter().filter_map(of).collect();
        let titles: BTreeSet<&str> = found.values().map(String::as_str).collect();
        let titles: Vec<&str> = titles.into_iter().collect();
        let names: Vec<&str> = found.keys().map(String::as_str).collect();
        (!names.is_empty()).then(|| format!("dispatch to {} is suspended by {}", names.join(","), titles.join(", ")))
    }

    /// Returns true when the replicas fill the groups of the policy in their order.
    pub(crate) fn overflows(&self) -> bool {
        let winner = self.ctx.rules.winner.filter(|_| self.workload().pin.is_none());
        matches!(self.split, ReplicaSplit::By(_)) && winner.is_some_and(|policy| policy.policy.overflows())
    }

    /// Splits the physical clusters into candidates and rejected ones, each by the first filter that it fails.
    fn filter(&self) -> (Vec<Candidate<'a>>, Vec<RejectedCluster>) {
        let (mut candidates, mut rejected) = (Vec::new(), Vec::new());
        for cluster in &self.clusters {
            match self.ctx.refusal(cluster) {
                None => candidates.push(self.candidate(cluster, None)),
                Some((_, reason)) if held_copies::holds(self, cluster, reason) => {
                    candidates.push(self.candidate(cluster, Some(reason)))
                }
                Some((_, reason)) => rejected.push(reject(cluster, reason)),
            }
        }
        (candidates, rejected)
    }

    fn select(&self, candidates: Vec<Candidate<'a>>, count: usize) -> ClusterSelection<'a> {
        if job_parts::are_kept(&self.ctx) {
            return job_parts::select_kept(self, candidates);
        }
        let here = candidates.iter().filter(|c| c.here).count();
        // A started Job is neither ended because fewer copies are wanted, nor run again because more are.
        let started = self.workload().moves == MoveStrategy::Stay && here > 0;
        // A workload that is held back does not arrive at its target either.
        let held = candidates.iter().any(|c| c.held.is_some()) || !held_copies::lost_copies(self).is_empty();
        let (count, candidates, rest) = match (started, held) {
            (false, false) => (count, candidates, Vec::new()),
            _ => {
                let (stay, rest) = candidates.into_iter().partition(|c| c.here);
                (if started { here } else { count }, stay, rest)
            }
        };
        let (candidates, surplus) = held_copies::without_surplus(self, candidates, count);
        let spread: Cow<[TopologySpread]> = match self.ctx.rules.winner {
            Some(policy) if self.workload().pin.is_none() => Cow::Borrowed(&policy.policy.spec.spread),
            _ => Cow::Borrowed(&[]),
        };
        let mut selection = self.select_groups(candidates, count, &spread);
        selection.left.extend(rest.into_iter().map(|c| (c, ExclusionReason::NotNeeded)));
        selection.left.extend(surplus);
        selection
    }

    /// Selects among the candidates; of each group by itself where the replicas fill them in their order.
    fn select_groups(
        &self,
        candidates: Vec<Candidate<'a>>,
        count: usize,
        spread: &[TopologySpread],
    ) -> ClusterSelection<'a> {
        if !self.overflows() {
            return select(candidates, count, spread);
        }
        let mut groups: BTreeMap<usize, Vec<Candidate<'a>>> = BTreeMap::new();
        candidates.into_iter().for_each(|candidate| groups.entry(candidate.tier).or_default().push(candidate));
        let mut all = ClusterSelection::default();
        for group in groups.into_values() {
            let most = self.ctx.rules.most().saturating_sub(all.taken.len());
            let selection = select(group, count.min(most), spread);
            all.taken.extend(selection.taken);
            all.left.extend(selection.left);
            all.lack = all.lack.or(selection.lack);
        }
        all
    }

    /// Returns the choice of the policy that a physical cluster belongs to; 0 without one.
    pub(crate) fn candidate_tier(&self, facts: &ClusterFacts) -> usize {
        let winner = self.ctx.rules.winner.filter(|_| self.workload().pin.is_none());
        winner.map_or(0, |p| match p.policy.standing(&facts.info) {
            SelectorMatch::Tier(tier) | SelectorMatch::Unknown(tier, _) => tier,
            SelectorMatch::Excluded
            | SelectorMatch::NotNamed
            | SelectorMatch::NotSelected
            | SelectorMatch::NotMatched => 0,
        })
    }

    pub(crate) fn candidate(&self, facts: &'a ClusterFacts, held: Option<ExclusionReason>) -> Candidate<'a> {
        let (question, uid) = (self.ctx.question, &facts.info.uid);
        // Its own requests must not make its present physical cluster look fuller: it would move for being there.
        let taken = contribution(question.workload, question.previous);
        let own = taken.into_iter().find(|(on, _)| on == uid).map(|(_, own)| own).unwrap_or_default();
        Candidate {
            facts,
            keeps: false,
            here: self.ctx.is_here(facts),
            arrives: question.previous.arriving.contains(uid),
            awaited: question.previous.awaited.iter().any(|copy| copy.uid == *uid),
            held,
            sibling: question.workload.siblings.contains(uid),
            home: question.home.contains(uid),
            tier: self.candidate_tier(facts),
            load: facts.load_percent_without(&own),
            pods: amount(&facts.used, "pods").minus(amount(&own, "pods")).units().max(0),
        }
    }

    /// Decides for a workload that has ended. It is not run again: its copy stays, except on a physical cluster that
    /// is being deleted, or that it leaves for a drain.
    fn leave_as_it_is(&self) -> PlacementDecision {
        let stays = |c: &&&ClusterFacts| self.ctx.is_here(c) && !c.info.deleting && !self.ctx.leaves(c);
        let (here, others): (Vec<_>, Vec<_>) = self.clusters.iter().partition(stays);
        let replicas = |c: &ClusterFacts| self.ctx.question.previous.on(&c.info.uid).and_then(|copy| copy.replicas);
        let chosen: Vec<_> = here.into_iter().map(|c| choose(c, replicas(c))).collect();
        let rejected = others.into_iter().map(|c| reject(c, ExclusionReason::Finished)).collect();
        let outcome = if chosen.is_empty() { DecisionOutcome::Finished } else { DecisionOutcome::Placed };
        self.answer(chosen, rejected, outcome)
    }

    fn answer(
        &self,
        mut chosen: Vec<ChosenCluster>,
        mut rejected: Vec<RejectedCluster>,
        outcome: DecisionOutcome,
    ) -> PlacementDecision {
        chosen.sort_by(|a, b| (&a.name, &a.uid).cmp(&(&b.name, &b.uid)));
        rejected.sort_by(|a, b| (&a.name, &a.uid).cmp(&(&b.name, &b.uid)));
        PlacementDecision {
            chosen,
            rejected,
            policy: self.ctx.rules.winner.map(|p| p.reference.clone()),
            outcome,
            held: Vec::new(),
            abandoned: None,
            move_refused: false,
            lost: BTreeSet::new(),
            limits: BTreeMap::new(),
            ordinals: BTreeMap::new(),
            preferred_since: None,
            divided_by: None,
            by: by(self.workload(), self.ctx.rules.winner),
            pinned_to: self.workload().pin.as_ref().map(|pin| pin.names.join(",")).unwrap_or_default(),
            pinned_by: self.workload().pin.as_ref().map(|pin| pin.on),
            recheck_in: self.ctx.next_taint(),
            generation: self.workload().generation,
        }
    }

    fn outcome(
        &self,
        selection: &ClusterSelection,
        parts: &[Option<i64>],
        count: usize,
        limits: &BTreeMap<Uid, i64>,
    ) -> DecisionOutcome {
        let taken = selection.taken.len();
        if taken == 0 {
            return DecisionOutcome::Unplaced;
        }
        if let Some(lack) = &selection.lack {
            return DecisionOutcome::Partly(lack.clone());
        }
        let given: i64 = parts.iter().flatten().sum();
        let missing = self.workload().replicas.filter(|all| self.split != ReplicaSplit::Whole && given < *all);
        if let Some(all) = missing {
            let limited = selection.taken.iter().any(|c| replica_split::most(self, c.facts).is_some());
            let what = if limited { "the bounds and the policy's limits" } else { "the bounds" };
            return DecisionOutcome::Partly(format!("only {given} of {all} replicas fit {what}"));
        }
        if let Some(line) = replica_split::limit_line(self, &selection.taken, limits) {
            return DecisionOutcome::Partly(line);
        }
        if count == usize::MAX || taken >= count || self.overflows() {
            DecisionOutcome::Placed
        } else {
            DecisionOutcome::Partly(format!("only {taken} of {count} physical clusters fit"))
        }
    }
}

/// Returns the first policy that suspends the dispatch to a physical cluster.
pub(crate) fn dispatch_suspension<'a>(
    rules: &ApplicablePolicies<'a>,
    cluster: &ClusterInfo,
) -> Option<&'a LeveledPolicy> {
    let mut suspending =
        rules.suspensions().filter(|(_, suspend)| suspend.dispatch || suspend.dispatch_on.contains(&cluster.name));
    suspending.next().map(|(policy, _)| policy)
}

fn choose(cluster: &ClusterFacts, replicas: Option<i64>) -> ChosenCluster {
    ChosenCluster { name: cluster.info.name.clone(), uid: cluster.info.uid.clone(), replicas }
}

fn reject(cluster: &ClusterFacts, reason: ExclusionReason) -> RejectedCluster {
    RejectedCluster { name: cluster.info.name.clone(), uid: cluster.info.uid.clone(), reason }
}

fn by(workload: &Workload, winner: Option<&LeveledPolicy>) -> String {
    match (&workload.pin, winner) {
        (Some(pin), _) if pin.on == PinScope::Object => "by its pin".into(),
        (Some(_), _) => "by its namespace's pin".into(),
        (None, Some(policy)) => format!("by {}", policy.title()),
        (None, None) => "by its namespace's default".into(),
    }
}

#[cfg(test)]
mod tests;
