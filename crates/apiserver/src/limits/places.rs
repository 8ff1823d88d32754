//! Places for what may last.
//!
//! Nobody who has one gives it back for others. So a tenant may hold [`SHARE`] times as many as are free: one alone leaves a quarter,
//! however many workspaces it makes; two leave a sixteenth.

use std::{collections::HashMap, hash::Hash, sync::Arc};

use parking_lot::Mutex;
use portolan_types::LogicalClusterId;

use super::fair::{Flow, SHARE};

/// Places in all, of one tenant, in one logical cluster, and for one user in it.
pub(super) struct Places {
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
    total: usize,
    tenants: HashMap<LogicalClusterId, usize>,
    clusters: HashMap<LogicalClusterId, usize>,
    users: HashMap<Flow, usize>,
}

/// A place among what may last, given back when dropped.
pub(crate) struct Place {
    tenant: LogicalClusterId,
    flow: Flow,
    counts: Arc<Mutex<Counts>>,
}

impl Places {
    pub(super) fn new(bounds: Bounds) -> Self {
        Self { counts: Arc::default(), bounds }
    }

    /// A place for this tenant, unless there is none.
    pub(super) fn take(&self, tenant: LogicalClusterId, flow: Flow) -> Option<Place> {
        let mut counts = self.counts.lock();
        counts.has_room(tenant, flow, self.bounds).then(|| {
            counts.total += 1;
            *counts.tenants.entry(tenant).or_default() += 1;
            *counts.clusters.entry(flow.cluster).or_default() += 1;
            *counts.users.entry(flow).or_default() += 1;
            Place { tenant, flow, counts: self.counts.clone() }
        })
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        let counts = self.counts.lock();
        counts.total == 0 && counts.tenants.is_empty() && counts.clusters.is_empty() && counts.users.is_empty()
    }
}

impl Counts {
    fn has_room(&self, tenant: LogicalClusterId, flow: Flow, bounds: Bounds) -> bool {
        let of = |count: Option<&usize>| count.copied().unwrap_or(0);
        let free = bounds.total - self.total;
        of(self.tenants.get(&tenant)) < SHARE * free
            && of(self.clusters.get(&flow.cluster)) < bounds.each_cluster
            && of(self.users.get(&flow)) < bounds.each_user
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut counts = self.counts.lock();
        counts.total -= 1;
        give_back(&mut counts.tenants, &self.tenant);
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
