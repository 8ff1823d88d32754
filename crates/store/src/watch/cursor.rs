//! Cursor of a watch: a revision. The next events come from the ring of recent ones, or from the history if the ring no
//! longer has them.

use std::future::poll_fn;

use portolan_types::{BoxFuture, ResourceVersion};

use super::{CursorPoll, slots::SlotId};
use crate::{
    api::{EventBatch, EventStream, StoreError, WatchScope},
    read::{
        history::CatchUpPage,
        state::{as_revision, closed, revision},
    },
    watch::Hub,
};

/// Source of a watch's events: the hub's recent ones, and the history.
pub(crate) trait EventSource: Send + Sync {
    fn hub(&self) -> &Hub;

    /// Reads events of `scope` strictly after `after`, up to a limit or the latest one.
    fn catch_up<'a>(&'a self, scope: &'a WatchScope, after: u64) -> BoxFuture<'a, Result<CatchUpPage, StoreError>>;
}

/// Cursor of a watch. Holds no events; dropping it ends the watch.
pub(crate) struct WatchCursor<P: EventSource> {
    past: P,
    scope: WatchScope,
    slot: SlotId,
    at: u64,
}

impl<P: EventSource> WatchCursor<P> {
    /// # Errors
    /// `Compacted` or `FutureRevision` for a revision that cannot be watched from.
    pub(crate) fn new(past: P, scope: WatchScope, after: Option<ResourceVersion>) -> Result<Self, StoreError> {
        let (slot, at) = past.hub().enter(&scope, after.map(ResourceVersion::get))?;
        Ok(Self { past, scope, slot, at })
    }

    async fn next_batch(&mut self) -> Result<EventBatch, StoreError> {
        let (hub, scope, slot, at) = (self.past.hub(), &self.scope, self.slot, &mut self.at);
        match poll_fn(|context| hub.next(scope, slot, at, context)).await {
            CursorPoll::Batch(batch) => Ok(batch),
            CursorPoll::Closed => Err(closed()),
            CursorPoll::CatchUp => {
                let caught = self.past.catch_up(&self.scope, self.at).await?;
                self.at = caught.upto;
                // The batch may be empty: it reports the revision that the history was read up to.
                Ok(EventBatch { events: caught.events, revision: revision(caught.upto)? })
            }
        }
    }
}

impl<P: EventSource> EventStream for WatchCursor<P> {
    fn next(&mut self) -> BoxFuture<'_, Result<EventBatch, StoreError>> {
        Box::pin(self.next_batch())
    }

    fn progress(&self) -> ResourceVersion {
        as_revision(self.past.hub().progress(&self.scope, self.slot, self.at))
    }
}

impl<P: EventSource> Drop for WatchCursor<P> {
    fn drop(&mut self) {
        self.past.hub().leave(&self.scope, self.slot);
    }
}
