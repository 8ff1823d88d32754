//! A work queue of keys: what is added twice is done once, nothing is done twice at a time, failures back off.

use std::{
    collections::{BTreeMap, HashMap, HashSet, VecDeque},
    hash::Hash,
    sync::{Mutex, MutexGuard},
    time::Duration,
};

use portolan_types::Seams;
use tokio::{sync::Notify, time::Instant};

const FIRST_BACKOFF: Duration = Duration::from_millis(10);
const LAST_BACKOFF: Duration = Duration::from_secs(60);

/// How a piece of work ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// All is as it should be.
    Done,
    /// Look again after this time, if nothing comes before.
    CheckAgainIn(Duration),
    /// It failed: again after a time that doubles, or after the given one if that is longer.
    Failed { not_before: Option<Duration> },
}

pub(crate) struct Queue<W> {
    state: Mutex<State<W>>,
    wake: Notify,
    seams: Seams,
}

struct State<W> {
    ready: VecDeque<W>,
    waiting: HashSet<W>,
    busy: HashSet<W>,
    /// Added while busy.
    again: HashSet<W>,
    timers: BTreeMap<(Instant, u64), W>,
    due: HashMap<W, (Instant, u64)>,
    failures: HashMap<W, u32>,
    next_timer: u64,
}

impl<W: Clone + Eq + Hash> Queue<W> {
    pub(crate) fn new(seams: Seams) -> Self {
        let state = State {
            ready: VecDeque::new(),
            waiting: HashSet::new(),
            busy: HashSet::new(),
            again: HashSet::new(),
            timers: BTreeMap::new(),
            due: HashMap::new(),
            failures: HashMap::new(),
            next_timer: 0,
        };
        Self { state: Mutex::new(state), wake: Notify::new(), seams }
    }

    fn state(&self) -> MutexGuard<'_, State<W>> {
        self.state.lock().expect("no code panics under this lock")
    }

    /// Asks for `work` now.
    pub(crate) fn add(&self, work: W) {
        self.state().add(work);
        self.wake.notify_one();
    }

    /// Asks for `work` after `delay`, unless it comes earlier anyway.
    pub(crate) fn add_after(&self, work: W, delay: Duration) {
        self.state().add_at(work, Instant::now() + delay);
        self.wake.notify_one();
    }

    /// The next piece of work. Give it back with [`Self::finish`].
    pub(crate) async fn next(&self) -> W {
        loop {
            let woken = self.wake.notified();
            let earliest = {
                let mut state = self.state();
                state.fire(Instant::now());
                if let Some(work) = state.take() {
                    if !state.ready.is_empty() {
                        self.wake.notify_one();
                    }
                    return work;
                }
                state.timers.first_key_value().map(|((at, _), _)| *at)
            };
            match earliest {
                Some(at) => drop(tokio::time::timeout_at(at, woken).await),
                None => woken.await,
            }
        }
    }

    pub(crate) fn finish(&self, work: W, outcome: Outcome) {
        let mut state = self.state();
        state.busy.remove(&work);
        let delay = match outcome {
            Outcome::Done => None,
            Outcome::CheckAgainIn(delay) => Some(delay),
            Outcome::Failed { not_before } => {
                let failures = state.failures.entry(work.clone()).or_insert(0);
                *failures = failures.saturating_add(1);
                Some(self.backoff(*failures).max(not_before.unwrap_or_default()))
            }
        };
        if !matches!(outcome, Outcome::Failed { .. }) {
            state.failures.remove(&work);
        }
        let is_wanted = state.again.remove(&work);
        match delay {
            // What failed waits its time even when it is asked for again: the reason is rarely in the object.
            Some(delay) if !is_wanted || matches!(outcome, Outcome::Failed { .. }) => {
                state.add_at(work, Instant::now() + delay);
            }
            _ if is_wanted => state.add(work),
            _ => {}
        }
        drop(state);
        self.wake.notify_one();
    }

    /// Doubles per failure, up to a minute, of which a random half.
    fn backoff(&self, failures: u32) -> Duration {
        let full = FIRST_BACKOFF.saturating_mul(1 << failures.min(13)).min(LAST_BACKOFF);
        jitter(&self.seams, full)
    }
}

/// A random time between the half and the whole of `full`.
pub(crate) fn jitter(seams: &Seams, full: Duration) -> Duration {
    let mut random = [0_u8; 2];
    seams.entropy.fill(&mut random);
    full.mul_f64(0.5 + f64::from(u16::from_be_bytes(random)) / 131_072.0)
}

impl<W: Clone + Eq + Hash> State<W> {
    fn add(&mut self, work: W) {
        if let Some(timer) = self.due.remove(&work) {
            self.timers.remove(&timer);
        }
        if self.busy.contains(&work) {
            self.again.insert(work);
        } else if self.waiting.insert(work.clone()) {
            self.ready.push_back(work);
        }
    }

    fn add_at(&mut self, work: W, at: Instant) {
        let comes_earlier = self.due.get(&work).is_some_and(|(due, _)| *due <= at);
        if comes_earlier || self.waiting.contains(&work) || self.again.contains(&work) {
            return;
        }
        if let Some(timer) = self.due.remove(&work) {
            self.timers.remove(&timer);
        }
        self.next_timer += 1;
        self.due.insert(work.clone(), (at, self.next_timer));
        self.timers.insert((at, self.next_timer), work);
    }

    fn fire(&mut self, now: Instant) {
        while let Some(entry) = self.timers.first_entry().filter(|entry| entry.key().0 <= now) {
            let work = entry.remove();
            self.due.remove(&work);
            self.add(work);
        }
    }

    fn take(&mut self) -> Option<W> {
        let work = self.ready.pop_front()?;
        self.waiting.remove(&work);
        self.busy.insert(work.clone());
        Some(work)
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;

    fn queue() -> Queue<&'static str> {
        Queue::new(Seams::seeded(1, Timestamp::UNIX_EPOCH))
    }

    #[tokio::test(start_paused = true)]
    async fn work_is_done_once_and_never_twice_at_a_time() {
        let queue = queue();
        queue.add("a");
        queue.add("a");
        queue.add("b");
        assert_eq!((queue.next().await, queue.next().await), ("a", "b"));
        queue.add("a");
        let soon = tokio::time::timeout(Duration::from_secs(1), queue.next()).await;
        assert!(soon.is_err(), "it is still being done");
        queue.finish("a", Outcome::Done);
        assert_eq!(queue.next().await, "a", "it was asked for meanwhile");
    }

    #[tokio::test(start_paused = true)]
    async fn failures_back_off_and_asking_again_does_not_hurry_them() {
        let queue = queue();
        queue.add("a");
        let mut waited = Vec::new();
        for _ in 0..20 {
            let start = Instant::now();
            let work = queue.next().await;
            waited.push(start.elapsed());
            queue.add("a");
            queue.finish(work, Outcome::Failed { not_before: None });
        }
        assert!(waited[19] >= Duration::from_secs(30) && waited[19] <= Duration::from_secs(61), "{waited:?}");
        assert!(waited[1] < Duration::from_millis(50), "{waited:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_asked_for_now_does_not_wait_for_its_timer() {
        let queue = queue();
        queue.add_after("a", Duration::from_secs(60));
        queue.add("a");
        let start = Instant::now();
        assert_eq!(queue.next().await, "a");
        assert!(start.elapsed() < Duration::from_secs(1));
        queue.finish("a", Outcome::Done);
        assert!(tokio::time::timeout(Duration::from_secs(120), queue.next()).await.is_err(), "the timer is gone");
    }
}
