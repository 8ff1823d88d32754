//! Concurrency limiter of reads of many objects. etcd works on all requests at once, so a flood of lists of one logical
//! cluster would slow every read and write of the others.

use parking_lot::Mutex;
use portolan_types::round_robin::{QueueTicket, RoundRobinQueue};
use tokio::sync::oneshot;

use crate::reader_pool::ReadTenant;

/// Most concurrent reads of many objects.
const MAX_READS: usize = 4;
/// Most concurrent reads of one tenant: one permit is always left for the others.
const MAX_READS_PER_TENANT: usize = MAX_READS - 1;

/// Fair concurrency limiter of reads.
pub(super) struct ReadLimiter(Mutex<State>);

struct State {
    free: usize,
    turns: RoundRobinQueue<ReadTenant, oneshot::Sender<()>>,
}

/// Permit to read, or a place in the queue for one. Released on drop.
pub(super) struct ReadPermit<'a> {
    readers: &'a ReadLimiter,
    party: ReadTenant,
    ticket: QueueTicket,
}

impl ReadLimiter {
    pub(super) fn new() -> Self {
        Self(Mutex::new(State { free: MAX_READS, turns: RoundRobinQueue::new(MAX_READS_PER_TENANT) }))
    }

    /// Waits for a permit. Its holder must wait for nothing but etcd.
    pub(super) async fn acquire(&self, party: ReadTenant) -> ReadPermit<'_> {
        let (granted, told) = oneshot::channel();
        let turn = {
            let mut state = self.0.lock();
            let ticket = state.turns.push(party.clone(), granted);
            state.serve();
            ReadPermit { readers: self, party, ticket }
        };
        // The sender lives until it has sent.
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
            // A canceled waiter releases the permit on drop.
            let _ = granted.send(());
        }
    }
}

impl Drop for ReadPermit<'_> {
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

    fn party(number: u64) -> ReadTenant {
        ReadTenant::Cluster(LogicalClusterId::new(number))
    }

    #[tokio::test]
    async fn a_flood_leaves_a_turn_to_others_and_they_alternate() {
        let readers = ReadLimiter::new();
        let mut flood: Vec<_> = (0..20).map(|_| Box::pin(readers.acquire(party(1)))).collect();
        let mut held: Vec<_> = flood.iter_mut().filter_map(|turn| turn.now_or_never()).collect();
        assert_eq!(held.len(), MAX_READS_PER_TENANT);
        let first = readers.acquire(party(2)).now_or_never().expect("one is left");
        let mut second = Box::pin(readers.acquire(party(2)));
        assert!(second.as_mut().now_or_never().is_none(), "all are taken");
        held.truncate(1);
        assert!(second.now_or_never().is_some(), "of two turns one, before most of those who came earlier");
        drop((first, held));
        let rest = flood.split_off(MAX_READS_PER_TENANT);
        drop(flood);
        for turn in rest {
            drop(turn.await);
        }
        assert_eq!(readers.0.lock().free, MAX_READS);
    }

    #[tokio::test]
    async fn sweeps_of_any_number_of_logical_clusters_take_turns_as_one() {
        let readers = ReadLimiter::new();
        let mut sweeps: Vec<_> = (0..1000).map(|_| Box::pin(readers.acquire(ReadTenant::Sweeps))).collect();
        let mut held: Vec<_> = sweeps.iter_mut().filter_map(|turn| turn.now_or_never()).collect();
        let (mut one, mut other) = (Box::pin(readers.acquire(party(1))), Box::pin(readers.acquire(party(2))));
        let _first = one.as_mut().now_or_never().expect("one is left for others");
        assert!(other.as_mut().now_or_never().is_none(), "all are taken");
        held.truncate(1);
        assert!(
            other.as_mut().now_or_never().is_some(),
            "of two turns one, before nearly all that have waited for longer"
        );
    }

    #[tokio::test]
    async fn a_cancelled_read_releases_its_permit() {
        let readers = ReadLimiter::new();
        let held = join_all((1..=MAX_READS as u64).map(|number| readers.acquire(party(number)))).await;
        let mut waiting: Vec<_> = (0..10).map(|_| Box::pin(readers.acquire(party(9)))).collect();
        assert!(waiting.iter_mut().all(|turn| turn.now_or_never().is_none()));
        drop(held);
        drop(waiting);
        let state = readers.0.lock();
        assert_eq!((state.free, state.turns.waiting()), (MAX_READS, 0));
    }
}
