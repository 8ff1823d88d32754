//! What is being emptied: whatever changes in it may be the last thing that held it.

use std::{
    collections::HashMap,
    hash::Hash,
    sync::{Mutex, MutexGuard},
    time::Duration,
};

/// How long a look at what is left waits for more to go.
pub(crate) const LINGER: Duration = Duration::from_millis(20);
/// How soon what is left is looked at though nothing was seen to change: a watch that broke may have missed it.
pub(crate) const RECHECK: Duration = Duration::from_secs(30);

/// Places that are being emptied, each with the key that is looked at when something in it changes. In memory only while
/// they are.
pub(crate) struct Emptying<P, K>(Mutex<HashMap<P, K>>);

impl<P, K> Default for Emptying<P, K> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<P: Eq + Hash, K: Clone> Emptying<P, K> {
    /// From now on changes in `place` matter. To be called before what is left there is read, so that no change is missed.
    pub(crate) fn begin(&self, place: P, key: K) {
        self.lock().insert(place, key);
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
        places.get(&place()?).cloned()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<P, K>> {
        self.0.lock().expect("no code panics under this lock")
    }
}
