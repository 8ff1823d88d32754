//! Who waits for which events of a topic: those of one logical cluster, or all.

use std::{collections::HashMap, task::Waker};

use portolan_types::LogicalClusterId;

/// Names a watcher.
pub(super) type SlotId = u64;

/// Whether a watcher waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// It has had everything up to the present.
    Waiting,
    /// It has had everything up to here, and then came something for it.
    WokenAfter(u64),
}

/// The waiting watchers of a topic, and those that were woken and have not come yet.
#[derive(Default)]
pub(super) struct Slots {
    waiting: HashMap<Option<LogicalClusterId>, HashMap<SlotId, Waker>>,
    woken: HashMap<SlotId, u64>,
}

impl Slots {
    pub(super) fn standing(&self, slot: SlotId, cluster: Option<LogicalClusterId>) -> Option<Standing> {
        if let Some(before) = self.woken.get(&slot) {
            return Some(Standing::WokenAfter(*before));
        }
        let waits = self.waiting.get(&cluster).is_some_and(|slots| slots.contains_key(&slot));
        waits.then_some(Standing::Waiting)
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

    /// Takes out who waits for events of `cluster`. They have had everything up to `before`.
    pub(super) fn wake(&mut self, cluster: LogicalClusterId, before: u64, wakers: &mut Vec<Waker>) {
        for key in [Some(cluster), None] {
            let slots = self.waiting.remove(&key);
            self.take(slots.into_iter().flatten(), before, wakers);
        }
    }

    /// Takes out everybody.
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
