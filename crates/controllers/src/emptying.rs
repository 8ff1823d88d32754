//! What is being emptied: whatever changes in it may be the last thing that held it.

use std::{
    collections::HashMap,
    hash::Hash,
    sync::{Mutex, MutexGuard},
    time::Duration,
};

use portolan_types::record::RecordHeader;
use tokio::time::Instant;

use crate::runtime::Outcome;

/// Objects that one look asks to go, about, before other keys have their turn.
pub(crate) const SHARE: usize = 1000;
/// What a look comes to that had its share: the next one goes on behind it.
pub(crate) const GO_ON: Outcome = Outcome::CheckAgainIn(Duration::ZERO);
/// A place where things are left is looked at again after this many times what the last look took: whoever writes there again and
/// again, so that it is looked at each time, has a tenth of a worker.
const REST: u32 = 10;

/// How long a look at what is left waits for more to go.
pub(crate) const LINGER: Duration = Duration::from_millis(20);
/// How soon what is left is looked at though nothing was seen to change: a watch that broke may have missed it.
pub(crate) const RECHECK: Duration = Duration::from_secs(30);

/// Places that are being emptied, each with the key that is looked at when something in it changes. In memory only while
/// they are.
pub(crate) struct Emptying<P, K>(Mutex<HashMap<P, State<K>>>);

struct State<K> {
    key: K,
    /// No look before.
    rests_until: Option<Instant>,
}

impl<P, K> Default for Emptying<P, K> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<P: Eq + Hash, K: Clone> Emptying<P, K> {
    /// From now on changes in `place` matter. To be called before what is left there is read, so that no change is missed.
    pub(crate) fn begin(&self, place: P, key: K) {
        self.lock().entry(place).or_insert(State { key, rests_until: None });
    }

    /// A look at `place` that began then found that something is left.
    pub(crate) fn looked(&self, place: &P, began: Instant) {
        if let Some(state) = self.lock().get_mut(place) {
            state.rests_until = Some(Instant::now() + began.elapsed() * REST);
        }
    }

    /// How long no look at `place` is due.
    pub(crate) fn rest(&self, place: &P) -> Option<Duration> {
        let until = self.lock().get(place)?.rests_until?;
        until.checked_duration_since(Instant::now()).filter(|rest| !rest.is_zero())
    }

    /// Changes in `place` matter no more.
    pub(crate) fn end(&self, place: &P) {
        self.lock().remove(place);
    }

    /// The key to look at when something changed in the place that `place` tells.
    pub(crate) fn key(&self, place: impl FnOnce() -> Option<P>) -> Option<K> {
        let places = self.lock();
        if places.is_empty() {
            return None;
        }
        places.get(&place()?).map(|state| state.key.clone())
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<P, State<K>>> {
        self.0.lock().expect("no code panics under this lock")
    }
}

/// What the next look at something has to know of the last one, as where that had its share. In memory only between two of them.
pub(crate) struct Cuts<K, C>(Mutex<HashMap<K, C>>);

impl<K, C> Default for Cuts<K, C> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Eq + Hash, C> Cuts<K, C> {
    /// What the last look has kept; `None` when this is the first. To be called by every look, so that nothing stays behind.
    pub(crate) fn take(&self, key: &K) -> Option<C> {
        self.lock().remove(key)
    }

    /// For the next look.
    pub(crate) fn keep(&self, key: K, cut: C) {
        self.lock().insert(key, cut);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<K, C>> {
        self.0.lock().expect("no code panics under this lock")
    }
}

/// Whether an object has been asked to go and waits for others: asking again changes nothing.
pub(crate) fn waits_for_others(header: &RecordHeader) -> bool {
    header.is_deleting && (header.has_finalizers || !header.placed_on.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_place_rests_ten_times_as_long_as_it_was_looked_at() {
        let places = Emptying::default();
        places.begin("a", 1);
        let began = Instant::now();
        tokio::time::advance(Duration::from_millis(300)).await;
        places.looked(&"a", began);
        places.begin("a", 1);
        assert_eq!((places.rest(&"a"), places.rest(&"b")), (Some(Duration::from_secs(3)), None));
        tokio::time::advance(Duration::from_secs(3)).await;
        assert_eq!((places.rest(&"a"), places.key(|| Some("a"))), (None, Some(1)));
        places.end(&"a");
        assert_eq!(places.key(|| Some("a")), None);
    }
}
