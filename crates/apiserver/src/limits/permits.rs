//! Permits for long-running requests, and for bytes held in memory.
//!
//! A permit is not taken back for others. So a tenant may hold at most [`HELD_PER_FREE`] times as much as is free
//! when it asks: one alone leaves a quarter, however many workspaces it has; two leave a sixteenth.

use std::{collections::HashMap, hash::Hash, sync::Arc};

use parking_lot::Mutex;
use portolan_types::LogicalClusterId;

use super::seats::{FlowId, HELD_PER_FREE};

/// Pool of permits with limits in all, per tenant, per logical cluster, and per user in it.
pub(super) struct PermitPool(Arc<PermitPoolState>);

struct PermitPoolState {
    counts: Mutex<PermitCounts>,
    bounds: PermitLimits,
}

/// Limits of a pool.
#[derive(Clone, Copy, Debug)]
pub(super) struct PermitLimits {
    pub(super) total: usize,
    pub(super) each_cluster: usize,
    pub(super) each_user: usize,
}

#[derive(Default)]
struct PermitCounts {
    total: usize,
    tenants: HashMap<LogicalClusterId, usize>,
    clusters: HashMap<LogicalClusterId, usize>,
    users: HashMap<FlowId, usize>,
}

/// Permit for one or several units, released on drop.
pub(crate) struct Permit {
    pool: Arc<PermitPoolState>,
    tenant: LogicalClusterId,
    flow: FlowId,
    size: usize,
}

impl PermitPool {
    pub(super) fn new(bounds: PermitLimits) -> Self {
        Self(Arc::new(PermitPoolState { counts: Mutex::default(), bounds }))
    }

    /// Acquires a permit for one unit; `None` if a limit is reached.
    pub(super) fn acquire(&self, tenant: LogicalClusterId, flow: FlowId) -> Option<Permit> {
        let mut permit = self.acquire_none(tenant, flow);
        permit.grow(1).then_some(permit)
    }

    /// Returns a permit for no units, which can grow.
    pub(super) fn acquire_none(&self, tenant: LogicalClusterId, flow: FlowId) -> Permit {
        Permit { pool: self.0.clone(), tenant, flow, size: 0 }
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        let counts = self.0.counts.lock();
        counts.total == 0 && counts.tenants.is_empty() && counts.clusters.is_empty() && counts.users.is_empty()
    }
}

impl Permit {
    pub(super) fn size(&self) -> usize {
        self.size
    }

    /// Acquires all of `more` further units, or none. Returns false if a limit is reached.
    pub(super) fn grow(&mut self, more: usize) -> bool {
        let mut counts = self.pool.counts.lock();
        let has_room = counts.has_room(self.tenant, self.flow, self.pool.bounds, more);
        if has_room && more > 0 {
            counts.total += more;
            *counts.tenants.entry(self.tenant).or_default() += more;
            *counts.clusters.entry(self.flow.cluster).or_default() += more;
            *counts.users.entry(self.flow).or_default() += more;
            self.size += more;
        }
        has_room
    }

    /// Releases all but `left` units.
    pub(super) fn shrink(&mut self, left: usize) {
        let less = self.size.saturating_sub(left);
        if less == 0 {
            return;
        }
        let mut counts = self.pool.counts.lock();
        counts.total -= less;
        subtract(&mut counts.tenants, &self.tenant, less);
        subtract(&mut counts.clusters, &self.flow.cluster, less);
        subtract(&mut counts.users, &self.flow, less);
        self.size -= less;
    }
}

impl PermitCounts {
    fn has_room(&self, tenant: LogicalClusterId, flow: FlowId, bounds: PermitLimits, more: usize) -> bool {
        let of = |count: Option<&usize>| count.copied().unwrap_or(0);
        let free = bounds.total - self.total;
        more <= free
            && of(self.tenants.get(&tenant)) + more <= HELD_PER_FREE * free
            && of(self.clusters.get(&flow.cluster)) + more <= bounds.each_cluster
            && of(self.users.get(&flow)) + more <= bounds.each_user
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.shrink(0);
    }
}

/// Subtracts from a count, and removes it at zero.
fn subtract<K: Hash + Eq>(counts: &mut HashMap<K, usize>, key: &K, less: usize) {
    if let Some(count) = counts.get_mut(key) {
        *count -= less;
        if *count == 0 {
            counts.remove(key);
        }
    }
}
