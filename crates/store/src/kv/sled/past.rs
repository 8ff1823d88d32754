//! What batches have replaced, for as long as somebody reads a state of before them: sled has no snapshots.
//!
//! A batch says what it replaces before it is applied. Whoever reads takes first what sled has and then looks here: what was
//! replaced since its state was shown is here by then, at the latest. So a read, however long, holds up no batch, and no batch a
//! read. Only when very much has been replaced meanwhile does a batch wait for the reads that still see it.

use std::{
    collections::{BTreeMap, VecDeque},
    ops::Bound,
    thread,
    time::Duration,
};

use ::sled::IVec;
use parking_lot::RwLock;

/// With more bytes than this kept for reads, a batch waits for some of them to end.
const MAX_KEPT: usize = 64 << 20;
/// How often it looks whether they have.
const LOOK: Duration = Duration::from_millis(1);
/// What a key takes beside its bytes and those of its value, about.
const OVERHEAD: usize = 128;

/// What keys were before a batch.
pub(super) type Replaced = Vec<(Vec<u8>, Option<IVec>)>;

#[derive(Default)]
pub(super) struct Past(RwLock<State>);

#[derive(Default)]
struct State {
    /// The number of the last batch that is shown: of its state are the views that begin now.
    shown: u64,
    /// The number of the last batch that was, or may have been, applied.
    applied: u64,
    /// How many views there are, by the number of the batch whose state they see.
    views: BTreeMap<u64, usize>,
    /// What keys were before which batches, in their order.
    before: BTreeMap<Vec<u8>, VecDeque<(u64, Option<IVec>)>>,
    /// The batches whose keys are in `before`.
    batches: VecDeque<Kept>,
    bytes: usize,
}

struct Kept {
    number: u64,
    keys: Vec<Vec<u8>>,
    bytes: usize,
}

/// A state that is read. It does not change until this is dropped.
pub(super) struct Shown<'a> {
    past: &'a Past,
    at: u64,
}

impl Past {
    /// A batch that replaces this is about to be applied. No view sees it until it is shown.
    pub(super) fn replace(&self, replaced: Replaced) {
        while self.0.read().is_full() {
            thread::sleep(LOOK);
        }
        self.0.write().replace(replaced);
    }

    /// Shows what was applied to views that begin from now on.
    pub(super) fn show(&self) {
        let mut state = self.0.write();
        state.shown = state.applied;
        state.forget();
    }

    /// The state of the last batch that is shown.
    pub(super) fn shown(&self) -> Shown<'_> {
        let mut state = self.0.write();
        let at = state.shown;
        *state.views.entry(at).or_default() += 1;
        Shown { past: self, at }
    }

    /// Keys of which something is kept.
    #[cfg(test)]
    pub(super) fn kept(&self) -> usize {
        let state = self.0.read();
        assert_eq!(state.bytes == 0, state.before.is_empty(), "{} bytes", state.bytes);
        state.before.len()
    }
}

impl State {
    /// Whether a batch has to wait for reads.
    fn is_full(&self) -> bool {
        self.bytes > MAX_KEPT && self.views.first_key_value().is_some_and(|(oldest, _)| *oldest < self.shown)
    }

    fn replace(&mut self, replaced: Replaced) {
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
        self.batches.push_back(Kept { number: self.applied, keys, bytes });
    }

    /// Drops what no view needs any more: all see the state of the oldest one, or a later one.
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

impl Shown<'_> {
    /// What a key was in this state, if that was replaced since.
    pub(super) fn get(&self, key: &[u8]) -> Option<Option<IVec>> {
        let state = self.past.0.read();
        state.before.get(key).and_then(|entries| self.first(entries)).cloned()
    }

    /// The first key within bounds that had a value in this state which was replaced since.
    pub(super) fn next(&self, from: Bound<&[u8]>, to: Bound<&[u8]>) -> Option<(Vec<u8>, IVec)> {
        let state = self.past.0.read();
        let mut within = state.before.range::<[u8], _>((from, to));
        within.find_map(|(key, entries)| Some((key.clone(), self.first(entries)?.clone()?)))
    }

    fn first<'e>(&self, entries: &'e VecDeque<(u64, Option<IVec>)>) -> Option<&'e Option<IVec>> {
        entries.iter().find(|(number, _)| *number > self.at).map(|(_, value)| value)
    }
}

impl Drop for Shown<'_> {
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
        let past = Past::default();
        let replace = |text| past.replace(vec![(b"a".to_vec(), value(text)), (text.as_bytes().to_vec(), None)]);
        let first = past.shown();
        replace("one");
        assert_eq!(first.get(b"a"), Some(value("one")));
        let unpublished = past.shown();
        past.show();
        let second = past.shown();
        replace("two");
        past.show();
        for (view, seen) in [(&first, "one"), (&unpublished, "one"), (&second, "two")] {
            assert_eq!(view.get(b"a"), Some(value(seen)));
            let next = view.next(Bound::Unbounded, Bound::Unbounded);
            assert_eq!(next.map(|(key, value)| (key, Some(value))), Some((b"a".to_vec(), value(seen))));
            assert_eq!(view.next(Bound::Excluded(b"a"), Bound::Unbounded), None, "a key that was not there");
        }
        assert_eq!((past.shown().get(b"a"), second.get(b"one"), first.get(b"one")), (None, None, Some(None)));
        drop((first, unpublished));
        assert_eq!(past.kept(), 2, "what the second batch replaced");
        drop(second);
        assert_eq!(past.kept(), 0);
    }

    #[test]
    fn a_batch_waits_only_for_views_that_very_much_is_kept_for() {
        let (past, large) = (Past::default(), IVec::from(vec![0; MAX_KEPT / 2]));
        let is_full = || past.0.read().is_full();
        let view = past.shown();
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
