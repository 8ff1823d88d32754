//! Round-robin queue of jobs by party. Each party's jobs keep their order, and a party has at most its share of jobs in
//! progress. A flood from one party delays each other one by one job per round, however long its queue is.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    hash::Hash,
};

/// Ticket of a queued job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct QueueTicket(u64);

/// Queue of jobs by party. Pushing, taking and finishing a job costs time logarithmic in the number of parties; a party
/// without jobs costs nothing. The caller bounds the number of queued jobs, by [`RoundRobinQueue::waiting`] or
/// [`RoundRobinQueue::waiting_of`].
#[derive(Debug)]
pub struct RoundRobinQueue<P, J> {
    queues: HashMap<P, PartyQueue<J>>,
    /// Parties with a job that may be taken, by turn; each party once.
    order: BTreeMap<u64, P>,
    next: u64,
    waiting: usize,
    share: usize,
}

#[derive(Debug)]
struct PartyQueue<J> {
    /// Queued jobs, by ascending ticket.
    jobs: VecDeque<(QueueTicket, J)>,
    /// Number of jobs in progress.
    busy: usize,
    /// Position in the order.
    turn: Option<u64>,
}

impl<P: Clone + Eq + Hash, J> RoundRobinQueue<P, J> {
    /// Returns an empty queue in which each party may have `share` jobs in progress, at least one.
    pub fn new(share: usize) -> Self {
        Self { queues: HashMap::new(), order: BTreeMap::new(), next: 0, waiting: 0, share: share.max(1) }
    }

    /// Returns the number of queued jobs.
    pub fn waiting(&self) -> usize {
        self.waiting
    }

    /// Returns the number of queued jobs of one party.
    pub fn waiting_of(&self, party: &P) -> usize {
        self.queues.get(party).map_or(0, |queue| queue.jobs.len())
    }

    /// Returns the number of parties with a job that may be taken.
    pub fn parties(&self) -> usize {
        self.order.len()
    }

    /// Returns true if no job is queued or in progress.
    pub fn is_idle(&self) -> bool {
        self.queues.is_empty()
    }

    /// Queues a job.
    pub fn push(&mut self, party: P, job: J) -> QueueTicket {
        let ticket = QueueTicket(self.number());
        self.waiting += 1;
        let queue = self.queues.entry(party.clone()).or_insert_with(|| PartyQueue {
            jobs: VecDeque::new(),
            busy: 0,
            turn: None,
        });
        queue.jobs.push_back((ticket, job));
        self.settle(&party);
        ticket
    }

    /// Takes the next job. It is in progress until [`RoundRobinQueue::done`].
    pub fn take(&mut self) -> Option<(P, J)> {
        let (_, party) = self.order.pop_first()?;
        let queue = self.queues.get_mut(&party)?;
        queue.turn = None;
        let (_, job) = queue.jobs.pop_front()?;
        queue.busy += 1;
        self.waiting -= 1;
        self.settle(&party);
        Some((party, job))
    }

    /// Ends a job of a party that was taken.
    pub fn done(&mut self, party: &P) {
        let Some(queue) = self.queues.get_mut(party) else { return };
        queue.busy -= 1;
        self.settle(party);
    }

    /// Removes a queued job, unless it was taken.
    pub fn withdraw(&mut self, party: &P, ticket: QueueTicket) -> Option<J> {
        let jobs = &mut self.queues.get_mut(party)?.jobs;
        let at = jobs.binary_search_by_key(&ticket, |(ticket, _)| *ticket).ok()?;
        let (_, job) = jobs.remove(at)?;
        self.waiting -= 1;
        self.settle(party);
        Some(job)
    }

    /// Drops the queued jobs of a party for which `keep` returns false.
    pub fn retain(&mut self, party: &P, keep: impl Fn(&J) -> bool) {
        let Some(queue) = self.queues.get_mut(party) else { return };
        let before = queue.jobs.len();
        queue.jobs.retain(|(_, job)| keep(job));
        self.waiting -= before - queue.jobs.len();
        self.settle(party);
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Appends a party to the order if it has a job that may be taken, and removes it otherwise.
    fn settle(&mut self, party: &P) {
        let number = self.number();
        let Some(queue) = self.queues.get_mut(party) else { return };
        let is_due = !queue.jobs.is_empty() && queue.busy < self.share;
        match queue.turn {
            None if is_due => {
                queue.turn = Some(number);
                self.order.insert(number, party.clone());
            }
            Some(turn) if !is_due => {
                queue.turn = None;
                self.order.remove(&turn);
            }
            _ => {}
        }
        if queue.jobs.is_empty() && queue.busy == 0 {
            self.queues.remove(party);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(turns: &mut RoundRobinQueue<char, &'static str>) -> Vec<&'static str> {
        std::iter::from_fn(|| turns.take().map(|(_, job)| job)).collect()
    }

    #[test]
    fn flows_take_turns_independent_of_arrival() {
        let mut turns = RoundRobinQueue::new(usize::MAX);
        for (party, job) in [('a', "a1"), ('a', "a2"), ('a', "a3"), ('b', "b1"), ('c', "c1"), ('b', "b2")] {
            turns.push(party, job);
        }
        assert_eq!((turns.waiting(), turns.waiting_of(&'a'), turns.parties()), (6, 3, 3));
        assert_eq!(taken(&mut turns), ["a1", "b1", "c1", "a2", "b2", "a3"]);
        assert_eq!((turns.waiting(), turns.parties(), turns.is_idle()), (0, 0, false));
    }

    #[test]
    fn no_party_has_more_than_its_share() {
        let mut turns = RoundRobinQueue::new(2);
        for job in ["a1", "a2", "a3", "a4"] {
            turns.push('a', job);
        }
        assert_eq!(taken(&mut turns), ["a1", "a2"]);
        turns.push('b', "b1");
        assert_eq!(taken(&mut turns), ["b1"]);
        turns.done(&'a');
        turns.push('b', "b2");
        assert_eq!(taken(&mut turns), ["a3", "b2"]);
        turns.done(&'a');
        turns.done(&'a');
        assert_eq!(taken(&mut turns), ["a4"]);
    }

    #[test]
    fn a_cancelled_waiter_leaves_no_state() {
        let mut turns = RoundRobinQueue::new(1);
        let ticket = turns.push('a', "a1");
        turns.push('a', "a2");
        assert_eq!(turns.withdraw(&'a', ticket), Some("a1"));
        assert_eq!(turns.withdraw(&'a', ticket), None, "twice");
        assert_eq!(taken(&mut turns), ["a2"]);
        turns.done(&'a');
        for _ in 0..100 {
            let ticket = turns.push('b', "b");
            assert_eq!(turns.withdraw(&'b', ticket), Some("b"));
        }
        assert!(turns.is_idle() && turns.order.is_empty() && turns.waiting() == 0);
    }

    #[test]
    fn a_removed_flow_gets_no_turn() {
        let mut turns = RoundRobinQueue::new(1);
        for job in ["a1", "a2"] {
            turns.push('a', job);
        }
        turns.push('b', "b1");
        turns.retain(&'a', |job| *job == "a2");
        assert_eq!((turns.waiting(), turns.waiting_of(&'a')), (2, 1));
        turns.retain(&'b', |_| false);
        assert_eq!(taken(&mut turns), ["a2"]);
        turns.done(&'a');
        assert!(turns.is_idle());
    }
}
