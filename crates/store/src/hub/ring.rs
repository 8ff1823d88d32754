//! Recent events of one topic, bounded by bytes.

use std::{collections::VecDeque, sync::Arc};

use super::Published;
use crate::Event;

/// Most events that one reading returns, give or take a transaction.
const MAX_EVENTS: usize = 1024;
/// What an event takes beside its objects' bytes, about.
const OVERHEAD: usize = 512;

/// Recent events, oldest first.
pub(super) struct Ring {
    entries: VecDeque<Published>,
    bytes: usize,
    floor: u64,
}

/// What follows a place.
pub(super) struct Found {
    pub(super) events: Vec<Arc<Event>>,
    /// Everything up to here was looked at: a transaction's boundary.
    pub(super) upto: u64,
}

impl Ring {
    /// A ring of what comes after `floor`.
    pub(super) fn new(floor: u64) -> Self {
        Self { entries: VecDeque::new(), bytes: 0, floor }
    }

    /// All events after it are here.
    pub(super) fn floor(&self) -> u64 {
        self.floor
    }

    /// Bytes of the events, about.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Appends an event, and drops the oldest ones beyond `limit` bytes.
    pub(super) fn push(&mut self, published: Published, limit: usize) {
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

    /// The events after `at` that `wanted` accepts, up to `last` or a bound: whole transactions.
    pub(super) fn after(&self, at: u64, last: u64, wanted: impl Fn(&Event) -> bool) -> Found {
        let start = self.entries.partition_point(|published| published.event.revision.get() <= at);
        let mut found = Found { events: Vec::new(), upto: at };
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
