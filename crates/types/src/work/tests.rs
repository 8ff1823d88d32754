use std::collections::HashSet;

use jiff::Timestamp;
use proptest::prelude::*;

use super::*;

/// Tenant and number.
type Key = (LogicalClusterId, u8);

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

fn seams(seed: u64) -> Seams {
    Seams::seeded(seed, Timestamp::UNIX_EPOCH)
}

fn queue() -> WorkQueue<Key, Duration> {
    WorkQueue::new(Backoff::default(), &seams(1))
}

fn key(tenant: u8, number: u8) -> Key {
    (LogicalClusterId::new(u64::from(tenant) + 1), number)
}

/// The keys of one tenant that are ready at `now`, worked off one after the other.
fn ready(queue: &mut WorkQueue<Key, Duration>, now: Duration) -> Vec<u8> {
    let mut keys = Vec::new();
    while let NextWork::Key(key) = queue.take(now) {
        keys.push(key.1);
        queue.finish(key, WorkOutcome::Done, now);
    }
    keys
}

#[test]
fn a_key_is_worked_on_once_at_a_time_and_comes_again_when_asked_for_meanwhile() {
    let (mut q, a) = (queue(), key(0, 1));
    q.add(a);
    q.add(a);
    assert_eq!(q.take(SECOND), NextWork::Key(a));
    q.add(a);
    assert_eq!(q.take(SECOND), NextWork::Nothing, "it is still being done");
    q.finish(a, WorkOutcome::Done, SECOND);
    assert_eq!(ready(&mut q, SECOND), [1]);
    assert_eq!(q.sizes(), QueueSizes::default(), "and leaves nothing behind");
}

#[test]
fn a_tenant_has_no_more_keys_in_work_than_it_may() {
    let mut q = queue().at_most(2);
    (0..4).for_each(|number| q.add(key(0, number)));
    q.add(key(1, 9));
    let taken: Vec<_> = std::iter::from_fn(|| match q.take(SECOND) {
        NextWork::Key(key) => Some(key),
        NextWork::At(_) | NextWork::Nothing => None,
    })
    .collect();
    assert_eq!(taken, [key(0, 0), key(1, 9), key(0, 1)]);
    assert_eq!((q.sizes().ready, q.has_turn()), (2, false));
    q.add(key(0, 5));
    assert_eq!(q.take(SECOND), NextWork::Nothing, "also of what comes meanwhile");
    q.finish(key(0, 1), WorkOutcome::Done, SECOND);
    assert_eq!((q.has_turn(), q.take(SECOND)), (true, NextWork::Key(key(0, 2))));
    q.fail(key(0, 0), None, SECOND);
    q.finish(key(0, 2), WorkOutcome::Done, SECOND);
    q.finish(key(1, 9), WorkOutcome::Done, SECOND);
    assert_eq!(ready(&mut q, SECOND), [3, 5]);
}

#[test]
fn delays() {
    let a = key(0, 1);
    let at = |at: Duration| move |q: &mut WorkQueue<Key, Duration>| q.add_at(a, at);
    let now = |q: &mut WorkQueue<Key, Duration>| q.add(a);
    type Ask<'a> = &'a dyn Fn(&mut WorkQueue<Key, Duration>);
    for (case, asked, expected) in [
        ("the earlier time counts", [&at(9 * SECOND) as Ask, &at(5 * SECOND)], NextWork::At(5 * SECOND)),
        ("in either order", [&at(5 * SECOND), &at(9 * SECOND)], NextWork::At(5 * SECOND)),
        ("now comes before any time", [&at(5 * SECOND), &now], NextWork::Key(a)),
        ("and is not put off", [&now, &at(5 * SECOND)], NextWork::Key(a)),
    ] {
        let mut idle = queue();
        asked.iter().for_each(|ask| ask(&mut idle));
        assert_eq!(idle.take(SECOND), expected, "{case}");
        let mut busy = queue();
        busy.add(a);
        busy.take(Duration::ZERO);
        asked.iter().for_each(|ask| ask(&mut busy));
        busy.finish(a, WorkOutcome::Done, SECOND);
        assert_eq!(busy.take(SECOND), expected, "{case}, also while it is worked on");
    }
}

#[test]
fn the_next_scrub_starts_at_the_earlier_requested_time() {
    for (case, asked, expected) in [
        ("no request", None, NextWork::At(4 * SECOND)),
        ("for earlier", Some(2 * SECOND), NextWork::At(2 * SECOND)),
        ("for later", Some(9 * SECOND), NextWork::At(4 * SECOND)),
    ] {
        let (mut q, a) = (queue(), key(0, 1));
        q.add(a);
        q.take(Duration::ZERO);
        asked.into_iter().for_each(|at| q.add_at(a, at));
        q.finish(a, WorkOutcome::RequeueAfter(3 * SECOND), SECOND);
        assert_eq!(q.take(SECOND), expected, "{case}");
    }
}

#[test]
fn failures_back_off_twice_as_long_each_time_up_to_a_minute() {
    let (mut q, a, mut now) = (queue(), key(0, 1), Duration::ZERO);
    q.add(a);
    for failures in 1..30_u32 {
        assert_eq!(q.take(now), NextWork::Key(a));
        q.fail(a, None, now);
        let NextWork::At(at) = q.take(now) else { panic!("it waits") };
        let full = (10 * MS * (1 << (failures - 1).min(20))).min(60 * SECOND);
        assert!(at - now >= full / 2 && at - now <= full, "{failures}: {:?} of {full:?}", at - now);
        now = at;
    }
    assert_eq!(q.take(now), NextWork::Key(a));
    q.finish(a, WorkOutcome::Done, now);
    q.add(a);
    q.take(now);
    q.fail(a, None, now);
    assert!(matches!(q.take(now), NextWork::At(at) if at <= now + 10 * MS), "a success forgets the failures");
}

#[test]
fn a_new_request_ends_the_backoff() {
    let (mut q, a, now) = (queue(), key(0, 1), Duration::ZERO);
    q.add(a);
    for minute in 0..20 {
        let now = minute * 60 * SECOND;
        assert_eq!(q.take(now), NextWork::Key(a));
        q.fail(a, None, now);
    }
    q.add(a);
    assert_eq!(q.take(now), NextWork::Key(a), "at once");
    q.add(a);
    q.fail(a, None, now);
    assert_eq!(q.take(now), NextWork::At(SECOND), "soon, when it failed at the moment it was asked for");
}

#[test]
fn a_delayed_key_returns_at_its_time_when_requested_earlier() {
    let (a, start, told) = (key(0, 1), 19 * 60 * SECOND, 19 * 60 * SECOND + 5 * SECOND);
    type Ask = fn(&mut WorkQueue<Key, Duration>);
    for (case, ask, expected) in [
        ("now", (|q| q.add(key(0, 1))) as Ask, Some(told)),
        ("for earlier", |q| q.add_at(key(0, 1), 19 * 60 * SECOND + SECOND), Some(told)),
        ("for later", |q| q.add_at(key(0, 1), 19 * 60 * SECOND + 9 * SECOND), Some(told + 4 * SECOND)),
        ("no further request", |_| (), None),
    ] {
        let mut q = queue();
        q.add(a);
        for minute in 0..20 {
            assert_eq!(q.take(minute * 60 * SECOND), NextWork::Key(a));
            q.fail(a, Some(minute * 60 * SECOND + 5 * SECOND), minute * 60 * SECOND);
        }
        let NextWork::At(backed_off) = q.take(start) else { panic!("it waits") };
        assert!(backed_off >= start + 30 * SECOND, "out its back-off");
        ask(&mut q);
        ask(&mut q);
        let expected = expected.unwrap_or(backed_off);
        assert_eq!(q.take(start), NextWork::At(expected), "asked for {case}");
        assert_eq!(q.take(expected), NextWork::Key(a), "asked for {case}");
    }
}

#[test]
fn jitter_follows_the_seed() {
    let waits = |seed| {
        let mut q: WorkQueue<Key, Duration> = WorkQueue::new(Backoff::default(), &seams(seed));
        (0..20).for_each(|n| q.add(key(0, n)));
        while let NextWork::Key(key) = q.take(Duration::ZERO) {
            q.fail(key, None, Duration::ZERO);
        }
        q.timers.keys().map(|(at, _)| *at).collect::<Vec<_>>()
    };
    assert_eq!(waits(7), waits(7));
    assert_ne!(waits(7), waits(8));
    assert!(waits(7).iter().collect::<HashSet<_>>().len() > 10, "failures of one moment do not come back together");
}

#[test]
fn a_flood_of_one_tenant_delays_another_by_one_key() {
    let mut q = queue();
    (0..100).for_each(|n| q.add(key(0, n)));
    assert_eq!(q.take(SECOND), NextWork::Key(key(0, 0)));
    q.add(key(1, 0));
    q.add(key(1, 1));
    let taken: Vec<_> = (0..4).map(|_| q.take(SECOND)).collect();
    let expected = [key(0, 1), key(1, 0), key(0, 2), key(1, 1)].map(NextWork::Key);
    assert_eq!(taken, expected);
    assert_eq!(q.sizes(), QueueSizes { ready: 97, busy: 5, delayed: 0, tenants: 1 });
}

#[derive(Clone, Debug)]
enum Act {
    Add(Key),
    AddIn(Key, u16),
    Take,
    /// Returns the key at this position among the keys in hand.
    Finish(usize, Option<u16>),
    Fail(usize, Option<u16>),
    Wait(u16),
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let key = || (0..3_u8, 0..4_u8).prop_map(|(tenant, number)| key(tenant, number));
    let act = prop_oneof![
        4 => key().prop_map(Act::Add),
        2 => (key(), 0..2000_u16).prop_map(|(key, ms)| Act::AddIn(key, ms)),
        6 => Just(Act::Take),
        3 => (0..8_usize, proptest::option::of(0..2000_u16)).prop_map(|(at, ms)| Act::Finish(at, ms)),
        3 => (0..8_usize, proptest::option::of(0..2000_u16)).prop_map(|(at, ms)| Act::Fail(at, ms)),
        2 => (0..500_u16).prop_map(Act::Wait),
    ];
    proptest::collection::vec(act, 0..200)
}

/// A queue, and a model of its expected state.
struct Checked {
    queue: WorkQueue<Key, Duration>,
    now: Duration,
    in_hand: Vec<Key>,
    /// Requested, and not started since.
    owed: HashSet<Key>,
    /// Earliest time at which it may be due.
    held: HashMap<Key, Duration>,
}

impl Checked {
    fn act(&mut self, act: Act) {
        let later = |ms: u16, now: Duration| now + Duration::from_millis(u64::from(ms));
        match act {
            Act::Add(key) => {
                self.owed.insert(key);
                self.queue.add(key);
            }
            Act::AddIn(key, ms) => {
                self.owed.insert(key);
                self.queue.add_at(key, later(ms, self.now));
            }
            Act::Take => drop(self.take()),
            Act::Finish(..) | Act::Fail(..) if self.in_hand.is_empty() => {}
            Act::Finish(at, again) => {
                let key = self.in_hand.swap_remove(at % self.in_hand.len());
                let again = again.map(|ms| Duration::from_millis(u64::from(ms)));
                self.queue.finish(key, again.map_or(WorkOutcome::Done, WorkOutcome::RequeueAfter), self.now);
            }
            Act::Fail(at, hold) => {
                let key = self.in_hand.swap_remove(at % self.in_hand.len());
                let hold = hold.map(|ms| later(ms, self.now));
                self.held.extend(hold.map(|until| (key, until)));
                self.owed.insert(key);
                self.queue.fail(key, hold, self.now);
            }
            Act::Wait(ms) => self.now = later(ms, self.now),
        }
        self.check();
    }

    fn take(&mut self) -> NextWork<Key, Duration> {
        let next = self.queue.take(self.now);
        match next {
            NextWork::Key(key) => {
                assert!(!self.in_hand.contains(&key), "{key:?} is worked on twice at a time");
                let held = self.held.remove(&key);
                assert!(held.is_none_or(|until| until <= self.now), "{key:?} comes too early");
                self.owed.remove(&key);
                self.in_hand.push(key);
            }
            NextWork::At(at) => assert!(at > self.now, "what is due is given out"),
            NextWork::Nothing => assert_eq!(self.queue.sizes().delayed, 0),
        }
        next
    }

    fn check(&self) {
        let sizes = self.queue.sizes();
        assert_eq!(sizes.busy, self.in_hand.len());
        assert_eq!(sizes.ready + sizes.busy + sizes.delayed, self.queue.entries.len(), "each key is in one place");
        assert_eq!(self.queue.is_idle(), sizes.ready + sizes.busy == 0);
    }

    /// Works off everything.
    fn drain(&mut self) {
        loop {
            while let Some(key) = self.in_hand.pop() {
                self.queue.finish(key, WorkOutcome::Done, self.now);
            }
            match self.take() {
                NextWork::Key(_) => {}
                NextWork::At(at) => self.now = at,
                NextWork::Nothing => return,
            }
        }
    }
}

proptest! {
    #[test]
    fn nothing_asked_for_is_lost_or_done_twice_at_a_time_or_left_behind(acts in acts()) {
        let (in_hand, owed, held) = (Vec::new(), HashSet::new(), HashMap::new());
        let mut checked = Checked { queue: queue(), now: Duration::ZERO, in_hand, owed, held };
        acts.into_iter().for_each(|act| checked.act(act));
        checked.drain();
        prop_assert_eq!(&checked.owed, &HashSet::new());
        prop_assert_eq!(checked.queue.sizes(), QueueSizes::default());
        prop_assert!(checked.queue.entries.is_empty() && checked.queue.timers.is_empty());
    }

    #[test]
    fn a_tenant_with_ready_keys_waits_at_most_one_turn_of_each_other(
        keys in proptest::collection::vec((0..6_u8, 0..20_u8), 1..80),
        late in proptest::collection::vec((0..6_u8, 20..40_u8), 0..80),
    ) {
        let (mut q, mut ready) = (queue(), HashSet::new());
        let ask = |q: &mut WorkQueue<Key, Duration>, ready: &mut HashSet<Key>, (tenant, number)| {
            q.add(key(tenant, number));
            ready.insert(key(tenant, number));
        };
        keys.into_iter().for_each(|asked| ask(&mut q, &mut ready, asked));
        let (mut late, mut passed) = (late.into_iter(), HashMap::new());
        while let NextWork::Key(taken) = q.take(SECOND) {
            ready.remove(&taken);
            passed.remove(&taken.0);
            let waiting: HashSet<_> = ready.iter().map(|(tenant, _)| *tenant).collect();
            waiting.into_iter().for_each(|tenant| *passed.entry(tenant).or_insert(0) += 1);
            prop_assert!(passed.values().all(|turns| *turns <= 6), "{:?}", passed);
            q.finish(taken, WorkOutcome::Done, SECOND);
            late.by_ref().take(2).for_each(|asked| ask(&mut q, &mut ready, asked));
        }
        prop_assert!(ready.is_empty());
    }
}
