//! Cache of the roles of logical clusters, bounded in number and bytes.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use portolan_types::{LogicalClusterId, ResourceVersion};

use super::{ClusterRoles, RESOURCES};

/// Limit of logical clusters whose roles are cached.
const MAX_CACHED: usize = 1024;
/// Approximate limit of cached bytes. One entry that exceeds a quarter of it is cached beside it.
const MAX_BYTES: usize = 128 << 20;
/// Memory per stored byte, and minimum per logical cluster: trees and tables are larger than their text.
const MEMORY_PER_BYTE: usize = 4;
const MIN_BYTES: usize = 32 << 10;

/// Snapshot with its estimated bytes.
pub(super) struct CachedRoles {
    pub(super) roles: Arc<ClusterRoles>,
    bytes: usize,
    /// Revision at which it was read. No later write has changed it while it is cached.
    read_at: ResourceVersion,
}

impl CachedRoles {
    /// Returns the entry of a snapshot of `stored` bytes.
    pub(super) fn new(roles: Arc<ClusterRoles>, stored: usize, read_at: ResourceVersion) -> Self {
        // The snapshot without stored objects is shared by all.
        Self { roles, bytes: if stored == 0 { 0 } else { MIN_BYTES + MEMORY_PER_BYTE * stored }, read_at }
    }
}

#[derive(Default)]
pub(super) struct RolesCache {
    by_cluster: HashMap<LogicalClusterId, CachedRoles>,
    /// Logical clusters whose roles exceed their share; only the last one is cached.
    large: HashSet<LogicalClusterId>,
    bytes: usize,
    /// Counter of invalidations. Roles read before one are not cached after it.
    epoch: u64,
    /// Number of followed resources. Nothing is cached unless all are followed, since it could become stale.
    followed: usize,
}

impl RolesCache {
    /// Counts a followed resource. Writes between two watches may have been missed.
    pub(super) fn follow(&mut self) {
        self.forget_all();
        self.followed += 1;
    }

    /// Counts one followed resource less, and forgets all entries.
    pub(super) fn unfollow(&mut self) {
        self.forget_all();
        self.followed -= 1;
    }

    /// Returns true while all resources are followed.
    pub(super) fn follows_all(&self) -> bool {
        self.followed == RESOURCES.len()
    }

    /// Returns the number of invalidations.
    pub(super) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Returns the estimated number of cached bytes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns true for a logical cluster whose roles exceed their share.
    pub(super) fn is_large(&self, cluster: LogicalClusterId) -> bool {
        self.large.contains(&cluster)
    }

    fn forget_all(&mut self) {
        self.epoch += 1;
        self.by_cluster.clear();
        self.large.clear();
        self.bytes = 0;
    }

    /// Invalidates a logical cluster.
    pub(super) fn forget(&mut self, cluster: LogicalClusterId) {
        self.epoch += 1;
        self.remove(cluster);
    }

    pub(super) fn get(&self, cluster: LogicalClusterId) -> Option<&Arc<ClusterRoles>> {
        self.by_cluster.get(&cluster).map(|cached| &cached.roles)
    }

    /// Returns the roles of a logical cluster if they are as they were at a revision.
    pub(super) fn unchanged_since(&self, cluster: LogicalClusterId, at: ResourceVersion) -> Option<Arc<ClusterRoles>> {
        self.by_cluster.get(&cluster).filter(|cached| cached.read_at <= at).map(|cached| cached.roles.clone())
    }

    /// Removes a snapshot. A large one stays known as large, so that its frequent writers still read one at a time.
    fn remove(&mut self, cluster: LogicalClusterId) {
        self.bytes -= self.by_cluster.remove(&cluster).map_or(0, |cached| cached.bytes);
    }

    pub(super) fn insert(&mut self, cluster: LogicalClusterId, read: CachedRoles) {
        let bytes = read.bytes;
        self.remove(cluster);
        if bytes > MAX_BYTES / 4 {
            if let Some((other, _)) = self.cached_large() {
                self.remove(other);
            }
            self.large.insert(cluster);
        } else {
            self.large.remove(&cluster);
            self.make_room(bytes);
        }
        self.bytes += bytes;
        self.by_cluster.insert(cluster, read);
    }

    /// Evicts the largest entries that share the limit.
    fn make_room(&mut self, bytes: usize) {
        let apart = self.cached_large();
        let (count, taken) = apart.map_or((0, 0), |(_, bytes)| (1, bytes));
        while self.by_cluster.len() - count >= MAX_CACHED || self.bytes - taken + bytes > MAX_BYTES {
            let others = self.by_cluster.iter().filter(|(cluster, _)| !self.large.contains(*cluster));
            let largest = others.max_by_key(|(_, cached)| cached.bytes).map(|(cluster, _)| *cluster);
            let Some(largest) = largest else { break };
            self.remove(largest);
        }
    }

    /// Returns the cached large entry and its bytes.
    fn cached_large(&self) -> Option<(LogicalClusterId, usize)> {
        self.large.iter().find_map(|cluster| self.by_cluster.get(cluster).map(|cached| (*cluster, cached.bytes)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cached_roles_are_bounded_in_number_and_bytes() {
        let mut cached = RolesCache::default();
        let roles = |bytes| CachedRoles { roles: ClusterRoles::shared_only(), bytes, read_at: ResourceVersion::FIRST };
        for (case, count, each) in [("many", 3 * MAX_CACHED, 0), ("large", 100, MAX_BYTES / 10), ("one again", 100, 7)]
        {
            for n in 0..count as u64 {
                let cluster = LogicalClusterId::new(if case == "one again" { 1 } else { n + 1 });
                cached.insert(cluster, roles(each));
                assert!(cached.by_cluster.contains_key(&cluster), "{case}: what was asked for last is kept");
                let bytes: usize = cached.by_cluster.values().map(|cached| cached.bytes).sum();
                assert_eq!(cached.bytes, bytes, "{case}");
                assert!(bytes <= MAX_BYTES && cached.by_cluster.len() <= MAX_CACHED, "{case}");
            }
        }
        let own = LogicalClusterId::new(1);
        let (others, small) = (cached.by_cluster.len(), cached.bytes);
        for (large, bytes) in [(own, MAX_BYTES / 4 + 1), (LogicalClusterId::new(900_000), MAX_BYTES * 2)] {
            cached.insert(large, roles(bytes));
            assert!(
                cached.get(large).is_some() && cached.by_cluster.len() + 1 >= others,
                "it does not drive all others out"
            );
            assert!(cached.bytes <= small + bytes, "of such there is one");
        }
        assert!(cached.get(own).is_none() && cached.large.contains(&own), "it is known for what it is");
        cached.remove(own);
        assert!(cached.large.contains(&own), "nor is that forgotten when they are written");
        cached.insert(own, roles(7));
        assert!(!cached.large.contains(&own));
        cached.forget_all();
        assert_eq!(cached.bytes, 0);
    }
}
