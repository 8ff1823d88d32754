//! Places for what may last.

use std::{collections::HashMap, hash::Hash, sync::Arc};

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::fair::Flow;

/// Places in all, in one logical cluster, and for one user in it.
pub(super) struct Places {
    total: Arc<Semaphore>,
    counts: Arc<Mutex<Counts>>,
    bounds: Bounds,
}

/// How many places one may have.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    pub(super) total: usize,
    pub(super) each_cluster: usize,
    pub(super) each_user: usize,
}

#[derive(Default)]
struct Counts {
    clusters: HashMap<portolan_types::LogicalClusterId, usize>,
    users: HashMap<Flow, usize>,
}

/// A place among what may last, given back when dropped.
pub(crate) struct Place {
    _total: OwnedSemaphorePermit,
    flow: Flow,
    counts: Arc<Mutex<Counts>>,
}

impl Places {
    pub(super) fn new(bounds: Bounds) -> Self {
        Self { total: Arc::new(Semaphore::new(bounds.total)), counts: Arc::default(), bounds }
    }

    /// A place, unless there is none.
    pub(super) fn take(&self, flow: Flow) -> Option<Place> {
        let total = self.total.clone().try_acquire_owned().ok()?;
        let mut counts = self.counts.lock();
        let of = |count: Option<&usize>| count.copied().unwrap_or(0);
        let has_room = of(counts.clusters.get(&flow.cluster)) < self.bounds.each_cluster
            && of(counts.users.get(&flow)) < self.bounds.each_user;
        if !has_room {
            return None;
        }
        *counts.clusters.entry(flow.cluster).or_default() += 1;
        *counts.users.entry(flow).or_default() += 1;
        Some(Place { _total: total, flow, counts: self.counts.clone() })
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        let counts = self.counts.lock();
        counts.clusters.is_empty() && counts.users.is_empty()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut counts = self.counts.lock();
        give_back(&mut counts.clusters, &self.flow.cluster);
        give_back(&mut counts.users, &self.flow);
    }
}

fn give_back<K: Hash + Eq>(counts: &mut HashMap<K, usize>, key: &K) {
    if let Some(count) = counts.get_mut(key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(key);
        }
    }
}
