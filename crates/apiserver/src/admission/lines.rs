//! Writers that would only get into each other's way wait for each other in line.

use std::{collections::HashMap, fmt, hash::Hash, sync::Arc};

use parking_lot::Mutex;
use tokio::sync::OwnedMutexGuard;

type Line = Arc<tokio::sync::Mutex<()>>;

/// Who writes under which key. Only keys for which somebody waits are known.
pub(crate) struct Lines<K>(Arc<Mutex<HashMap<K, Line>>>);

/// A place in line, and then the turn: until it is dropped.
pub(crate) struct Turn<K: Eq + Hash> {
    lines: Arc<Mutex<HashMap<K, Line>>>,
    key: K,
    line: Option<Line>,
    held: Option<OwnedMutexGuard<()>>,
}

impl<K> Default for Lines<K> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<K: Eq + Hash + Clone> Lines<K> {
    pub(crate) async fn wait(&self, key: K) -> Turn<K> {
        let line = self.0.lock().entry(key.clone()).or_default().clone();
        let mut turn = Turn { lines: self.0.clone(), key, line: Some(line.clone()), held: None };
        turn.held = Some(line.lock_owned().await);
        turn
    }
}

impl<K: Eq + Hash> Drop for Turn<K> {
    fn drop(&mut self) {
        drop((self.held.take(), self.line.take()));
        let mut lines = self.lines.lock();
        // The map has the last one when nobody waits any more.
        if lines.get(&self.key).is_some_and(|line| Arc::strong_count(line) == 1) {
            lines.remove(&self.key);
        }
    }
}

impl<K: Eq + Hash + fmt::Debug> fmt::Debug for Turn<K> {
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
    async fn one_after_the_other_and_nothing_is_left() {
        let lines = Lines::default();
        let first = lines.wait("a").await;
        let elsewhere = timeout(Duration::from_secs(1), lines.wait("b")).await;
        assert!(elsewhere.is_ok(), "another line");
        assert!(timeout(Duration::from_secs(1), lines.wait("a")).await.is_err(), "not before the first is done");
        drop(first);
        drop(timeout(Duration::from_secs(1), lines.wait("a")).await.expect("then it is the next one's turn"));
        drop(elsewhere);
        assert!(lines.0.lock().is_empty());
    }
}
