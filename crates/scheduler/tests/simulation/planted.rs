//! Bugs that a run may have, in the syncers or in place of the scheduler. Each breaks one invariant, which has to
//! notice.

use crate::invariants::Invariant;

/// Planted bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PlantedBug {
    /// An active copy vanishes from a record.
    VanishingCopy,
    /// A record says that the last copy leaves, without another one.
    EarlyDeparture,
    /// A syncer gives each copy one replica too many.
    ExtraReplica,
    /// A copy arrives where a constraint forbids it.
    IgnoredConstraint,
    /// The split of before is forgotten in the mark of a drain.
    ForgottenSplit,
    /// A syncer takes an object that it failed to read for a deleted one.
    AbsenceIsDeletion,
}

impl PlantedBug {
    pub(crate) const ALL: [Self; 6] = [
        Self::VanishingCopy,
        Self::EarlyDeparture,
        Self::ExtraReplica,
        Self::IgnoredConstraint,
        Self::ForgottenSplit,
        Self::AbsenceIsDeletion,
    ];

    /// Returns the invariant that has to notice.
    pub(crate) fn breaks(self) -> Invariant {
        match self {
            Self::VanishingCopy => Invariant::LegalTransitions,
            Self::EarlyDeparture => Invariant::NeverEmpty,
            Self::ExtraReplica => Invariant::Sums,
            Self::IgnoredConstraint => Invariant::Constraints,
            Self::ForgottenSplit => Invariant::ExactUndo,
            Self::AbsenceIsDeletion => Invariant::NoWrongfulDeletion,
        }
    }
}
