//! Work queue of every controller, as a state machine: callers pass the time, and it never waits.
//!
//! The queue holds keys, not events: a key that is added twice is handled once, and by one worker at a time. Tenants
//! take turns, so a flood from one delays the others by one key per round; the controller must bound the time for a
//! key. [`WorkQueue::at_most`] keeps one tenant from occupying all workers. A finished key leaves nothing behind, so
//! the queue is bounded by the distinct keys that wait or are in progress.

#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, HashMap, hash_map},
    hash::Hash,
    ops::Add,
    time::Duration,
};

use rand::{RngCore as _, SeedableRng as _, rngs::StdRng};

use crate::{LogicalClusterId, ObjectKey, Seams, round_robin::RoundRobinQueue};

/// Longest backoff of a failed key that was added again while in progress: the new request may be the remedy.
const MAX_HURRIED_BACKOFF: Duration = Duration::from_secs(1);

/// Key of a work queue.
pub trait WorkKey: Clone + Eq + Hash {
    /// Tenant that the work is for.
    type Tenant: Clone + Eq + Hash;

    /// Returns the tenant of this key, always the same for the same key.
    fn tenant(&self) -> Self::Tenant;
}

impl WorkKey for ObjectKey {
    type Tenant = LogicalClusterId;

    fn tenant(&self) -> LogicalClusterId {
        self.cluster
    }
}

impl WorkKey for LogicalClusterId {
    type Tenant = Self;

    fn tenant(&self) -> Self {
        *self
    }
}

impl<N: Clone + Eq + Hash> WorkKey for (LogicalClusterId, N) {
    type Tenant = LogicalClusterId;

    fn tenant(&self) -> LogicalClusterId {
        self.0
    }
}

/// Result of handling a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkOutcome {
    /// Nothing is left to do until something changes.
    Done,
    /// The key is added again after this time, unless it comes earlier.
    RequeueAfter(Duration),
}

/// Exponential backoff of failed keys, from `first` to `longest`; the upper half of each delay is random.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// Delay after the first failure.
    pub first: Duration,
    /// Longest delay.
    pub longest: Duration,
}

impl Default for Backoff {
    /// Returns 10 ms to 1 min.
    fn default() -> Self {
        Self { first: Duration::from_millis(10), longest: Duration::from_secs(60) }
    }
}

impl Backoff {
    /// Returns the delay after `failures` failures. `random` chooses between half of it and all of it.
    pub fn after(&self, failures: u32, random: u32) -> Duration {
        let doubled = self.first.saturating_mul(1 << failures.saturating_sub(1).min(20)).min(self.longest);
        doubled.mul_f64(0.5 + f64::from(random) / f64::from(u32::MAX) / 2.0)
    }
}

/// Result of [`WorkQueue::take`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextWork<K, T> {
    /// A key to handle; give it back with [`WorkQueue::finish`] or [`WorkQueue::fail`].
    Key(K),
    /// Nothing before this time, unless a key is added.
    At(T),
    /// Nothing until a key is added.
    Nothing,
}

/// Numbers of keys and tenants in a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueSizes {
    /// Keys that are due.
    pub ready: usize,
    /// Keys in progress.
    pub busy: usize,
    /// Keys that wait for their time.
    pub delayed: usize,
    /// Tenants with due keys that may be handled now.
    pub tenants: usize,
}

/// Queue of keys, in the time `T` of the caller: an `Instant`, or in tests the `Duration` since the start.
pub struct WorkQueue<K: WorkKey, T> {
    /// All keys in the queue.
    entries: HashMap<K, Entry<T>>,
    ready: RoundRobinQueue<K::Tenant, K>,
    timers: BTreeMap<(T, u64), K>,
    last_timer: u64,
    busy: usize,
    backoff: Backoff,
    random: StdRng,
}

struct Entry<T> {
    state: EntryState<T>,
    /// Number of failures in a row.
    failures: u32,
}

enum EntryState<T> {
    Ready,
    Delayed {
        at: T,
        timer: u64,
        /// Earliest time, which requests do not shorten.
        firm_until: Option<T>,
    },
    Busy {
        again: Option<RequestedTime<T>>,
    },
}

/// Time at which a key in progress was requested.
#[derive(Clone, Copy)]
enum RequestedTime<T> {
    Now,
    At(T),
}

impl<K: WorkKey, T: Copy + Ord + Add<Duration, Output = T>> WorkQueue<K, T> {
    /// Returns an empty queue. `seams` seeds the jitter of the backoff.
    pub fn new(backoff: Backoff, seams: &Seams) -> Self {
        let mut seed = [0; 32];
        seams.entropy.fill(&mut seed);
        Self {
            entries: HashMap::new(),
            ready: RoundRobinQueue::new(usize::MAX),
            timers: BTreeMap::new(),
            last_timer: 0,
            busy: 0,
            backoff,
            random: StdRng::from_seed(seed),
        }
    }

    /// Limits the keys of one tenant in progress to `keys`, at least one. The queue must be empty.
    #[must_use]
    pub fn at_most(self, keys: usize) -> Self {
        debug_assert!(self.entries.is_empty(), "a share is given before the first key");
        Self { ready: RoundRobinQueue::new(keys), ..self }
    }

    /// Returns true if a key is due and may be handled now.
    pub fn has_turn(&self) -> bool {
        self.ready.parties() > 0
    }

    /// Adds a key now. A key in progress comes again afterwards; a key in backoff comes now, or at its earliest time.
    pub fn add(&mut self, key: K) {
        match self.entries.entry(key.clone()) {
            hash_map::Entry::Vacant(entry) => {
                entry.insert(Entry { state: EntryState::Ready, failures: 0 });
                self.ready.push(key.tenant(), key);
            }
            hash_map::Entry::Occupied(mut entry) => match &mut entry.get_mut().state {
                EntryState::Ready => {}
                EntryState::Busy { again } => *again = Some(RequestedTime::Now),
                EntryState::Delayed { firm_until: Some(at), .. } => {
                    let at = *at;
                    self.hurry(key, at);
                }
                EntryState::Delayed { at, timer, firm_until: None } => {
                    self.timers.remove(&(*at, *timer));
                    entry.get_mut().state = EntryState::Ready;
                    self.ready.push(key.tenant(), key);
                }
            },
        }
    }

    /// Adds a key at a time, unless it comes earlier.
    pub fn add_at(&mut self, key: K, at: T) {
        match self.entries.get_mut(&key).map(|entry| &mut entry.state) {
            None => self.delay(key, at, 0, None),
            Some(EntryState::Ready) => {}
            Some(EntryState::Delayed { firm_until, .. }) => {
                let at = firm_until.map_or(at, |firm| at.max(firm));
                self.hurry(key, at);
            }
            Some(EntryState::Busy { again }) => {
                *again = Some(match *again {
                    None => RequestedTime::At(at),
                    Some(RequestedTime::At(other)) => RequestedTime::At(at.min(other)),
                    Some(RequestedTime::Now) => RequestedTime::Now,
                });
            }
        }
    }

    /// Takes the next due key: the oldest of the tenant whose turn it is.
    pub fn take(&mut self, now: T) -> NextWork<K, T> {
        self.fire(now);
        match self.ready.take() {
            Some((_, key)) => {
                if let Some(entry) = self.entries.get_mut(&key) {
                    entry.state = EntryState::Busy { again: None };
                    self.busy += 1;
                }
                NextWork::Key(key)
            }
            None => self.timers.first_key_value().map_or(NextWork::Nothing, |((at, _), _)| NextWork::At(*at)),
        }
    }

    /// Gives back a key that succeeded.
    pub fn finish(&mut self, key: K, outcome: WorkOutcome, now: T) {
        let Some((_, again)) = self.give_back(&key) else { return };
        let check = match outcome {
            WorkOutcome::Done => None,
            WorkOutcome::RequeueAfter(delay) => Some(now + delay),
        };
        match (again, check) {
            (Some(RequestedTime::Now), _) => self.add(key),
            (Some(RequestedTime::At(asked)), Some(check)) => self.delay(key, asked.min(check), 0, None),
            (Some(RequestedTime::At(at)), None) | (None, Some(at)) => self.delay(key, at, 0, None),
            (None, None) => {}
        }
    }

    /// Gives back a key that failed. It comes again with backoff, and not before `not_before` even if requested.
    pub fn fail(&mut self, key: K, not_before: Option<T>, now: T) {
        let Some((failures, again)) = self.give_back(&key) else { return };
        let failures = failures.saturating_add(1);
        let backed_off = now + self.backoff.after(failures, self.random.next_u32());
        let at = match again {
            None => backed_off,
            Some(RequestedTime::Now) => backed_off.min(now + MAX_HURRIED_BACKOFF),
            Some(RequestedTime::At(asked)) => backed_off.min(asked.max(now)),
        };
        self.delay(key, not_before.map_or(at, |t| at.max(t)), failures, not_before);
    }

    /// Returns the numbers of keys; cheap.
    pub fn sizes(&self) -> QueueSizes {
        QueueSizes {
            ready: self.ready.waiting(),
            busy: self.busy,
            delayed: self.timers.len(),
            tenants: self.ready.parties(),
        }
    }

    /// Returns true if no key is due or in progress; some may wait for their time.
    pub fn is_idle(&self) -> bool {
        self.ready.waiting() == 0 && self.busy == 0
    }

    /// Takes a key out of progress. Returns its failures in a row, and the time of a request meanwhile.
    fn give_back(&mut self, key: &K) -> Option<(u32, Option<RequestedTime<T>>)> {
        let entry = self.entries.get(key)?;
        let EntryState::Busy { again } = entry.state else { return None };
        let failures = entry.failures;
        self.entries.remove(key);
        self.busy -= 1;
        self.ready.done(&key.tenant());
        Some((failures, again))
    }

    /// Moves a waiting key forward to `at`, unless it comes earlier.
    fn hurry(&mut self, key: K, at: T) {
        let Some(entry) = self.entries.get(&key) else { return };
        if let EntryState::Delayed { at: known, timer, firm_until } = entry.state
            && at < known
        {
            let failures = entry.failures;
            self.timers.remove(&(known, timer));
            self.delay(key, at, failures, firm_until);
        }
    }

    fn delay(&mut self, key: K, at: T, failures: u32, firm_until: Option<T>) {
        self.last_timer += 1;
        let timer = self.last_timer;
        self.timers.insert((at, timer), key.clone());
        self.entries.insert(key, Entry { state: EntryState::Delayed { at, timer, firm_until }, failures });
    }

    /// Makes keys ready whose time has come.
    fn fire(&mut self, now: T) {
        while let Some(entry) = self.timers.first_entry().filter(|entry| entry.key().0 <= now) {
            let key = entry.remove();
            if let Some(entry) = self.entries.get_mut(&key) {
                entry.state = EntryState::Ready;
                self.ready.push(key.tenant(), key);
            }
        }
    }
}
