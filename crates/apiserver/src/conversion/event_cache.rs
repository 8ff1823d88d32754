//! Cache of converted events, bounded in number and bytes.

use std::{collections::VecDeque, sync::Arc};

use parking_lot::Mutex;
use portolan_store::Event;
use portolan_types::{ResourceVersion, Status};
use tokio::sync::OnceCell;

/// Most cached converted events, and their bytes.
const MAX_EVENTS: usize = 256;
const MAX_BYTES: usize = 16 * 1024 * 1024;

/// Key of a converted event.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct ConvertedEventKey {
    pub(super) revision: ResourceVersion,
    pub(super) version: String,
    pub(super) with_previous: bool,
}

type ConvertedEvent = Arc<OnceCell<Arc<Event>>>;

/// Cache of the latest converted events, oldest first, shared by all watchers of a version.
#[derive(Default)]
pub(crate) struct ConvertedEvents(Mutex<VecDeque<(ConvertedEventKey, ConvertedEvent)>>);

impl ConvertedEvents {
    pub(super) async fn get<F>(&self, key: ConvertedEventKey, make: impl FnOnce() -> F) -> Result<Arc<Event>, Status>
    where
        F: Future<Output = Result<Arc<Event>, Status>>,
    {
        let turn = ConversionWaiter { events: self, cell: self.cell(key) };
        let event = turn.cell.get_or_try_init(make).await?.clone();
        self.trim();
        Ok(event)
    }

    fn cell(&self, key: ConvertedEventKey) -> ConvertedEvent {
        let mut kept = self.0.lock();
        if let Some((_, cell)) = kept.iter().rev().find(|(own, _)| *own == key) {
            return cell.clone();
        }
        // Events in conversion count too.
        while kept.len() >= MAX_EVENTS {
            kept.pop_front();
        }
        let cell = ConvertedEvent::default();
        kept.push_back((key, cell.clone()));
        cell
    }

    /// Returns the bytes of the cache.
    pub(crate) fn bytes(&self) -> usize {
        self.0.lock().iter().map(|(_, cell)| size(cell)).sum()
    }

    fn trim(&self) {
        let mut kept = self.0.lock();
        let mut total: usize = kept.iter().map(|(_, cell)| size(cell)).sum();
        while total > MAX_BYTES {
            let Some((_, oldest)) = kept.pop_front() else { return };
            total -= size(&oldest).min(total);
        }
    }
}

/// Waiter for a converted event. Failed and abandoned conversions are removed from the cache.
struct ConversionWaiter<'a> {
    events: &'a ConvertedEvents,
    cell: ConvertedEvent,
}

impl Drop for ConversionWaiter<'_> {
    fn drop(&mut self) {
        if self.cell.initialized() {
            return;
        }
        let mut kept = self.events.0.lock();
        // Released before the lock, so that exactly one of two concurrent waiters is the last.
        let own = std::mem::take(&mut self.cell);
        if Arc::strong_count(&own) == 2 {
            kept.retain(|(_, other)| !Arc::ptr_eq(other, &own));
        }
    }
}

fn size(cell: &ConvertedEvent) -> usize {
    cell.get().map_or(0, |event| bytes(event))
}

fn bytes(event: &Event) -> usize {
    event.record.body().len() + event.previous.as_ref().map_or(0, |previous| previous.body().len())
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    fn key(revision: u64) -> ConvertedEventKey {
        let revision = ResourceVersion::new(revision).unwrap();
        ConvertedEventKey { revision, version: "example.dev/v1".into(), with_previous: false }
    }

    #[tokio::test]
    async fn failed_conversions_are_not_cached() {
        let events = ConvertedEvents::default();
        let failed = || async { Err(Status::internal("no")) };
        events.get(key(1), failed).await.unwrap_err();
        assert!(events.0.lock().is_empty(), "one that fails");
        let mut first = Box::pin(events.get(key(1), std::future::pending));
        assert!(first.as_mut().now_or_never().is_none());
        let mut second = Box::pin(events.get(key(1), failed));
        assert!(second.as_mut().now_or_never().is_none(), "it waits for the first one");
        drop(first);
        assert_eq!(events.0.lock().len(), 1, "the other one still waits");
        second.await.unwrap_err();
        assert!(events.0.lock().is_empty(), "all have left");
        let waiting = (1..=2 * MAX_EVENTS as u64).map(|n| {
            let mut own = Box::pin(events.get(key(n), std::future::pending));
            assert!(own.as_mut().now_or_never().is_none());
            own
        });
        let waiting: Vec<_> = waiting.collect();
        assert_eq!(events.0.lock().len(), MAX_EVENTS, "however many wait");
        drop(waiting);
        assert!(events.0.lock().is_empty());
    }
}
