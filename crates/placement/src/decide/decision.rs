//! Decision about an object: chosen and rejected physical clusters.

use std::collections::{BTreeMap, BTreeSet};

use portolan_types::{
    Uid,
    placement::{DivisionBasis, OrdinalRange, PlacementRecord, PolicyRef},
};

use crate::{exclusion_reason::ExclusionReason, workload::PinScope};

/// Physical cluster that should have a copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChosenCluster {
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: Uid,
    /// Replicas of this copy; `None` is all of them.
    pub replicas: Option<i64>,
}

/// Physical cluster that gets no copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RejectedCluster {
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: Uid,
    /// Reason.
    pub reason: ExclusionReason,
}

/// Outcome of a decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DecisionOutcome {
    /// Placed as wanted.
    Placed,
    /// Placed on fewer clusters, or with fewer replicas, than wanted: the sentence.
    Partly(String),
    /// No physical cluster fits.
    Unplaced,
    /// A policy keeps it from running.
    Stopped,
    /// The object has ended and has no copy. Its status is kept upstream.
    Finished,
    /// Its pods are refused: no copy is made or changed.
    Refused(PodRefusal),
    /// No decision is made about it: no copy is created or removed.
    Suspended(DecisionHold),
}

/// Reason for which nothing is decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecisionHold {
    /// One word: `SchedulingSuspended` or `ExpressionFailed`.
    pub reason: &'static str,
    /// Sentence.
    pub message: String,
}

/// Refusal of the pods of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodRefusal {
    /// One word: `AdmissionRefused`, `QuotaExceeded` or `SchedulingGated`.
    pub reason: &'static str,
    /// Sentence of the API's answer.
    pub message: String,
}

impl PodRefusal {
    /// Returns true for sentences that differ only in how much of a quota was in use at that moment.
    pub fn is_same_message(one: &str, other: &str) -> bool {
        fn head(text: &str) -> &str {
            text.split_once(", used: ").map_or(text, |(head, _)| head)
        }
        head(one) == head(other)
    }
}

/// Decision about the physical clusters of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacementDecision {
    /// Sorted by name.
    pub chosen: Vec<ChosenCluster>,
    /// Sorted by name; one for each physical cluster that was not chosen.
    pub rejected: Vec<RejectedCluster>,
    /// The policy that decided; `None` is the namespace's default decision.
    pub policy: Option<PolicyRef>,
    /// Outcome of the decision.
    pub outcome: DecisionOutcome,
    /// Sentences about copies that stay on rejected physical clusters, and about parts of the policy without effect.
    pub held: Vec<String>,
    /// Sentence about data on volumes that the deciding policy abandons by the move.
    pub abandoned: Option<String>,
    /// True if a copy stays on a rejected physical cluster because of the data on its volumes.
    pub move_refused: bool,
    /// Physical clusters that are gone and had volumes of the object that were not given up: it is not started again
    /// elsewhere.
    pub lost: BTreeSet<Uid>,
    /// Most replicas that the bounds allow on chosen physical clusters whose copies should have more, by uid.
    pub limits: BTreeMap<Uid, i64>,
    /// `PlacementRecord::ordinals` after the leaving copies are gone.
    pub ordinals: BTreeMap<Uid, OrdinalRange>,
    /// `PlacementRecord::preferred_since`.
    pub preferred_since: Option<i64>,
    /// Basis of the division of replicas; `None` when they are not divided.
    pub divided_by: Option<DivisionBasis>,
    /// `by policy web-everywhere`, `by the namespace's default`, `by pin`.
    pub by: String,
    /// The names in the pin, when there is one.
    pub pinned_to: String,
    /// Object that carries the pin, when there is one.
    pub pinned_by: Option<PinScope>,
    /// Seconds after which the decision may change without another event.
    pub recheck_in: Option<i64>,
    /// `metadata.generation` of the object.
    pub generation: i64,
}

impl PlacementDecision {
    /// Returns true for an object that should have no copy anywhere.
    pub fn is_to_end(&self) -> bool {
        matches!(self.outcome, DecisionOutcome::Stopped | DecisionOutcome::Finished)
    }

    /// Changes the decision for an object whose pods are refused: no copy is created, and existing copies stay
    /// unchanged.
    #[must_use]
    pub fn refused(self, refusal: PodRefusal) -> Self {
        Self { chosen: Vec::new(), limits: BTreeMap::new(), outcome: DecisionOutcome::Refused(refusal), ..self }
    }

    /// Returns the ranges of a divided StatefulSet that goes to `chosen` instead, sorted by name: existing copies
    /// keep theirs, and the others get the next ordinals that none of these has. Empty if no ordinals are divided, or
    /// if a copy is to have all of them.
    pub fn ordinals_for(&self, chosen: &[ChosenCluster], record: &PlacementRecord) -> BTreeMap<Uid, OrdinalRange> {
        if chosen.iter().any(|copy| copy.replicas.is_none()) {
            return BTreeMap::new();
        }
        let Some(mut next) = self.ordinals.values().map(|range| range.first).min() else { return BTreeMap::new() };
        let had = |c: &ChosenCluster| record.on(&c.uid).and_then(|_| record.ordinals.get(&c.uid).copied());
        let kept = |c: &ChosenCluster| Some((c.uid.clone(), had(c)?));
        let mut ranges: BTreeMap<Uid, OrdinalRange> = chosen.iter().filter_map(kept).collect();
        for copy in chosen.iter().filter(|copy| had(copy).is_none()) {
            let wanted = |first| OrdinalRange::starting_at(first, copy.replicas.unwrap_or(0));
            while let Some(other) = ranges.values().find(|other| other.overlaps(wanted(next))) {
                next = other.end;
            }
            ranges.insert(copy.uid.clone(), wanted(next));
            next = wanted(next).end;
        }
        ranges
    }

    /// Counts the rejected physical clusters by reason.
    pub fn counts(&self) -> BTreeMap<ExclusionReason, u32> {
        let mut counts = BTreeMap::new();
        self.rejected.iter().for_each(|r| *counts.entry(r.reason).or_insert(0) += 1);
        counts
    }

    /// Returns the decision in one line, such as `placed on eu-1,us-1 by policy web-everywhere`, or `0/3 physical
    /// clusters fit: 1 cordoned, 2 not ready`.
    pub fn summary(&self) -> String {
        let names: Vec<&str> = self.chosen.iter().map(|c| c.name.as_str()).collect();
        match &self.outcome {
            DecisionOutcome::Placed | DecisionOutcome::Partly(_) | DecisionOutcome::Unplaced if self.move_refused => {
                "the move is refused".into()
            }
            DecisionOutcome::Placed => format!("placed on {} {}", names.join(","), self.by),
            DecisionOutcome::Partly(what) => format!("placed on {} {}; {what}", names.join(","), self.by),
            DecisionOutcome::Stopped => format!("kept from running {}", self.by),
            DecisionOutcome::Finished => "it has ended, and its copy is not kept any more".into(),
            DecisionOutcome::Refused(refusal) => refusal.message.clone(),
            DecisionOutcome::Suspended(hold) => hold.message.clone(),
            DecisionOutcome::Unplaced if self.rejected.is_empty() => "no physical cluster is in reach".into(),
            DecisionOutcome::Unplaced => {
                let counts: Vec<_> = self.counts().iter().map(|(r, n)| format!("{n} {}", r.phrase())).collect();
                let pinned =
                    if self.pinned_to.is_empty() { String::new() } else { format!(" (pinned to {})", self.pinned_to) };
                format!("0/{} physical clusters fit: {}{pinned}", self.rejected.len(), counts.join(", "))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use portolan_types::placement::OrdinalRange;
    use serde_json::json;

    use super::ChosenCluster;
    use crate::fixtures::{PlacementCase, clusters, policy, record, uid, workload};

    #[test]
    fn a_split_of_before_gets_ordinals_that_no_staying_copy_has() {
        let divide = policy(1, "p", json!({"count": "All", "replicas": {"mode": "Divide"}}));
        let set = workload("apps", "StatefulSet", json!({"spec": {"replicas": 6}}));
        let decision = PlacementCase::new(set, clusters(&["a", "b", "c"])).by(divide).decide();
        let chosen =
            |name: &str, replicas| ChosenCluster { name: name.into(), uid: uid(name), replicas: Some(replicas) };
        let range = |first, end| OrdinalRange { first, end };
        let mut there = record("b*2");
        there.ordinals.insert(uid("b"), range(2, 4));
        let split = [chosen("a", 2), chosen("b", 2), chosen("c", 2)];
        let expected = [(uid("a"), range(0, 2)), (uid("b"), range(2, 4)), (uid("c"), range(4, 6))];
        assert_eq!(decision.ordinals_for(&split, &there), expected.into());
        there.clusters.clear();
        let expected = [(uid("a"), range(0, 4)), (uid("c"), range(4, 6))];
        assert_eq!(decision.ordinals_for(&[chosen("a", 4), chosen("c", 2)], &there), expected.into(), "b is gone");
        let deployment = PlacementCase::new(crate::fixtures::deployment(6), clusters(&["a"])).decide();
        let whole = ChosenCluster { replicas: None, ..chosen("a", 0) };
        assert!(decision.ordinals_for(&[whole], &there).is_empty(), "it has every ordinal");
        assert!(deployment.ordinals_for(&split, &there).is_empty(), "nothing else has ordinals");
    }
}
