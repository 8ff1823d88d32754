//! The answer: where an object should be, and why it is not elsewhere.

use std::collections::{BTreeMap, BTreeSet};

use portolan_types::{
    Uid,
    placement::{DivisionBasis, PolicyRef},
};

use crate::reason::Reason;

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

/// Outcome of a decision.
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
    /// Returns true for sentences that differ only in how much of a quota was in use at that moment.
    pub fn says_the_same(one: &str, other: &str) -> bool {
        fn head(text: &str) -> &str {
            text.split_once(", used: ").map_or(text, |(head, _)| head)
        }
        head(one) == head(other)
    }
}

/// Decision about the physical clusters of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Sorted by name.
    pub chosen: Vec<Chosen>,
    /// Sorted by name; one for each physical cluster that was not chosen.
    pub rejected: Vec<Rejected>,
    /// The policy that decided; `None` is the namespace's default decision.
    pub policy: Option<PolicyRef>,
    /// Outcome of the decision.
    pub outcome: Outcome,
    /// Copies that stay although their physical cluster is refused, and what of the policy has no effect, in sentences.
    pub held: Vec<String>,
    /// A copy stays where it should not, because the data on its volumes would stay behind.
    pub move_refused: bool,
    /// Physical clusters that are gone, with volumes of the object that nobody has given up: it is not started anew elsewhere.
    pub lost: BTreeSet<Uid>,
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
    /// Returns true for an object that should have no copy anywhere.
    pub fn is_to_end(&self) -> bool {
        matches!(self.outcome, Outcome::Stopped | Outcome::Finished)
    }

    /// The same when its pods are not let in: nothing comes, and what is there stays as it is.
    #[must_use]
    pub fn refused(self, refusal: Refusal) -> Self {
        Self { chosen: Vec::new(), limits: BTreeMap::new(), outcome: Outcome::Refused(refusal), ..self }
    }

    /// Counts the physical clusters that were left out, by reason.
    pub fn counts(&self) -> BTreeMap<Reason, u32> {
        let mut counts = BTreeMap::new();
        self.rejected.iter().for_each(|r| *counts.entry(r.reason).or_insert(0) += 1);
        counts
    }

    /// One line: `placed on eu-1,us-1 by policy web-everywhere`, or `0/3 physical clusters fit: 1 cordoned, 2 not ready`.
    pub fn summary(&self) -> String {
        let names: Vec<&str> = self.chosen.iter().map(|c| c.name.as_str()).collect();
        match &self.outcome {
            Outcome::Placed | Outcome::Partly(_) | Outcome::Unplaced if self.move_refused => {
                "the move is refused".into()
            }
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
