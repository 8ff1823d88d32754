//! One watch: a place in the order of writes, in the ring or, once it fell off, in the history.

use std::{future::poll_fn, sync::Arc};

use portolan_types::{BoxFuture, ResourceVersion};

use super::{Next, slots::SlotId};
use crate::{
    EventBatch, EventStream, StoreError, WatchScope,
    blocking::{Weight, run},
    core::{Core, closed},
    history::{CaughtUp, catch_up},
    read::{as_revision, backend, revision},
};

/// A catch-up over more revisions than this runs on a thread for blocking.
const INLINE_REVISIONS: u64 = 256;

/// A watch. Holds no events; dropping it ends it.
pub(crate) struct Cursor {
    core: Arc<Core>,
    scope: WatchScope,
    slot: SlotId,
    at: u64,
}

impl Cursor {
    /// # Errors
    /// `Compacted` and `FutureRevision` for a place that is not there.
    pub(crate) fn new(core: Arc<Core>, scope: WatchScope, after: Option<ResourceVersion>) -> Result<Self, StoreError> {
        let (slot, at) = core.hub.enter(&scope, after.map(ResourceVersion::get))?;
        Ok(Self { core, scope, slot, at })
    }

    async fn next_batch(&mut self) -> Result<EventBatch, StoreError> {
        loop {
            let (hub, scope, slot, at) = (&self.core.hub, &self.scope, self.slot, &mut self.at);
            match poll_fn(|context| hub.next(scope, slot, at, context)).await {
                Next::Batch(batch) => return Ok(batch),
                Next::Closed => return Err(closed()),
                Next::CatchUp => {
                    let caught = self.catch_up().await?;
                    self.at = caught.upto;
                    if !caught.events.is_empty() {
                        return Ok(EventBatch { events: caught.events, revision: revision(caught.upto)? });
                    }
                }
            }
        }
    }

    async fn catch_up(&self) -> Result<CaughtUp, StoreError> {
        let behind = self.core.hub.marks().last.saturating_sub(self.at);
        let weight = if behind > INLINE_REVISIONS { Weight::Heavy } else { Weight::Light };
        let (scope, at) = (self.scope.clone(), self.at);
        run(&self.core, weight, move |core| {
            core.view(|view| catch_up(view, &core.resources, &scope, at)).map_err(backend)?
        })
        .await
    }
}

impl EventStream for Cursor {
    fn next(&mut self) -> BoxFuture<'_, Result<EventBatch, StoreError>> {
        Box::pin(self.next_batch())
    }

    fn progress(&self) -> ResourceVersion {
        as_revision(self.core.hub.progress(&self.scope, self.slot, self.at))
    }
}

impl Drop for Cursor {
    fn drop(&mut self) {
        self.core.hub.leave(&self.scope, self.slot);
    }
}
