//! Places for what may last, and bytes for what is held.
//!
//! Nobody who has some gives it back for others. So a tenant may come to hold [`HELD_PER_FREE`] times as much as is free when it asks: where it
//! asks for one after the other, one alone leaves a quarter, however many workspaces it makes; two leave a sixteenth.

use std::{collections::HashMap, hash::Hash, sync::Arc};

use parking_lot::Mutex;
use portolan_types::LogicalClusterId;

use super::fair::{Flow, HELD_PER_FREE};

/// Places in all, of one tenant, in one logical cluster, and for one user in it.
pub(super) struct Places(Arc<Shared>);

struct Shared {
    counts: Mutex<Counts>,
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

/// A place among what may last, or several, given back when dropped.
pub(crate) struct Place {
    shared: Arc<Shared>,
    tenant: LogicalClusterId,
    flow: Flow,
    size: usize,
}

impl Places {
    pub(super) fn new(bounds: Bounds) -> Self {
        Self(Arc::new(Shared { counts: Mutex::default(), bounds }))
    }

    /// A place for this tenant, unless there is none.
    pub(super) fn take(&self, tenant: LogicalClusterId, flow: Flow) -> Option<Place> {
        let mut place = self.open(tenant, flow);
        place.grow(1).then_some(place)
    }

    /// What may become a place.
    pub(super) fn open(&self, tenant: LogicalClusterId, flow: Flow) -> Place {
        Place { shared: self.0.clone(), tenant, flow, size: 0 }
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        let counts = self.0.counts.lock();
        counts.total == 0 && counts.tenants.is_empty() && counts.clusters.is_empty() && counts.users.is_empty()
    }
}

impl Place {
    pub(super) fn size(&self) -> usize {
        self.size
    }

    /// Takes so much more, all of it or nothing. `false` where that would leave others too little.
    pub(super) fn grow(&mut self, more: usize) -> bool {
        let mut counts = self.shared.counts.lock();
        let has_room = counts.has_room(self.tenant, self.flow, self.shared.bounds, more);
        if has_room && more > 0 {
            counts.total += more;
            *counts.tenants.entry(self.tenant).or_default() += more;
            *counts.clusters.entry(self.flow.cluster).or_default() += more;
            *counts.users.entry(self.flow).or_default() += more;
            self.size += more;
        }
        has_room
    }

    /// Gives all back but so much.
    pub(super) fn shrink(&mut self, left: usize) {
        let less = self.size.saturating_sub(left);
        if less == 0 {
            return;
        }
        let mut counts = self.shared.counts.lock();
        counts.total -= less;
        give_back(&mut counts.tenants, &self.tenant, less);
        give_back(&mut counts.clusters, &self.flow.cluster, less);
        give_back(&mut counts.users, &self.flow, less);
        self.size -= less;
    }
}

impl Counts {
    fn has_room(&self, tenant: LogicalClusterId, flow: Flow, bounds: Bounds, more: usize) -> bool {
        let of = |count: Option<&usize>| count.copied().unwrap_or(0);
        let free = bounds.total - self.total;
        more <= free
            && of(self.tenants.get(&tenant)) + more <= HELD_PER_FREE * free
            && of(self.clusters.get(&flow.cluster)) + more <= bounds.each_cluster
            && of(self.users.get(&flow)) + more <= bounds.each_user
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.shrink(0);
    }
}

/// Takes so many off a count, of which nothing stays when it is at zero.
fn give_back<K: Hash + Eq>(counts: &mut HashMap<K, usize>, key: &K, less: usize) {
    if let Some(count) = counts.get_mut(key) {
        *count -= less;
        if *count == 0 {
            counts.remove(key);
        }
    }
}
