//! Fair scheduler of polls: processor time is shared between tenants, and between the users of each.
//!
//! A runtime polls tasks in the order in which they became ready: a client with a hundred long lists would put a
//! hundred polls in front of the next one. So each poll of a request runs in a time slice, of which there are as many
//! as processors. A request that finds none free waits. The next slice goes to the tenant with the least time used,
//! there to the user with the least, and of that user to the request that has waited longest. An idle flow saves up
//! nothing (start-time fair queueing): when it returns, it counts as having used as little as the one served last.
//!
//! A slice ends with the poll; a task that waits for a disk or a client holds none.

use std::{
    cell::Cell,
    collections::{BTreeSet, HashMap, HashSet, VecDeque},
    hash::Hash,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker, ready},
    time::Duration,
};

use futures::future::Either;
use parking_lot::Mutex;
use portolan_types::{LogicalClusterId, MonotonicInstant};

use super::seats::FlowId;

/// Time after which work that never waits ends its slice ([`yield_long_slice`]).
const LONG_SLICE: Duration = Duration::from_millis(1);

/// Limit of idle tenants, and of idle users of each, whose used time is remembered.
const REMEMBERED: usize = 256;

/// Scheduler with its time slices and waiting tasks.
pub(super) struct FairPollScheduler(Mutex<SliceState>);

struct SliceState {
    /// Concurrent slices.
    slices: usize,
    /// Slices in use, or granted to tasks that have not run yet.
    running: usize,
    /// Number of the last task that was queued.
    last: u64,
    /// Number of the last connection.
    connections: u64,
    /// Tasks that have been granted a slice and do not know it yet.
    granted: HashSet<u64>,
    tenants: TimeRanking<LogicalClusterId, TimeRanking<u64, VecDeque<SliceWaiter>>>,
}

struct SliceWaiter {
    number: u64,
    waker: Waker,
}

/// Queues ranked by the time that each has used.
struct TimeRanking<K, L> {
    lines: HashMap<K, (Duration, L)>,
    /// Queues with a waiting task.
    waiting: BTreeSet<(Duration, K)>,
    /// Used time of the queue that was served last.
    least: Duration,
}

trait WaiterQueue: Default {
    fn is_empty(&self) -> bool;
    fn pop(&mut self) -> Option<SliceWaiter>;
}

impl WaiterQueue for VecDeque<SliceWaiter> {
    fn is_empty(&self) -> bool {
        self.is_empty()
    }

    fn pop(&mut self) -> Option<SliceWaiter> {
        self.pop_front()
    }
}

impl<K, L: WaiterQueue> Default for TimeRanking<K, L> {
    fn default() -> Self {
        Self { lines: HashMap::new(), waiting: BTreeSet::new(), least: Duration::ZERO }
    }
}

impl<K: Copy + Ord + Hash, L: WaiterQueue> WaiterQueue for TimeRanking<K, L> {
    fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    fn pop(&mut self) -> Option<SliceWaiter> {
        let (taken, key) = *self.waiting.first()?;
        self.least = taken;
        if self.lines.len() > self.waiting.len() + REMEMBERED {
            self.lines.retain(|_, (_, line)| !line.is_empty());
        }
        self.with(key, Duration::ZERO, L::pop)
    }
}

impl<K: Copy + Ord + Hash, L: WaiterQueue> TimeRanking<K, L> {
    /// Changes a queue and adds `time` to its used time.
    fn with<T>(&mut self, key: K, time: Duration, change: impl FnOnce(&mut L) -> T) -> T {
        let (taken, line) = self.lines.entry(key).or_default();
        if line.is_empty() {
            *taken = self.least.max(*taken)
        } else {
            self.waiting.remove(&(*taken, key));
        }
        let changed = change(line);
        *taken += time;
        if !line.is_empty() {
            self.waiting.insert((*taken, key));
        }
        changed
    }
}

impl SliceState {
    /// Changes a user's queue and adds `time` to its used time.
    fn with<T>(&mut self, flow: FlowId, time: Duration, change: impl FnOnce(&mut VecDeque<SliceWaiter>) -> T) -> T {
        self.tenants.with(flow.cluster, time, |users| users.with(flow.user, time, change))
    }

    /// Finds a waiting task by its number; numbers increase within a queue.
    fn waiter(&mut self, flow: FlowId, number: u64) -> Option<&mut SliceWaiter> {
        let (_, users) = self.tenants.lines.get_mut(&flow.cluster)?;
        let (_, line) = users.lines.get_mut(&flow.user)?;
        let at = line.binary_search_by_key(&number, |waiter| waiter.number).ok()?;
        line.get_mut(at)
    }

    fn leave(&mut self, flow: FlowId, number: u64) {
        self.with(flow, Duration::ZERO, |line| {
            let at = line.binary_search_by_key(&number, |waiter| waiter.number);
            at.ok().and_then(|at| line.remove(at))
        });
    }

    fn enqueue(&mut self, flow: FlowId, waker: Waker) -> u64 {
        self.last += 1;
        let number = self.last;
        self.with(flow, Duration::ZERO, |line| line.push_back(SliceWaiter { number, waker }));
        number
    }

    /// Takes a free slice if no task waits.
    fn take(&mut self) -> bool {
        let takes = self.tenants.is_empty() && self.running < self.slices;
        self.running += usize::from(takes);
        takes
    }

    /// Passes a slice to the next task and returns its waker.
    fn release_slice(&mut self) -> Option<Waker> {
        self.running -= 1;
        let next = self.tenants.pop()?;
        self.running += 1;
        self.granted.insert(next.number);
        Some(next.waker)
    }
}

impl FairPollScheduler {
    /// Creates a scheduler with `slices` concurrent slices.
    pub(super) fn new(slices: usize) -> Arc<Self> {
        let (granted, tenants) = (HashSet::new(), TimeRanking::default());
        let state = SliceState { slices, running: 0, last: 0, connections: 0, granted, tenants };
        Arc::new(Self(Mutex::new(state)))
    }

    /// Ends a slice that was `granted` to one flow and used by another: a connection learns only during the poll
    /// whose request it works on. Both pay, so that changing the flow brings no advantage.
    fn end(&self, granted: FlowId, had: FlowId, began: MonotonicInstant) {
        let mut state = self.0.lock();
        // Without waiting tasks there is nothing to share.
        if !state.tenants.is_empty() {
            let time = began.elapsed();
            state.with(granted, time, |_| ());
            if had != granted {
                state.with(had, time, |_| ());
            }
        }
        let next = state.release_slice();
        drop(state);
        next.into_iter().for_each(Waker::wake);
    }
}

/// Flow of a task: tenant and user of the last request that it has worked on.
#[derive(Clone)]
pub(crate) struct TaskFlow(Arc<TaskFlowState>);

struct TaskFlowState {
    scheduler: Arc<FairPollScheduler>,
    flow: Mutex<FlowId>,
    /// Flow that was granted the current slice, and its start.
    slice: Mutex<Option<(FlowId, MonotonicInstant)>>,
    /// Task flow of the connection that a request arrived on, which also sends its bytes.
    connection: Option<TaskFlow>,
    /// True for a flow that never changes, even while it works on requests of others.
    is_fixed: bool,
}

thread_local! {
    /// Start of the slice in which this thread polls.
    static SLICE_BEGAN: Cell<Option<MonotonicInstant>> = const { Cell::new(None) };
}

tokio::task_local! {
    /// Flow of the task that is being polled.
    static TASK_FLOW: TaskFlow;
}

impl TaskFlow {
    /// Returns the flow of a connection without a request yet: all of these share the time of one tenant.
    pub(super) fn of_new_connection(scheduler: Arc<FairPollScheduler>) -> Self {
        let user = {
            let mut state = scheduler.0.lock();
            state.connections += 1;
            state.connections
        };
        Self::new(scheduler, FlowId { cluster: LogicalClusterId::SYSTEM, user }, None)
    }

    /// Returns a task flow whose slices are always charged to `flow`.
    pub(super) fn fixed(scheduler: Arc<FairPollScheduler>, flow: FlowId) -> Self {
        let (flow, slice) = (Mutex::new(flow), Mutex::new(None));
        Self(Arc::new(TaskFlowState { scheduler, flow, slice, connection: None, is_fixed: true }))
    }

    fn new(scheduler: Arc<FairPollScheduler>, flow: FlowId, connection: Option<Self>) -> Self {
        let (flow, slice) = (Mutex::new(flow), Mutex::new(None));
        Self(Arc::new(TaskFlowState { scheduler, flow, slice, connection, is_fixed: false }))
    }

    /// Returns the flow of a task that works on this connection's requests beside it.
    pub(super) fn detached(&self) -> Self {
        if self.0.is_fixed {
            return Self::fixed(self.0.scheduler.clone(), self.flow());
        }
        Self::new(self.0.scheduler.clone(), self.flow(), Some(self.clone()))
    }

    fn flow(&self) -> FlowId {
        *self.0.flow.lock()
    }

    fn set(&self, flow: FlowId) {
        if self.0.is_fixed {
            return;
        }
        *self.0.flow.lock() = flow;
        if let Some(connection) = &self.0.connection {
            connection.set(flow);
        }
    }

    fn begin_slice(&self, granted: FlowId) -> TimeSlice<'_> {
        let now = MonotonicInstant::now();
        *self.0.slice.lock() = Some((granted, now));
        SLICE_BEGAN.set(Some(now));
        TimeSlice(self)
    }

    fn end_slice(&self) {
        SLICE_BEGAN.set(None);
        let slice = self.0.slice.lock().take();
        if let Some((granted, began)) = slice {
            self.0.scheduler.end(granted, self.flow(), began);
        }
    }

    /// Wraps work so that it is polled in slices.
    pub(crate) fn work<F: Future>(&self, work: F) -> impl Future<Output = F::Output> + use<F> {
        ScheduledWork { work: Box::pin(TASK_FLOW.scope(self.clone(), work)), dispatch: self.dispatch() }
    }

    /// Returns the state in which one piece of work requests its slices.
    pub(super) fn dispatch(&self) -> SliceRequest {
        SliceRequest { task_flow: self.clone(), waits: None }
    }
}

/// Charges the current task to `flow`.
pub(super) fn belongs_to(flow: FlowId) {
    // A request without a connection, as in tests, is not scheduled.
    let _ = TASK_FLOW.try_with(|task_flow| task_flow.set(flow));
}

/// Ends the current slice before long work, which the runtime schedules.
pub(crate) fn leave_slice() {
    let _ = TASK_FLOW.try_with(TaskFlow::end_slice);
}

/// Ends the current slice if it has lasted for long; to be called between steps of work that never waits.
pub async fn yield_long_slice() {
    match SLICE_BEGAN.get() {
        Some(began) if began.elapsed() >= LONG_SLICE => tokio::task::yield_now().await,
        Some(_) => {}
        // Without a slice, the task yields like any other.
        None => tokio::task::consume_budget().await,
    }
}

/// Wraps work that outlives its request, in slices of the same flow.
pub(crate) fn in_own_slices<F: Future>(work: F) -> impl Future<Output = F::Output> {
    match TASK_FLOW.try_with(TaskFlow::detached) {
        Ok(task_flow) => Either::Left(task_flow.work(work)),
        // As in `belongs_to`.
        Err(_) => Either::Right(work),
    }
}

/// Runs HTTP/2 work of a connection in slices of its own.
impl<F> hyper::rt::Executor<F> for TaskFlow
where
    F: Future<Output: Send> + Send + 'static,
{
    fn execute(&self, work: F) {
        tokio::spawn(self.detached().work(work));
    }
}

/// Request of one piece of work for time slices.
pub(super) struct SliceRequest {
    task_flow: TaskFlow,
    /// Queue number and flow, while it waits or has been granted a slice.
    waits: Option<(u64, FlowId)>,
}

impl SliceRequest {
    /// Polls work in a slice, if one is free.
    pub(super) fn poll<T>(
        &mut self,
        context: &mut Context<'_>,
        work: impl FnOnce(&mut Context<'_>) -> Poll<T>,
    ) -> Poll<T> {
        if self.task_flow.0.is_fixed && TASK_FLOW.try_with(|_| ()).is_ok() {
            // Nested work already runs in a slice. Waiting for a second one could deadlock.
            *self = self.task_flow.dispatch();
            return work(context);
        }
        let _slice = ready!(self.wait(context));
        work(context)
    }

    fn wait(&mut self, context: &Context<'_>) -> Poll<TimeSlice<'_>> {
        let mut state = self.task_flow.0.scheduler.0.lock();
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
                    self.waits = Some((state.enqueue(flow, context.waker().clone()), flow));
                    return Poll::Pending;
                }
                flow
            }
        };
        drop(state);
        Poll::Ready(self.task_flow.begin_slice(granted))
    }
}

impl Drop for SliceRequest {
    fn drop(&mut self) {
        let Some((number, flow)) = self.waits else { return };
        let mut state = self.task_flow.0.scheduler.0.lock();
        let next = if state.granted.remove(&number) {
            state.release_slice()
        } else {
            state.leave(flow, number);
            None
        };
        drop(state);
        next.into_iter().for_each(Waker::wake);
    }
}

/// Slice that ends on drop, unless it has ended before.
struct TimeSlice<'a>(&'a TaskFlow);

impl Drop for TimeSlice<'_> {
    fn drop(&mut self) {
        self.0.end_slice();
    }
}

/// Work that is polled in slices.
struct ScheduledWork<W> {
    work: W,
    dispatch: SliceRequest,
}

impl<F: Future + Unpin> Future for ScheduledWork<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let Self { work, dispatch } = &mut *self;
        dispatch.poll(context, |context| Pin::new(work).poll(context))
    }
}

#[cfg(test)]
mod tests;
