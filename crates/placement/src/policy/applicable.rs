//! Policies that hold for one workload, and their order.

use std::sync::Arc;

use portolan_types::placement::{ClusterCount, PolicyRef, Suspension, Toleration, WorkloadTerm};

use super::{CompiledPolicy, CompiledTerm, ResourceMatch, SelectorMatch};
use crate::{cluster_facts::ClusterInfo, workload::Workload};

/// Policy with its level.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeveledPolicy {
    /// Level: 0 is the workload's namespace, 1 its logical cluster, n + 1 the n-th ancestor. The lowest is the most
    /// specific.
    pub level: u32,
    /// Reference.
    pub reference: PolicyRef,
    /// `metadata.creationTimestamp`: among equals the oldest decides.
    pub created: String,
    /// Compiled policy.
    pub policy: Arc<CompiledPolicy>,
}

impl LeveledPolicy {
    /// Returns the rank of a proposal: the lowest decides.
    pub(crate) fn rank(&self) -> (u32, std::cmp::Reverse<i64>, &str, &str, &str, &str) {
        let r = &self.reference;
        let namespace = r.namespace.as_deref().unwrap_or_default();
        (self.level, std::cmp::Reverse(self.policy.spec.priority), &self.created, &r.workspace, namespace, &r.name)
    }

    /// `policy web-everywhere` or, from an ancestor, `policy web-everywhere of root`.
    pub fn title(&self) -> String {
        match self.level {
            0 | 1 => format!("policy {}", self.reference.name),
            _ => format!("policy {} of {}", self.reference.name, self.reference.workspace),
        }
    }
}

/// Policies that hold for one workload.
pub(crate) struct ApplicablePolicies<'a> {
    /// Proposal that decides.
    pub(crate) winner: Option<&'a LeveledPolicy>,
    /// All constraints, in a fixed order.
    pub(crate) constraints: Vec<&'a LeveledPolicy>,
    /// Sentence about the proposal that would decide if it is about the workload, which cannot be known.
    pub(crate) undecided: Option<String>,
}

/// Verdict of the constraints on a physical cluster.
pub(crate) enum ConstraintVerdict<'a> {
    /// All allow it.
    Allowed,
    /// The policy does not allow it.
    Forbidden(&'a LeveledPolicy),
    /// An expression of the policy has no value: the sentence. Copies stay as they are.
    Unknown(&'a LeveledPolicy, Arc<str>),
}

impl<'a> ApplicablePolicies<'a> {
    /// Returns the policies that hold.
    pub(crate) fn of(workload: &Workload, policies: &'a [LeveledPolicy]) -> Self {
        let about = || policies.iter().filter(|p| p.policy.is_about(workload));
        let proposals = about().filter(|p| !p.policy.is_constraint() && p.policy.fault().is_none());
        let mut constraints: Vec<_> = about().filter(|p| p.policy.is_constraint()).collect();
        constraints.sort_by(|a, b| a.rank().cmp(&b.rank()));
        let winner = proposals.min_by(|a, b| a.rank().cmp(&b.rank()));
        let undecided = winner.and_then(|policy| match policy.policy.selection(workload) {
            ResourceMatch::Unknown(why) => Some(format!("the resources.cel of {} failed: {why}", policy.title())),
            ResourceMatch::About | ResourceMatch::Others => None,
        });
        Self { winner, constraints, undecided }
    }

    /// Returns the tolerations that count: the constraints' if there are any, else the winner's.
    pub(crate) fn tolerations(&self) -> impl Iterator<Item = &'a Toleration> {
        let own = self.winner.filter(|_| self.constraints.is_empty());
        own.into_iter().chain(self.constraints.iter().copied()).flat_map(|p| &p.policy.spec.tolerations)
    }

    /// Returns the most physical clusters that every constraint allows.
    pub(crate) fn most(&self) -> usize {
        let counts = self.constraints.iter().filter_map(|p| match p.policy.spec.count {
            Some(ClusterCount::Exactly(n)) => Some(n as usize),
            Some(ClusterCount::All) | None => None,
        });
        counts.min().unwrap_or(usize::MAX)
    }

    /// Returns the verdict of the constraints: that of the first constraint that forbids a physical cluster;
    /// constraints with a value come before those without.
    pub(crate) fn verdict(&self, workload: &Workload, cluster: &ClusterInfo) -> ConstraintVerdict<'a> {
        let mut unknown = None;
        for policy in &self.constraints {
            if policy.policy.fault().is_some() {
                return ConstraintVerdict::Forbidden(policy);
            }
            if let ResourceMatch::Unknown(why) = policy.policy.selection(workload) {
                unknown.get_or_insert((*policy, why));
                continue;
            }
            match policy.policy.standing(cluster) {
                SelectorMatch::Tier(_) => {}
                SelectorMatch::Unknown(_, why) => {
                    unknown.get_or_insert((*policy, why));
                }
                _ => return ConstraintVerdict::Forbidden(policy),
            }
        }
        match unknown {
            Some((policy, why)) => ConstraintVerdict::Unknown(policy, why),
            None => ConstraintVerdict::Allowed,
        }
    }

    /// Returns the policies whose suspensions and workload terms hold: the winner, unless a pin takes its place, and
    /// all constraints.
    fn holding(&self, is_pinned: bool) -> impl Iterator<Item = &'a LeveledPolicy> {
        let own = self.winner.filter(move |_| !is_pinned);
        own.into_iter().chain(self.constraints.iter().copied()).filter(|p| p.policy.fault().is_none())
    }

    /// Returns the policies that suspend anything, with the suspended parts.
    pub(crate) fn suspensions(&self) -> impl Iterator<Item = (&'a LeveledPolicy, &'a Suspension)> {
        let all = self.holding(false).map(|p| (p, &p.policy.spec.suspend));
        all.filter(|(_, suspension)| !suspension.is_empty())
    }

    /// Returns the terms about other workloads: true for those beside which the copies run, false for those that they
    /// avoid.
    pub(crate) fn terms(&self, is_pinned: bool) -> impl Iterator<Item = (&'a LeveledPolicy, bool, &'a CompiledTerm)> {
        self.holding(is_pinned).flat_map(|p| {
            let with = p.policy.with.iter().map(move |term| (p, true, term));
            with.chain(p.policy.apart_from.iter().map(move |term| (p, false, term)))
        })
    }
}

impl CompiledTerm {
    /// Returns the words of the selector: `app=db, tier in (a,b)`.
    pub(crate) fn words(&self) -> String {
        let WorkloadTerm { selector, topology_key: _ } = &self.spec;
        let labels = selector.match_labels.iter().map(|(key, value)| format!("{key}={value}"));
        let expressions = selector.match_expressions.iter().map(|one| match one.operator.as_str() {
            "Exists" => one.key.clone(),
            "DoesNotExist" => format!("!{}", one.key),
            operator => format!("{} {} ({})", one.key, operator.to_lowercase(), one.values.join(",")),
        });
        let words: Vec<String> = labels.chain(expressions).collect();
        if words.is_empty() { "any labels".into() } else { words.join(", ") }
    }
}
