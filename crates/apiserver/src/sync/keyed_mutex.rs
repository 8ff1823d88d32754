//! Mutex per key, for writers that would otherwise only conflict.

use std::{collections::HashMap, fmt, hash::Hash, sync::Arc};

use parking_lot::Mutex;
use tokio::sync::OwnedMutexGuard;

type KeyMutex = Arc<tokio::sync::Mutex<()>>;

/// Set of mutexes by key. A key without a holder or waiter takes no memory.
pub(crate) struct KeyedMutex<K>(Arc<Mutex<HashMap<K, KeyMutex>>>);

/// Guard of one key, released on drop.
pub(crate) struct KeyedGuard<K: Eq + Hash> {
    mutexes: Arc<Mutex<HashMap<K, KeyMutex>>>,
    key: K,
    mutex: Option<KeyMutex>,
    held: Option<OwnedMutexGuard<()>>,
}

impl<K> Default for KeyedMutex<K> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<K: Eq + Hash + Clone> KeyedMutex<K> {
    pub(crate) async fn lock(&self, key: K) -> KeyedGuard<K> {
        let mutex = self.0.lock().entry(key.clone()).or_default().clone();
        let mut guard = KeyedGuard { mutexes: self.0.clone(), key, mutex: Some(mutex.clone()), held: None };
        guard.held = Some(mutex.lock_owned().await);
        guard
    }
}

impl<K: Eq + Hash> Drop for KeyedGuard<K> {
    fn drop(&mut self) {
        drop((self.held.take(), self.mutex.take()));
        let mut mutexes = self.mutexes.lock();
        // The map holds the last reference when no task waits.
        if mutexes.get(&self.key).is_some_and(|mutex| Arc::strong_count(mutex) == 1) {
            mutexes.remove(&self.key);
        }
    }
}

impl<K: Eq + Hash + fmt::Debug> fmt::Debug for KeyedGuard<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Turn({:?})", self.key)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn holders_are_exclusive_and_leave_nothing() {
        let mutexes = KeyedMutex::default();
        let first = mutexes.lock("a").await;
        let elsewhere = timeout(Duration::from_secs(1), mutexes.lock("b")).await;
        assert!(elsewhere.is_ok(), "another line");
        assert!(timeout(Duration::from_secs(1), mutexes.lock("a")).await.is_err(), "not before the first is done");
        drop(first);
        drop(timeout(Duration::from_secs(1), mutexes.lock("a")).await.expect("then it is the next one's turn"));
        drop(elsewhere);
        assert!(mutexes.0.lock().is_empty());
    }
}
