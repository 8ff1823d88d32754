//! Events of what is computed from physical clusters.

use std::sync::Arc;

use portolan_store::{Event, EventBatch, EventStream, StoreError, StoredObject};
use portolan_types::{BoxFuture, Record, ResourceVersion};

use super::Reach;

/// The events of all physical clusters, as a logical cluster sees them. Who may use which one is as it was when the watch began.
pub(crate) struct ReachEvents {
    events: Box<dyn EventStream>,
    reach: Reach,
}

impl ReachEvents {
    /// Over the events of physical clusters in all logical clusters.
    pub(crate) fn new(events: Box<dyn EventStream>, reach: Reach) -> Self {
        Self { events, reach }
    }
}

impl EventStream for ReachEvents {
    fn next(&mut self) -> BoxFuture<'_, Result<EventBatch, StoreError>> {
        Box::pin(async move {
            let batch = self.events.next().await?;
            let events = batch.events.iter().filter_map(|event| self.reach.event(event)).collect();
            Ok(EventBatch { events, revision: batch.revision })
        })
    }

    fn progress(&self) -> ResourceVersion {
        self.events.progress()
    }
}

impl Reach {
    /// An event as it is shown; `None` where the physical cluster is out of reach.
    pub(super) fn event(&self, event: &Arc<Event>) -> Option<Arc<Event>> {
        self.home(&event.key)?;
        if self.is_shown_as_stored(&event.key) {
            return Some(event.clone());
        }
        let shown = |record: &Arc<Record>| {
            let stored = StoredObject {
                key: event.key.clone(),
                revision: event.revision,
                created: event.revision,
                record: record.clone(),
            };
            // One that is no JSON is shown to nobody; a list tells of it.
            self.shown(&stored).ok().flatten().map(|shown| shown.record)
        };
        Some(Arc::new(Event {
            key: self.key(&event.key),
            record: shown(&event.record)?,
            previous: event.previous.as_ref().and_then(shown),
            ..Event::clone(event)
        }))
    }
}
