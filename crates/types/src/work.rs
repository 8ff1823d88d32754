//! The queue of every loop, as a state machine: it is told the time and waits for nothing.
//!
//! It holds keys, never events: what is added twice is done once, and nobody works on a key twice at a time. Tenants take
//! turns, so that one that floods its loop delays the others by one piece of work each round; how long that takes, the loop must
//! bound. Of one tenant a queue may hand out fewer keys at once than there are workers ([`WorkQueue::at_most`]), so that no piece
//! of its work keeps all of them. A key that is done and not
//! asked for again leaves nothing behind, so the queue is bounded by the distinct keys that wait or are worked on.

#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, HashMap, hash_map},
    hash::Hash,
    ops::Add,
    time::Duration,
};

use rand::{RngCore as _, SeedableRng as _, rngs::StdRng};

use crate::{LogicalClusterId, ObjectKey, Seams, turns::Turns};

/// What failed and was asked for while it was worked on comes again after this at the latest: the new request may be the
/// remedy, which a long back-off would keep waiting.
const HURRIED: Duration = Duration::from_secs(1);

/// What a loop works on.
pub trait WorkKey: Clone + Eq + Hash {
    /// Whose work it is.
    type Tenant: Clone + Eq + Hash;

    /// Who waits for a turn with this key. Always the same for the same key.
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

/// What a look at a key came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing more to do until something changes.
    Done,
    /// Look again after this time, if nothing comes before.
    CheckAgainIn(Duration),
}

/// How long a key that failed waits: `first`, then twice as long each time, at most `longest`; of that a random half.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// After the first failure.
    pub first: Duration,
    /// After many.
    pub longest: Duration,
}

impl Default for Backoff {
    /// 10 ms to 1 min.
    fn default() -> Self {
        Self { first: Duration::from_millis(10), longest: Duration::from_secs(60) }
    }
}

impl Backoff {
    /// The wait before the try after `failures` ones; `random` chooses between the half and the whole of it.
    pub fn after(&self, failures: u32, random: u32) -> Duration {
        let doubled = self.first.saturating_mul(1 << failures.saturating_sub(1).min(20)).min(self.longest);
        doubled.mul_f64(0.5 + f64::from(random) / f64::from(u32::MAX) / 2.0)
    }
}

/// What [`WorkQueue::take`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next<K, T> {
    /// Work on this; give it back with [`WorkQueue::finish`] or [`WorkQueue::fail`].
    Key(K),
    /// Nothing before this time, unless something is added.
    At(T),
    /// Nothing, until something is added.
    Nothing,
}

/// How much there is of what.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sizes {
    /// Keys whose time has come.
    pub ready: usize,
    /// Keys that are worked on.
    pub busy: usize,
    /// Keys that wait for their time.
    pub delayed: usize,
    /// Tenants with ready keys that may be worked on now.
    pub tenants: usize,
}

/// Keys to be worked on, in the time `T` of the caller: an `Instant`, or in tests the `Duration` since the start.
pub struct WorkQueue<K: WorkKey, T> {
    /// Every key that is somewhere, once.
    entries: HashMap<K, Entry<T>>,
    ready: Turns<K::Tenant, K>,
    timers: BTreeMap<(T, u64), K>,
    last_timer: u64,
    busy: usize,
    backoff: Backoff,
    random: StdRng,
}

struct Entry<T> {
    place: Place<T>,
    /// In a row.
    failures: u32,
}

enum Place<T> {
    Ready,
    Delayed {
        at: T,
        timer: u64,
        /// Whoever asks for it does not hurry it further: it was told not to come before.
        firm_until: Option<T>,
    },
    Busy {
        again: Option<When<T>>,
    },
}

/// When a key that is worked on was asked for.
#[derive(Clone, Copy)]
enum When<T> {
    Now,
    At(T),
}

impl<K: WorkKey, T: Copy + Ord + Add<Duration, Output = T>> WorkQueue<K, T> {
    /// An empty one; the jitter of back-offs follows from `seams`.
    pub fn new(backoff: Backoff, seams: &Seams) -> Self {
        let mut seed = [0; 32];
        seams.entropy.fill(&mut seed);
        Self {
            entries: HashMap::new(),
            ready: Turns::new(usize::MAX),
            timers: BTreeMap::new(),
            last_timer: 0,
            busy: 0,
            backoff,
            random: StdRng::from_seed(seed),
        }
    }

    /// This queue, still empty, where at most so many keys of a tenant are worked on at once, which is one or more.
    #[must_use]
    pub fn at_most(self, keys: usize) -> Self {
        debug_assert!(self.entries.is_empty(), "a share is given before the first key");
        Self { ready: Turns::new(keys), ..self }
    }

    /// Whether a key's time has come that may be worked on now.
    pub fn has_turn(&self) -> bool {
        self.ready.parties() > 0
    }

    /// Asks for a key now. One that is worked on comes again after that; one that waits out a failure comes now,
    /// or when it was told not to come before.
    pub fn add(&mut self, key: K) {
        match self.entries.entry(key.clone()) {
            hash_map::Entry::Vacant(entry) => {
                entry.insert(Entry { place: Place::Ready, failures: 0 });
                self.ready.push(key.tenant(), key);
            }
            hash_map::Entry::Occupied(mut entry) => match &mut entry.get_mut().place {
                Place::Ready => {}
                Place::Busy { again } => *again = Some(When::Now),
                Place::Delayed { firm_until: Some(at), .. } => {
                    let at = *at;
                    self.hurry(key, at);
                }
                Place::Delayed { at, timer, firm_until: None } => {
                    self.timers.remove(&(*at, *timer));
                    entry.get_mut().place = Place::Ready;
                    self.ready.push(key.tenant(), key);
                }
            },
        }
    }

    /// Asks for a key at a time, unless it comes earlier anyway.
    pub fn add_at(&mut self, key: K, at: T) {
        match self.entries.get_mut(&key).map(|entry| &mut entry.place) {
            None => self.delay(key, at, 0, None),
            Some(Place::Ready) => {}
            Some(Place::Delayed { firm_until, .. }) => {
                let at = firm_until.map_or(at, |firm| at.max(firm));
                self.hurry(key, at);
            }
            Some(Place::Busy { again }) => {
                *again = Some(match *again {
                    None => When::At(at),
                    Some(When::At(other)) => When::At(at.min(other)),
                    Some(When::Now) => When::Now,
                });
            }
        }
    }

    /// The next key whose time has come: of the tenant whose turn it is, the one that waits longest.
    pub fn take(&mut self, now: T) -> Next<K, T> {
        self.fire(now);
        match self.ready.take() {
            Some((_, key)) => {
                if let Some(entry) = self.entries.get_mut(&key) {
                    entry.place = Place::Busy { again: None };
                    self.busy += 1;
                }
                Next::Key(key)
            }
            None => self.timers.first_key_value().map_or(Next::Nothing, |((at, _), _)| Next::At(*at)),
        }
    }

    /// A key that was taken succeeded.
    pub fn finish(&mut self, key: K, outcome: Outcome, now: T) {
        let Some((_, again)) = self.give_back(&key) else { return };
        let check = match outcome {
            Outcome::Done => None,
            Outcome::CheckAgainIn(delay) => Some(now + delay),
        };
        match (again, check) {
            (Some(When::Now), _) => self.add(key),
            (Some(When::At(asked)), Some(check)) => self.delay(key, asked.min(check), 0, None),
            (Some(When::At(at)), None) | (None, Some(at)) => self.delay(key, at, 0, None),
            (None, None) => {}
        }
    }

    /// A key that was taken failed and comes again, later each time, and not before `not_before` whoever asks for it.
    pub fn fail(&mut self, key: K, not_before: Option<T>, now: T) {
        let Some((failures, again)) = self.give_back(&key) else { return };
        let failures = failures.saturating_add(1);
        let backed_off = now + self.backoff.after(failures, self.random.next_u32());
        let at = match again {
            None => backed_off,
            Some(When::Now) => backed_off.min(now + HURRIED),
            Some(When::At(asked)) => backed_off.min(asked.max(now)),
        };
        self.delay(key, not_before.map_or(at, |t| at.max(t)), failures, not_before);
    }

    /// How much there is of what; costs nothing.
    pub fn sizes(&self) -> Sizes {
        Sizes {
            ready: self.ready.waiting(),
            busy: self.busy,
            delayed: self.timers.len(),
            tenants: self.ready.parties(),
        }
    }

    /// Whether nothing is ready or worked on; keys may still wait for their time.
    pub fn is_idle(&self) -> bool {
        self.ready.waiting() == 0 && self.busy == 0
    }

    /// Takes a key out of the hands that worked on it: its failures in a row, and when it was asked for meanwhile.
    fn give_back(&mut self, key: &K) -> Option<(u32, Option<When<T>>)> {
        let entry = self.entries.get(key)?;
        let Place::Busy { again } = entry.place else { return None };
        let failures = entry.failures;
        self.entries.remove(key);
        self.busy -= 1;
        self.ready.done(&key.tenant());
        Some((failures, again))
    }

    /// Lets a key that waits come at `at`, unless it comes earlier anyway.
    fn hurry(&mut self, key: K, at: T) {
        let Some(entry) = self.entries.get(&key) else { return };
        if let Place::Delayed { at: known, timer, firm_until } = entry.place
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
        self.entries.insert(key, Entry { place: Place::Delayed { at, timer, firm_until }, failures });
    }

    /// Makes ready whose time has come.
    fn fire(&mut self, now: T) {
        while let Some(entry) = self.timers.first_entry().filter(|entry| entry.key().0 <= now) {
            let key = entry.remove();
            if let Some(entry) = self.entries.get_mut(&key) {
                entry.place = Place::Ready;
                self.ready.push(key.tenant(), key);
            }
        }
    }
}
