//! Ring of recent events of one topic, bounded by bytes.

use std::{collections::VecDeque, sync::Arc};

use super::PublishedEvent;
use crate::api::Event;

/// Most events of one read; the last transaction may exceed it.
const MAX_EVENTS: usize = 1024;
/// Approximate cost of an event beside its objects' bytes.
const OVERHEAD: usize = 512;

/// Ring of recent events, oldest first.
pub(super) struct EventRing {
    entries: VecDeque<PublishedEvent>,
    bytes: usize,
    floor: u64,
}

/// Events after a position.
pub(super) struct RingPage {
    pub(super) events: Vec<Arc<Event>>,
    /// Revision up to which everything was read: a transaction's boundary.
    pub(super) upto: u64,
}

impl EventRing {
    /// Creates a ring for the events after `floor`.
    pub(super) fn new(floor: u64) -> Self {
        Self { entries: VecDeque::new(), bytes: 0, floor }
    }

    /// Returns the revision after which all events are in the ring.
    pub(super) fn floor(&self) -> u64 {
        self.floor
    }

    /// Returns the approximate size of the events in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Appends an event, and drops the oldest ones beyond `limit` bytes.
    pub(super) fn push(&mut self, published: PublishedEvent, limit: usize) {
        self.bytes += size(&published.event);
        self.entries.push_back(published);
        self.cut(limit);
    }

    /// Drops the oldest events beyond `limit` bytes.
    pub(super) fn cut(&mut self, limit: usize) {
        while self.bytes > limit {
            let Some(dropped) = self.entries.pop_front() else { return };
            self.bytes -= size(&dropped.event);
            self.floor = dropped.event.revision.get();
        }
        if self.entries.capacity() > 64 && self.entries.len() < self.entries.capacity() / 4 {
            self.entries.shrink_to(self.entries.len() * 2);
        }
    }

    /// Returns the events after `at` that `wanted` accepts, up to `last` or a limit: whole transactions.
    pub(super) fn after(&self, at: u64, last: u64, wanted: impl Fn(&Event) -> bool) -> RingPage {
        let start = self.entries.partition_point(|published| published.event.revision.get() <= at);
        let mut found = RingPage { events: Vec::new(), upto: at };
        for published in self.entries.range(start..) {
            if found.events.len() >= MAX_EVENTS && published.boundary != found.upto {
                return found;
            }
            if wanted(&published.event) {
                found.events.push(published.event.clone());
            }
            found.upto = published.boundary;
        }
        found.upto = last.max(at);
        found
    }
}

fn size(event: &Event) -> usize {
    OVERHEAD + event.record.body().len() + event.previous.as_ref().map_or(0, |record| record.body().len())
}
