//! [`WorkQueue`] that asynchronous workers share.

mod metrics;

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard},
    time::Duration,
};

use portolan_types::{
    Seams,
    work::{Backoff, NextWork, QueueSizes, WorkKey, WorkOutcome, WorkQueue},
};
use tokio::{sync::Notify, time::Instant};

use metrics::WorkTimer;
pub use metrics::{QueueMetrics, WorkMetrics};

/// Work queue shared by the workers of a controller, on the runtime's clock.
pub struct AsyncWorkQueue<K: WorkKey> {
    queue: Mutex<WorkQueue<K, Instant>>,
    changed: Notify,
    idle: Notify,
    measured: Option<QueueTelemetry<K>>,
}

/// Metrics of a queue, and the times of its keys that they need.
struct QueueTelemetry<K> {
    metrics: QueueMetrics,
    times: Mutex<KeyTimes<K>>,
}

struct KeyTimes<K> {
    /// Time at which each queued key is due.
    asked: HashMap<K, Instant>,
    taken: HashMap<K, WorkTimer>,
}

impl<K: WorkKey> QueueTelemetry<K> {
    fn times(&self) -> MutexGuard<'_, KeyTimes<K>> {
        self.times.lock().expect("no code panics under this lock")
    }

    fn ask(&self, key: &K, at: Instant) {
        let mut times = self.times();
        match times.asked.get_mut(key) {
            Some(known) => *known = at.min(*known),
            None => {
                self.metrics.adds.inc();
                times.asked.insert(key.clone(), at);
            }
        }
    }

    fn take(&self, key: &K) {
        let mut times = self.times();
        if let Some(at) = times.asked.remove(key) {
            self.metrics.waited.observe(at.elapsed().as_secs_f64());
        }
        times.taken.insert(key.clone(), self.metrics.begin());
    }

    fn give_back(&self, key: &K) {
        self.times().taken.remove(key);
    }
}

impl<K: WorkKey> AsyncWorkQueue<K> {
    /// Creates an empty queue; `seams` supplies the jitter of the backoff.
    pub fn new(backoff: Backoff, seams: &Seams) -> Self {
        let queue = Mutex::new(WorkQueue::new(backoff, seams));
        Self { queue, changed: Notify::new(), idle: Notify::new(), measured: None }
    }

    /// Limits the keys of one tenant that are handed out at once.
    #[must_use]
    pub fn at_most(self, keys: usize) -> Self {
        let queue = self.queue.into_inner().expect("no code panics under this lock").at_most(keys);
        Self { queue: Mutex::new(queue), ..self }
    }

    /// Adds metrics to the queue.
    #[must_use]
    pub fn measured(mut self, metrics: QueueMetrics) -> Self {
        let times = Mutex::new(KeyTimes { asked: HashMap::new(), taken: HashMap::new() });
        self.measured = Some(QueueTelemetry { metrics, times });
        self
    }

    /// Queues a key now.
    pub fn add(&self, key: K) {
        self.ask(&key, Duration::ZERO);
        let mut queue = self.queue();
        queue.add(key);
        self.show(&queue);
        drop(queue);
        self.changed.notify_one();
    }

    /// Queues a key after a delay, unless it is due earlier.
    pub fn add_after(&self, key: K, delay: Duration) {
        self.ask(&key, delay);
        self.queue().add_at(key, Instant::now() + delay);
        self.changed.notify_one();
    }

    /// Waits for a due key that no worker has. Return it with [`Self::finish`] or [`Self::fail`].
    pub async fn next(&self) -> K {
        loop {
            let next = {
                let mut queue = self.queue();
                let next = queue.take(Instant::now());
                if queue.has_turn() {
                    self.changed.notify_one();
                }
                self.show(&queue);
                next
            };
            match next {
                NextWork::Key(key) => {
                    self.measured.iter().for_each(|measured| measured.take(&key));
                    return key;
                }
                NextWork::At(at) => drop(tokio::time::timeout_at(at, self.changed.notified()).await),
                NextWork::Nothing => self.changed.notified().await,
            }
        }
    }

    /// Returns a key after success.
    pub fn finish(&self, key: K, outcome: WorkOutcome) {
        self.measured.iter().for_each(|measured| measured.give_back(&key));
        if let WorkOutcome::RequeueAfter(delay) = outcome {
            self.ask(&key, delay);
        }
        self.give_back(|queue| queue.finish(key, outcome, Instant::now()));
    }

    /// Requeues a key after a failure, with backoff.
    pub fn fail(&self, key: K) {
        if let Some(measured) = &self.measured {
            measured.give_back(&key);
            measured.metrics.retries.inc();
        }
        self.give_back(|queue| queue.fail(key, None, Instant::now()));
    }

    fn give_back(&self, how: impl FnOnce(&mut WorkQueue<K, Instant>)) {
        let mut queue = self.queue();
        how(&mut queue);
        self.show(&queue);
        let is_idle = queue.is_idle();
        drop(queue);
        self.changed.notify_one();
        if is_idle {
            self.idle.notify_waiters();
        }
    }

    /// Waits until no key is due or in progress.
    pub async fn wait_idle(&self) {
        loop {
            let idle = self.idle.notified();
            if self.queue().is_idle() {
                return;
            }
            idle.await;
        }
    }

    /// Returns the number of keys per state.
    pub fn sizes(&self) -> QueueSizes {
        self.queue().sizes()
    }

    fn ask(&self, key: &K, delay: Duration) {
        self.measured.iter().for_each(|measured| measured.ask(key, Instant::now() + delay));
    }

    fn show(&self, queue: &WorkQueue<K, Instant>) {
        if let Some(measured) = &self.measured {
            measured.metrics.depth.set(i64::try_from(queue.sizes().ready).unwrap_or(i64::MAX));
        }
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

    fn worklist() -> Arc<AsyncWorkQueue<Key>> {
        Arc::new(AsyncWorkQueue::new(Backoff::default(), &Seams::seeded(1, Timestamp::UNIX_EPOCH)))
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
        list.finish(key, WorkOutcome::RequeueAfter(Duration::from_secs(60)));
        tokio::time::timeout(Duration::from_secs(1), waiting).await.expect("a delayed key is not work yet").unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn the_metrics_of_a_queue_show_its_depth() {
        let registry = prometheus::Registry::new();
        let metrics = WorkMetrics::register(&registry).unwrap();
        let list = AsyncWorkQueue::new(Backoff::default(), &Seams::seeded(1, Timestamp::UNIX_EPOCH));
        let list: AsyncWorkQueue<Key> = list.measured(metrics.of("things"));
        let told = || {
            let text = prometheus::TextEncoder::new().encode_to_string(&registry.gather()).unwrap();
            let line = |name: &str| {
                let begins = format!("workqueue_{name}{{name=\"things\"}} ");
                let found = text
                    .lines()
                    .find_map(|line| line.strip_prefix(&begins))
                    .unwrap_or_else(|| panic!("{name}: {text}"));
                found.parse::<f64>().unwrap()
            };
            let seconds = |name: &str| line(name).round() as u64;
            [
                line("depth") as u64,
                line("adds_total") as u64,
                line("retries_total") as u64,
                seconds("queue_duration_seconds_sum"),
                seconds("work_duration_seconds_sum"),
                seconds("unfinished_work_seconds"),
                seconds("longest_running_processor_seconds"),
            ]
        };
        let pass = |seconds| tokio::time::advance(Duration::from_secs(seconds));
        list.add(A);
        list.add(A);
        list.add((LogicalClusterId::ROOT, "b"));
        pass(2).await;
        let (a, b) = (list.next().await, list.next().await);
        pass(3).await;
        assert_eq!(told(), [0, 2, 0, 4, 0, 6, 3]);
        list.finish(a, WorkOutcome::Done);
        list.fail(b);
        assert_eq!(told(), [0, 2, 1, 4, 6, 0, 0]);
        assert_eq!(list.next().await, b, "it comes again");
        list.add(A);
        assert_eq!(told()[..2], [1, 3]);
        drop(list);
        assert_eq!(told()[0], 0);
    }
}
