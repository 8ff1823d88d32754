//! Who may ask etcd for many objects: few at once, in turn. etcd works on all that it is asked for at the same time, so a flood of lists
//! of one logical cluster would hold up every read and write of all others.

use parking_lot::Mutex;
use portolan_types::turns::{Ticket, Turns};
use tokio::sync::oneshot;

use crate::blocking::Party;

/// Reads of many objects that are under way at once.
const AT_ONCE: usize = 4;
/// Those of one party: for all others there is always one whose read ends soon.
const SHARE: usize = AT_ONCE - 1;

/// Turns to read.
pub(super) struct Readers(Mutex<State>);

struct State {
    free: usize,
    turns: Turns<Party, oneshot::Sender<()>>,
}

/// A turn, or a place in line for one; given up when dropped.
pub(super) struct Turn<'a> {
    readers: &'a Readers,
    party: Party,
    ticket: Ticket,
}

impl Readers {
    pub(super) fn new() -> Self {
        Self(Mutex::new(State { free: AT_ONCE, turns: Turns::new(SHARE) }))
    }

    /// Waits for a turn. Whoever holds one waits for nothing but etcd.
    pub(super) async fn turn(&self, party: Party) -> Turn<'_> {
        let (granted, told) = oneshot::channel();
        let turn = {
            let mut state = self.0.lock();
            let ticket = state.turns.push(party.clone(), granted);
            state.serve();
            Turn { readers: self, party, ticket }
        };
        // It is not dropped before it is told.
        let _ = told.await;
        turn
    }
}

impl State {
    fn serve(&mut self) {
        while self.free > 0
            && let Some((_, granted)) = self.turns.take()
        {
            self.free -= 1;
            // Who does not wait any more gives it back when it is dropped.
            let _ = granted.send(());
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut state = self.readers.0.lock();
        if state.turns.withdraw(&self.party, self.ticket).is_none() {
            state.turns.done(&self.party);
            state.free += 1;
        }
        state.serve();
    }
}

#[cfg(test)]
mod tests {
    use futures::{FutureExt as _, future::join_all};
    use portolan_types::LogicalClusterId;

    use super::*;

    fn party(number: u64) -> Party {
        Party::Cluster(LogicalClusterId::new(number))
    }

    #[tokio::test]
    async fn a_flood_leaves_a_turn_to_others_and_they_alternate() {
        let readers = Readers::new();
        let mut flood: Vec<_> = (0..20).map(|_| Box::pin(readers.turn(party(1)))).collect();
        let mut held: Vec<_> = flood.iter_mut().filter_map(|turn| turn.now_or_never()).collect();
        assert_eq!(held.len(), SHARE);
        let first = readers.turn(party(2)).now_or_never().expect("one is left");
        let mut second = Box::pin(readers.turn(party(2)));
        assert!(second.as_mut().now_or_never().is_none(), "all are taken");
        held.truncate(1);
        assert!(second.now_or_never().is_some(), "of two turns one, before most of those who came earlier");
        drop((first, held));
        let rest = flood.split_off(SHARE);
        drop(flood);
        for turn in rest {
            drop(turn.await);
        }
        assert_eq!(readers.0.lock().free, AT_ONCE);
    }

    #[tokio::test]
    async fn sweeps_of_any_number_of_logical_clusters_take_turns_as_one() {
        let readers = Readers::new();
        let mut sweeps: Vec<_> = (0..1000).map(|_| Box::pin(readers.turn(Party::Sweeps))).collect();
        let mut held: Vec<_> = sweeps.iter_mut().filter_map(|turn| turn.now_or_never()).collect();
        let (mut one, mut other) = (Box::pin(readers.turn(party(1))), Box::pin(readers.turn(party(2))));
        let _first = one.as_mut().now_or_never().expect("one is left for others");
        assert!(other.as_mut().now_or_never().is_none(), "all are taken");
        held.truncate(1);
        assert!(
            other.as_mut().now_or_never().is_some(),
            "of two turns one, before nearly all that have waited for longer"
        );
    }

    #[tokio::test]
    async fn who_gives_up_keeps_no_turn() {
        let readers = Readers::new();
        let held = join_all((1..=AT_ONCE as u64).map(|number| readers.turn(party(number)))).await;
        let mut waiting: Vec<_> = (0..10).map(|_| Box::pin(readers.turn(party(9)))).collect();
        assert!(waiting.iter_mut().all(|turn| turn.now_or_never().is_none()));
        drop(held);
        drop(waiting);
        let state = readers.0.lock();
        assert_eq!((state.free, state.turns.waiting()), (AT_ONCE, 0));
    }
}
