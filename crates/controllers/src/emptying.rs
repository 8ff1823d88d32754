//! Scopes that are being emptied: any change in one may remove its last object.

use std::{
    collections::HashMap,
    hash::Hash,
    sync::{Mutex, MutexGuard},
    time::Duration,
};

use portolan_types::record::RecordHeader;
use tokio::time::Instant;

use crate::runtime::WorkOutcome;

/// Approximate number of objects that one reconcile deletes before other keys have their turn.
pub(crate) const SHARE: usize = 1000;
/// Outcome of a reconcile that has deleted its share: its key is queued again behind the other keys.
pub(crate) const REQUEUE_NOW: WorkOutcome = WorkOutcome::RequeueAfter(Duration::ZERO);
/// Rest of a scope between passes, as a multiple of the last pass: a client that writes there again and again takes a
/// tenth of a worker.
const REST: u32 = 10;

/// Delay in which a pass collects further events.
pub(crate) const LINGER: Duration = Duration::from_millis(20);
/// Interval at which a scope is checked without an event: a broken watch may have missed one.
pub(crate) const RECHECK: Duration = Duration::from_secs(30);

/// Scopes that are being emptied, each with the key to reconcile when something in it changes. In memory only while
/// they are.
pub(crate) struct EmptyingScopes<P, K>(Mutex<HashMap<P, EmptyingState<K>>>);

struct EmptyingState<K> {
    key: K,
    /// Time before which no pass runs.
    rests_until: Option<Instant>,
}

impl<P, K> Default for EmptyingScopes<P, K> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<P: Eq + Hash, K: Clone> EmptyingScopes<P, K> {
    /// Begins to track changes in a scope. Call it before reading what is left there, so that no change is missed.
    pub(crate) fn begin(&self, place: P, key: K) {
        self.lock().entry(place).or_insert(EmptyingState { key, rests_until: None });
    }

    /// Records a pass that began at `began` and found objects left.
    pub(crate) fn record_pass(&self, place: &P, began: Instant) {
        if let Some(state) = self.lock().get_mut(place) {
            state.rests_until = Some(Instant::now() + began.elapsed() * REST);
        }
    }

    /// Returns the time until the next pass is due.
    pub(crate) fn rest(&self, place: &P) -> Option<Duration> {
        let until = self.lock().get(place)?.rests_until?;
        until.checked_duration_since(Instant::now()).filter(|rest| !rest.is_zero())
    }

    /// Ends the tracking of a scope.
    pub(crate) fn end(&self, place: &P) {
        self.lock().remove(place);
    }

    /// Returns the key to reconcile when something in a scope has changed.
    pub(crate) fn key(&self, place: impl FnOnce() -> Option<P>) -> Option<K> {
        let places = self.lock();
        if places.is_empty() {
            return None;
        }
        places.get(&place()?).map(|state| state.key.clone())
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<P, EmptyingState<K>>> {
        self.0.lock().expect("no code panics under this lock")
    }
}

/// State that one reconcile leaves to the next, as a cursor. In memory only between the two.
pub(crate) struct CarriedState<K, C>(Mutex<HashMap<K, C>>);

impl<K, C> Default for CarriedState<K, C> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Eq + Hash, C> CarriedState<K, C> {
    /// Takes the state of the last reconcile; `None` for the first. Every reconcile calls it, so that nothing stays
    /// behind.
    pub(crate) fn take(&self, key: &K) -> Option<C> {
        self.lock().remove(key)
    }

    /// Keeps state for the next reconcile.
    pub(crate) fn keep(&self, key: K, cut: C) {
        self.lock().insert(key, cut);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<K, C>> {
        self.0.lock().expect("no code panics under this lock")
    }
}

/// Returns true for an object that is being deleted and waits for others: another deletion changes nothing.
pub(crate) fn waits_for_others(header: &RecordHeader) -> bool {
    header.is_deleting && (header.has_finalizers || !header.placed_on.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_place_rests_ten_times_as_long_as_it_was_looked_at() {
        let places = EmptyingScopes::default();
        places.begin("a", 1);
        let began = Instant::now();
        tokio::time::advance(Duration::from_millis(300)).await;
        places.record_pass(&"a", began);
        places.begin("a", 1);
        assert_eq!((places.rest(&"a"), places.rest(&"b")), (Some(Duration::from_secs(3)), None));
        tokio::time::advance(Duration::from_secs(3)).await;
        assert_eq!((places.rest(&"a"), places.key(|| Some("a"))), (None, Some(1)));
        places.end(&"a");
        assert_eq!(places.key(|| Some("a")), None);
    }
}
