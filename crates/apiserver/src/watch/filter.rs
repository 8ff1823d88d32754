//! What a write means to one watcher: an object can come into its view, change in it, or leave it.

use std::sync::Arc;

use portolan_store::{Change, Event};
use portolan_types::{Record, Status};

use crate::{call::Target, errors::damaged, options::Selection};

/// How a watcher is told of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Seen {
    Added,
    Modified,
    /// The object is gone.
    Deleted,
    /// The object is there, but out of view: told as deleted, with its last state in view.
    Left,
}

impl Seen {
    /// The word on the wire.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Added => "ADDED",
            Self::Modified => "MODIFIED",
            Self::Deleted | Self::Left => "DELETED",
        }
    }
}

/// What a watcher sees.
pub(super) struct Filter {
    pub(super) target: Target,
    selection: Selection,
    /// No selector: nothing has to be matched.
    all: bool,
}

impl Filter {
    pub(super) fn new(target: Target, selection: Selection) -> Self {
        Self { target, all: selection.is_everything(), selection }
    }

    /// Whether an object is where the watcher looks.
    pub(super) fn is_in_scope(&self, event: &Event) -> bool {
        let wanted = self.target.namespace.as_ref();
        wanted.is_none() || event.key.namespace() == wanted
    }

    /// Whether it depends on the state of an object if the watcher sees it.
    pub(super) fn selects(&self) -> bool {
        !self.all
    }

    /// How a write to an object in scope is told and which state is shown; `None` when it is none of the watcher's business.
    pub(super) fn sees<'e>(&self, event: &'e Event) -> Result<Option<(Seen, &'e Arc<Record>)>, Status> {
        let now = event.change != Change::Deleted && self.matches(event, &event.record)?;
        let before = match (event.change, &event.previous) {
            (Change::Created, _) => false,
            (Change::Deleted, _) => self.matches(event, &event.record)?,
            (Change::Updated, Some(previous)) => self.matches(event, previous)?,
            (Change::Updated, None) => now,
        };
        Ok(match (before, now) {
            (false, false) => None,
            (false, true) => Some((Seen::Added, &event.record)),
            (true, true) => Some((Seen::Modified, &event.record)),
            (true, false) if event.change == Change::Deleted => Some((Seen::Deleted, &event.record)),
            (true, false) => Some((Seen::Left, event.previous.as_ref().unwrap_or(&event.record))),
        })
    }

    fn matches(&self, event: &Event, record: &Record) -> Result<bool, Status> {
        if self.all {
            return Ok(true);
        }
        self.selection.matches(&self.target, &event.key, record, event.revision).map_err(|e| damaged(&event.key, &e))
    }
}
