use futures::{FutureExt as _, future::BoxFuture};
use proptest::prelude::*;

use super::*;

type Entering = BoxFuture<'static, Result<Seat, NoSeat>>;

fn fair(seats: usize, waiting: usize) -> Arc<Fair> {
    Fair::new(Bounds { seats, waiting, patience: Duration::from_secs(15) })
}

fn flow(cluster: u64, user: u64) -> Flow {
    Flow { cluster: LogicalClusterId::new(cluster), user }
}

/// A request that has come: it has a seat, waits, or was sent away.
fn come(fair: &Arc<Fair>, flow: Flow) -> (Entering, Option<Result<Seat, NoSeat>>) {
    let fair = fair.clone();
    let mut entering: Entering = Box::pin(async move { fair.enter(flow, Duration::MAX).await });
    let now = (&mut entering).now_or_never();
    (entering, now)
}

/// A request that waits.
fn wait(fair: &Arc<Fair>, flow: Flow) -> Entering {
    let (entering, now) = come(fair, flow);
    assert!(now.is_none(), "it has to wait");
    entering
}

fn seat(fair: &Arc<Fair>, flow: Flow) -> Seat {
    come(fair, flow).1.expect("it need not wait").unwrap_or_else(|why| panic!("{why:?}"))
}

fn is_served(entering: &mut Entering) -> Option<Seat> {
    entering.now_or_never().map(|answer| answer.unwrap_or_else(|why| panic!("{why:?}")))
}

#[tokio::test(start_paused = true)]
async fn one_logical_cluster_leaves_seats_for_others() {
    let fair = fair(8, 100);
    let held: Vec<Seat> = (0..6).map(|_| seat(&fair, flow(5, 1))).collect();
    let _waits = wait(&fair, flow(5, 1));
    let others = [seat(&fair, flow(6, 1)), seat(&fair, flow(7, 1))];
    drop((held, others));
    assert_eq!(fair.waiting(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_seat_goes_to_who_holds_the_fewest_and_then_to_whose_turn_it_is() {
    let fair = fair(4, 100);
    let mut flood: Vec<Seat> = (0..3).map(|_| seat(&fair, flow(5, 1))).collect();
    let mut first = wait(&fair, flow(5, 1));
    let mut meek_user = wait(&fair, flow(5, 2));
    let other = seat(&fair, flow(6, 1));
    let mut others_second = wait(&fair, flow(6, 1));
    let mut newcomer = wait(&fair, flow(7, 1));
    flood.pop();
    let newcomers = is_served(&mut newcomer).expect("it holds none");
    assert!(is_served(&mut first).is_none() && is_served(&mut others_second).is_none());
    flood.pop();
    let _meek = is_served(&mut meek_user).expect("the user of one's own logical cluster who holds the fewest");
    drop(other);
    let _second = is_served(&mut others_second).expect("it holds none now");
    assert!(is_served(&mut first).is_none());
    drop(newcomers);
    let _first = is_served(&mut first).expect("nobody else waits");
}

#[tokio::test(start_paused = true)]
async fn of_one_seat_equals_take_turns_however_long_their_lines_are() {
    let fair = fair(1, 100);
    let mut held = Some(seat(&fair, flow(5, 1)));
    let mut lines: Vec<((u64, u64), Entering)> = Vec::new();
    let line_up = |lines: &mut Vec<_>, who: (u64, u64)| lines.push((who, wait(&fair, flow(who.0, who.1))));
    for who in [(5, 1), (5, 1), (5, 1), (5, 2), (6, 1), (6, 1), (7, 1)] {
        line_up(&mut lines, who);
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
            // One that comes again and again has one turn in each round.
            line_up(&mut lines, (7, 1));
        }
    }
    assert_eq!(served, [(5, 1), (6, 1), (7, 1), (5, 2), (6, 1), (7, 1), (5, 1), (5, 1)]);
}

#[tokio::test(start_paused = true)]
async fn when_the_lines_are_full_the_longest_loses_its_last_place() {
    let fair = fair(1, 3);
    let held = seat(&fair, flow(5, 1));
    let mut flood: Vec<Entering> = (0..3).map(|_| wait(&fair, flow(5, 1))).collect();
    assert!(matches!(come(&fair, flow(5, 1)).1, Some(Err(NoSeat::Full))), "its own line is the longest");
    let mut meek_user = wait(&fair, flow(5, 2));
    assert!(matches!((&mut flood[2]).now_or_never(), Some(Err(NoSeat::Full))), "another user's line was longer");
    let mut newcomer = wait(&fair, flow(6, 1));
    assert_eq!(fair.waiting(), 3);
    drop(held);
    let served: Vec<Seat> = [&mut newcomer, &mut meek_user, &mut flood[0]].into_iter().filter_map(is_served).collect();
    assert_eq!(served.len(), 1, "one at a time");
}

#[tokio::test(start_paused = true)]
async fn nobody_waits_for_ever() {
    let fair = fair(1, 3);
    let _held = seat(&fair, flow(5, 1));
    let waited = fair.enter(flow(6, 1), Duration::from_secs(60)).await;
    assert!(matches!(waited, Err(NoSeat::TimeOut)));
    assert_eq!(fair.waiting(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_seat_that_comes_too_late_goes_to_the_next() {
    let fair = fair(1, 3);
    let held = seat(&fair, flow(5, 1));
    let gone = wait(&fair, flow(6, 1));
    let mut next = wait(&fair, flow(7, 1));
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
    fn no_seat_is_lost_and_none_stays_empty_that_somebody_may_have(acts in acts(), seats in 1..9usize, bound in 0..6usize) {
        let fair = fair(seats, bound);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        let _guard = runtime.enter();
        let (mut held, mut waiting): (Vec<Seat>, Vec<Entering>) = (Vec::new(), Vec::new());
        for act in acts {
            match act {
                Act::Come(cluster, user) => match come(&fair, flow(cluster, user)) {
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
            let state = fair.state.lock();
            prop_assert_eq!(state.free + held.len(), seats);
            prop_assert_eq!((state.waiting, state.tenants.values().map(|t| t.held).sum::<usize>()), (waiting.len(), held.len()));
            prop_assert!(state.waiting <= bound);
            let served = state.next.first().is_none_or(|(held, ..)| !state.may_hold_more(*held));
            prop_assert!(served, "the next in line might have a seat");
        }
        drop((held, waiting));
        let state = fair.state.lock();
        prop_assert_eq!((state.free, state.waiting), (seats, 0));
        prop_assert!(state.tenants.is_empty() && state.next.is_empty());
    }
}
