//! A [`WorkQueue`] that workers wait on.

mod metrics;

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard},
    time::Duration,
};

use portolan_types::{
    Seams,
    work::{Backoff, Next, Outcome, Sizes, WorkKey, WorkQueue},
};
use tokio::{sync::Notify, time::Instant};

use metrics::Work;
pub use metrics::{QueueMetrics, WorkMetrics};

/// The keys that the workers of a loop share, in the runtime's own time.
pub struct Worklist<K: WorkKey> {
    queue: Mutex<WorkQueue<K, Instant>>,
    changed: Notify,
    idle: Notify,
    measured: Option<Measured<K>>,
}

/// What is measured of a queue, and the times of its keys that this takes.
struct Measured<K> {
    metrics: QueueMetrics,
    times: Mutex<Times<K>>,
}

struct Times<K> {
    /// From when on a key should be worked on.
    asked: HashMap<K, Instant>,
    taken: HashMap<K, Work>,
}

impl<K: WorkKey> Measured<K> {
    fn times(&self) -> MutexGuard<'_, Times<K>> {
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

impl<K: WorkKey> Worklist<K> {
    /// An empty one; the jitter of back-offs follows from `seams`.
    pub fn new(backoff: Backoff, seams: &Seams) -> Self {
        let queue = Mutex::new(WorkQueue::new(backoff, seams));
        Self { queue, changed: Notify::new(), idle: Notify::new(), measured: None }
    }

    /// One that hands out at most so many keys of a tenant at once.
    #[must_use]
    pub fn at_most(self, keys: usize) -> Self {
        let queue = self.queue.into_inner().expect("no code panics under this lock").at_most(keys);
        Self { queue: Mutex::new(queue), ..self }
    }

    /// One that tells about itself.
    #[must_use]
    pub fn measured(mut self, metrics: QueueMetrics) -> Self {
        let times = Mutex::new(Times { asked: HashMap::new(), taken: HashMap::new() });
        self.measured = Some(Measured { metrics, times });
        self
    }

    /// Asks for a key now.
    pub fn add(&self, key: K) {
        self.ask(&key, Duration::ZERO);
        let mut queue = self.queue();
        queue.add(key);
        self.show(&queue);
        drop(queue);
        self.changed.notify_one();
    }

    /// Asks for a key after a time, unless it comes earlier anyway.
    pub fn add_after(&self, key: K, delay: Duration) {
        self.ask(&key, delay);
        self.queue().add_at(key, Instant::now() + delay);
        self.changed.notify_one();
    }

    /// Waits for a key that nobody works on. Give it back with [`Self::finish`] or [`Self::fail`].
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
                Next::Key(key) => {
                    self.measured.iter().for_each(|measured| measured.take(&key));
                    return key;
                }
                Next::At(at) => drop(tokio::time::timeout_at(at, self.changed.notified()).await),
                Next::Nothing => self.changed.notified().await,
            }
        }
    }

    /// A key succeeded.
    pub fn finish(&self, key: K, outcome: Outcome) {
        self.measured.iter().for_each(|measured| measured.give_back(&key));
        if let Outcome::CheckAgainIn(delay) = outcome {
            self.ask(&key, delay);
        }
        self.give_back(|queue| queue.finish(key, outcome, Instant::now()));
    }

    /// A key failed and comes again, later each time.
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

    #[tokio::test(start_paused = true)]
    async fn a_queue_tells_what_it_has_to_do() {
        let registry = prometheus::Registry::new();
        let metrics = WorkMetrics::register(&registry).unwrap();
        let list = Worklist::new(Backoff::default(), &Seams::seeded(1, Timestamp::UNIX_EPOCH));
        let list: Worklist<Key> = list.measured(metrics.of("things"));
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
        list.finish(a, Outcome::Done);
        list.fail(b);
        assert_eq!(told(), [0, 2, 1, 4, 6, 0, 0]);
        assert_eq!(list.next().await, b, "it comes again");
        list.add(A);
        assert_eq!(told()[..2], [1, 3]);
        drop(list);
        assert_eq!(told()[0], 0);
    }
}
