//! A [`WorkQueue`] that workers wait on.

use std::{
    sync::{Mutex, MutexGuard},
    time::Duration,
};

use portolan_types::{
    Seams,
    work::{Backoff, Next, Outcome, Sizes, WorkKey, WorkQueue},
};
use tokio::{sync::Notify, time::Instant};

/// The keys that the workers of a loop share, in the runtime's own time.
pub struct Worklist<K: WorkKey> {
    queue: Mutex<WorkQueue<K, Instant>>,
    changed: Notify,
    idle: Notify,
}

impl<K: WorkKey> Worklist<K> {
    /// An empty one; the jitter of back-offs follows from `seams`.
    pub fn new(backoff: Backoff, seams: &Seams) -> Self {
        let queue = Mutex::new(WorkQueue::new(backoff, seams));
        Self { queue, changed: Notify::new(), idle: Notify::new() }
    }

    /// Asks for a key now.
    pub fn add(&self, key: K) {
        self.queue().add(key);
        self.changed.notify_one();
    }

    /// Asks for a key after a time, unless it comes earlier anyway.
    pub fn add_after(&self, key: K, delay: Duration) {
        self.queue().add_at(key, Instant::now() + delay);
        self.changed.notify_one();
    }

    /// Waits for a key that nobody works on. Give it back with [`Self::finish`] or [`Self::fail`].
    pub async fn next(&self) -> K {
        loop {
            let next = {
                let mut queue = self.queue();
                let next = queue.take(Instant::now());
                if queue.sizes().ready > 0 {
                    self.changed.notify_one();
                }
                next
            };
            match next {
                Next::Key(key) => return key,
                Next::At(at) => drop(tokio::time::timeout_at(at, self.changed.notified()).await),
                Next::Nothing => self.changed.notified().await,
            }
        }
    }

    /// A key succeeded.
    pub fn finish(&self, key: K, outcome: Outcome) {
        self.give_back(|queue| queue.finish(key, outcome, Instant::now()));
    }

    /// A key failed and comes again, later each time.
    pub fn fail(&self, key: K) {
        self.give_back(|queue| queue.fail(key, None, Instant::now()));
    }

    fn give_back(&self, how: impl FnOnce(&mut WorkQueue<K, Instant>)) {
        let mut queue = self.queue();
        how(&mut queue);
        let is_idle = queue.is_idle();
        drop(queue);
        self.changed.notify_one();
        if is_idle {
            self.idle.notify_waiters();
        }
    }

    /// Waits until nothing is ready or worked on.
    pub async fn wait_idle(&self) {
        loop {
            let idle = self.idle.notified();
            if self.queue().is_idle() {
                return;
            }
            idle.await;
        }
    }

    /// How much there is of what.
    pub fn sizes(&self) -> Sizes {
        self.queue().sizes()
    }

    fn queue(&self) -> MutexGuard<'_, WorkQueue<K, Instant>> {
        self.queue.lock().expect("no code panics under this lock")
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use jiff::Timestamp;
    use portolan_types::LogicalClusterId;

    use super::*;

    type Key = (LogicalClusterId, &'static str);
    const A: Key = (LogicalClusterId::ROOT, "a");

    fn worklist() -> Arc<Worklist<Key>> {
        Arc::new(Worklist::new(Backoff::default(), &Seams::seeded(1, Timestamp::UNIX_EPOCH)))
    }

    #[tokio::test(start_paused = true)]
    async fn workers_wait_for_keys_and_for_their_time() {
        let list = worklist();
        let (waiting, start) = (list.clone(), Instant::now());
        let worker = tokio::spawn(async move { (waiting.next().await, Instant::now()) });
        tokio::task::yield_now().await;
        list.add_after(A, Duration::from_secs(9));
        list.add_after(A, Duration::from_secs(5));
        let (key, at) = worker.await.unwrap();
        assert_eq!((key, at.duration_since(start).as_secs()), (A, 5));
        list.fail(A);
        assert_eq!((list.next().await, list.sizes().busy), (A, 1), "it comes again");
    }

    #[tokio::test(start_paused = true)]
    async fn every_ready_key_finds_a_waiting_worker() {
        let list = worklist();
        let take = |_| {
            let list = list.clone();
            tokio::spawn(async move { list.next().await })
        };
        let workers: Vec<_> = (0..3).map(take).collect();
        tokio::task::yield_now().await;
        ["a", "b", "c"].into_iter().for_each(|name| list.add((LogicalClusterId::ROOT, name)));
        for worker in workers {
            tokio::time::timeout(Duration::from_secs(1), worker).await.expect("none is forgotten").unwrap();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn it_is_idle_when_nothing_is_ready_or_worked_on() {
        let list = worklist();
        list.add(A);
        let waiting = tokio::spawn({
            let list = list.clone();
            async move { list.wait_idle().await }
        });
        let key = list.next().await;
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        list.finish(key, Outcome::CheckAgainIn(Duration::from_secs(60)));
        tokio::time::timeout(Duration::from_secs(1), waiting)
            .await
            .expect("what waits for its time is no work")
            .unwrap();
    }
}
