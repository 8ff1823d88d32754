//! Jobs that wait, by whom they are for: these take turns, each one's own jobs go in the order they came, and none has more than
//! its share of jobs in work at once. So a flood of one delays each other by one job a round, however long its line is.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    hash::Hash,
};

/// A place among those who wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket(u64);

/// Jobs that wait, by party. To push, take and end one costs time logarithmic in the number of parties; a party without jobs costs
/// nothing. How many may wait is for the caller to bound, by [`Turns::waiting`] or [`Turns::waiting_of`].
#[derive(Debug)]
pub struct Turns<P, J> {
    lines: HashMap<P, Line<J>>,
    /// Each party once that has a job which may be taken, by its turn.
    order: BTreeMap<u64, P>,
    next: u64,
    waiting: usize,
    share: usize,
}

#[derive(Debug)]
struct Line<J> {
    /// By ticket, ascending.
    jobs: VecDeque<(Ticket, J)>,
    /// How many were taken and are not done.
    busy: usize,
    /// Its place in the order.
    turn: Option<u64>,
}

impl<P: Clone + Eq + Hash, J> Turns<P, J> {
    /// Where each party may have `share` jobs in work at once, at least one.
    pub fn new(share: usize) -> Self {
        Self { lines: HashMap::new(), order: BTreeMap::new(), next: 0, waiting: 0, share: share.max(1) }
    }

    /// How many jobs wait.
    pub fn waiting(&self) -> usize {
        self.waiting
    }

    /// How many jobs of one party wait.
    pub fn waiting_of(&self, party: &P) -> usize {
        self.lines.get(party).map_or(0, |line| line.jobs.len())
    }

    /// How many parties have a job that may be taken.
    pub fn parties(&self) -> usize {
        self.order.len()
    }

    /// Whether no job waits or is in work.
    pub fn is_idle(&self) -> bool {
        self.lines.is_empty()
    }

    /// Lets a job wait.
    pub fn push(&mut self, party: P, job: J) -> Ticket {
        let ticket = Ticket(self.number());
        self.waiting += 1;
        let line =
            self.lines.entry(party.clone()).or_insert_with(|| Line { jobs: VecDeque::new(), busy: 0, turn: None });
        line.jobs.push_back((ticket, job));
        self.settle(&party);
        ticket
    }

    /// Takes the job whose turn it is. It is in work until [`Turns::done`].
    pub fn take(&mut self) -> Option<(P, J)> {
        let (_, party) = self.order.pop_first()?;
        let line = self.lines.get_mut(&party)?;
        line.turn = None;
        let (_, job) = line.jobs.pop_front()?;
        line.busy += 1;
        self.waiting -= 1;
        self.settle(&party);
        Some((party, job))
    }

    /// A job of a party that was taken is not worked on any more.
    pub fn done(&mut self, party: &P) {
        let Some(line) = self.lines.get_mut(party) else { return };
        line.busy -= 1;
        self.settle(party);
    }

    /// Gives a job back that nobody waits for any more, unless it was taken.
    pub fn withdraw(&mut self, party: &P, ticket: Ticket) -> Option<J> {
        let jobs = &mut self.lines.get_mut(party)?.jobs;
        let at = jobs.binary_search_by_key(&ticket, |(ticket, _)| *ticket).ok()?;
        let (_, job) = jobs.remove(at)?;
        self.waiting -= 1;
        self.settle(party);
        Some(job)
    }

    /// Drops those of a party's waiting jobs that are not to be kept.
    pub fn retain(&mut self, party: &P, keep: impl Fn(&J) -> bool) {
        let Some(line) = self.lines.get_mut(party) else { return };
        let before = line.jobs.len();
        line.jobs.retain(|(_, job)| keep(job));
        self.waiting -= before - line.jobs.len();
        self.settle(party);
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Gives a party its place behind the others when it has a job that may be taken, and none otherwise.
    fn settle(&mut self, party: &P) {
        let number = self.number();
        let Some(line) = self.lines.get_mut(party) else { return };
        let is_due = !line.jobs.is_empty() && line.busy < self.share;
        match line.turn {
            None if is_due => {
                line.turn = Some(number);
                self.order.insert(number, party.clone());
            }
            Some(turn) if !is_due => {
                line.turn = None;
                self.order.remove(&turn);
            }
            _ => {}
        }
        if line.jobs.is_empty() && line.busy == 0 {
            self.lines.remove(party);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(turns: &mut Turns<char, &'static str>) -> Vec<&'static str> {
        std::iter::from_fn(|| turns.take().map(|(_, job)| job)).collect()
    }

    #[test]
    fn parties_take_turns_whoever_came_first() {
        let mut turns = Turns::new(usize::MAX);
        for (party, job) in [('a', "a1"), ('a', "a2"), ('a', "a3"), ('b', "b1"), ('c', "c1"), ('b', "b2")] {
            turns.push(party, job);
        }
        assert_eq!((turns.waiting(), turns.waiting_of(&'a'), turns.parties()), (6, 3, 3));
        assert_eq!(taken(&mut turns), ["a1", "b1", "c1", "a2", "b2", "a3"]);
        assert_eq!((turns.waiting(), turns.parties(), turns.is_idle()), (0, 0, false));
    }

    #[test]
    fn no_party_has_more_than_its_share() {
        let mut turns = Turns::new(2);
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
    fn who_waits_no_longer_leaves_nothing_behind() {
        let mut turns = Turns::new(1);
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
    fn what_is_not_kept_has_no_turn() {
        let mut turns = Turns::new(1);
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
