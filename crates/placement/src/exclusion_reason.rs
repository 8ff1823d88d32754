//! Reasons why a physical cluster gets no copy: stable words, with a phrase for counting lines.

use std::fmt;

/// Reason why a physical cluster gets no copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ExclusionReason {
    /// It is not registered in the workspace or an ancestor.
    NotReachable,
    /// The workspace lacks the verb `use` on it.
    NoUseRight,
    /// It is being deleted.
    Deleting,
    /// It is being drained.
    Draining,
    /// The object or its namespace is pinned to other ones.
    PinnedElsewhere,
    /// The policy excludes it by name.
    Excluded,
    /// The policy names others.
    NotNamed,
    /// The policy's selector does not match its labels.
    NotSelected,
    /// The policy's expression is false for it.
    NotMatched,
    /// An expression has no value for it.
    ExpressionFailed,
    /// A constraint does not allow it.
    PolicyConstraint,
    /// It does not sync objects of this resource.
    NotSynced,
    /// It does not serve the kind, or not in the version of the object.
    KindNotServed,
    /// It is not ready.
    NotReady,
    /// It is cordoned.
    Cordoned,
    /// It has a taint that is not tolerated.
    TaintNotTolerated,
    /// The workloads beside which the object has to run are not there.
    AffinityNotMet,
    /// Workloads that the object must avoid run there.
    AntiAffinityNotMet,
    /// More than its bounds allow.
    OutOfBounds,
    /// More than its nodes hold.
    InsufficientCapacity,
    /// It lacks the label of the spread.
    SpreadKeyMissing,
    /// A copy there would make the spread uneven.
    SpreadSkew,
    /// Copies would be on fewer or more values of the label of the spread than the policy allows.
    SpreadGroups,
    /// Fewer replicas are left for it than a copy there has at least.
    TooFewReplicas,
    /// It belongs to an earlier tier than the fallback in use, and has not fitted for long enough.
    HeldDown,
    /// It fits, but enough others are preferred.
    NotNeeded,
    /// The object has ended and is not run again.
    Finished,
}

impl ExclusionReason {
    /// Returns the stable word, as in `status.rejected`.
    pub fn word(self) -> &'static str {
        match self {
            Self::NotReachable => "NotReachable",
            Self::NoUseRight => "NoUseRight",
            Self::Deleting => "Deleting",
            Self::Draining => "Draining",
            Self::PinnedElsewhere => "PinnedElsewhere",
            Self::Excluded => "Excluded",
            Self::NotNamed => "NotNamed",
            Self::NotSelected => "NotSelected",
            Self::NotMatched => "NotMatched",
            Self::ExpressionFailed => "ExpressionFailed",
            Self::PolicyConstraint => "PolicyConstraint",
            Self::NotSynced => "NotSynced",
            Self::KindNotServed => "KindNotServed",
            Self::NotReady => "NotReady",
            Self::Cordoned => "Cordoned",
            Self::TaintNotTolerated => "TaintNotTolerated",
            Self::AffinityNotMet => "AffinityNotMet",
            Self::AntiAffinityNotMet => "AntiAffinityNotMet",
            Self::OutOfBounds => "OutOfBounds",
            Self::InsufficientCapacity => "InsufficientCapacity",
            Self::SpreadKeyMissing => "SpreadKeyMissing",
            Self::SpreadSkew => "SpreadSkew",
            Self::SpreadGroups => "SpreadGroups",
            Self::TooFewReplicas => "TooFewReplicas",
            Self::HeldDown => "HeldDown",
            Self::NotNeeded => "NotNeeded",
            Self::Finished => "Finished",
        }
    }

    /// Returns the phrase behind a number in a counting line: `2 cordoned`.
    pub fn phrase(self) -> &'static str {
        match self {
            Self::NotReachable => "out of reach",
            Self::NoUseRight => "not allowed to be used",
            Self::Deleting => "being deleted",
            Self::Draining => "being drained",
            Self::PinnedElsewhere => "not the pinned one",
            Self::Excluded => "excluded by the policy",
            Self::NotNamed => "not named by the policy",
            Self::NotSelected => "not selected by the policy",
            Self::NotMatched => "not matched by the policy's expression",
            Self::ExpressionFailed => "for which an expression failed",
            Self::PolicyConstraint => "outside a constraint",
            Self::NotSynced => "not taking this kind",
            Self::KindNotServed => "not serving this kind",
            Self::NotReady => "not ready",
            Self::Cordoned => "cordoned",
            Self::TaintNotTolerated => "with a taint that is not tolerated",
            Self::AffinityNotMet => "without the workloads to run beside",
            Self::AntiAffinityNotMet => "with workloads to stay apart from",
            Self::OutOfBounds => "out of bounds",
            Self::InsufficientCapacity => "without enough capacity",
            Self::SpreadKeyMissing => "without the label to spread over",
            Self::SpreadSkew => "against the spread",
            Self::SpreadGroups => "outside the groups of the spread",
            Self::TooFewReplicas => "left with fewer replicas than a copy has at least",
            Self::HeldDown => "fitting again, but not for long enough",
            Self::NotNeeded => "not needed",
            Self::Finished => "too late for an object that has ended",
        }
    }
}

impl fmt::Display for ExclusionReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}
