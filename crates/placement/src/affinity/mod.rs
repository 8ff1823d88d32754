//! Terms of policies about other workloads of the namespace: beside which a copy must run, and which it must avoid.
//!
//! A workload without copies considers all others. A placed workload moves only for those that it follows: if two
//! depend on each other, directly or through others, the younger follows the older. So no two workloads chase each
//! other forever, in any order of evaluation.

use std::{cell::OnceCell, collections::BTreeSet};

use portolan_types::{Uid, placement::PlacementRecord};

use crate::{
    cluster_facts::ClusterFacts,
    decide::PlacementInputs,
    exclusion_reason::ExclusionReason,
    policy::{ApplicablePolicies, CompiledTerm, LeveledPolicy},
    workload::{Workload, WorkloadNeighbor},
};

/// Term of a policy, with its present matches.
struct TermFacts<'a> {
    policy: &'a LeveledPolicy,
    /// True if the copies run beside the workloads, false if they avoid them.
    is_with: bool,
    term: &'a CompiledTerm,
    /// The other workloads that the term names.
    named: Vec<&'a WorkloadNeighbor>,
    /// Places of all of them.
    places: BTreeSet<&'a str>,
    /// Places of those that the workload follows.
    followed: BTreeSet<&'a str>,
    /// True if the workload may be the first of those that the term names.
    may_begin: bool,
}

/// Terms that hold for a workload.
pub(crate) struct WorkloadTerms<'a> {
    terms: Vec<TermFacts<'a>>,
}

impl<'a> WorkloadTerms<'a> {
    /// Returns the terms of the policies that hold. Followers have none: they follow.
    pub(crate) fn of(question: &'a PlacementInputs<'a>, rules: &ApplicablePolicies<'a>) -> Self {
        let workload = question.workload;
        let all = rules.terms(workload.pin.is_some()).filter(|_| !workload.role.follows());
        let graph = DependencyGraph { question, dependants: OnceCell::new() };
        Self { terms: all.map(|(policy, is_with, term)| facts_of(&graph, policy, is_with, term)).collect() }
    }

    /// Returns the reason and the sentence of the first term that does not hold on a physical cluster.
    pub(crate) fn refusal(&self, cluster: &ClusterFacts, is_here: bool) -> Option<(ExclusionReason, String)> {
        self.terms.iter().find_map(|facts| facts.refusal(cluster, is_here))
    }
}

fn facts_of<'a>(
    graph: &DependencyGraph<'a>,
    policy: &'a LeveledPolicy,
    is_with: bool,
    term: &'a CompiledTerm,
) -> TermFacts<'a> {
    let (question, workload) = (graph.question, graph.question.workload);
    let named: Vec<_> = workload.neighbors.iter().filter(|n| term.labels.matches_map(&n.workload.labels)).collect();
    let is_placed = question.previous.active().next().is_some();
    let places = |of: &[&'a WorkloadNeighbor]| -> BTreeSet<&'a str> {
        of.iter().flat_map(|n| &n.on).filter_map(|uid| place_of_uid(question, term, uid)).collect()
    };
    let followed: Vec<_> = named.iter().copied().filter(|n| !is_placed || graph.follows(n)).collect();
    let may_begin =
        term.labels.matches_map(&workload.labels) || (!named.is_empty() && named.iter().all(|n| !graph.follows(n)));
    TermFacts { policy, is_with, term, places: places(&named), followed: places(&followed), named, may_begin }
}

/// Returns the place that a physical cluster belongs to: a value of the label of the term, or its uid.
fn place<'a>(term: &CompiledTerm, cluster: &'a ClusterFacts) -> Option<&'a str> {
    match term.spec.topology_key.as_str() {
        "" => Some(cluster.info.uid.as_str()),
        key => cluster.info.labels.get(key).map(String::as_str),
    }
}

fn place_of_uid<'a>(question: &'a PlacementInputs<'a>, term: &CompiledTerm, uid: &'a Uid) -> Option<&'a str> {
    let known = question.clusters.iter().find(|cluster| cluster.info.uid == *uid);
    match (known, term.spec.topology_key.is_empty()) {
        (Some(cluster), _) => place(term, cluster),
        (None, true) => Some(uid.as_str()),
        (None, false) => None,
    }
}

impl TermFacts<'_> {
    fn refusal(&self, cluster: &ClusterFacts, is_here: bool) -> Option<(ExclusionReason, String)> {
        let place = place(self.term, cluster);
        let is_in = |places: &BTreeSet<&str>| place.is_some_and(|place| places.contains(place));
        let holds = match (self.is_with, is_here) {
            // A running copy is not stopped because the other workloads are gone, or because they follow this one.
            (true, true) => self.followed.is_empty() || is_in(&self.places),
            (true, false) if self.places.is_empty() => self.may_begin,
            // The locations of followers do not count, because followers may move as well.
            (true, false) if self.followed.is_empty() => is_in(&self.places),
            (true, false) => is_in(&self.followed),
            (false, true) => !is_in(&self.followed),
            (false, false) => !is_in(&self.places),
        };
        let reason = if self.is_with { ExclusionReason::AffinityNotMet } else { ExclusionReason::AntiAffinityNotMet };
        (!holds).then(|| (reason, self.message(cluster)))
    }

    fn message(&self, cluster: &ClusterFacts) -> String {
        let (words, title) = (self.term.words(), self.policy.title());
        let near = match self.term.spec.topology_key.as_str() {
            "" => "there".to_owned(),
            key => match cluster.info.labels.get(key) {
                Some(value) => format!("in {key}={value}"),
                None => return format!("{title}: it lacks the label {key}"),
            },
        };
        if !self.is_with {
            let there = |n: &&&WorkloadNeighbor| n.on.iter().any(|uid| *uid == cluster.info.uid);
            let name = self.named.iter().find(there).or(self.named.first()).map(|n| n.workload.title());
            return format!("{title}: {} with {words} runs {near}", name.unwrap_or_default());
        }
        if self.named.is_empty() {
            return format!("{title}: there is no other workload with {words}");
        }
        if self.places.is_empty() {
            return format!("{title}: no workload with {words} is placed yet");
        }
        format!("{title}: no workload with {words} runs {near}")
    }
}

/// Dependencies between the workloads of a namespace.
struct DependencyGraph<'a> {
    question: &'a PlacementInputs<'a>,
    /// Indices of the neighbors that depend on the workload, directly or over others.
    dependants: OnceCell<BTreeSet<usize>>,
}

impl<'a> DependencyGraph<'a> {
    /// Returns true if the workload moves for a neighbor: unless that depends on it and is younger.
    fn follows(&self, neighbor: &WorkloadNeighbor) -> bool {
        let workload = self.question.workload;
        if age(&neighbor.workload) < age(workload) {
            return true;
        }
        let at = workload.neighbors.iter().position(|n| std::ptr::eq(n, neighbor));
        let dependants = self.dependants.get_or_init(|| self.find_dependants());
        at.is_none_or(|at| !dependants.contains(&at))
    }

    fn find_dependants(&self) -> BTreeSet<usize> {
        let question = self.question;
        let neighbors = &question.workload.neighbors;
        let terms_of = |n: &'a WorkloadNeighbor| -> Vec<&'a CompiledTerm> {
            let rules = ApplicablePolicies::of(&n.workload, question.policies);
            rules.terms(n.workload.pin.is_some()).map(|(_, _, term)| term).collect()
        };
        let terms: Vec<Vec<&CompiledTerm>> = neighbors.iter().map(terms_of).collect();
        let (mut found, mut open) = (BTreeSet::new(), vec![&question.workload.labels]);
        while let Some(labels) = open.pop() {
            for (at, neighbor) in neighbors.iter().enumerate() {
                if !found.contains(&at) && terms[at].iter().any(|term| term.labels.matches_map(labels)) {
                    found.insert(at);
                    open.push(&neighbor.workload.labels);
                }
            }
        }
        found
    }
}

/// Returns the order of workloads by age; of equal ones the names decide.
fn age(workload: &Workload) -> (&str, &str, &str, &str) {
    (&workload.created, &workload.kind.group, &workload.kind.kind, &workload.name)
}

impl WorkloadNeighbor {
    /// Reads another workload of the namespace. Its neighbors are not needed.
    pub fn new(workload: Workload, record: &PlacementRecord) -> Self {
        Self { workload, on: record.active().map(|copy| copy.uid.clone()).collect() }
    }
}

#[cfg(test)]
mod tests;
