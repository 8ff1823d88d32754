//! The decision: which physical clusters, with how many replicas each.

mod divisible;
mod parts;
mod preference;

use std::{borrow::Cow, collections::BTreeMap};

use portolan_types::{
    Uid, annotations,
    placement::{Count, DivideBy, DivisionBasis, PlacementRecord, PolicyRef, Spread},
};

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
    /// Ready pods per copy, where they are known.
    pub ready: &'a BTreeMap<Uid, i64>,
    /// Seconds since the epoch, for taints that are tolerated for a time.
    pub now: i64,
}

/// A physical cluster that should have a copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chosen {
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: Uid,
    /// Its part of the replicas; `None` is all of them.
    pub replicas: Option<i64>,
}

/// A physical cluster that was left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejected {
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: Uid,
    /// Why.
    pub reason: Reason,
}

/// How a decision came out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All that was wanted.
    Placed,
    /// Less than was wanted: what, in one sentence.
    Partly(String),
    /// No physical cluster fits.
    Unplaced,
    /// A policy wants it to run nowhere.
    Stopped,
    /// It has ended, and has no copy any more: what became of it is kept above.
    Finished,
    /// Its pods are not let in, so no copy of it is made, and none is changed.
    Refused(Refusal),
}

/// Why the pods of an object are not let in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// One word: `AdmissionRefused`, `QuotaExceeded` or `SchedulingGated`.
    pub reason: &'static str,
    /// The sentence that the API answers with.
    pub message: String,
}

impl Refusal {
    /// Whether two sentences differ in no more than how much of a quota was in use at that moment.
    pub fn says_the_same(one: &str, other: &str) -> bool {
        fn head(text: &str) -> &str {
            text.split_once(", used: ").map_or(text, |(head, _)| head)
        }
        head(one) == head(other)
    }
}

/// Where an object should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Sorted by name.
    pub chosen: Vec<Chosen>,
    /// Sorted by name; one for each physical cluster that was not chosen.
    pub rejected: Vec<Rejected>,
    /// The policy that decided; `None` is the namespace's default decision.
    pub policy: Option<PolicyRef>,
    /// How it came out.
    pub outcome: Outcome,
    /// Copies that stay although their physical cluster is refused, and what of the policy has no effect, in sentences.
    pub held: Vec<String>,
    /// A copy stays where it should not, because the data on its volumes would stay behind.
    pub move_refused: bool,
    /// Most replicas that the bounds admit on chosen physical clusters whose copies should have more, by uid.
    pub limits: BTreeMap<Uid, i64>,
    /// `PlacementRecord::preferred_since`.
    pub preferred_since: Option<i64>,
    /// Basis of the division of replicas; `None` when they are not divided.
    pub divided_by: Option<DivisionBasis>,
    /// `by policy web-everywhere`, `by the namespace's default`, `by pin`.
    pub by: String,
    /// The names in the pin, when there is one.
    pub pinned_to: String,
    /// Seconds after which time alone may change the decision.
    pub recheck_in: Option<i64>,
    /// `metadata.generation` that it was made for.
    pub generation: i64,
}

impl Decision {
    /// Whether it should have no copy anywhere.
    pub fn is_to_end(&self) -> bool {
        matches!(self.outcome, Outcome::Stopped | Outcome::Finished)
    }

    /// The same when its pods are not let in: nothing comes, and what is there stays as it is.
    #[must_use]
    pub fn refused(self, refusal: Refusal) -> Self {
        Self { chosen: Vec::new(), limits: BTreeMap::new(), outcome: Outcome::Refused(refusal), ..self }
    }

    /// How many physical clusters were left out, by reason.
    pub fn counts(&self) -> BTreeMap<Reason, u32> {
        let mut counts = BTreeMap::new();
        self.rejected.iter().for_each(|r| *counts.entry(r.reason).or_insert(0) += 1);
        counts
    }

    /// One line: `placed on eu-1,us-1 by policy web-everywhere`, or `0/3 physical clusters fit: 1 cordoned, 2 not ready`.
    pub fn summary(&self) -> String {
        let names: Vec<&str> = self.chosen.iter().map(|c| c.name.as_str()).collect();
        match &self.outcome {
            Outcome::Placed | Outcome::Partly(_) if self.move_refused => "the move is refused".into(),
            Outcome::Placed => format!("placed on {} {}", names.join(","), self.by),
            Outcome::Partly(what) => format!("placed on {} {}; {what}", names.join(","), self.by),
            Outcome::Stopped => format!("kept from running {}", self.by),
            Outcome::Finished => "it has ended, and its copy is not kept any more".into(),
            Outcome::Refused(refusal) => refusal.message.clone(),
            Outcome::Unplaced if self.rejected.is_empty() => "no physical cluster is in reach".into(),
            Outcome::Unplaced => {
                let counts: Vec<_> = self.counts().iter().map(|(r, n)| format!("{n} {}", r.phrase())).collect();
                let pinned =
                    if self.pinned_to.is_empty() { String::new() } else { format!(" (pinned to {})", self.pinned_to) };
                format!("0/{} physical clusters fit: {}{pinned}", self.rejected.len(), counts.join(", "))
            }
        }
    }
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
        let limits = self.limits(&selection.taken);
        let Division { parts, basis: divided_by } = self.share_out(&mut selection);
        rejected.extend(selection.left.iter().map(|(c, reason)| reject(c.facts, *reason)));
        let outcome = self.outcome(&selection, &parts, count, &limits);
        let move_refused = workload.keeps_volumes && selection.taken.iter().any(|c| c.held.is_some());
        let held = selection.taken.iter().filter_map(|c| Some(held_line(workload, c.facts, c.held?)));
        let held = held.chain(divisible::note(&self.ctx)).chain(preference.note()).collect();
        let chosen = selection.taken.iter().zip(parts).map(|(c, replicas)| choose(c.facts, replicas)).collect();
        let answer = self.answer(chosen, rejected, outcome);
        let recheck_in = answer.recheck_in.into_iter().chain(preference.recheck_in).min();
        Decision { held, move_refused, limits, divided_by, recheck_in, preferred_since: preference.since, ..answer }
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
        let held = candidates.iter().any(|c| c.held.is_some());
        let (count, candidates, rest) = match (started, held) {
            (false, false) => (count, candidates, Vec::new()),
            _ => {
                let (stay, rest) = candidates.into_iter().partition(|c| c.here);
                (if started { here } else { count }, stay, rest)
            }
        };
        let spread: Cow<[Spread]> = match self.ctx.rules.winner {
            Some(policy) if self.workload().pin.is_none() => Cow::Borrowed(&policy.policy.spec.spread),
            _ => Cow::Borrowed(&[]),
        };
        let mut selection = select(candidates, count, &spread);
        selection.left.extend(rest.into_iter().map(|c| (c, Reason::NotNeeded)));
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

    /// Whether a copy stays where it is although its physical cluster is refused, for lack of an explicit wish.
    fn holds(&self, cluster: &ClusterFacts, reason: Reason) -> bool {
        if self.workload().keeps_volumes && self.ctx.is_here(cluster) {
            return true;
        }
        let by_object = self.workload().pin.as_ref().is_some_and(|pin| pin.on == PinOn::Object);
        let wished = match self.workload().moves {
            Moves::Surge | Moves::Handover => true,
            Moves::Restart => matches!(reason, Reason::PinnedElsewhere | Reason::Deleting | Reason::TaintNotTolerated),
            Moves::Stay => reason == Reason::PinnedElsewhere && by_object,
        };
        self.ctx.is_here(cluster) && !wished
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

/// Reason for which an object with volumes does not move.
const VOLUMES_STAY: &str = "the data on its volumes do not move with it";

fn held_line(workload: &Workload, cluster: &ClusterFacts, reason: Reason) -> String {
    if workload.keeps_volumes {
        return format!(
            "stays on {} ({}): {VOLUMES_STAY}; the annotation {}: \"true\" lets it start on new, empty volumes",
            cluster.info.name,
            reason.phrase(),
            annotations::ABANDON_VOLUMES
        );
    }
    let how = match workload.moves {
        Moves::Stay => "a started job does not move unless it is pinned itself",
        Moves::Surge | Moves::Handover | Moves::Restart => "it moves only by pin or drain, as two must not run at once",
    };
    format!("stays on {} ({}): {how}", cluster.info.name, reason.phrase())
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
