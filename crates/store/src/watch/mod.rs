//! Watch hub: one ring of recent events per watched resource and per watched physical cluster; a watcher is a cursor
//! into it. Publishing appends, and wakes each waiter once; it never waits for a watcher and never touches a slow one.

mod cursor;
mod ring;
mod slots;
#[cfg(test)]
mod tests;

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, Waker},
};

use parking_lot::Mutex;
use portolan_types::{GroupResource, LogicalClusterId};
use prometheus::IntGauge;

pub(crate) use self::cursor::{EventSource, WatchCursor};
use self::{
    ring::EventRing,
    slots::{SlotId, WatcherSlots},
};
use crate::{
    api::{Event, EventBatch, StoreError, WatchScope, damage::Damage},
    metrics::StoreMetrics,
    read::{
        history,
        state::{StoreMarks, revision},
    },
};

/// Limits of the hub's memory, in bytes of events.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RingBudget {
    /// Limit of one ring.
    pub(crate) each: usize,
    /// Limit of all rings together. Beyond it, each ring is cut to half of its content.
    pub(crate) all: usize,
}

/// Event and the boundary of its transaction.
#[derive(Clone, Debug)]
pub(crate) struct PublishedEvent {
    pub(crate) event: Arc<Event>,
    pub(crate) boundary: u64,
    /// Damage of a deleted object whose last state is unknown. Only the key of its event is meaningful.
    pub(crate) lost: Option<Damage>,
}

/// Topic of a ring.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum RingTopic {
    Resource(GroupResource),
    PlacedOn(String),
    All,
}

impl RingTopic {
    fn of(scope: &WatchScope) -> (Self, Option<LogicalClusterId>) {
        match scope {
            WatchScope::Resource(resource, cluster) => (Self::Resource(resource.clone()), *cluster),
            WatchScope::PlacedOn(uid) => (Self::PlacedOn(uid.clone()), None),
            WatchScope::All => (Self::All, None),
        }
    }
}

/// Ring and its waiting watchers.
struct WatchedTopic {
    ring: EventRing,
    watchers: usize,
    waiting: WatcherSlots,
}

struct State {
    topics: HashMap<RingTopic, WatchedTopic>,
    /// Bytes of all rings.
    bytes: usize,
    resources: usize,
    placements: usize,
    audits: usize,
    next_slot: SlotId,
    closed: bool,
}

/// Recent events and the watchers that wait for the next ones.
pub(crate) struct Hub {
    state: Mutex<State>,
    last: AtomicU64,
    floor: AtomicU64,
    budget: RingBudget,
    watchers: IntGauge,
    ring_bytes: IntGauge,
}

/// Result of polling a cursor.
enum CursorPoll {
    Batch(EventBatch),
    /// The cursor fell off the ring and has to read the history.
    CatchUp,
    Closed,
}

impl Hub {
    pub(crate) fn new(marks: StoreMarks, budget: RingBudget, metrics: &StoreMetrics) -> Self {
        let (watchers, ring_bytes) = (metrics.watchers.clone(), metrics.rings.clone());
        let state = State {
            topics: HashMap::new(),
            bytes: 0,
            resources: 0,
            placements: 0,
            audits: 0,
            next_slot: 0,
            closed: false,
        };
        Self {
            state: Mutex::new(state),
            last: marks.last.into(),
            floor: marks.floor.into(),
            budget,
            watchers,
            ring_bytes,
        }
    }

    /// Returns the present marks of the store.
    pub(crate) fn marks(&self) -> StoreMarks {
        StoreMarks { floor: self.floor.load(Ordering::Acquire), last: self.last.load(Ordering::Acquire) }
    }

    /// Raises the floor of the history.
    pub(crate) fn raise_floor(&self, floor: u64) {
        self.floor.fetch_max(floor, Ordering::AcqRel);
    }

    /// Publishes a synced batch: to readers by calling `show`, and to its watchers. Runs inside the committer, so it
    /// only appends and wakes.
    pub(crate) fn publish(&self, events: Vec<PublishedEvent>, marks: StoreMarks, show: impl FnOnce()) {
        let mut wakers = Vec::new();
        {
            let mut state = self.state.lock();
            show();
            let before = self.last.swap(marks.last, Ordering::AcqRel);
            self.raise_floor(marks.floor);
            for published in events {
                state.append(&published, before, self.budget, &mut wakers);
            }
            self.update_gauge(&state);
        }
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Continues at a state whose events were not published: watchers read them from the history.
    pub(crate) fn jump(&self, marks: StoreMarks) {
        let mut wakers = Vec::new();
        {
            let mut state = self.state.lock();
            let before = self.last.swap(marks.last, Ordering::AcqRel);
            self.raise_floor(marks.floor);
            if before != marks.last {
                for watched in state.topics.values_mut() {
                    watched.ring = EventRing::new(marks.last);
                    watched.waiting.wake_all(before, &mut wakers);
                }
                state.bytes = 0;
                self.update_gauge(&state);
            }
        }
        wakers.into_iter().for_each(Waker::wake);
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.state.lock().closed
    }

    /// Ends all watches.
    pub(crate) fn close(&self) {
        let mut wakers = Vec::new();
        {
            let mut state = self.state.lock();
            state.closed = true;
            let before = self.last.load(Ordering::Acquire);
            state.topics.values_mut().for_each(|watched| watched.waiting.wake_all(before, &mut wakers));
        }
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Registers a watcher of events after `after`, or from now on.
    fn enter(&self, scope: &WatchScope, after: Option<u64>) -> Result<(SlotId, u64), StoreError> {
        let mut state = self.state.lock();
        let marks = self.marks();
        let after = after.unwrap_or(marks.last);
        marks.check_happened(after)?;
        marks.check_kept(after)?;
        let (topic, _) = RingTopic::of(scope);
        state.enter(topic, marks.last);
        state.next_slot += 1;
        self.watchers.inc();
        Ok((state.next_slot, after))
    }

    fn leave(&self, scope: &WatchScope, slot: SlotId) {
        let mut state = self.state.lock();
        let (topic, cluster) = RingTopic::of(scope);
        self.watchers.dec();
        let Some(watched) = state.topics.get_mut(&topic) else { return };
        watched.waiting.remove(slot, cluster);
        watched.watchers -= 1;
        if watched.watchers == 0 {
            state.bytes -= watched.ring.bytes();
            state.topics.remove(&topic);
            state.count(&topic, -1);
            self.update_gauge(&state);
        }
    }

    /// Updates the gauge. Called under the lock, so that the last value stays.
    fn update_gauge(&self, state: &State) {
        self.ring_bytes.set(i64::try_from(state.bytes).unwrap_or(i64::MAX));
    }

    /// Returns the progress of a watcher that reached `at`: while it waits, the latest revision.
    fn progress(&self, scope: &WatchScope, slot: SlotId, at: u64) -> u64 {
        let state = self.state.lock();
        let (topic, cluster) = RingTopic::of(scope);
        match state.topics.get(&topic).and_then(|watched| watched.waiting.state_of(slot, cluster)) {
            Some(slots::WatcherState::Waiting) => self.last.load(Ordering::Acquire),
            Some(slots::WatcherState::WokenAfter(before)) => before.max(at),
            None => at,
        }
    }

    /// Returns the events after `at` for a watcher, or registers it as waiting. Advances `at`.
    fn next(&self, scope: &WatchScope, slot: SlotId, at: &mut u64, context: &mut Context<'_>) -> Poll<CursorPoll> {
        let mut state = self.state.lock();
        if state.closed {
            return Poll::Ready(CursorPoll::Closed);
        }
        let last = self.last.load(Ordering::Acquire);
        let (topic, cluster) = RingTopic::of(scope);
        let Some(watched) = state.topics.get_mut(&topic) else { return Poll::Ready(CursorPoll::Closed) };
        match watched.waiting.state_of(slot, cluster) {
            Some(slots::WatcherState::Waiting) => {
                watched.waiting.wait(slot, cluster, context.waker().clone());
                return Poll::Pending;
            }
            Some(slots::WatcherState::WokenAfter(before)) => {
                *at = before.max(*at);
                watched.waiting.remove(slot, cluster);
            }
            None => {}
        }
        if *at < watched.ring.floor() {
            return Poll::Ready(CursorPoll::CatchUp);
        }
        let found = watched.ring.after(*at, last, |event| history::belongs_to_watch(scope, event));
        *at = found.upto;
        match (found.events.is_empty(), revision(found.upto)) {
            (false, Ok(revision)) => Poll::Ready(CursorPoll::Batch(EventBatch { events: found.events, revision })),
            _ => {
                watched.waiting.wait(slot, cluster, context.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl State {
    fn enter(&mut self, topic: RingTopic, last: u64) {
        if let Some(watched) = self.topics.get_mut(&topic) {
            watched.watchers += 1;
            return;
        }
        self.count(&topic, 1);
        self.topics
            .insert(topic, WatchedTopic { ring: EventRing::new(last), watchers: 1, waiting: WatcherSlots::default() });
    }

    fn count(&mut self, topic: &RingTopic, change: isize) {
        let counter = match topic {
            RingTopic::Resource(_) => &mut self.resources,
            RingTopic::PlacedOn(_) => &mut self.placements,
            RingTopic::All => &mut self.audits,
        };
        *counter = counter.saturating_add_signed(change);
    }

    /// Appends an event to its rings, and collects the waiters to wake.
    fn append(&mut self, published: &PublishedEvent, before: u64, budget: RingBudget, wakers: &mut Vec<Waker>) {
        let event = &published.event;
        if self.resources > 0 {
            self.append_to(&RingTopic::Resource(event.key.resource.clone()), published, before, budget, wakers);
        }
        if self.placements > 0 {
            let mut uids: Vec<&String> = history::placed_on(event).collect();
            uids.sort_unstable();
            uids.dedup();
            for uid in uids {
                self.append_to(&RingTopic::PlacedOn(uid.clone()), published, before, budget, wakers);
            }
        }
        if self.audits > 0 {
            self.append_to(&RingTopic::All, published, before, budget, wakers);
        }
    }

    fn append_to(
        &mut self,
        topic: &RingTopic,
        published: &PublishedEvent,
        before: u64,
        budget: RingBudget,
        wakers: &mut Vec<Waker>,
    ) {
        let Some(watched) = self.topics.get_mut(topic) else { return };
        let had = watched.ring.bytes();
        match published.lost {
            None => watched.ring.push(published.clone(), budget.each),
            // Its watchers find the damage in the history, and cannot continue.
            Some(_) => watched.ring = EventRing::new(published.boundary),
        }
        watched.waiting.wake(published.event.key.cluster, before, wakers);
        self.bytes = self.bytes + watched.ring.bytes() - had;
        if self.bytes > budget.all {
            self.shrink();
        }
    }

    /// Halves all rings, so that busy topics keep most. This visits every ring, but the limit is reached again only
    /// after half of it was written.
    fn shrink(&mut self) {
        self.topics.values_mut().for_each(|watched| watched.ring.cut(watched.ring.bytes() / 2));
        self.bytes = self.topics.values().map(|watched| watched.ring.bytes()).sum();
    }
}
