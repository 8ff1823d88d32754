//! Result of a pass over the objects of a drain.

use std::collections::BTreeMap;

use portolan_types::{
    ResourceVersion,
    placement::{DrainCounts, DrainRow, DrainRowState},
};

use super::{budget::BudgetUse, progress::MoveProgress, rows::RowList};

/// Result of a pass.
#[derive(Clone, Debug, Default)]
pub(super) struct PassTally {
    pub(super) counts: DrainCounts,
    pub(super) rows: RowList,
    pub(super) used: BudgetUse,
    pub(super) unavailable: i64,
    /// Objects that are still on the physical clusters, by resource.
    pub(super) left: BTreeMap<String, i64>,
    /// Revision at which they were read.
    pub(super) revision: Option<ResourceVersion>,
}

impl PassTally {
    /// Counts an object, with its row.
    pub(super) fn add(&mut self, row: DrainRow) {
        self.count(row.state, 1);
        self.rows.add(row);
    }

    /// Counts objects without rows.
    pub(super) fn omit(&mut self, state: DrainRowState, number: usize) {
        let number = i64::try_from(number).unwrap_or(i64::MAX);
        self.count(state, number);
        self.rows.omit(number);
    }

    /// Adds the objects of another tally.
    pub(super) fn merge(&mut self, other: Self) {
        let DrainCounts { blocked, changed, moving, pending, skipped, moved, restored, .. } = other.counts;
        for (state, number) in [
            (DrainRowState::Blocked, blocked),
            (DrainRowState::Changed, changed),
            (DrainRowState::Moving, moving),
            (DrainRowState::Pending, pending),
            (DrainRowState::Skipped, skipped),
            (DrainRowState::Moved, moved),
            (DrainRowState::Restored, restored),
        ] {
            self.count(state, number);
        }
        self.rows.merge(other.rows);
        self.left = other.left;
        self.revision = self.revision.max(other.revision);
    }

    fn count(&mut self, state: DrainRowState, number: i64) {
        *number_of(&mut self.counts, state) += number;
        self.counts.total += number;
    }

    /// Takes a slot of the budget for an object under way.
    pub(super) fn take_slot(&mut self, progress: &MoveProgress) {
        self.used.moving += 1;
        self.used.unavailable += progress.reserved;
        self.unavailable += progress.unavailable;
    }
}

/// Returns the number of a state. Moving and returning objects share one.
fn number_of(counts: &mut DrainCounts, state: DrainRowState) -> &mut i64 {
    match state {
        DrainRowState::Blocked => &mut counts.blocked,
        DrainRowState::Changed => &mut counts.changed,
        DrainRowState::Moving | DrainRowState::Returning => &mut counts.moving,
        DrainRowState::Pending => &mut counts.pending,
        DrainRowState::Skipped => &mut counts.skipped,
        DrainRowState::Moved => &mut counts.moved,
        DrainRowState::Restored => &mut counts.restored,
    }
}
