//! The watch hub: per watched resource, and per watched physical cluster, one ring of recent events; a watcher is a cursor
//! into it. Publishing appends and wakes whoever waits, once; it never waits for a watcher and never touches a slow one.

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

pub(crate) use self::cursor::{Cursor, Past};
use self::{
    ring::Ring,
    slots::{SlotId, Slots},
};
use crate::{
    Event, EventBatch, StoreError, WatchScope, history,
    metrics::Metrics,
    read::{Marks, revision},
    value::Damage,
};

/// Bounds of the hub's memory, in bytes of events.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RingBudget {
    /// Of one ring.
    pub(crate) each: usize,
    /// Of all rings together. With more, each is cut to half of what it has.
    pub(crate) all: usize,
}

/// An event and the boundary of its transaction.
#[derive(Clone, Debug)]
pub(crate) struct Published {
    pub(crate) event: Arc<Event>,
    pub(crate) boundary: u64,
    /// Why the last state of an object that was deleted is not known. What is said of it in the event is no more than a key.
    pub(crate) lost: Option<Damage>,
}

/// What a ring is for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Topic {
    Resource(GroupResource),
    PlacedOn(String),
}

impl Topic {
    fn of(scope: &WatchScope) -> (Self, Option<LogicalClusterId>) {
        match scope {
            WatchScope::Resource(resource, cluster) => (Self::Resource(resource.clone()), *cluster),
            WatchScope::PlacedOn(uid) => (Self::PlacedOn(uid.clone()), None),
        }
    }
}

/// A ring with those who wait for it.
struct Watched {
    ring: Ring,
    watchers: usize,
    waiting: Slots,
}

struct State {
    topics: HashMap<Topic, Watched>,
    /// Of all rings.
    bytes: usize,
    resources: usize,
    placements: usize,
    next_slot: SlotId,
    closed: bool,
}

/// Recent events, and who waits for the next ones.
pub(crate) struct Hub {
    state: Mutex<State>,
    last: AtomicU64,
    floor: AtomicU64,
    budget: RingBudget,
    watchers: IntGauge,
    ring_bytes: IntGauge,
}

/// What a cursor finds.
enum Next {
    Batch(EventBatch),
    /// It fell off the ring: read the history.
    CatchUp,
    Closed,
}

impl Hub {
    pub(crate) fn new(marks: Marks, budget: RingBudget, metrics: &Metrics) -> Self {
        let (watchers, ring_bytes) = (metrics.watchers.clone(), metrics.rings.clone());
        let state =
            State { topics: HashMap::new(), bytes: 0, resources: 0, placements: 0, next_slot: 0, closed: false };
        Self {
            state: Mutex::new(state),
            last: marks.last.into(),
            floor: marks.floor.into(),
            budget,
            watchers,
            ring_bytes,
        }
    }

    /// Where the store stands.
    pub(crate) fn marks(&self) -> Marks {
        Marks { floor: self.floor.load(Ordering::Acquire), last: self.last.load(Ordering::Acquire) }
    }

    /// Forgets that there was history up to `floor`.
    pub(crate) fn raise_floor(&self, floor: u64) {
        self.floor.fetch_max(floor, Ordering::AcqRel);
    }

    /// Makes a synced batch visible: to readers by `show`, and to its watchers. Runs inside the committer, so it only
    /// appends and wakes.
    pub(crate) fn publish(&self, events: Vec<Published>, marks: Marks, show: impl FnOnce()) {
        let mut wakers = Vec::new();
        {
            let mut state = self.state.lock();
            show();
            let before = self.last.swap(marks.last, Ordering::AcqRel);
            self.raise_floor(marks.floor);
            for published in events {
                state.append(&published, before, self.budget, &mut wakers);
            }
            self.tell(&state);
        }
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Goes on at a state that came about without its events having been published: watchers read them from the history.
    pub(crate) fn jump(&self, marks: Marks) {
        let mut wakers = Vec::new();
        {
            let mut state = self.state.lock();
            let before = self.last.swap(marks.last, Ordering::AcqRel);
            self.raise_floor(marks.floor);
            if before != marks.last {
                for watched in state.topics.values_mut() {
                    watched.ring = Ring::new(marks.last);
                    watched.waiting.wake_all(before, &mut wakers);
                }
                state.bytes = 0;
                self.tell(&state);
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

    /// Registers a watcher of what comes after `after`, or of what comes from now on.
    fn enter(&self, scope: &WatchScope, after: Option<u64>) -> Result<(SlotId, u64), StoreError> {
        let mut state = self.state.lock();
        let marks = self.marks();
        let after = after.unwrap_or(marks.last);
        marks.check_happened(after)?;
        marks.check_kept(after)?;
        let (topic, _) = Topic::of(scope);
        state.enter(topic, marks.last);
        state.next_slot += 1;
        self.watchers.inc();
        Ok((state.next_slot, after))
    }

    fn leave(&self, scope: &WatchScope, slot: SlotId) {
        let mut state = self.state.lock();
        let (topic, cluster) = Topic::of(scope);
        self.watchers.dec();
        let Some(watched) = state.topics.get_mut(&topic) else { return };
        watched.waiting.remove(slot, cluster);
        watched.watchers -= 1;
        if watched.watchers == 0 {
            state.bytes -= watched.ring.bytes();
            state.topics.remove(&topic);
            state.count(&topic, -1);
            self.tell(&state);
        }
    }

    /// Called under the lock, so that the gauge ends with the latest.
    fn tell(&self, state: &State) {
        self.ring_bytes.set(i64::try_from(state.bytes).unwrap_or(i64::MAX));
    }

    /// How far a watcher has been served that reached `at`: while it waits, up to the present.
    fn progress(&self, scope: &WatchScope, slot: SlotId, at: u64) -> u64 {
        let state = self.state.lock();
        let (topic, cluster) = Topic::of(scope);
        match state.topics.get(&topic).and_then(|watched| watched.waiting.standing(slot, cluster)) {
            Some(slots::Standing::Waiting) => self.last.load(Ordering::Acquire),
            Some(slots::Standing::WokenAfter(before)) => before.max(at),
            None => at,
        }
    }

    /// What comes after `at` for a watcher, which waits when that is nothing yet. `at` moves along.
    fn next(&self, scope: &WatchScope, slot: SlotId, at: &mut u64, context: &mut Context<'_>) -> Poll<Next> {
        let mut state = self.state.lock();
        if state.closed {
            return Poll::Ready(Next::Closed);
        }
        let last = self.last.load(Ordering::Acquire);
        let (topic, cluster) = Topic::of(scope);
        let Some(watched) = state.topics.get_mut(&topic) else { return Poll::Ready(Next::Closed) };
        match watched.waiting.standing(slot, cluster) {
            Some(slots::Standing::Waiting) => {
                watched.waiting.wait(slot, cluster, context.waker().clone());
                return Poll::Pending;
            }
            Some(slots::Standing::WokenAfter(before)) => {
                *at = before.max(*at);
                watched.waiting.remove(slot, cluster);
            }
            None => {}
        }
        if *at < watched.ring.floor() {
            return Poll::Ready(Next::CatchUp);
        }
        let found = watched.ring.after(*at, last, |event| history::concerns(scope, event));
        *at = found.upto;
        match (found.events.is_empty(), revision(found.upto)) {
            (false, Ok(revision)) => Poll::Ready(Next::Batch(EventBatch { events: found.events, revision })),
            _ => {
                watched.waiting.wait(slot, cluster, context.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl State {
    fn enter(&mut self, topic: Topic, last: u64) {
        if let Some(watched) = self.topics.get_mut(&topic) {
            watched.watchers += 1;
            return;
        }
        self.count(&topic, 1);
        self.topics.insert(topic, Watched { ring: Ring::new(last), watchers: 1, waiting: Slots::default() });
    }

    fn count(&mut self, topic: &Topic, change: isize) {
        let counter = match topic {
            Topic::Resource(_) => &mut self.resources,
            Topic::PlacedOn(_) => &mut self.placements,
        };
        *counter = counter.saturating_add_signed(change);
    }

    /// Appends an event to the rings that it belongs to, and collects who waits for it.
    fn append(&mut self, published: &Published, before: u64, budget: RingBudget, wakers: &mut Vec<Waker>) {
        let event = &published.event;
        if self.resources > 0 {
            self.append_to(&Topic::Resource(event.key.resource.clone()), published, before, budget, wakers);
        }
        if self.placements > 0 {
            let mut uids: Vec<&String> = history::placed_on(event).collect();
            uids.sort_unstable();
            uids.dedup();
            for uid in uids {
                self.append_to(&Topic::PlacedOn(uid.clone()), published, before, budget, wakers);
            }
        }
    }

    fn append_to(
        &mut self,
        topic: &Topic,
        published: &Published,
        before: u64,
        budget: RingBudget,
        wakers: &mut Vec<Waker>,
    ) {
        let Some(watched) = self.topics.get_mut(topic) else { return };
        let had = watched.ring.bytes();
        match published.lost {
            None => watched.ring.push(published.clone(), budget.each),
            // Who watches it finds it in the history, and cannot go on.
            Some(_) => watched.ring = Ring::new(published.boundary),
        }
        watched.waiting.wake(published.event.key.cluster, before, wakers);
        self.bytes = self.bytes + watched.ring.bytes() - had;
        if self.bytes > budget.all {
            self.shrink();
        }
    }

    /// Halves all rings, so that those keep most that much is written to. That takes a look at each of them, and they are that full
    /// again only after half of the bound has come.
    fn shrink(&mut self) {
        self.topics.values_mut().for_each(|watched| watched.ring.cut(watched.ring.bytes() / 2));
        self.bytes = self.topics.values().map(|watched| watched.ring.bytes()).sum();
    }
}
