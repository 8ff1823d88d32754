//! Why a physical cluster was left out: stable words, each with a phrase for counting lines.

use std::fmt;

/// Why a physical cluster was left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reason {
    /// It is not registered in the workspace or above.
    NotReachable,
    /// The workspace lacks the verb `use` on it.
    NoUseRight,
    /// Its deletion has been asked for.
    Deleting,
    /// The object or its namespace is pinned to others.
    PinnedElsewhere,
    /// The policy excludes it by name.
    Excluded,
    /// The policy names others.
    NotNamed,
    /// The policy's selector does not match its labels.
    NotSelected,
    /// A constraint does not allow it.
    PolicyConstraint,
    /// It does not take objects of this resource.
    NotSynced,
    /// It does not answer.
    NotReady,
    /// It is cordoned.
    Cordoned,
    /// It has a taint that is not tolerated.
    TaintNotTolerated,
    /// More than its bounds allow.
    OutOfBounds,
    /// More than its nodes hold.
    InsufficientCapacity,
    /// It lacks the label that the spread is over.
    SpreadKeyMissing,
    /// It would make the spread uneven.
    SpreadSkew,
    /// It belongs to an earlier group than the fallback in use, and does not fit for long enough yet.
    HeldDown,
    /// It fits, but enough others are better.
    NotNeeded,
    /// The object has ended and is not run again.
    Finished,
}

impl Reason {
    /// The stable word, as in `status.rejected`.
    pub fn word(self) -> &'static str {
        match self {
            Self::NotReachable => "NotReachable",
            Self::NoUseRight => "NoUseRight",
            Self::Deleting => "Deleting",
            Self::PinnedElsewhere => "PinnedElsewhere",
            Self::Excluded => "Excluded",
            Self::NotNamed => "NotNamed",
            Self::NotSelected => "NotSelected",
            Self::PolicyConstraint => "PolicyConstraint",
            Self::NotSynced => "NotSynced",
            Self::NotReady => "NotReady",
            Self::Cordoned => "Cordoned",
            Self::TaintNotTolerated => "TaintNotTolerated",
            Self::OutOfBounds => "OutOfBounds",
            Self::InsufficientCapacity => "InsufficientCapacity",
            Self::SpreadKeyMissing => "SpreadKeyMissing",
            Self::SpreadSkew => "SpreadSkew",
            Self::HeldDown => "HeldDown",
            Self::NotNeeded => "NotNeeded",
            Self::Finished => "Finished",
        }
    }

    /// What follows a number in a counting line: `2 cordoned`.
    pub fn phrase(self) -> &'static str {
        match self {
            Self::NotReachable => "out of reach",
            Self::NoUseRight => "not allowed to be used",
            Self::Deleting => "being deleted",
            Self::PinnedElsewhere => "not the pinned one",
            Self::Excluded => "excluded by the policy",
            Self::NotNamed => "not named by the policy",
            Self::NotSelected => "not selected by the policy",
            Self::PolicyConstraint => "outside a constraint",
            Self::NotSynced => "not taking this kind",
            Self::NotReady => "not ready",
            Self::Cordoned => "cordoned",
            Self::TaintNotTolerated => "with a taint that is not tolerated",
            Self::OutOfBounds => "out of bounds",
            Self::InsufficientCapacity => "without enough capacity",
            Self::SpreadKeyMissing => "without the label to spread over",
            Self::SpreadSkew => "against the spread",
            Self::HeldDown => "fitting again, but not for long enough",
            Self::NotNeeded => "not needed",
            Self::Finished => "too late for an object that has ended",
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}
