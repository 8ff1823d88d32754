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

fn flow(tenant: u64, user: u64) -> FlowId {
    FlowId { cluster: LogicalClusterId::new(tenant), user }
}

fn poll<F: Future>(work: Pin<&mut F>, woken: &Arc<Woken>) -> Poll<F::Output> {
    work.poll(&mut Context::from_waker(&Waker::from(woken.clone())))
}

/// Ends the only slice.
fn end(state: &mut SliceState) {
    state.running = 1;
    state.release_slice();
}

/// Simulates flows with endless work in pieces of the given length. Returns the time that each of them got.
fn shares(asking: &[(FlowId, Duration)], time: Duration) -> Vec<Duration> {
    let scheduler = FairPollScheduler::new(1);
    let mut state = scheduler.0.lock();
    let mut had = vec![Duration::ZERO; asking.len()];
    let mut numbers: HashMap<u64, usize> =
        (0..asking.len()).map(|index| (state.enqueue(asking[index].0, Waker::noop().clone()), index)).collect();
    while had.iter().sum::<Duration>() < time {
        end(&mut state);
        let number = state.granted.drain().next().unwrap();
        let index = numbers.remove(&number).unwrap();
        let (flow, piece) = asking[index];
        had[index] += piece;
        // The next piece of work is ready when this one is done.
        numbers.insert(state.enqueue(flow, Waker::noop().clone()), index);
        state.with(flow, piece, |_| ());
    }
    had
}

#[test]
fn time_is_shared_between_tenants_and_their_users() {
    let many = |tenant, user, piece| std::iter::repeat_n((flow(tenant, user), piece), 50);
    for (case, asking, expected) in [
        ("one who takes long and one who does not", vec![(flow(1, 1), 5 * MILLIS), (flow(2, 1), MILLIS)], [500, 500]),
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
fn an_idle_flow_saves_up_no_time() {
    let scheduler = FairPollScheduler::new(1);
    let mut state = scheduler.0.lock();
    let [one, other] = [flow(1, 1), flow(2, 1)];
    let enqueue = |state: &mut SliceState, flow| state.enqueue(flow, Waker::noop().clone());
    for _ in 0..1000 {
        enqueue(&mut state, one);
    }
    for _ in 0..500 {
        end(&mut state);
        state.with(one, MILLIS, |_| ());
    }
    state.granted.clear();
    let late: HashSet<u64> = (0..100).map(|_| enqueue(&mut state, other)).collect();
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
fn the_number_of_remembered_flows_is_bounded() {
    let scheduler = FairPollScheduler::new(1);
    let mut state = scheduler.0.lock();
    for tenant in 0..1000 {
        state.enqueue(flow(tenant, 1), Waker::noop().clone());
        end(&mut state);
        state.with(flow(tenant, 1), MILLIS, |_| ());
    }
    assert!(state.tenants.lines.len() <= REMEMBERED + 1, "{}", state.tenants.lines.len());
}

fn task_flow(scheduler: &Arc<FairPollScheduler>, tenant: u64) -> TaskFlow {
    let task_flow = TaskFlow::of_new_connection(scheduler.clone());
    task_flow.set(flow(tenant, 1));
    task_flow
}

/// Polls work in a slice of its own, and calls `inside` once in it.
fn while_another_works(scheduler: &Arc<FairPollScheduler>, tenant: u64, inside: impl FnOnce()) {
    let mut inside = Some(inside);
    let mut work = pin!(task_flow(scheduler, tenant).work(future::poll_fn(|_| {
        inside.take().into_iter().for_each(|inside| inside());
        Poll::Ready(())
    })));
    assert_eq!(poll(work.as_mut(), &Arc::default()), Poll::Ready(()));
}

#[test]
fn a_slice_lasts_as_long_as_a_poll() {
    let scheduler = FairPollScheduler::new(1);
    let woken = Arc::<Woken>::default();
    let [second, third] = [2, 3].map(|tenant| task_flow(&scheduler, tenant).work(future::ready(tenant)));
    let (mut second, mut third) = (pin!(second), pin!(third));
    while_another_works(&scheduler, 1, || {
        assert!(poll(second.as_mut(), &woken).is_pending(), "there is one slice");
        assert_eq!(woken.times(), 0);
    });
    assert_eq!(woken.times(), 1, "the waiter is woken when the poll is over");
    assert!(poll(third.as_mut(), &woken).is_pending(), "the slice is the one's who was woken");
    assert_eq!(poll(second.as_mut(), &woken), Poll::Ready(2));
    assert_eq!((woken.times(), poll(third.as_mut(), &woken)), (2, Poll::Ready(3)));
    assert_eq!(scheduler.0.lock().running, 0);
}

#[test]
fn the_number_of_concurrent_slices_is_bounded() {
    let scheduler = FairPollScheduler::new(2);
    let woken = Arc::<Woken>::default();
    let mut third = pin!(task_flow(&scheduler, 1).work(future::ready(3)));
    while_another_works(&scheduler, 1, || {
        while_another_works(&scheduler, 1, || {
            assert!(poll(third.as_mut(), &woken).is_pending());
            assert_eq!((scheduler.0.lock().running, woken.times()), (2, 0));
        });
        assert_eq!((woken.times(), poll(third.as_mut(), &woken)), (1, Poll::Ready(3)));
    });
    assert_eq!(scheduler.0.lock().running, 0);
}

#[test]
fn a_dropped_waiter_passes_its_slice_on() {
    let scheduler = FairPollScheduler::new(1);
    let woken = Arc::<Woken>::default();
    let mut waiting = [2, 3, 4].map(|tenant| Some(Box::pin(task_flow(&scheduler, tenant).work(future::ready(tenant)))));
    while_another_works(&scheduler, 1, || {
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
    let state = scheduler.0.lock();
    assert!(state.running == 0 && state.granted.is_empty() && state.tenants.is_empty());
}

#[test]
fn a_panic_keeps_no_slice() {
    let scheduler = FairPollScheduler::new(1);
    let panic = || while_another_works(&scheduler, 1, || std::panic::resume_unwind(Box::new("gone")));
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(panic)).is_err());
    assert_eq!(scheduler.0.lock().running, 0);
}

#[test]
fn a_changed_flow_is_charged_to_both_flows() {
    let scheduler = FairPollScheduler::new(1);
    let connection = TaskFlow::of_new_connection(scheduler.clone());
    let (unbilled, somebody, other) = (connection.flow(), flow(1, 1), flow(2, 1));
    let mut waits = pin!(task_flow(&scheduler, 2).work(future::ready(2)));
    let mut work = pin!(connection.work(future::poll_fn(|_| {
        belongs_to(somebody);
        assert!(poll(waits.as_mut(), &Arc::default()).is_pending());
        Poll::Ready(())
    })));
    assert_eq!(poll(work.as_mut(), &Arc::default()), Poll::Ready(()));
    let state = scheduler.0.lock();
    let had = |flow: FlowId| state.tenants.lines[&flow.cluster].0;
    assert!(had(unbilled) > Duration::ZERO && had(unbilled) == had(somebody) && had(other) == Duration::ZERO);
}

#[test]
fn work_of_a_fixed_flow_is_charged_to_it() {
    let scheduler = FairPollScheduler::new(1);
    let (owner, asking, other) = (flow(1, 1), flow(2, 1), flow(3, 1));
    let mut waits = pin!(task_flow(&scheduler, 3).work(future::ready(3)));
    let mut work = pin!(TaskFlow::fixed(scheduler.clone(), owner).work(future::poll_fn(|_| {
        belongs_to(asking);
        assert_eq!(TASK_FLOW.with(TaskFlow::detached).flow(), owner, "what it spawns is of the same flow");
        assert!(poll(waits.as_mut(), &Arc::default()).is_pending());
        Poll::Ready(())
    })));
    assert_eq!(poll(work.as_mut(), &Arc::default()), Poll::Ready(()));
    let state = scheduler.0.lock();
    let had = |flow: FlowId| state.tenants.lines.get(&flow.cluster).map(|line| line.0);
    assert!(had(owner) > Some(Duration::ZERO) && had(asking).is_none() && had(other) == Some(Duration::ZERO));
}

#[test]
fn work_of_a_fixed_flow_within_other_work_needs_no_second_slice() {
    let scheduler = FairPollScheduler::new(1);
    let share = TaskFlow::fixed(scheduler.clone(), flow(1, 1));
    let inner = Box::pin(share.work(future::ready(1)));
    let mut outer = pin!(task_flow(&scheduler, 3).work(inner));
    assert_eq!(poll(outer.as_mut(), &Arc::default()), Poll::Ready(1), "there is one slice, and it has that");
    let state = scheduler.0.lock();
    assert!(state.running == 0 && state.granted.is_empty() && state.tenants.is_empty(), "nothing is held");
}

#[test]
fn work_that_never_waits_ends_its_slices_between_steps() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let _entered = runtime.enter();
    let scheduler = FairPollScheduler::new(1);
    let mut work = pin!(TaskFlow::fixed(scheduler.clone(), flow(1, 1)).work(async {
        yield_long_slice().await;
        std::thread::sleep(LONG_SLICE);
        yield_long_slice().await;
        yield_long_slice().await;
    }));
    assert!(poll(work.as_mut(), &Arc::default()).is_pending(), "after the long step only");
    assert_eq!(scheduler.0.lock().running, 0);
    assert_eq!(poll(work.as_mut(), &Arc::default()), Poll::Ready(()));
}

#[test]
fn long_work_releases_its_slice() {
    let scheduler = FairPollScheduler::new(1);
    let woken = Arc::<Woken>::default();
    let mut other = pin!(task_flow(&scheduler, 2).work(future::ready(2)));
    while_another_works(&scheduler, 1, || {
        assert!(poll(other.as_mut(), &woken).is_pending());
        leave_slice();
        assert_eq!(poll(other.as_mut(), &woken), Poll::Ready(2));
    });
    assert_eq!(scheduler.0.lock().running, 0);
}

#[test]
fn work_beyond_its_request_uses_slices_of_the_same_user() {
    let scheduler = FairPollScheduler::new(1);
    let woken = Arc::<Woken>::default();
    let connection = TaskFlow::of_new_connection(scheduler.clone());
    let mut request = pin!(connection.work(async {
        belongs_to(flow(1, 1));
        Some(in_own_slices(future::ready(1)))
    }));
    let Poll::Ready(Some(stream)) = poll(request.as_mut(), &woken) else { panic!("there is a slice") };
    let mut stream = pin!(stream);
    while_another_works(&scheduler, 2, || {
        assert!(poll(stream.as_mut(), &woken).is_pending());
        let state = scheduler.0.lock();
        assert_eq!(state.tenants.lines[&flow(1, 1).cluster].1.lines[&1].1.len(), 1);
    });
    assert_eq!((woken.times(), poll(stream.as_mut(), &woken)), (1, Poll::Ready(1)));
}

#[tokio::test]
async fn a_connection_has_the_flow_of_its_last_request() {
    let scheduler = FairPollScheduler::new(1);
    let connection = TaskFlow::of_new_connection(scheduler.clone());
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
