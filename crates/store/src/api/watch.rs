//! Watches: events of writes, in order.

use std::sync::Arc;

use portolan_types::{BoxFuture, GroupResource, LogicalClusterId, ObjectKey, Record, ResourceVersion};

use super::StoreError;

/// Set of objects that a watch reports.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum WatchScope {
    /// Resource in one logical cluster, or in all.
    Resource(GroupResource, Option<LogicalClusterId>),
    /// Objects whose placement record names this physical cluster before or after the write (the syncer's index).
    PlacedOn(String),
    /// Every object of every logical cluster, for audits of the whole history.
    All,
}

/// Effect of a write on its object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeKind {
    /// The object was created.
    Created,
    /// The object was updated.
    Updated,
    /// The object was deleted.
    Deleted,
}

/// Event of one write. Shares the commit's bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Revision of the write.
    pub revision: ResourceVersion,
    /// Effect of the write.
    pub change: ChangeKind,
    /// Address of the object.
    pub key: ObjectKey,
    /// Object after the write; for a deletion, its last state.
    pub record: Arc<Record>,
    /// Object before the write, for selectors that it may have left. `None` for `Created` and `Deleted`.
    pub previous: Option<Arc<Record>>,
}

/// Events of whole transactions.
#[derive(Clone, Debug)]
pub struct EventBatch {
    /// Matching events, in order. Empty if the batch only reports progress.
    pub events: Vec<Arc<Event>>,
    /// Revision up to which all events have been delivered: a transaction's boundary.
    pub revision: ResourceVersion,
}

/// Cursor into the order of writes. Dropping it ends the watch.
pub trait EventStream: Send {
    /// Waits for the next batch. Events come in order, each exactly once.
    ///
    /// # Errors
    /// `Compacted` if the cursor fell behind the kept history. `Damaged` if the next event cannot be read, such as the
    /// last state of a damaged object that was deleted. The stream has then ended; the caller lists again.
    fn next(&mut self) -> BoxFuture<'_, Result<EventBatch, StoreError>>;

    /// Returns the revision up to which all events have been delivered. It advances also while no event matches.
    fn progress(&self) -> ResourceVersion;
}
