//! Waiting objects of a drain, kept between passes, so that a pass examines only those that it may move.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use portolan_types::{
    ObjectKey, Uid,
    placement::{DrainRow, DrainRowState, MAX_DRAIN_ROWS, PlacementRecord},
};

use super::{objects::DrainObject, rows::row, tally::PassTally};
use crate::context::SchedulerContext;

/// Seconds after which all objects are looked at again, although some are known to wait.
const SCAN_AGAIN: i64 = 15;
/// Seconds after which all objects are looked at again because a fact has changed.
pub(super) const SCAN_CHANGED: i64 = 2;
/// Most objects that a pass looks at without one that may begin to move.
const MAX_TRIES: usize = 100;

/// Objects of a drain that wait.
#[derive(Debug, Default)]
pub(super) struct DrainScan {
    began: i64,
    /// Epoch of the facts when it began.
    epoch: u64,
    generation: i64,
    /// Objects that may start to move, as far as known.
    pub(super) pending: VecDeque<ObjectKey>,
    /// Rows of the first of them.
    rows: BTreeMap<ObjectKey, DrainRow>,
    /// Objects with another verdict.
    pub(super) others: PassTally,
    /// Objects that have started to move and that no event has shown yet.
    pub(super) admitted: BTreeSet<ObjectKey>,
    /// Objects that have lost their mark, and that no event has shown so: they are among the others already.
    pub(super) unmarked: BTreeSet<ObjectKey>,
    tries: usize,
}

impl DrainScan {
    /// Returns a scan without objects.
    pub(super) fn new(ctx: &SchedulerContext, drain: &DrainObject) -> Self {
        let generation = portolan_types::object::generation(&drain.object);
        Self { began: ctx.now(), epoch: ctx.verdicts.epoch(), generation, ..Self::default() }
    }

    /// Forgets all verdicts. `pending` is examined again.
    pub(super) fn restart(&mut self, ctx: &SchedulerContext, drain: &DrainObject, pending: VecDeque<ObjectKey>) {
        let admitted = std::mem::take(&mut self.admitted);
        *self = Self { admitted, pending, ..Self::new(ctx, drain) };
    }

    fn holds(&self, ctx: &SchedulerContext, drain: &DrainObject) -> bool {
        let age = ctx.now() - self.began;
        let is_current = self.epoch == ctx.verdicts.epoch() || age < SCAN_CHANGED;
        is_current && age < SCAN_AGAIN && self.generation == portolan_types::object::generation(&drain.object)
    }

    /// Starts the count of looks of a pass.
    pub(super) fn begin(&mut self) {
        self.tries = MAX_TRIES;
    }

    /// Returns the next object to look at, while the pass may look at more.
    pub(super) fn next(&mut self) -> Option<ObjectKey> {
        self.tries = self.tries.checked_sub(1)?;
        let key = self.pending.pop_front()?;
        self.rows.remove(&key);
        Some(key)
    }

    /// Adds an object that has started to move, and restarts the count of examined objects.
    pub(super) fn admit(&mut self, key: &ObjectKey) {
        self.admitted.insert(key.clone());
        self.unmarked.remove(key);
        self.tries = MAX_TRIES;
    }

    /// Returns the admitted objects that no event has shown yet, and forgets the others.
    pub(super) fn unseen(&mut self, is_seen: impl Fn(&ObjectKey) -> bool) -> Vec<ObjectKey> {
        self.admitted.retain(|key| !is_seen(key));
        self.admitted.iter().cloned().collect()
    }

    /// Counts the objects that wait, with the rows of the first ones.
    pub(super) async fn count(&mut self, ctx: &SchedulerContext, tally: &mut PassTally) {
        tally.merge(self.others.clone());
        let shown: Vec<ObjectKey> = self.pending.iter().take(MAX_DRAIN_ROWS).cloned().collect();
        for key in &shown {
            if !self.rows.contains_key(key) {
                let found = ctx.objects.get_value(key).await.ok().flatten();
                let record = found.and_then(|(object, _)| PlacementRecord::of(&object)).unwrap_or_default();
                self.rows.insert(key.clone(), row(ctx, key, &record, DrainRowState::Pending));
            }
            tally.add(self.rows[key].clone());
        }
        tally.omit(DrainRowState::Pending, self.pending.len() - shown.len());
    }
}

/// Scans of all drains. They only spare looks: without one, as after a restart, a pass looks at all objects. The size
/// is bounded by the objects on drained physical clusters.
#[derive(Default)]
pub(crate) struct DrainScans {
    scans: Mutex<BTreeMap<Uid, DrainScan>>,
    /// Number of objects that passes have looked at.
    looks: AtomicUsize,
}

impl DrainScans {
    /// Counts objects that a pass looks at.
    pub(super) fn note_looks(&self, number: usize) {
        self.looks.fetch_add(number, Ordering::Relaxed);
    }

    /// Returns the number of objects that passes have looked at.
    #[cfg(test)]
    pub(crate) fn looks(&self) -> usize {
        self.looks.load(Ordering::Relaxed)
    }

    /// Takes the scan of a drain, if it still holds. A pass that fails does not put it back.
    pub(super) fn take(&self, ctx: &SchedulerContext, drain: &DrainObject) -> Option<DrainScan> {
        let mut known = self.scans.lock().expect("no code panics under this lock");
        known.remove(&drain.uid).filter(|scan| scan.holds(ctx, drain))
    }

    /// Keeps the scan of a drain for its next pass.
    pub(super) fn put(&self, ctx: &SchedulerContext, drain: &DrainObject, scan: DrainScan) {
        let mut known = self.scans.lock().expect("no code panics under this lock");
        known.retain(|_, other| ctx.now() - other.began < SCAN_AGAIN);
        known.insert(drain.uid.clone(), scan);
    }
}
