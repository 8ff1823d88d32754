//! The threads that requests are worked on by, shared out between tenants by the time that each takes, and between the users of each.
//!
//! A runtime polls what is ready in the order in which it became so: somebody who asks for a hundred long lists has a hundred pieces of
//! work in front of whoever comes next. So a request is polled only in a time slice of its own, of which there are as many as processors.
//! Who finds none free stands in line. The next slice is the tenant's who has had the least time, there the user's who has, and of
//! the requests of one the one's that has waited longest. Who comes after a while has saved up nothing (start-time fair queueing): it
//! counts as one who has had as little as the one who was served last.
//!
//! A slice ends with the poll: what waits, for a disk or for a client, has none.

use std::{
    cell::Cell,
    collections::{BTreeSet, HashMap, HashSet, VecDeque},
    hash::Hash,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker, ready},
    time::{Duration, Instant},
};

use futures::future::Either;
use parking_lot::Mutex;
use portolan_types::LogicalClusterId;

use super::fair::Flow;

/// Time after which work that never waits ends its slice ([`yield_long_slice`]).
const LONG_SLICE: Duration = Duration::from_millis(1);

/// Of how many who do not wait is known what they have had, of tenants and of the users of each. Of more it is forgotten.
const REMEMBERED: usize = 256;

/// Time slices, and who waits for one.
pub(super) struct Processor(Mutex<State>);

struct State {
    /// Slices at once.
    slices: usize,
    /// Slices that are being had, or have been given to those who waited.
    running: usize,
    /// Number of the last who came to wait.
    last: u64,
    /// Number of the last connection.
    connections: u64,
    /// Those who were in line, and have a slice that they do not know of yet.
    granted: HashSet<u64>,
    tenants: Ranked<LogicalClusterId, Ranked<u64, VecDeque<Waiter>>>,
}

struct Waiter {
    number: u64,
    waker: Waker,
}

/// Lines by the time that was taken in the name of each.
struct Ranked<K, L> {
    lines: HashMap<K, (Duration, L)>,
    /// Those in which somebody waits.
    waiting: BTreeSet<(Duration, K)>,
    /// What the one had taken who was served last.
    least: Duration,
}

trait Line: Default {
    fn is_empty(&self) -> bool;
    fn pop(&mut self) -> Option<Waiter>;
}

impl Line for VecDeque<Waiter> {
    fn is_empty(&self) -> bool {
        self.is_empty()
    }

    fn pop(&mut self) -> Option<Waiter> {
        self.pop_front()
    }
}

impl<K, L: Line> Default for Ranked<K, L> {
    fn default() -> Self {
        Self { lines: HashMap::new(), waiting: BTreeSet::new(), least: Duration::ZERO }
    }
}

impl<K: Copy + Ord + Hash, L: Line> Line for Ranked<K, L> {
    fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    fn pop(&mut self) -> Option<Waiter> {
        let (taken, key) = *self.waiting.first()?;
        self.least = taken;
        if self.lines.len() > self.waiting.len() + REMEMBERED {
            self.lines.retain(|_, (_, line)| !line.is_empty());
        }
        self.with(key, Duration::ZERO, L::pop)
    }
}

impl<K: Copy + Ord + Hash, L: Line> Ranked<K, L> {
    /// Changes a line, in whose name so much time was taken.
    fn with<T>(&mut self, key: K, time: Duration, change: impl FnOnce(&mut L) -> T) -> T {
        let (taken, line) = self.lines.entry(key).or_default();
        match line.is_empty() {
            true => *taken = self.least.max(*taken),
            false => drop(self.waiting.remove(&(*taken, key))),
        }
        let changed = change(line);
        *taken += time;
        if !line.is_empty() {
            self.waiting.insert((*taken, key));
        }
        changed
    }
}

impl State {
    /// Changes a user's line, in whose name so much time was taken.
    fn with<T>(&mut self, flow: Flow, time: Duration, change: impl FnOnce(&mut VecDeque<Waiter>) -> T) -> T {
        self.tenants.with(flow.cluster, time, |users| users.with(flow.user, time, change))
    }

    /// Numbers rise within a line.
    fn waiter(&mut self, flow: Flow, number: u64) -> Option<&mut Waiter> {
        let (_, users) = self.tenants.lines.get_mut(&flow.cluster)?;
        let (_, line) = users.lines.get_mut(&flow.user)?;
        let at = line.binary_search_by_key(&number, |waiter| waiter.number).ok()?;
        line.get_mut(at)
    }

    fn leave(&mut self, flow: Flow, number: u64) {
        self.with(flow, Duration::ZERO, |line| {
            let at = line.binary_search_by_key(&number, |waiter| waiter.number);
            at.ok().and_then(|at| line.remove(at))
        });
    }

    fn line_up(&mut self, flow: Flow, waker: Waker) -> u64 {
        self.last += 1;
        let number = self.last;
        self.with(flow, Duration::ZERO, |line| line.push_back(Waiter { number, waker }));
        number
    }

    /// A slice at once, when there is one and nobody waits.
    fn take(&mut self) -> bool {
        let takes = self.tenants.is_empty() && self.running < self.slices;
        self.running += usize::from(takes);
        takes
    }

    /// Gives a slice to the next in line, who has to be woken.
    fn give_back(&mut self) -> Option<Waker> {
        self.running -= 1;
        let next = self.tenants.pop()?;
        self.running += 1;
        self.granted.insert(next.number);
        Some(next.waker)
    }
}

impl Processor {
    /// So many slices at once.
    pub(super) fn new(slices: usize) -> Arc<Self> {
        let (granted, tenants) = (HashSet::new(), Ranked::default());
        let state = State { slices, running: 0, last: 0, connections: 0, granted, tenants };
        Arc::new(Self(Mutex::new(state)))
    }

    /// A slice is over that was `granted` to one, and may have been had by another: what it turned out to be is not known before. Either
    /// pays for it, so that nobody gains by coming as somebody else.
    fn end(&self, granted: Flow, had: Flow, began: Instant) {
        let mut state = self.0.lock();
        // As long as nobody waits there is nothing to share out.
        if !state.tenants.is_empty() {
            let time = began.elapsed();
            state.with(granted, time, |_| ());
            if had != granted {
                state.with(had, time, |_| ());
            }
        }
        let next = state.give_back();
        drop(state);
        next.into_iter().for_each(Waker::wake);
    }
}

/// In whose slices something is worked on: the tenant's and user's of the last request that came with it.
#[derive(Clone)]
pub(crate) struct TaskFlow(Arc<Inner>);

struct Inner {
    processor: Arc<Processor>,
    flow: Mutex<Flow>,
    /// Whom the slice was granted to that is being had, and since when.
    slice: Mutex<Option<(Flow, Instant)>>,
    /// The connection that a request has come over, whose bytes are sent for it.
    connection: Option<TaskFlow>,
    /// True for a flow that stays, also while requests of others are worked on.
    is_fixed: bool,
}

thread_local! {
    /// Begin of the slice in which this thread polls.
    static SLICE_BEGAN: Cell<Option<Instant>> = const { Cell::new(None) };
}

tokio::task_local! {
    /// That of the work that is being polled.
    static TASK_FLOW: TaskFlow;
}

impl TaskFlow {
    /// That of a connection, as long as nobody is known to have sent a request over it: those of nobody share what one tenant has.
    pub(super) fn of_nobody(processor: Arc<Processor>) -> Self {
        let user = {
            let mut state = processor.0.lock();
            state.connections += 1;
            state.connections
        };
        Self::new(processor, Flow { cluster: LogicalClusterId::SYSTEM, user }, None)
    }

    /// Returns one whose slices are always charged to `flow`.
    pub(super) fn fixed(processor: Arc<Processor>, flow: Flow) -> Self {
        let (flow, slice) = (Mutex::new(flow), Mutex::new(None));
        Self(Arc::new(Inner { processor, flow, slice, connection: None, is_fixed: true }))
    }

    fn new(processor: Arc<Processor>, flow: Flow, connection: Option<Self>) -> Self {
        let (flow, slice) = (Mutex::new(flow), Mutex::new(None));
        Self(Arc::new(Inner { processor, flow, slice, connection, is_fixed: false }))
    }

    /// That of what came over this connection and is worked on apart from it.
    pub(super) fn apart(&self) -> Self {
        if self.0.is_fixed {
            return Self::fixed(self.0.processor.clone(), self.flow());
        }
        Self::new(self.0.processor.clone(), self.flow(), Some(self.clone()))
    }

    fn flow(&self) -> Flow {
        *self.0.flow.lock()
    }

    fn set(&self, flow: Flow) {
        if self.0.is_fixed {
            return;
        }
        *self.0.flow.lock() = flow;
        if let Some(connection) = &self.0.connection {
            connection.set(flow);
        }
    }

    fn begin_slice(&self, granted: Flow) -> TimeSlice<'_> {
        let now = Instant::now();
        *self.0.slice.lock() = Some((granted, now));
        SLICE_BEGAN.set(Some(now));
        TimeSlice(self)
    }

    fn end_slice(&self) {
        SLICE_BEGAN.set(None);
        let slice = self.0.slice.lock().take();
        if let Some((granted, began)) = slice {
            self.0.processor.end(granted, self.flow(), began);
        }
    }

    /// Work that is done in slices.
    pub(crate) fn work<F: Future>(&self, work: F) -> impl Future<Output = F::Output> + use<F> {
        Dispatched { work: Box::pin(TASK_FLOW.scope(self.clone(), work)), dispatch: self.dispatch() }
    }

    /// Returns the way of one piece of work to its slices.
    pub(super) fn dispatch(&self) -> Dispatch {
        Dispatch { task_flow: self.clone(), waits: None }
    }
}

/// What is being worked on is this flow's, as far as anybody asks.
pub(super) fn belongs_to(flow: Flow) {
    // A request that came over no connection, as tests' do, is worked on as it comes.
    let _ = TASK_FLOW.try_with(|task_flow| task_flow.set(flow));
}

/// Gives the slice back that this work has: what follows takes long, and others share it out.
pub(crate) fn leave_slice() {
    let _ = TASK_FLOW.try_with(TaskFlow::end_slice);
}

/// Ends the slice that this work has when it has lasted for long; to be called between steps of work that never waits.
pub async fn yield_long_slice() {
    match SLICE_BEGAN.get() {
        Some(began) if began.elapsed() >= LONG_SLICE => tokio::task::yield_now().await,
        Some(_) => {}
        // It has none, and leaves its thread to others as all tasks do.
        None => tokio::task::consume_budget().await,
    }
}

/// Work that goes on when its request has been answered: in slices of its own, which are those of whoever's request is being worked on.
pub(crate) fn in_own_slices<F: Future>(work: F) -> impl Future<Output = F::Output> {
    match TASK_FLOW.try_with(TaskFlow::apart) {
        Ok(task_flow) => Either::Left(task_flow.work(work)),
        // As in `belongs_to`.
        Err(_) => Either::Right(work),
    }
}

/// Does the work of HTTP/2 that is done apart from its connection, in slices of its own.
impl<F> hyper::rt::Executor<F> for TaskFlow
where
    F: Future<Output: Send> + Send + 'static,
{
    fn execute(&self, work: F) {
        tokio::spawn(self.apart().work(work));
    }
}

/// How one piece of work comes to its slices.
pub(super) struct Dispatch {
    task_flow: TaskFlow,
    /// The number in line, or out of it with a slice, and the line.
    waits: Option<(u64, Flow)>,
}

impl Dispatch {
    /// Does a part of the work in a slice, when there is one for it.
    pub(super) fn poll<T>(
        &mut self,
        context: &mut Context<'_>,
        work: impl FnOnce(&mut Context<'_>) -> Poll<T>,
    ) -> Poll<T> {
        if self.task_flow.0.is_fixed && TASK_FLOW.try_with(|_| ()).is_ok() {
            // It is part of work that has a slice. To wait for a second one could be for ever: nobody gives the first one back.
            *self = self.task_flow.dispatch();
            return work(context);
        }
        let _slice = ready!(self.wait(context));
        work(context)
    }

    fn wait(&mut self, context: &Context<'_>) -> Poll<TimeSlice<'_>> {
        let mut state = self.task_flow.0.processor.0.lock();
        let granted = match self.waits {
            Some((number, flow)) if state.granted.remove(&number) => {
                self.waits = None;
                flow
            }
            Some((number, flow)) => {
                let own = state.waiter(flow, number);
                own.into_iter().for_each(|waiter| waiter.waker.clone_from(context.waker()));
                return Poll::Pending;
            }
            None => {
                let flow = self.task_flow.flow();
                if !state.take() {
                    self.waits = Some((state.line_up(flow, context.waker().clone()), flow));
                    return Poll::Pending;
                }
                flow
            }
        };
        drop(state);
        Poll::Ready(self.task_flow.begin_slice(granted))
    }
}

impl Drop for Dispatch {
    fn drop(&mut self) {
        let Some((number, flow)) = self.waits else { return };
        let mut state = self.task_flow.0.processor.0.lock();
        let next = match state.granted.remove(&number) {
            true => state.give_back(),
            false => {
                state.leave(flow, number);
                None
            }
        };
        drop(state);
        next.into_iter().for_each(Waker::wake);
    }
}

/// A slice, which ends when this is dropped, if it has not ended before.
struct TimeSlice<'a>(&'a TaskFlow);

impl Drop for TimeSlice<'_> {
    fn drop(&mut self) {
        self.0.end_slice();
    }
}

/// What is worked on in slices.
struct Dispatched<W> {
    work: W,
    dispatch: Dispatch,
}

impl<F: Future + Unpin> Future for Dispatched<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let Self { work, dispatch } = &mut *self;
        dispatch.poll(context, |context| Pin::new(work).poll(context))
    }
}

#[cfg(test)]
mod tests {
    use std::{
        future,
        pin::pin,
        sync::atomic::{AtomicUsize, Ordering},
        task::Wake,
    };

    use hyper::rt::Executor as _;

    use super::*;

    const MILLIS: Duration = Duration::from_millis(1);

    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    impl Woken {
        fn times(&self) -> usize {
            self.0.load(Ordering::Relaxed)
        }
    }

    fn flow(tenant: u64, user: u64) -> Flow {
        Flow { cluster: LogicalClusterId::new(tenant), user }
    }

    fn poll<F: Future>(work: Pin<&mut F>, woken: &Arc<Woken>) -> Poll<F::Output> {
        work.poll(&mut Context::from_waker(&Waker::from(woken.clone())))
    }

    /// Ends the one slice that there is.
    fn end(state: &mut State) {
        state.running = 1;
        state.give_back();
    }

    /// Each of these has work without end, in pieces that take so long: how much of the given time it was worked on in.
    fn shares(asking: &[(Flow, Duration)], time: Duration) -> Vec<Duration> {
        let processor = Processor::new(1);
        let mut state = processor.0.lock();
        let mut had = vec![Duration::ZERO; asking.len()];
        let mut numbers: HashMap<u64, usize> =
            (0..asking.len()).map(|index| (state.line_up(asking[index].0, Waker::noop().clone()), index)).collect();
        while had.iter().sum::<Duration>() < time {
            end(&mut state);
            let number = state.granted.drain().next().unwrap();
            let index = numbers.remove(&number).unwrap();
            let (flow, piece) = asking[index];
            had[index] += piece;
            // Its next piece is there when this one is done.
            numbers.insert(state.line_up(flow, Waker::noop().clone()), index);
            state.with(flow, piece, |_| ());
        }
        had
    }

    #[test]
    fn time_is_shared_out_between_tenants_and_between_the_users_of_each() {
        let many = |tenant, user, piece| std::iter::repeat_n((flow(tenant, user), piece), 50);
        for (case, asking, expected) in [
            (
                "one who takes long and one who does not",
                vec![(flow(1, 1), 5 * MILLIS), (flow(2, 1), MILLIS)],
                [500, 500],
            ),
            ("many beside one", many(1, 1, 5 * MILLIS).chain([(flow(2, 1), MILLIS)]).collect(), [500, 500]),
            ("two users of a tenant", many(1, 1, MILLIS).chain([(flow(1, 2), 2 * MILLIS)]).collect(), [500, 500]),
            (
                "a tenant of two users has no more for it",
                vec![(flow(1, 1), MILLIS), (flow(1, 2), MILLIS), (flow(2, 1), 2 * MILLIS)],
                [500, 500],
            ),
        ] {
            let had = shares(&asking, 1000 * MILLIS);
            let (last, others) = had.split_last().unwrap();
            let others = others.iter().sum::<Duration>();
            for (had, expected) in [others, *last].into_iter().zip(expected) {
                let off = had.as_millis().abs_diff(expected);
                assert!(off <= 10, "{case}: {had:?} where {expected} ms are expected");
            }
        }
    }

    #[test]
    fn who_comes_after_a_while_has_saved_up_nothing() {
        let processor = Processor::new(1);
        let mut state = processor.0.lock();
        let [one, other] = [flow(1, 1), flow(2, 1)];
        let line_up = |state: &mut State, flow| state.line_up(flow, Waker::noop().clone());
        for _ in 0..1000 {
            line_up(&mut state, one);
        }
        for _ in 0..500 {
            end(&mut state);
            state.with(one, MILLIS, |_| ());
        }
        state.granted.clear();
        let late: HashSet<u64> = (0..100).map(|_| line_up(&mut state, other)).collect();
        for _ in 0..20 {
            end(&mut state);
            let flow = if state.granted.iter().any(|number| late.contains(number)) { other } else { one };
            state.granted.clear();
            state.with(flow, MILLIS, |_| ());
        }
        let left = late.len() - state.tenants.lines[&other.cluster].1.lines[&1].1.len();
        assert!((9..=11).contains(&left), "half of twenty slices, not {left}");
    }

    #[test]
    fn no_more_than_some_are_remembered() {
        let processor = Processor::new(1);
        let mut state = processor.0.lock();
        for tenant in 0..1000 {
            state.line_up(flow(tenant, 1), Waker::noop().clone());
            end(&mut state);
            state.with(flow(tenant, 1), MILLIS, |_| ());
        }
        assert!(state.tenants.lines.len() <= REMEMBERED + 1, "{}", state.tenants.lines.len());
    }

    fn task_flow(processor: &Arc<Processor>, tenant: u64) -> TaskFlow {
        let task_flow = TaskFlow::of_nobody(processor.clone());
        task_flow.set(flow(tenant, 1));
        task_flow
    }

    /// Work that is polled in a slice of its own, in which `inside` happens once.
    fn while_another_works(processor: &Arc<Processor>, tenant: u64, inside: impl FnOnce()) {
        let mut inside = Some(inside);
        let mut work = pin!(task_flow(processor, tenant).work(future::poll_fn(|_| {
            inside.take().into_iter().for_each(|inside| inside());
            Poll::Ready(())
        })));
        assert_eq!(poll(work.as_mut(), &Arc::default()), Poll::Ready(()));
    }

    #[test]
    fn a_slice_lasts_as_long_as_a_poll() {
        let processor = Processor::new(1);
        let woken = Arc::<Woken>::default();
        let [second, third] = [2, 3].map(|tenant| task_flow(&processor, tenant).work(future::ready(tenant)));
        let (mut second, mut third) = (pin!(second), pin!(third));
        while_another_works(&processor, 1, || {
            assert!(poll(second.as_mut(), &woken).is_pending(), "there is one slice");
            assert_eq!(woken.times(), 0);
        });
        assert_eq!(woken.times(), 1, "whoever waits is woken when the poll is over");
        assert!(poll(third.as_mut(), &woken).is_pending(), "the slice is the one's who was woken");
        assert_eq!(poll(second.as_mut(), &woken), Poll::Ready(2));
        assert_eq!((woken.times(), poll(third.as_mut(), &woken)), (2, Poll::Ready(3)));
        assert_eq!(processor.0.lock().running, 0);
    }

    #[test]
    fn there_are_no_more_slices_at_once_also_for_one_alone() {
        let processor = Processor::new(2);
        let woken = Arc::<Woken>::default();
        let mut third = pin!(task_flow(&processor, 1).work(future::ready(3)));
        while_another_works(&processor, 1, || {
            while_another_works(&processor, 1, || {
                assert!(poll(third.as_mut(), &woken).is_pending());
                assert_eq!((processor.0.lock().running, woken.times()), (2, 0));
            });
            assert_eq!((woken.times(), poll(third.as_mut(), &woken)), (1, Poll::Ready(3)));
        });
        assert_eq!(processor.0.lock().running, 0);
    }

    #[test]
    fn who_leaves_passes_its_slice_on() {
        let processor = Processor::new(1);
        let woken = Arc::<Woken>::default();
        let mut waiting =
            [2, 3, 4].map(|tenant| Some(Box::pin(task_flow(&processor, tenant).work(future::ready(tenant)))));
        while_another_works(&processor, 1, || {
            for work in waiting.iter_mut().flatten() {
                assert!(poll(work.as_mut(), &woken).is_pending());
            }
            waiting[1] = None;
        });
        assert_eq!(woken.times(), 1);
        waiting[0] = None;
        assert_eq!(woken.times(), 2, "the one who left the line is not woken, the one behind it is");
        assert_eq!(waiting[2].as_mut().map(|work| poll(work.as_mut(), &woken)), Some(Poll::Ready(4)));
        drop(waiting);
        let state = processor.0.lock();
        assert!(state.running == 0 && state.granted.is_empty() && state.tenants.is_empty());
    }

    #[test]
    fn a_panic_keeps_no_slice() {
        let processor = Processor::new(1);
        let panic = || while_another_works(&processor, 1, || std::panic::resume_unwind(Box::new("gone")));
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(panic)).is_err());
        assert_eq!(processor.0.lock().running, 0);
    }

    #[test]
    fn who_comes_as_nobody_pays_as_nobody_and_as_itself() {
        let processor = Processor::new(1);
        let connection = TaskFlow::of_nobody(processor.clone());
        let (nobody, somebody, other) = (connection.flow(), flow(1, 1), flow(2, 1));
        let mut waits = pin!(task_flow(&processor, 2).work(future::ready(2)));
        let mut work = pin!(connection.work(future::poll_fn(|_| {
            belongs_to(somebody);
            assert!(poll(waits.as_mut(), &Arc::default()).is_pending());
            Poll::Ready(())
        })));
        assert_eq!(poll(work.as_mut(), &Arc::default()), Poll::Ready(()));
        let state = processor.0.lock();
        let had = |flow: Flow| state.tenants.lines[&flow.cluster].0;
        assert!(had(nobody) > Duration::ZERO && had(nobody) == had(somebody) && had(other) == Duration::ZERO);
    }

    #[test]
    fn work_of_a_fixed_flow_is_charged_to_it_whatever_requests_it_serves() {
        let processor = Processor::new(1);
        let (owner, asking, other) = (flow(1, 1), flow(2, 1), flow(3, 1));
        let mut waits = pin!(task_flow(&processor, 3).work(future::ready(3)));
        let mut work = pin!(TaskFlow::fixed(processor.clone(), owner).work(future::poll_fn(|_| {
            belongs_to(asking);
            assert_eq!(TASK_FLOW.with(TaskFlow::apart).flow(), owner, "what it spawns is of the same flow");
            assert!(poll(waits.as_mut(), &Arc::default()).is_pending());
            Poll::Ready(())
        })));
        assert_eq!(poll(work.as_mut(), &Arc::default()), Poll::Ready(()));
        let state = processor.0.lock();
        let had = |flow: Flow| state.tenants.lines.get(&flow.cluster).map(|line| line.0);
        assert!(had(owner) > Some(Duration::ZERO) && had(asking).is_none() && had(other) == Some(Duration::ZERO));
    }

    #[test]
    fn work_of_a_fixed_flow_within_other_work_needs_no_second_slice() {
        let processor = Processor::new(1);
        let share = TaskFlow::fixed(processor.clone(), flow(1, 1));
        let inner = Box::pin(share.work(future::ready(1)));
        let mut outer = pin!(task_flow(&processor, 3).work(inner));
        assert_eq!(poll(outer.as_mut(), &Arc::default()), Poll::Ready(1), "there is one slice, and it has that");
        let state = processor.0.lock();
        assert!(state.running == 0 && state.granted.is_empty() && state.tenants.is_empty(), "nothing is held");
    }

    #[test]
    fn work_that_never_waits_ends_its_slices_between_steps() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let _entered = runtime.enter();
        let processor = Processor::new(1);
        let mut work = pin!(TaskFlow::fixed(processor.clone(), flow(1, 1)).work(async {
            yield_long_slice().await;
            std::thread::sleep(LONG_SLICE);
            yield_long_slice().await;
            yield_long_slice().await;
        }));
        assert!(poll(work.as_mut(), &Arc::default()).is_pending(), "after the long step only");
        assert_eq!(processor.0.lock().running, 0);
        assert_eq!(poll(work.as_mut(), &Arc::default()), Poll::Ready(()));
    }

    #[test]
    fn what_takes_long_leaves_its_slice_to_others() {
        let processor = Processor::new(1);
        let woken = Arc::<Woken>::default();
        let mut other = pin!(task_flow(&processor, 2).work(future::ready(2)));
        while_another_works(&processor, 1, || {
            assert!(poll(other.as_mut(), &woken).is_pending());
            leave_slice();
            assert_eq!(poll(other.as_mut(), &woken), Poll::Ready(2));
        });
        assert_eq!(processor.0.lock().running, 0);
    }

    #[test]
    fn what_goes_on_after_its_request_takes_slices_of_the_same_user() {
        let processor = Processor::new(1);
        let woken = Arc::<Woken>::default();
        let connection = TaskFlow::of_nobody(processor.clone());
        let mut request = pin!(connection.work(async {
            belongs_to(flow(1, 1));
            Some(in_own_slices(future::ready(1)))
        }));
        let Poll::Ready(Some(stream)) = poll(request.as_mut(), &woken) else { panic!("there is a slice") };
        let mut stream = pin!(stream);
        while_another_works(&processor, 2, || {
            assert!(poll(stream.as_mut(), &woken).is_pending());
            let state = processor.0.lock();
            assert_eq!(state.tenants.lines[&flow(1, 1).cluster].1.lines[&1].1.len(), 1);
        });
        assert_eq!((woken.times(), poll(stream.as_mut(), &woken)), (1, Poll::Ready(1)));
    }

    #[tokio::test]
    async fn a_connection_is_the_ones_whose_request_came_last() {
        let processor = Processor::new(1);
        let connection = TaskFlow::of_nobody(processor.clone());
        assert_eq!(connection.flow().cluster, LogicalClusterId::SYSTEM);
        connection.work(async { belongs_to(flow(1, 1)) }).await;
        assert_eq!(connection.flow(), flow(1, 1), "HTTP/1.1: requests are worked on with the connection");
        let (done, told) = tokio::sync::oneshot::channel::<()>();
        connection.execute(async move {
            belongs_to(flow(2, 1));
            drop(done);
        });
        let _ = told.await;
        assert_eq!(connection.flow(), flow(2, 1), "HTTP/2: they are worked on apart from it");
    }
}
