//! The pods of one controller, counted.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use jiff::Timestamp;
use portolan_types::ObjectKey;

use super::facts::{PodController, PodFacts, PodPhase};

/// Pods of one controller, and how many there are of each sort.
#[derive(Default)]
pub(crate) struct OwnedPods {
    pub(super) owner: PodController,
    pods: BTreeMap<ObjectKey, Arc<PodFacts>>,
    /// Active pods in the order in which they are deleted: those that do not serve, then the youngest.
    spare: BTreeSet<(bool, Reverse<u64>, ObjectKey)>,
    /// Active pods that are ready.
    pub(crate) ready: usize,
    /// Pods that are being deleted.
    pub(crate) deleting: usize,
    /// Pods that ended well.
    pub(crate) succeeded: usize,
    /// Pods that failed.
    pub(crate) failed: usize,
}

impl OwnedPods {
    pub(super) fn of(owner: PodController) -> Self {
        Self { owner, ..Self::default() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.pods.is_empty()
    }

    /// All of them, by name.
    pub(crate) fn pods(&self) -> &BTreeMap<ObjectKey, Arc<PodFacts>> {
        &self.pods
    }

    /// Number of active pods.
    pub(crate) fn active(&self) -> usize {
        self.spare.len()
    }

    /// Returns the active pods that are deleted first, with their uids.
    pub(crate) fn first_to_delete(&self, count: usize) -> Vec<(ObjectKey, String)> {
        let uid = |key: &ObjectKey| self.pods.get(key).map_or_else(String::new, |pod| pod.uid.clone());
        self.spare.iter().take(count).map(|(.., key)| (key.clone(), uid(key))).collect()
    }

    /// Counts the ready pods that have been so for `seconds`; also returns the seconds until the next one has.
    pub(crate) fn available(&self, seconds: i64, now: Timestamp) -> (usize, Option<u64>) {
        if seconds <= 0 {
            return (self.ready, None);
        }
        let left = self.pods.values().filter(|pod| pod.serves()).map(|pod| {
            let since = pod.ready_since.unwrap_or(now);
            since.as_second().saturating_add(seconds).saturating_sub(now.as_second())
        });
        let (mut available, mut next) = (0, None::<u64>);
        for left in left {
            match u64::try_from(left) {
                Ok(left) if left > 0 => next = Some(next.map_or(left, |next| next.min(left))),
                _ => available += 1,
            }
        }
        (available, next)
    }

    pub(super) fn add(&mut self, key: &ObjectKey, pod: &Arc<PodFacts>) {
        self.change(key, pod, true);
        self.pods.insert(key.clone(), pod.clone());
    }

    pub(super) fn remove(&mut self, key: &ObjectKey, pod: &PodFacts) {
        self.change(key, pod, false);
        self.pods.remove(key);
    }

    fn change(&mut self, key: &ObjectKey, pod: &PodFacts, comes: bool) {
        if pod.is_active() {
            let entry = (pod.is_ready, Reverse(pod.revision), key.clone());
            let _ = if comes { self.spare.insert(entry) } else { self.spare.remove(&entry) };
        }
        for (counts, applies) in [
            (&mut self.ready, pod.serves()),
            (&mut self.deleting, pod.is_deleting),
            (&mut self.succeeded, pod.phase == PodPhase::Succeeded),
            (&mut self.failed, pod.phase == PodPhase::Failed),
        ] {
            if applies {
                *counts = if comes { *counts + 1 } else { counts.saturating_sub(1) };
            }
        }
    }
}
