//! One watch: a place in the order of writes, in the ring or, once it fell off, in the history.

use std::{future::poll_fn, sync::Arc};

use portolan_types::{BoxFuture, ResourceVersion};

use super::{Next, slots::SlotId};
use crate::{
    EventBatch, EventStream, StoreError, WatchScope,
    blocking::{Party, Weight, run},
    core::{Core, closed},
    history::{CaughtUp, catch_up},
    hub::Hub,
    read::{as_revision, backend, revision},
};

/// A catch-up over more revisions than this runs on a thread for blocking.
const INLINE_REVISIONS: u64 = 256;

/// What a watch stands on: the recent events, and the history behind them.
pub(crate) trait Past: Send + Sync {
    fn hub(&self) -> &Hub;

    /// Reads events of `scope` strictly after `after`, up to a bound or the present.
    fn catch_up<'a>(&'a self, scope: &'a WatchScope, after: u64) -> BoxFuture<'a, Result<CaughtUp, StoreError>>;
}

impl Past for Arc<Core> {
    fn hub(&self) -> &Hub {
        &self.hub
    }

    fn catch_up<'a>(&'a self, scope: &'a WatchScope, after: u64) -> BoxFuture<'a, Result<CaughtUp, StoreError>> {
        let behind = self.hub.marks().last.saturating_sub(after);
        let weight = if behind > INLINE_REVISIONS { Weight::Heavy } else { Weight::Light };
        let party = Party::of_watch(scope);
        let scope = scope.clone();
        Box::pin(async move {
            let caught = run(self, party, weight, move |core| {
                core.view(|view| catch_up(view, &core.resources, &scope, after)).map_err(backend)?
            });
            let caught = caught.await;
            self.note_failed(&caught);
            caught
        })
    }
}

/// A watch. Holds no events; dropping it ends it.
pub(crate) struct Cursor<P: Past> {
    past: P,
    scope: WatchScope,
    slot: SlotId,
    at: u64,
}

impl<P: Past> Cursor<P> {
    /// # Errors
    /// `Compacted` and `FutureRevision` for a place that is not there.
    pub(crate) fn new(past: P, scope: WatchScope, after: Option<ResourceVersion>) -> Result<Self, StoreError> {
        let (slot, at) = past.hub().enter(&scope, after.map(ResourceVersion::get))?;
        Ok(Self { past, scope, slot, at })
    }

    async fn next_batch(&mut self) -> Result<EventBatch, StoreError> {
        let (hub, scope, slot, at) = (self.past.hub(), &self.scope, self.slot, &mut self.at);
        match poll_fn(|context| hub.next(scope, slot, at, context)).await {
            Next::Batch(batch) => Ok(batch),
            Next::Closed => Err(closed()),
            Next::CatchUp => {
                let caught = self.past.catch_up(&self.scope, self.at).await?;
                self.at = caught.upto;
                // Also without events: reading the history may have taken its time, and this is how far it came.
                Ok(EventBatch { events: caught.events, revision: revision(caught.upto)? })
            }
        }
    }
}

impl<P: Past> EventStream for Cursor<P> {
    fn next(&mut self) -> BoxFuture<'_, Result<EventBatch, StoreError>> {
        Box::pin(self.next_batch())
    }

    fn progress(&self) -> ResourceVersion {
        as_revision(self.past.hub().progress(&self.scope, self.slot, self.at))
    }
}

impl<P: Past> Drop for Cursor<P> {
    fn drop(&mut self) {
        self.past.hub().leave(&self.scope, self.slot);
    }
}
