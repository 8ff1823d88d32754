//! View of one watcher: a write can move an object into it, change it, or move it out.

use std::sync::Arc;

use portolan_store::{ChangeKind, Event};
use portolan_types::{Record, Status};

use crate::{errors::damaged, options::ObjectSelection, request::ResourceTarget};

/// Event type of a write for one watcher.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum WatchedEvent {
    Added,
    Modified,
    /// The object was deleted.
    Deleted,
    /// The object exists but left the view: sent as deleted, with its last state in the view.
    Left,
}

impl WatchedEvent {
    /// Returns the event type on the wire.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Added => "ADDED",
            Self::Modified => "MODIFIED",
            Self::Deleted | Self::Left => "DELETED",
        }
    }
}

/// Filter of a watcher: scope and selectors.
pub(super) struct WatchFilter {
    pub(super) target: ResourceTarget,
    selection: ObjectSelection,
    /// True without selectors.
    all: bool,
}

impl WatchFilter {
    pub(super) fn new(target: ResourceTarget, selection: ObjectSelection) -> Self {
        Self { target, all: selection.is_everything(), selection }
    }

    /// Returns true if an object is in the scope of the watch.
    pub(super) fn is_in_scope(&self, event: &Event) -> bool {
        let wanted = self.target.namespace.as_ref();
        wanted.is_none() || event.key.namespace() == wanted
    }

    /// Returns true if the watch has selectors.
    pub(super) fn selects(&self) -> bool {
        !self.all
    }

    /// Returns the event type and the state to send for a write in scope; `None` if the watcher does not see it.
    pub(super) fn sees<'e>(&self, event: &'e Event) -> Result<Option<(WatchedEvent, &'e Arc<Record>)>, Status> {
        let now = event.change != ChangeKind::Deleted && self.matches(event, &event.record)?;
        let before = match (event.change, &event.previous) {
            (ChangeKind::Created, _) => false,
            (ChangeKind::Deleted, _) => self.matches(event, &event.record)?,
            (ChangeKind::Updated, Some(previous)) => self.matches(event, previous)?,
            (ChangeKind::Updated, None) => now,
        };
        Ok(match (before, now) {
            (false, false) => None,
            (false, true) => Some((WatchedEvent::Added, &event.record)),
            (true, true) => Some((WatchedEvent::Modified, &event.record)),
            (true, false) if event.change == ChangeKind::Deleted => Some((WatchedEvent::Deleted, &event.record)),
            (true, false) => Some((WatchedEvent::Left, event.previous.as_ref().unwrap_or(&event.record))),
        })
    }

    fn matches(&self, event: &Event, record: &Record) -> Result<bool, Status> {
        if self.all {
            return Ok(true);
        }
        self.selection.matches(&self.target, &event.key, record, event.revision).map_err(|e| damaged(&event.key, &e))
    }
}
