//! Values that batches have replaced, kept as long as a view of an earlier state exists: sled has no snapshots.
//!
//! A batch records the replaced values before it is applied. A reader reads sled first and then looks here, so that a
//! replacement since its state was shown is found. A read, however long, therefore blocks no batch, and a batch no
//! read. Only if very much has been replaced does a batch wait for old views to end.

use std::{
    collections::{BTreeMap, VecDeque},
    ops::Bound,
    thread,
    time::Duration,
};

use ::sled::IVec;
use parking_lot::RwLock;

/// Bytes of kept values above which a batch waits for views to end.
const MAX_KEPT: usize = 64 << 20;
/// Interval at which it checks that.
const POLL_INTERVAL: Duration = Duration::from_millis(1);
/// Approximate cost of a kept key beside its bytes and those of its value.
const OVERHEAD: usize = 128;

/// Keys of a batch with their previous values.
pub(super) type ReplacedBatch = Vec<(Vec<u8>, Option<IVec>)>;

#[derive(Default)]
pub(super) struct ReplacedValues(RwLock<State>);

#[derive(Default)]
struct State {
    /// Number of the last shown batch: new views see its state.
    shown: u64,
    /// Number of the last batch that was, or may have been, applied.
    applied: u64,
    /// Number of views by the batch whose state they see.
    views: BTreeMap<u64, usize>,
    /// Previous values of keys, by batch, in order.
    before: BTreeMap<Vec<u8>, VecDeque<(u64, Option<IVec>)>>,
    /// Batches whose keys are in `before`.
    batches: VecDeque<KeptBatch>,
    bytes: usize,
}

struct KeptBatch {
    number: u64,
    keys: Vec<Vec<u8>>,
    bytes: usize,
}

/// View of a state. The state does not change until this is dropped.
pub(super) struct SledSnapshot<'a> {
    past: &'a ReplacedValues,
    at: u64,
}

impl ReplacedValues {
    /// Records the values that a batch is about to replace. No view sees the batch until it is shown.
    pub(super) fn replace(&self, replaced: ReplacedBatch) {
        while self.0.read().is_full() {
            thread::sleep(POLL_INTERVAL);
        }
        self.0.write().replace(replaced);
    }

    /// Shows applied batches to new views.
    pub(super) fn show(&self) {
        let mut state = self.0.write();
        state.shown = state.applied;
        state.forget();
    }

    /// Opens a view of the last shown batch.
    pub(super) fn snapshot(&self) -> SledSnapshot<'_> {
        let mut state = self.0.write();
        let at = state.shown;
        *state.views.entry(at).or_default() += 1;
        SledSnapshot { past: self, at }
    }

    /// Returns the keys that have kept values.
    #[cfg(test)]
    pub(super) fn kept(&self) -> usize {
        let state = self.0.read();
        assert_eq!(state.bytes == 0, state.before.is_empty(), "{} bytes", state.bytes);
        state.before.len()
    }
}

impl State {
    /// Returns true if a batch has to wait for views.
    fn is_full(&self) -> bool {
        self.bytes > MAX_KEPT && self.views.first_key_value().is_some_and(|(oldest, _)| *oldest < self.shown)
    }

    fn replace(&mut self, replaced: ReplacedBatch) {
        self.applied += 1;
        let size = |(key, value): &(Vec<u8>, Option<IVec>)| {
            OVERHEAD + 2 * key.len() + value.as_ref().map_or(0, |value| value.len())
        };
        let bytes = replaced.iter().map(size).sum();
        let keys = replaced.iter().map(|(key, _)| key.clone()).collect();
        for (key, value) in replaced {
            self.before.entry(key).or_default().push_back((self.applied, value));
        }
        self.bytes += bytes;
        self.batches.push_back(KeptBatch { number: self.applied, keys, bytes });
    }

    /// Drops values that no view needs: all views see the state of the oldest one, or a later one.
    fn forget(&mut self) {
        let oldest = self.views.first_key_value().map_or(self.shown, |(oldest, _)| *oldest);
        while let Some(kept) = self.batches.pop_front_if(|kept| kept.number <= oldest) {
            self.bytes -= kept.bytes;
            for key in kept.keys {
                let Some(entries) = self.before.get_mut(&key) else { continue };
                entries.pop_front();
                if entries.is_empty() {
                    self.before.remove(&key);
                }
            }
        }
    }
}

impl SledSnapshot<'_> {
    /// Returns the value of a key in this state, if it was replaced since.
    pub(super) fn get(&self, key: &[u8]) -> Option<Option<IVec>> {
        let state = self.past.0.read();
        state.before.get(key).and_then(|entries| self.first(entries)).cloned()
    }

    /// Returns the first key within bounds that had a value in this state which was replaced since.
    pub(super) fn next(&self, from: Bound<&[u8]>, to: Bound<&[u8]>) -> Option<(Vec<u8>, IVec)> {
        let state = self.past.0.read();
        let mut within = state.before.range::<[u8], _>((from, to));
        within.find_map(|(key, entries)| Some((key.clone(), self.first(entries)?.clone()?)))
    }

    fn first<'e>(&self, entries: &'e VecDeque<(u64, Option<IVec>)>) -> Option<&'e Option<IVec>> {
        entries.iter().find(|(number, _)| *number > self.at).map(|(_, value)| value)
    }
}

impl Drop for SledSnapshot<'_> {
    fn drop(&mut self) {
        let mut state = self.past.0.write();
        if let Some(count) = state.views.get_mut(&self.at) {
            *count -= 1;
            if *count == 0 {
                state.views.remove(&self.at);
            }
        }
        state.forget();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(text: &str) -> Option<IVec> {
        Some(text.as_bytes().into())
    }

    #[test]
    fn each_view_sees_its_own_state_and_nothing_is_kept_longer() {
        let past = ReplacedValues::default();
        let replace = |text| past.replace(vec![(b"a".to_vec(), value(text)), (text.as_bytes().to_vec(), None)]);
        let first = past.snapshot();
        replace("one");
        assert_eq!(first.get(b"a"), Some(value("one")));
        let unpublished = past.snapshot();
        past.show();
        let second = past.snapshot();
        replace("two");
        past.show();
        for (view, seen) in [(&first, "one"), (&unpublished, "one"), (&second, "two")] {
            assert_eq!(view.get(b"a"), Some(value(seen)));
            let next = view.next(Bound::Unbounded, Bound::Unbounded);
            assert_eq!(next.map(|(key, value)| (key, Some(value))), Some((b"a".to_vec(), value(seen))));
            assert_eq!(view.next(Bound::Excluded(b"a"), Bound::Unbounded), None, "a key that was not there");
        }
        assert_eq!((past.snapshot().get(b"a"), second.get(b"one"), first.get(b"one")), (None, None, Some(None)));
        drop((first, unpublished));
        assert_eq!(past.kept(), 2, "what the second batch replaced");
        drop(second);
        assert_eq!(past.kept(), 0);
    }

    #[test]
    fn a_batch_waits_only_for_views_that_very_much_is_kept_for() {
        let (past, large) = (ReplacedValues::default(), IVec::from(vec![0; MAX_KEPT / 2]));
        let is_full = || past.0.read().is_full();
        let view = past.snapshot();
        for number in 0..2u8 {
            assert!(!is_full());
            past.replace(vec![(vec![number], Some(large.clone()))]);
            past.show();
        }
        assert!(is_full());
        drop(view);
        assert!(!is_full() && past.kept() == 0);
    }
}
