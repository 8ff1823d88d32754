//! Which logical clusters may have objects of a resource, in memory: to read a resource of all of them would otherwise take a
//! seek through the whole store for each, and every loop reads its resources so when a server starts.
//!
//! What it says may be too much, never too little. It is read from the store once, when it is first asked for; writes add to it
//! before they are durable, and whoever finds nothing in a logical cluster takes it out.
//!
//! It is bounded: with too many pairs, the resources that are in most logical clusters are no longer followed, until a restart.
//! Seeking for them in the store costs least, since it finds something nearly everywhere.

use std::{
    collections::{BTreeMap, HashMap, HashSet, btree_map::Entry},
    ops::Bound,
    sync::OnceLock,
};

use parking_lot::{Mutex, RwLock};
use portolan_types::LogicalClusterId;
use prometheus::IntGauge;

use crate::{
    StoreError,
    keys::{self, beginning},
    kv::{Batch, View},
    read::{Marks, backend, damaged, marks},
    value::Damage,
};

/// Most pairs of a resource and a logical cluster: some 60 MB. A pair takes 30 to 50 bytes where a resource is in many logical
/// clusters, and up to 270 where it is in one only, of which there are no more than `MAX_RESOURCES`.
const MOST_PAIRS: usize = if cfg!(test) { 1000 } else { 1 << 20 };
/// So many are kept when there were too many, so that the next time is not soon.
const KEPT_PAIRS: usize = MOST_PAIRS / 4 * 3;

/// Of all resources.
#[derive(Debug, Default)]
pub(crate) struct Spread {
    state: RwLock<State>,
    reading: Mutex<()>,
    /// How many pairs of a resource and a logical cluster there are.
    pairs: OnceLock<IntGauge>,
}

#[derive(Debug, Default)]
struct State {
    /// For each resource the logical clusters, with the revision as of which each was last seen or written to.
    clusters: HashMap<u32, BTreeMap<u64, u64>>,
    /// How many these are together.
    pairs: usize,
    /// The resources that were in most, when there were too many: no more than there are numbers, 10 bytes each.
    unfollowed: HashSet<u32>,
    is_whole: bool,
    /// Numbers of resources that left the disk before the store was read: whoever reads it may do so in an earlier state.
    gone: HashSet<u32>,
    /// The latest state that was read, or in which something was found to be empty: an older one may have had something there.
    emptied: Option<Marks>,
}

/// Whether logical clusters are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// The first from there on, if any.
    Known(Option<LogicalClusterId>),
    /// Not for this state: it has to be looked for in the store.
    Unknown,
}

impl Spread {
    /// Tells a gauge from now on how many pairs there are. Only the first one is told.
    pub(crate) fn count_in(&self, pairs: IntGauge) {
        let state = self.state.read();
        self.pairs.get_or_init(|| pairs);
        self.tell(&state);
    }

    /// Called under the lock, so that the gauge ends with the latest.
    fn tell(&self, state: &State) {
        self.pairs.get().into_iter().for_each(|pairs| pairs.set(i64::try_from(state.pairs).unwrap_or(i64::MAX)));
    }

    /// A batch that ends at a revision will be written.
    pub(crate) fn add(&self, batch: &Batch, revision: u64) {
        let written = batch.iter().filter(|(key, value)| key.first() == Some(&b'o') && value.is_some());
        let mut written = written.filter_map(|(key, _)| beginning(key)).peekable();
        if written.peek().is_some() {
            let mut state = self.state.write();
            written.for_each(|(cluster, resource)| state.add(cluster, resource, revision));
            self.tell(&state);
        }
    }

    /// Whether all that the store has of a resource is known.
    pub(crate) fn follows(&self, resource: u32) -> bool {
        let state = self.state.read();
        state.is_whole && !state.unfollowed.contains(&resource)
    }

    /// Whether the store has been read.
    pub(crate) fn is_whole(&self) -> bool {
        self.state.read().is_whole
    }

    /// Reads the store, which takes a seek for each resource of each logical cluster.
    ///
    /// # Errors
    /// When the store fails.
    pub(crate) fn read(&self, view: &dyn View) -> Result<(), StoreError> {
        let _one = self.reading.lock();
        if self.is_whole() {
            return Ok(());
        }
        let at = marks(view)?;
        for letter in [b'o', b'v'] {
            let mut from = vec![letter];
            loop {
                let cursor = view.scan(&from, &keys::end_of(&[letter])).map_err(backend)?;
                let Some(key) = cursor.key() else { break };
                let (cluster, resource) = beginning(key).ok_or(Damage::Key).map_err(damaged)?;
                self.state.write().found(cluster, resource, at.last);
                from = keys::end_of(&keys::joined(letter, &[&keys::resource_prefix(cluster, resource, None)]));
            }
        }
        let mut state = self.state.write();
        state.is_whole = true;
        state.gone = HashSet::new();
        state.empty_from(at);
        self.tell(&state);
        Ok(())
    }

    /// The first logical cluster from `from` on that may have objects of a resource, in a state or before it.
    pub(crate) fn next(&self, resource: u32, from: u64, at: Marks) -> Next {
        let state = self.state.read();
        let is_past = state.emptied.is_some_and(|emptied| at.is_before(emptied));
        if !state.is_whole || is_past || state.unfollowed.contains(&resource) {
            return Next::Unknown;
        }
        let clusters = state.clusters.get(&resource);
        let next = clusters.and_then(|clusters| clusters.range((Bound::Included(from), Bound::Unbounded)).next());
        Next::Known(next.map(|(cluster, _)| LogicalClusterId::new(*cluster)))
    }

    /// Numbers of resources that are no longer on disk in a state. Called by who writes, between batches.
    pub(crate) fn forget(&self, resources: &[u32], at: Marks) {
        let mut state = self.state.write();
        for resource in resources {
            state.pairs -= state.clusters.remove(resource).map_or(0, |clusters| clusters.len());
            state.unfollowed.remove(resource);
        }
        if !state.is_whole {
            state.gone.extend(resources);
        }
        state.empty_from(at);
        self.tell(&state);
    }

    /// In a state nothing was found of a resource in a logical cluster, superseded objects included.
    pub(crate) fn is_empty(&self, cluster: LogicalClusterId, resource: u32, at: Marks) {
        let mut state = self.state.write();
        let State { clusters, pairs, .. } = &mut *state;
        let Some(of) = clusters.get_mut(&resource) else { return };
        // Otherwise it was written to since, or is about to be.
        if of.get(&cluster.get()).is_some_and(|written| *written <= at.last) {
            of.remove(&cluster.get());
            *pairs -= 1;
            if of.is_empty() {
                clusters.remove(&resource);
            }
            state.empty_from(at);
            self.tell(&state);
        }
    }
}

impl State {
    /// What was taken out may have been there in states before this one.
    fn empty_from(&mut self, at: Marks) {
        let before = self.emptied.unwrap_or(at);
        self.emptied = Some(Marks { last: before.last.max(at.last), floor: before.floor.max(at.floor) });
    }

    /// As [`State::add`], of what stands in a state that may be an earlier one. A number that is no longer on disk would never be
    /// asked for, and so never be taken out.
    fn found(&mut self, cluster: LogicalClusterId, resource: u32, revision: u64) {
        if !self.gone.contains(&resource) {
            self.add(cluster, resource, revision);
        }
    }

    fn add(&mut self, cluster: LogicalClusterId, resource: u32, revision: u64) {
        if self.unfollowed.contains(&resource) {
            return;
        }
        match self.clusters.entry(resource).or_default().entry(cluster.get()) {
            Entry::Occupied(mut known) => {
                *known.get_mut() = revision.max(*known.get());
                return;
            }
            Entry::Vacant(new) => {
                new.insert(revision);
            }
        }
        self.pairs += 1;
        self.bound();
    }

    /// Gives up the resources that are in most logical clusters, when there are too many pairs.
    fn bound(&mut self) {
        if self.pairs <= MOST_PAIRS {
            return;
        }
        let mut sizes: Vec<_> = self.clusters.iter().map(|(resource, clusters)| (clusters.len(), *resource)).collect();
        sizes.sort_unstable();
        while self.pairs > KEPT_PAIRS
            && let Some((size, resource)) = sizes.pop()
        {
            self.clusters.remove(&resource);
            self.pairs -= size;
            self.unfollowed.insert(resource);
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use portolan_types::{Scope, Seams};

    use super::*;
    use crate::{
        keys::Suffix,
        kv::{MemoryKv, OrderedKv as _, read},
        open::initialize,
    };

    const RESOURCE: u32 = 7;

    fn batch(cluster: u64, is_there: bool) -> Batch {
        let name = "a".parse().unwrap();
        let suffix = Suffix::new(LogicalClusterId::new(cluster), RESOURCE, &Scope::Cluster, &name);
        Batch::from([(suffix.object(), is_there.then(Bytes::new))])
    }

    fn at(last: u64) -> Marks {
        Marks { last, floor: 1 }
    }

    fn known(cluster: u64) -> Next {
        Next::Known(Some(LogicalClusterId::new(cluster)))
    }

    #[test]
    fn what_is_emptied_is_forgotten_unless_somebody_writes_there() {
        let (spread, pairs) = (Spread::default(), IntGauge::new("pairs", "Pairs.").unwrap());
        spread.add(&batch(3, true), 10);
        spread.count_in(pairs.clone());
        assert_eq!(pairs.get(), 1, "what there was before it was counted");
        spread.add(&batch(5, true), 11);
        spread.add(&batch(5, true), 11);
        spread.add(&batch(9, false), 12);
        assert_eq!(pairs.get(), 2);
        assert_eq!(spread.next(RESOURCE, 0, at(12)), Next::Unknown, "the store has not been read");
        spread.state.write().is_whole = true;
        for (from, expected) in [(0, known(3)), (3, known(3)), (4, known(5)), (6, Next::Known(None))] {
            assert_eq!(spread.next(RESOURCE, from, at(12)), expected, "from {from}");
        }
        assert_eq!(spread.next(8, 0, at(12)), Next::Known(None), "another resource");

        spread.is_empty(LogicalClusterId::new(5), RESOURCE, at(10));
        assert_eq!(spread.next(RESOURCE, 4, at(12)), known(5), "it was written after that state");
        spread.is_empty(LogicalClusterId::new(5), RESOURCE, at(13));
        assert_eq!(spread.next(RESOURCE, 4, at(13)), Next::Known(None));
        assert_eq!(spread.next(RESOURCE, 4, at(12)), Next::Unknown, "a state before that may have it");
        let compacted_less = Marks { floor: 0, ..at(13) };
        assert_eq!(spread.next(RESOURCE, 4, compacted_less), Next::Unknown, "a state with more history may have it");
        spread.add(&batch(5, true), 14);
        assert_eq!(spread.next(RESOURCE, 4, at(14)), known(5));
        spread.is_empty(LogicalClusterId::new(5), RESOURCE, at(14));
        spread.is_empty(LogicalClusterId::new(3), RESOURCE, at(14));
        assert!(spread.state.read().clusters.is_empty(), "nothing is left behind");
        assert_eq!(pairs.get(), 0);
        spread.add(&batch(5, true), 15);
        spread.add(&batch(6, true), 16);
        spread.forget(&[RESOURCE, 8], at(20));
        assert_eq!(pairs.get(), 0, "a resource is no longer on disk");
        assert_eq!(spread.next(RESOURCE, 0, at(20)), Next::Known(None));
        assert_eq!(spread.next(RESOURCE, 0, at(19)), Next::Unknown, "a state before that may have it");
    }

    #[test]
    fn beyond_the_bound_the_resource_of_most_logical_clusters_is_looked_for_on_disk() {
        let spread = Spread::default();
        spread.state.write().is_whole = true;
        let other = Suffix::new(LogicalClusterId::new(3), 8, &Scope::Cluster, &"a".parse().unwrap());
        spread.add(&Batch::from([(other.object(), Some(Bytes::new()))]), 5);
        for cluster in 0..MOST_PAIRS as u64 + 7 {
            spread.add(&batch(cluster, true), 10 + cluster);
            assert!(spread.state.read().pairs <= MOST_PAIRS);
        }
        let now = at(5000);
        assert_eq!((spread.next(RESOURCE, 0, now), spread.next(8, 0, now)), (Next::Unknown, known(3)));
        assert_eq!((spread.state.read().pairs, spread.follows(RESOURCE), spread.follows(8)), (1, false, true));
        spread.is_empty(LogicalClusterId::new(1), RESOURCE, now);
        spread.forget(&[RESOURCE], now);
        assert_eq!(spread.next(RESOURCE, 0, now), Next::Known(None), "nothing of it is on disk");
    }

    #[test]
    fn beyond_the_bound_a_quarter_is_given_up_at_once() {
        let (mut state, each) = (State::default(), 4);
        let kept = KEPT_PAIRS - each as usize + 1..=KEPT_PAIRS;
        let resources = u32::try_from(MOST_PAIRS).unwrap() / each;
        let pairs = || (0..resources).flat_map(|resource| (0..each).map(move |cluster| (resource, cluster)));
        for (resource, cluster) in pairs().chain([(0, 9)]) {
            state.add(LogicalClusterId::new(cluster.into()), resource, 10);
        }
        assert!(kept.contains(&state.pairs), "{} are left", state.pairs);
        assert!(state.unfollowed.contains(&0), "the largest goes first");
        let before = (state.pairs, state.unfollowed.len());
        for (resource, cluster) in pairs() {
            state.add(LogicalClusterId::new(cluster.into()), resource, 11);
        }
        assert_eq!((state.pairs, state.unfollowed.len()), before, "nothing comes back");
    }

    #[test]
    fn a_number_that_left_the_disk_while_it_is_read_leaves_nothing_behind() {
        let (spread, kv) = (Spread::default(), MemoryKv::default());
        initialize(&kv, &Seams::system()).unwrap();
        kv.commit(batch(3, true)).unwrap();
        let other = Suffix::new(LogicalClusterId::new(3), 8, &Scope::Cluster, &"a".parse().unwrap());
        kv.commit(Batch::from([(other.object(), Some(Bytes::new()))])).unwrap();
        kv.publish();
        read(&kv, |view| {
            spread.forget(&[RESOURCE], at(20));
            spread.read(view).unwrap();
        })
        .unwrap();
        let state = spread.state.read();
        assert_eq!(state.clusters.keys().collect::<Vec<_>>(), [&8]);
        assert_eq!((state.pairs, state.gone.len()), (1, 0));
    }
}
