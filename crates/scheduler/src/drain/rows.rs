//! Rows of a drain, bounded: those that need attention first.

use std::collections::BTreeMap;

use portolan_types::{
    ObjectKey,
    placement::{DrainMark, DrainRow, DrainRowState, MAX_DRAIN_ROWS, PlacementRecord},
};

use super::{preview::BlockedReason, returns::names};
use crate::context::SchedulerContext;

/// Rows by state. Of each state, at most as many rows are kept as the status can hold.
#[derive(Clone, Debug, Default)]
pub(super) struct RowList {
    rows: BTreeMap<DrainRowState, Vec<DrainRow>>,
    total: i64,
}

impl RowList {
    /// Adds a row.
    pub(super) fn add(&mut self, row: DrainRow) {
        self.total += 1;
        let rows = self.rows.entry(row.state).or_default();
        if rows.len() < MAX_DRAIN_ROWS {
            rows.push(row);
        }
    }

    /// Counts objects without rows.
    pub(super) fn omit(&mut self, number: i64) {
        self.total += number;
    }

    /// Adds the rows and objects of another list.
    pub(super) fn merge(&mut self, other: Self) {
        self.total += other.total;
        for (state, rows) in other.rows {
            let own = self.rows.entry(state).or_default();
            own.extend(rows.into_iter().take(MAX_DRAIN_ROWS.saturating_sub(own.len())));
        }
    }

    /// Returns true if another row of a state may be shown.
    pub(super) fn has_room(&self, state: DrainRowState) -> bool {
        self.rows.get(&state).is_none_or(|rows| rows.len() < MAX_DRAIN_ROWS)
    }

    /// Returns the first rows of a state.
    pub(super) fn of(&self, state: DrainRowState) -> &[DrainRow] {
        self.rows.get(&state).map_or(&[], Vec::as_slice)
    }

    /// Returns the rows, and the number of objects without one.
    pub(super) fn finish(self) -> (Vec<DrainRow>, i64) {
        let rows: Vec<DrainRow> = self.rows.into_values().flatten().take(MAX_DRAIN_ROWS).collect();
        let shown = i64::try_from(rows.len()).unwrap_or(i64::MAX);
        (rows, self.total - shown)
    }
}

/// Returns the row of an object.
pub(super) fn row(ctx: &SchedulerContext, key: &ObjectKey, record: &PlacementRecord, state: DrainRowState) -> DrainRow {
    let lineage = ctx.tree.lineage(key.cluster);
    let workspace = lineage.first().map_or_else(|| key.cluster.to_string(), |(_, path)| path.to_string());
    let mark = record.drain.as_deref();
    DrainRow {
        workspace,
        namespace: key.namespace().map(ToString::to_string).unwrap_or_default(),
        resource: key.resource.to_string(),
        name: key.name.to_string(),
        state,
        from: mark.map_or_else(|| names(&record.split()), |mark| names(&mark.before)),
        to: mark.map(|_| names(&record.split())).unwrap_or_default(),
        since: mark.map(since).unwrap_or_default(),
        ..DrainRow::default()
    }
}

fn since(mark: &DrainMark) -> String {
    super::status::time_text(mark.since)
}

/// Returns a row with a reason.
pub(super) fn with_reason(row: DrainRow, blocked: &BlockedReason) -> DrainRow {
    DrainRow { reason: blocked.reason.clone(), message: blocked.message.clone(), ..row }
}

/// Returns an object in a line: `root:shop: deployments.apps/web in default (Volumes: …)`.
pub(super) fn line(row: &DrainRow) -> String {
    let DrainRow { workspace, namespace, resource, name, reason, message, .. } = row;
    format!("{workspace}: {resource}/{name} in {namespace} ({reason}: {message})")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_bounded_and_start_with_what_needs_attention() {
        let mut list = RowList::default();
        let row = |state| DrainRow { state, ..DrainRow::default() };
        for _ in 0..150 {
            list.add(row(DrainRowState::Moved));
            list.add(row(DrainRowState::Pending));
        }
        list.add(row(DrainRowState::Moving));
        list.add(row(DrainRowState::Blocked));
        list.omit(1);
        assert!(!list.has_room(DrainRowState::Moved) && list.has_room(DrainRowState::Moving));
        let (rows, omitted) = list.finish();
        assert_eq!((rows.len(), omitted), (MAX_DRAIN_ROWS, 203));
        assert_eq!([rows[0].state, rows[1].state], [DrainRowState::Blocked, DrainRowState::Moving]);
        assert!(rows[2..].iter().all(|row| row.state == DrainRowState::Pending));
    }
}
