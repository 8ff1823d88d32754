//! Notification of caches about commits.

use portolan_types::{GroupResource, LogicalClusterId};

/// Cache of stored configuration, which a commit invalidates.
pub(crate) trait CommitListener: Send + Sync {
    /// Returns true if the cache depends on objects of a resource.
    fn depends_on(&self, resource: &GroupResource) -> bool;

    /// Evicts the entry of a logical cluster.
    fn evict(&self, cluster: LogicalClusterId);
}
