//! A queue of keys: each at most once, none worked on twice at the same time, delays and back-off per key.

use std::{
    collections::{BTreeMap, HashMap, HashSet, VecDeque},
    hash::Hash,
    sync::Mutex,
    time::Duration,
};

use tokio::{sync::Notify, time::Instant};

/// First delay after a failure; doubles up to [`LONGEST_BACKOFF`].
const FIRST_BACKOFF: Duration = Duration::from_millis(10);
const LONGEST_BACKOFF: Duration = Duration::from_secs(60);

/// Bounded by the number of distinct keys.
pub struct WorkQueue<K> {
    state: Mutex<State<K>>,
    changed: Notify,
}

struct State<K> {
    ready: VecDeque<K>,
    /// In `ready`, so that a key stands there once.
    queued: HashSet<K>,
    /// Being worked on; `true` when it was added again meanwhile.
    active: HashMap<K, bool>,
    delayed: BTreeMap<(Instant, u64), K>,
    sequence: u64,
    failures: HashMap<K, u32>,
}

impl<K: Clone + Eq + Hash> Default for WorkQueue<K> {
    fn default() -> Self {
        let state = State {
            ready: VecDeque::new(),
            queued: HashSet::new(),
            active: HashMap::new(),
            delayed: BTreeMap::new(),
            sequence: 0,
            failures: HashMap::new(),
        };
        Self { state: Mutex::new(state), changed: Notify::new() }
    }
}

impl<K: Clone + Eq + Hash> WorkQueue<K> {
    /// Adds a key; one that is worked on comes again after that.
    pub fn add(&self, key: K) {
        self.lock().add(key);
        self.changed.notify_one();
    }

    /// Adds a key after a time.
    pub fn add_after(&self, key: K, delay: Duration) {
        self.lock().delay(key, delay);
        self.changed.notify_one();
    }

    /// Waits for a key that nobody works on.
    pub async fn next(&self) -> K {
        loop {
            let wake = {
                let mut state = self.lock();
                state.move_due(Instant::now());
                if let Some(key) = state.take() {
                    if !state.ready.is_empty() {
                        self.changed.notify_one();
                    }
                    return key;
                }
                state.delayed.keys().next().map(|(at, _)| *at)
            };
            match wake {
                None => self.changed.notified().await,
                Some(at) => {
                    let _ = tokio::time::timeout_at(at, self.changed.notified()).await;
                }
            }
        }
    }

    /// The key succeeded.
    pub fn done(&self, key: &K) {
        let mut state = self.lock();
        state.failures.remove(key);
        state.finish(key);
        drop(state);
        self.changed.notify_one();
    }

    /// The key failed and comes again, later each time.
    pub fn failed(&self, key: &K) {
        let mut state = self.lock();
        let failures = state.failures.entry(key.clone()).or_insert(0);
        *failures += 1;
        let delay = FIRST_BACKOFF.saturating_mul(1 << (*failures - 1).min(16)).min(LONGEST_BACKOFF);
        state.finish(key);
        state.delay(key.clone(), delay);
        drop(state);
        self.changed.notify_one();
    }

    /// Keys that wait or are worked on, delayed ones left out.
    pub fn len(&self) -> usize {
        let state = self.lock();
        state.ready.len() + state.active.len()
    }

    /// Whether nothing waits or is worked on.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State<K>> {
        self.state.lock().expect("no code panics under this lock")
    }
}

impl<K: Clone + Eq + Hash> State<K> {
    fn add(&mut self, key: K) {
        match self.active.get_mut(&key) {
            Some(again) => *again = true,
            None => {
                if self.queued.insert(key.clone()) {
                    self.ready.push_back(key);
                }
            }
        }
    }

    fn delay(&mut self, key: K, delay: Duration) {
        self.sequence += 1;
        self.delayed.insert((Instant::now() + delay, self.sequence), key);
    }

    fn move_due(&mut self, now: Instant) {
        while let Some(entry) = self.delayed.first_entry() {
            if entry.key().0 > now {
                break;
            }
            let key = entry.remove();
            self.add(key);
        }
    }

    fn take(&mut self) -> Option<K> {
        let key = self.ready.pop_front()?;
        self.queued.remove(&key);
        self.active.insert(key.clone(), false);
        Some(key)
    }

    fn finish(&mut self, key: &K) {
        if self.active.remove(key) == Some(true) {
            self.add(key.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_key_is_worked_on_once_at_a_time_and_comes_again_when_added_meanwhile() {
        let queue = WorkQueue::default();
        queue.add("a");
        queue.add("a");
        assert_eq!(queue.next().await, "a");
        queue.add("a");
        assert!(tokio::time::timeout(Duration::from_secs(1), queue.next()).await.is_err());
        queue.done(&"a");
        assert_eq!(queue.next().await, "a");
        queue.done(&"a");
        assert!(queue.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn failures_back_off_and_success_forgets_them() {
        let queue = WorkQueue::default();
        queue.add("a");
        let start = Instant::now();
        for _ in 0..3 {
            let key = queue.next().await;
            queue.failed(&key);
        }
        assert_eq!(queue.next().await, "a");
        assert!(start.elapsed() >= Duration::from_millis(70), "{:?}", start.elapsed());
        queue.done(&"a");
        queue.add_after("b", Duration::from_secs(5));
        assert_eq!(queue.next().await, "b");
        assert!(start.elapsed() >= Duration::from_secs(5));
    }
}
