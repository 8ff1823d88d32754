use futures::{FutureExt as _, future::BoxFuture};
use proptest::prelude::*;

use super::*;

type Entering = BoxFuture<'static, Result<Seat, SeatError>>;

fn queue(seats: usize, waiting: usize) -> Arc<FairSeatQueue> {
    FairSeatQueue::new(SeatLimits { seats, waiting, patience: Duration::from_secs(15) })
}

fn flow(cluster: u64, user: u64) -> FlowId {
    FlowId { cluster: LogicalClusterId::new(cluster), user }
}

/// Sends a request and returns it: it has a seat, waits, or was refused.
fn come(queue: &Arc<FairSeatQueue>, flow: FlowId) -> (Entering, Option<Result<Seat, SeatError>>) {
    let queue = queue.clone();
    let mut entering: Entering = Box::pin(async move { queue.enter(flow, Duration::MAX).await });
    let now = (&mut entering).now_or_never();
    (entering, now)
}

/// Sends a request that has to wait.
fn wait(queue: &Arc<FairSeatQueue>, flow: FlowId) -> Entering {
    let (entering, now) = come(queue, flow);
    assert!(now.is_none(), "it has to wait");
    entering
}

fn seat(queue: &Arc<FairSeatQueue>, flow: FlowId) -> Seat {
    come(queue, flow).1.expect("it need not wait").unwrap_or_else(|why| panic!("{why:?}"))
}

fn is_served(entering: &mut Entering) -> Option<Seat> {
    entering.now_or_never().map(|answer| answer.unwrap_or_else(|why| panic!("{why:?}")))
}

#[tokio::test(start_paused = true)]
async fn one_logical_cluster_leaves_seats_for_others() {
    let queue = queue(8, 100);
    let held: Vec<Seat> = (0..6).map(|_| seat(&queue, flow(5, 1))).collect();
    let _waits = wait(&queue, flow(5, 1));
    let others = [seat(&queue, flow(6, 1)), seat(&queue, flow(7, 1))];
    drop((held, others));
    assert_eq!(queue.waiting(), 0);
}

#[tokio::test(start_paused = true)]
async fn seats_go_to_the_tenant_with_the_fewest_and_then_by_round() {
    let queue = queue(4, 100);
    let mut flood: Vec<Seat> = (0..3).map(|_| seat(&queue, flow(5, 1))).collect();
    let mut first = wait(&queue, flow(5, 1));
    let mut meek_user = wait(&queue, flow(5, 2));
    let other = seat(&queue, flow(6, 1));
    let mut others_second = wait(&queue, flow(6, 1));
    let mut newcomer = wait(&queue, flow(7, 1));
    flood.pop();
    let newcomers = is_served(&mut newcomer).expect("it holds none");
    assert!(is_served(&mut first).is_none() && is_served(&mut others_second).is_none());
    flood.pop();
    let _meek = is_served(&mut meek_user).expect("the user of one's own logical cluster who holds the fewest");
    drop(other);
    let _second = is_served(&mut others_second).expect("it holds none now");
    assert!(is_served(&mut first).is_none());
    drop(newcomers);
    let _first = is_served(&mut first).expect("no other request waits");
}

#[tokio::test(start_paused = true)]
async fn equal_users_alternate_independent_of_queue_length() {
    let queue = queue(1, 100);
    let mut held = Some(seat(&queue, flow(5, 1)));
    let mut lines: Vec<((u64, u64), Entering)> = Vec::new();
    let enqueue = |lines: &mut Vec<_>, who: (u64, u64)| lines.push((who, wait(&queue, flow(who.0, who.1))));
    for who in [(5, 1), (5, 1), (5, 1), (5, 2), (6, 1), (6, 1), (7, 1)] {
        enqueue(&mut lines, who);
    }
    let mut served = Vec::new();
    while !lines.is_empty() {
        drop(held.take());
        let at = lines.iter_mut().position(|(_, entering)| {
            held = is_served(entering);
            held.is_some()
        });
        let (who, _) = lines.remove(at.expect("one of them"));
        served.push(who);
        if served.len() == 3 {
            // A user that returns again and again has one turn per round.
            enqueue(&mut lines, (7, 1));
        }
    }
    assert_eq!(served, [(5, 1), (6, 1), (7, 1), (5, 2), (6, 1), (7, 1), (5, 1), (5, 1)]);
}

#[tokio::test(start_paused = true)]
async fn full_queues_drop_the_last_request_of_the_longest() {
    let queue = queue(1, 3);
    let held = seat(&queue, flow(5, 1));
    let mut flood: Vec<Entering> = (0..3).map(|_| wait(&queue, flow(5, 1))).collect();
    assert!(matches!(come(&queue, flow(5, 1)).1, Some(Err(SeatError::Full))), "its own line is the longest");
    let mut meek_user = wait(&queue, flow(5, 2));
    assert!(matches!((&mut flood[2]).now_or_never(), Some(Err(SeatError::Full))), "another user's line was longer");
    let mut newcomer = wait(&queue, flow(6, 1));
    assert_eq!(queue.waiting(), 3);
    drop(held);
    let served: Vec<Seat> = [&mut newcomer, &mut meek_user, &mut flood[0]].into_iter().filter_map(is_served).collect();
    assert_eq!(served.len(), 1, "one at a time");
}

#[tokio::test(start_paused = true)]
async fn waiting_is_bounded() {
    let queue = queue(1, 3);
    let _held = seat(&queue, flow(5, 1));
    let waited = queue.enter(flow(6, 1), Duration::from_secs(60)).await;
    assert!(matches!(waited, Err(SeatError::TimeOut)));
    assert_eq!(queue.waiting(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_late_seat_goes_to_the_next_request() {
    let queue = queue(1, 3);
    let held = seat(&queue, flow(5, 1));
    let gone = wait(&queue, flow(6, 1));
    let mut next = wait(&queue, flow(7, 1));
    drop(held);
    drop(gone);
    assert!(is_served(&mut next).is_some());
}

#[derive(Clone, Copy, Debug)]
enum Act {
    Come(u64, u64),
    Leave(prop::sample::Index),
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let come = (0..4u64, 0..3u64).prop_map(|(cluster, user)| Act::Come(cluster, user));
    let leave = any::<prop::sample::Index>().prop_map(Act::Leave);
    prop::collection::vec(prop_oneof![3 => come, 2 => leave], 1..120)
}

proptest! {
    #[test]
    fn no_permit_is_lost_or_left_idle(acts in acts(), seats in 1..9usize, bound in 0..6usize) {
        let queue = queue(seats, bound);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        let _guard = runtime.enter();
        let (mut held, mut waiting): (Vec<Seat>, Vec<Entering>) = (Vec::new(), Vec::new());
        for act in acts {
            match act {
                Act::Come(cluster, user) => match come(&queue, flow(cluster, user)) {
                    (_, Some(Ok(seat))) => held.push(seat),
                    (_, Some(Err(_))) => {}
                    (entering, None) => waiting.push(entering),
                },
                Act::Leave(index) if !(held.is_empty() && waiting.is_empty()) => {
                    let at = index.index(held.len() + waiting.len());
                    if at < held.len() { drop(held.swap_remove(at)) } else { drop(waiting.swap_remove(at - held.len())) }
                }
                Act::Leave(_) => {}
            }
            let mut left = Vec::new();
            for mut entering in waiting {
                match (&mut entering).now_or_never() {
                    Some(Ok(seat)) => held.push(seat),
                    Some(Err(_)) => {}
                    None => left.push(entering),
                }
            }
            waiting = left;
            let state = queue.state.lock();
            prop_assert_eq!(state.free + held.len(), seats);
            prop_assert_eq!((state.waiting, state.tenants.values().map(|t| t.held).sum::<usize>()), (waiting.len(), held.len()));
            prop_assert!(state.waiting <= bound);
            let served = state.next.first().is_none_or(|(held, ..)| !state.may_hold_more(*held));
            prop_assert!(served, "the next in line might have a seat");
        }
        drop((held, waiting));
        let state = queue.state.lock();
        prop_assert_eq!((state.free, state.waiting), (seats, 0));
        prop_assert!(state.tenants.is_empty() && state.next.is_empty());
    }
}
