//! Who waits for a thread, and whose turn it is.

use std::{
    collections::{BTreeMap, HashMap, VecDeque, btree_map},
    sync::Arc,
};

use portolan_types::LogicalClusterId;

use crate::{RangeScope, WatchScope};

/// For whom something is read.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Party {
    /// One logical cluster.
    Cluster(LogicalClusterId),
    /// What syncs one physical cluster, by its uid.
    PhysicalCluster(Arc<str>),
    /// Whoever reads all logical clusters: the loops.
    Everybody,
    /// Who removes what is left of logical clusters that are gone, however many these are.
    Sweeps,
}

impl Party {
    /// Whose a read of many objects is.
    pub(crate) fn of_range(scope: &RangeScope) -> Self {
        match scope {
            RangeScope::All | RangeScope::AllClusters(_) => Self::Everybody,
            RangeScope::PlacedOn(uid) => Self::PhysicalCluster(uid.as_str().into()),
            RangeScope::Cluster(cluster, _)
            | RangeScope::Namespace(cluster, _, _)
            | RangeScope::Everything(cluster)
            | RangeScope::OwnedBy(cluster, _) => Self::Cluster(*cluster),
        }
    }

    /// Whose a watch is.
    pub(crate) fn of_watch(scope: &WatchScope) -> Self {
        match scope {
            WatchScope::Resource(_, None) => Self::Everybody,
            WatchScope::Resource(_, Some(cluster)) => Self::Cluster(*cluster),
            WatchScope::PlacedOn(uid) => Self::PhysicalCluster(uid.as_str().into()),
        }
    }
}

/// A place among those who wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Ticket(u64);

/// Jobs that wait, by party. The parties take turns; within one, who came first is first. What one party alone waits with is
/// its own.
pub(crate) struct Turns<J> {
    lines: HashMap<Party, Line<J>>,
    /// The parties that have a line, in the order of their turns.
    order: VecDeque<Party>,
    next: u64,
    waiting: usize,
    /// Most jobs of one party that are done at once.
    share: usize,
}

struct Line<J> {
    jobs: BTreeMap<Ticket, J>,
    /// How many jobs are being done.
    busy: usize,
}

impl<J> Turns<J> {
    /// Where each party may have so many jobs done at once.
    pub(crate) fn new(share: usize) -> Self {
        Self { lines: HashMap::new(), order: VecDeque::new(), next: 0, waiting: 0, share }
    }

    /// How many jobs wait.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting
    }

    /// Lets a job wait.
    pub(crate) fn push(&mut self, party: Party, job: J) -> Ticket {
        let ticket = Ticket(self.next);
        self.next += 1;
        self.waiting += 1;
        let line = self.lines.entry(party).or_insert_with_key(|party| {
            self.order.push_back(party.clone());
            Line { jobs: BTreeMap::new(), busy: 0 }
        });
        line.jobs.insert(ticket, job);
        ticket
    }

    /// Takes the job whose turn it is. It is being done until [`Turns::done`] says otherwise.
    pub(crate) fn take(&mut self) -> Option<(Party, J)> {
        let is_next =
            |party: &Party| self.lines.get(party).is_some_and(|line| line.busy < self.share && !line.jobs.is_empty());
        let at = self.order.iter().position(is_next)?;
        let party = self.order.remove(at)?;
        self.order.push_back(party.clone());
        let line = self.lines.get_mut(&party)?;
        let (_, job) = line.jobs.pop_first()?;
        line.busy += 1;
        self.waiting -= 1;
        Some((party, job))
    }

    /// A job of a party was done.
    pub(crate) fn done(&mut self, party: &Party) {
        if let Some(line) = self.lines.get_mut(party) {
            line.busy -= 1;
        }
        self.leave_if_over(party);
    }

    /// Gives a job back that nobody waits for any more, unless it was taken.
    pub(crate) fn withdraw(&mut self, party: &Party, ticket: Ticket) -> Option<J> {
        let line = self.lines.get_mut(party)?;
        let btree_map::Entry::Occupied(job) = line.jobs.entry(ticket) else { return None };
        let job = job.remove();
        self.waiting -= 1;
        self.leave_if_over(party);
        Some(job)
    }

    fn leave_if_over(&mut self, party: &Party) {
        if self.lines.get(party).is_some_and(|line| line.busy == 0 && line.jobs.is_empty()) {
            self.lines.remove(party);
            self.order.retain(|other| other != party);
        }
    }
}

#[cfg(test)]
mod tests {
    use portolan_types::GroupResource;

    use super::*;

    const A: Party = Party::Cluster(LogicalClusterId::ROOT);
    const ALL: Party = Party::Everybody;

    fn b() -> Party {
        Party::Cluster(LogicalClusterId::new(7))
    }

    fn east() -> Party {
        Party::of_range(&RangeScope::PlacedOn("east".into()))
    }

    fn taken(turns: &mut Turns<&'static str>) -> Vec<&'static str> {
        std::iter::from_fn(|| turns.take().map(|(_, job)| job)).collect()
    }

    #[test]
    fn parties_take_turns_whoever_came_first() {
        let mut turns = Turns::new(usize::MAX);
        for (party, job) in [(A, "a1"), (A, "a2"), (A, "a3"), (b(), "b1"), (ALL, "all1"), (b(), "b2")] {
            turns.push(party, job);
        }
        assert_eq!(turns.waiting(), 6);
        assert_eq!(taken(&mut turns), ["a1", "b1", "all1", "a2", "b2", "a3"]);
        assert_eq!(turns.waiting(), 0);
    }

    #[test]
    fn each_physical_cluster_has_a_line_of_its_own() {
        let watched = |scope: WatchScope| Party::of_watch(&scope);
        assert_eq!(watched(WatchScope::PlacedOn("east".into())), east());
        assert_ne!(watched(WatchScope::PlacedOn("west".into())), east());
        assert_eq!(watched(WatchScope::Resource(GroupResource::new("", "pods"), None)), ALL);
        let mut turns = Turns::new(3);
        for _ in 0..100 {
            turns.push(east(), "east");
        }
        turns.push(watched(WatchScope::PlacedOn("west".into())), "west");
        turns.push(Party::of_range(&RangeScope::AllClusters(GroupResource::new("", "pods"))), "a loop");
        assert_eq!(taken(&mut turns), ["east", "west", "a loop", "east", "east"]);
    }

    #[test]
    fn no_party_has_more_than_its_share() {
        let mut turns = Turns::new(2);
        for job in ["a1", "a2", "a3", "a4"] {
            turns.push(A, job);
        }
        assert_eq!(taken(&mut turns), ["a1", "a2"]);
        turns.push(b(), "b1");
        assert_eq!(taken(&mut turns), ["b1"]);
        turns.done(&A);
        turns.push(b(), "b2");
        assert_eq!(taken(&mut turns), ["a3", "b2"]);
        turns.done(&A);
        turns.done(&A);
        assert_eq!(taken(&mut turns), ["a4"]);
    }

    #[test]
    fn who_waits_no_longer_leaves_nothing_behind() {
        let mut turns = Turns::new(1);
        let ticket = turns.push(A, "a1");
        turns.push(A, "a2");
        assert_eq!(turns.withdraw(&A, ticket), Some("a1"));
        assert_eq!(turns.withdraw(&A, ticket), None, "twice");
        assert_eq!(taken(&mut turns), ["a2"]);
        turns.done(&A);
        for _ in 0..100 {
            let ticket = turns.push(b(), "b");
            assert_eq!(turns.withdraw(&b(), ticket), Some("b"));
        }
        assert!(turns.lines.is_empty() && turns.order.is_empty() && turns.waiting() == 0);
    }
}
