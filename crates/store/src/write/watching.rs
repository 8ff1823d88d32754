//! Watches of an embedded store: events that have left the rings are read from its history.

use std::sync::Arc;

use portolan_types::BoxFuture;

use crate::{
    api::{StoreError, WatchScope},
    read::{
        history::{CatchUpPage, catch_up},
        state::backend,
    },
    reader_pool::{ReadTenant, ReadWeight, run},
    watch::{EventSource, Hub},
    write::core::StoreCore,
};

/// Revisions above which a catch-up runs on a reader thread.
const INLINE_REVISIONS: u64 = 256;

impl EventSource for Arc<StoreCore> {
    fn hub(&self) -> &Hub {
        &self.hub
    }

    fn catch_up<'a>(&'a self, scope: &'a WatchScope, after: u64) -> BoxFuture<'a, Result<CatchUpPage, StoreError>> {
        let behind = self.hub.marks().last.saturating_sub(after);
        let weight = if behind > INLINE_REVISIONS { ReadWeight::Heavy } else { ReadWeight::Light };
        let party = ReadTenant::of_watch(scope);
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
