//! In-memory index of the logical clusters that may have objects of a resource. Without it, reading a resource of all
//! logical clusters takes one seek per logical cluster, and every controller does that when a server starts.
//!
//! The index may have too many entries, never too few. It is read from the store at first use. Writes add to it before
//! they are durable, and a reader that finds a logical cluster empty removes the entry.
//!
//! The index is bounded: if there are too many pairs, resources present in most logical clusters are dropped until a
//! restart. Seeking for these costs least, because nearly every seek finds an object.

use std::{
    collections::{BTreeMap, HashMap, HashSet, btree_map::Entry},
    ops::Bound,
    sync::OnceLock,
};

use parking_lot::{Mutex, RwLock};
use portolan_types::LogicalClusterId;
use prometheus::IntGauge;

use crate::{
    api::{StoreError, damage::Damage},
    engine::{Batch, KvView},
    layout::keys::{self, beginning},
    read::state::{StoreMarks, backend, damaged, marks},
};

/// Most pairs of a resource and a logical cluster: about 60 MB. A pair takes 30 to 50 bytes if the resource is in many
/// logical clusters, and up to 270 if it is in one only; of these there are at most `MAX_RESOURCES`.
const MAX_PAIRS: usize = if cfg!(test) { 1000 } else { 1 << 20 };
/// Pairs that remain after the index was cut, so that the next cut is not soon.
const KEPT_PAIRS: usize = MAX_PAIRS / 4 * 3;

/// Index of the logical clusters that may have objects of a resource, for all resources.
#[derive(Debug, Default)]
pub(crate) struct ResourceClusterIndex {
    state: RwLock<State>,
    reading: Mutex<()>,
    /// Gauge of the number of pairs.
    pairs: OnceLock<IntGauge>,
}

#[derive(Debug, Default)]
struct State {
    /// Logical clusters of each resource, with the latest revision at which each was seen or written.
    clusters: HashMap<u32, BTreeMap<u64, u64>>,
    /// Number of pairs.
    pairs: usize,
    /// Resources that were dropped from the index: at most as many as there are numbers, 10 bytes each.
    unfollowed: HashSet<u32>,
    is_whole: bool,
    /// Numbers of resources that left the disk before the index was read, since the read may see an earlier state.
    gone: HashSet<u32>,
    /// Latest state that was read or in which an entry was removed. An older state may contain objects that the index
    /// lacks.
    emptied: Option<StoreMarks>,
}

/// Answer of the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NextCluster {
    /// First logical cluster at or after the position, if any.
    Known(Option<LogicalClusterId>),
    /// Not known for this state: the store has to be read.
    Unknown,
}

impl ResourceClusterIndex {
    /// Reports the number of pairs in a gauge from now on. Only the first gauge is kept.
    pub(crate) fn report_in(&self, pairs: IntGauge) {
        let state = self.state.read();
        self.pairs.get_or_init(|| pairs);
        self.update_gauge(&state);
    }

    /// Updates the gauge. Called under the lock, so that the last value stays.
    fn update_gauge(&self, state: &State) {
        self.pairs.get().into_iter().for_each(|pairs| pairs.set(i64::try_from(state.pairs).unwrap_or(i64::MAX)));
    }

    /// Adds the keys of a batch that is about to be written and ends at `revision`.
    pub(crate) fn add(&self, batch: &Batch, revision: u64) {
        let written = batch.iter().filter(|(key, value)| key.first() == Some(&b'o') && value.is_some());
        let mut written = written.filter_map(|(key, _)| beginning(key)).peekable();
        if written.peek().is_some() {
            let mut state = self.state.write();
            written.for_each(|(cluster, resource)| state.add(cluster, resource, revision));
            self.update_gauge(&state);
        }
    }

    /// Returns true if the index is complete for a resource.
    pub(crate) fn is_complete_for(&self, resource: u32) -> bool {
        let state = self.state.read();
        state.is_whole && !state.unfollowed.contains(&resource)
    }

    /// Returns true if the index has been read from the store.
    pub(crate) fn is_whole(&self) -> bool {
        self.state.read().is_whole
    }

    /// Reads the index from the store, with one seek per resource of each logical cluster.
    ///
    /// # Errors
    /// Fails if the store fails.
    pub(crate) fn read(&self, view: &dyn KvView) -> Result<(), StoreError> {
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
                self.state.write().add_found(cluster, resource, at.last);
                from = keys::end_of(&keys::joined(letter, &[&keys::resource_prefix(cluster, resource, None)]));
            }
        }
        let mut state = self.state.write();
        state.is_whole = true;
        state.gone = HashSet::new();
        state.empty_from(at);
        self.update_gauge(&state);
        Ok(())
    }

    /// Returns the first logical cluster at or after `from` that may have objects of a resource in the state `at`, or
    /// in its history.
    pub(crate) fn next(&self, resource: u32, from: u64, at: StoreMarks) -> NextCluster {
        let state = self.state.read();
        let is_past = state.emptied.is_some_and(|emptied| at.is_before(emptied));
        if !state.is_whole || is_past || state.unfollowed.contains(&resource) {
            return NextCluster::Unknown;
        }
        let clusters = state.clusters.get(&resource);
        let next = clusters.and_then(|clusters| clusters.range((Bound::Included(from), Bound::Unbounded)).next());
        NextCluster::Known(next.map(|(cluster, _)| LogicalClusterId::new(*cluster)))
    }

    /// Removes numbers of resources that are not on disk in the state `at`. Called by the writer, between batches.
    pub(crate) fn forget(&self, resources: &[u32], at: StoreMarks) {
        let mut state = self.state.write();
        for resource in resources {
            state.pairs -= state.clusters.remove(resource).map_or(0, |clusters| clusters.len());
            state.unfollowed.remove(resource);
        }
        if !state.is_whole {
            state.gone.extend(resources);
        }
        state.empty_from(at);
        self.update_gauge(&state);
    }

    /// Removes a logical cluster in which the state `at` has no objects of a resource, superseded ones included.
    pub(crate) fn mark_empty(&self, cluster: LogicalClusterId, resource: u32, at: StoreMarks) {
        let mut state = self.state.write();
        let State { clusters, pairs, .. } = &mut *state;
        let Some(of) = clusters.get_mut(&resource) else { return };
        // Otherwise it was written since, or is about to be.
        if of.get(&cluster.get()).is_some_and(|written| *written <= at.last) {
            of.remove(&cluster.get());
            *pairs -= 1;
            if of.is_empty() {
                clusters.remove(&resource);
            }
            state.empty_from(at);
            self.update_gauge(&state);
        }
    }
}

impl State {
    /// Records that states before `at` may contain removed entries.
    fn empty_from(&mut self, at: StoreMarks) {
        let before = self.emptied.unwrap_or(at);
        self.emptied = Some(StoreMarks { last: before.last.max(at.last), floor: before.floor.max(at.floor) });
    }

    /// Adds an entry found in a state that may be an earlier one. A number that has left the disk would never be
    /// queried, and so never removed.
    fn add_found(&mut self, cluster: LogicalClusterId, resource: u32, revision: u64) {
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
        self.drop_largest_if_full();
    }

    /// Drops the resources of most logical clusters if there are too many pairs.
    fn drop_largest_if_full(&mut self) {
        if self.pairs <= MAX_PAIRS {
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
        engine::{MemoryKv, OrderedKv as _, read},
        layout::keys::KeySuffix,
        read::bookkeeping::initialize,
    };

    const RESOURCE: u32 = 7;

    fn batch(cluster: u64, is_there: bool) -> Batch {
        let name = "a".parse().unwrap();
        let suffix = KeySuffix::new(LogicalClusterId::new(cluster), RESOURCE, &Scope::Cluster, &name);
        Batch::from([(suffix.object(), is_there.then(Bytes::new))])
    }

    fn at(last: u64) -> StoreMarks {
        StoreMarks { last, floor: 1 }
    }

    fn known_cluster(cluster: u64) -> NextCluster {
        NextCluster::Known(Some(LogicalClusterId::new(cluster)))
    }

    #[test]
    fn an_emptied_cluster_leaves_the_index_unless_a_write_follows() {
        let (spread, pairs) = (ResourceClusterIndex::default(), IntGauge::new("pairs", "Pairs.").unwrap());
        spread.add(&batch(3, true), 10);
        spread.report_in(pairs.clone());
        assert_eq!(pairs.get(), 1, "what there was before it was counted");
        spread.add(&batch(5, true), 11);
        spread.add(&batch(5, true), 11);
        spread.add(&batch(9, false), 12);
        assert_eq!(pairs.get(), 2);
        assert_eq!(spread.next(RESOURCE, 0, at(12)), NextCluster::Unknown, "the store has not been read");
        spread.state.write().is_whole = true;
        for (from, expected) in
            [(0, known_cluster(3)), (3, known_cluster(3)), (4, known_cluster(5)), (6, NextCluster::Known(None))]
        {
            assert_eq!(spread.next(RESOURCE, from, at(12)), expected, "from {from}");
        }
        assert_eq!(spread.next(8, 0, at(12)), NextCluster::Known(None), "another resource");

        spread.mark_empty(LogicalClusterId::new(5), RESOURCE, at(10));
        assert_eq!(spread.next(RESOURCE, 4, at(12)), known_cluster(5), "it was written after that state");
        spread.mark_empty(LogicalClusterId::new(5), RESOURCE, at(13));
        assert_eq!(spread.next(RESOURCE, 4, at(13)), NextCluster::Known(None));
        assert_eq!(spread.next(RESOURCE, 4, at(12)), NextCluster::Unknown, "a state before that may have it");
        let compacted_less = StoreMarks { floor: 0, ..at(13) };
        assert_eq!(
            spread.next(RESOURCE, 4, compacted_less),
            NextCluster::Unknown,
            "a state with more history may have it"
        );
        spread.add(&batch(5, true), 14);
        assert_eq!(spread.next(RESOURCE, 4, at(14)), known_cluster(5));
        spread.mark_empty(LogicalClusterId::new(5), RESOURCE, at(14));
        spread.mark_empty(LogicalClusterId::new(3), RESOURCE, at(14));
        assert!(spread.state.read().clusters.is_empty(), "nothing is left behind");
        assert_eq!(pairs.get(), 0);
        spread.add(&batch(5, true), 15);
        spread.add(&batch(6, true), 16);
        spread.forget(&[RESOURCE, 8], at(20));
        assert_eq!(pairs.get(), 0, "a resource is no longer on disk");
        assert_eq!(spread.next(RESOURCE, 0, at(20)), NextCluster::Known(None));
        assert_eq!(spread.next(RESOURCE, 0, at(19)), NextCluster::Unknown, "a state before that may have it");
    }

    #[test]
    fn beyond_the_bound_the_resource_of_most_logical_clusters_is_looked_for_on_disk() {
        let spread = ResourceClusterIndex::default();
        spread.state.write().is_whole = true;
        let other = KeySuffix::new(LogicalClusterId::new(3), 8, &Scope::Cluster, &"a".parse().unwrap());
        spread.add(&Batch::from([(other.object(), Some(Bytes::new()))]), 5);
        for cluster in 0..MAX_PAIRS as u64 + 7 {
            spread.add(&batch(cluster, true), 10 + cluster);
            assert!(spread.state.read().pairs <= MAX_PAIRS);
        }
        let now = at(5000);
        assert_eq!((spread.next(RESOURCE, 0, now), spread.next(8, 0, now)), (NextCluster::Unknown, known_cluster(3)));
        assert_eq!(
            (spread.state.read().pairs, spread.is_complete_for(RESOURCE), spread.is_complete_for(8)),
            (1, false, true)
        );
        spread.mark_empty(LogicalClusterId::new(1), RESOURCE, now);
        spread.forget(&[RESOURCE], now);
        assert_eq!(spread.next(RESOURCE, 0, now), NextCluster::Known(None), "nothing of it is on disk");
    }

    #[test]
    fn beyond_the_bound_a_quarter_is_given_up_at_once() {
        let (mut state, each) = (State::default(), 4);
        let kept = KEPT_PAIRS - each as usize + 1..=KEPT_PAIRS;
        let resources = u32::try_from(MAX_PAIRS).unwrap() / each;
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
        let (spread, kv) = (ResourceClusterIndex::default(), MemoryKv::default());
        initialize(&kv, &Seams::system()).unwrap();
        kv.commit(batch(3, true)).unwrap();
        let other = KeySuffix::new(LogicalClusterId::new(3), 8, &Scope::Cluster, &"a".parse().unwrap());
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
