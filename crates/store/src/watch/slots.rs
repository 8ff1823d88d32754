//! Waiting watchers of a topic: those of one logical cluster, or of all.

use std::{
    collections::{BTreeMap, HashMap},
    task::Waker,
};

use portolan_types::LogicalClusterId;

/// ID of a watcher.
pub(super) type SlotId = u64;

/// State of a watcher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WatcherState {
    /// The watcher has received everything and waits.
    Waiting,
    /// The watcher had received everything up to this revision when it was woken.
    WokenAfter(u64),
}

/// Waiting watchers of a topic, and those that were woken but have not polled yet. They are woken in an order that a
/// seeded simulation repeats.
#[derive(Default)]
pub(super) struct WatcherSlots {
    waiting: BTreeMap<Option<LogicalClusterId>, BTreeMap<SlotId, Waker>>,
    woken: HashMap<SlotId, u64>,
}

impl WatcherSlots {
    pub(super) fn state_of(&self, slot: SlotId, cluster: Option<LogicalClusterId>) -> Option<WatcherState> {
        if let Some(before) = self.woken.get(&slot) {
            return Some(WatcherState::WokenAfter(*before));
        }
        let waits = self.waiting.get(&cluster).is_some_and(|slots| slots.contains_key(&slot));
        waits.then_some(WatcherState::Waiting)
    }

    pub(super) fn wait(&mut self, slot: SlotId, cluster: Option<LogicalClusterId>, waker: Waker) {
        self.waiting.entry(cluster).or_default().insert(slot, waker);
    }

    pub(super) fn remove(&mut self, slot: SlotId, cluster: Option<LogicalClusterId>) {
        self.woken.remove(&slot);
        let Some(slots) = self.waiting.get_mut(&cluster) else { return };
        slots.remove(&slot);
        if slots.is_empty() {
            self.waiting.remove(&cluster);
        }
    }

    /// Takes the waiters for events of `cluster`. They have received everything up to `before`.
    pub(super) fn wake(&mut self, cluster: LogicalClusterId, before: u64, wakers: &mut Vec<Waker>) {
        for key in [Some(cluster), None] {
            let slots = self.waiting.remove(&key);
            self.take(slots.into_iter().flatten(), before, wakers);
        }
    }

    /// Takes all waiters.
    pub(super) fn wake_all(&mut self, before: u64, wakers: &mut Vec<Waker>) {
        let slots = std::mem::take(&mut self.waiting);
        self.take(slots.into_values().flatten(), before, wakers);
    }

    fn take(&mut self, slots: impl Iterator<Item = (SlotId, Waker)>, before: u64, wakers: &mut Vec<Waker>) {
        for (slot, waker) in slots {
            self.woken.insert(slot, before);
            wakers.push(waker);
        }
    }
}
