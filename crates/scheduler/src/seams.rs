//! What the scheduler has to be told about the world around the store.

use portolan_types::{GroupResource, LogicalClusterId, LogicalClusterPath};

use crate::kinds;

/// The tree of logical clusters. Must answer from memory.
pub trait ClusterTree: Send + Sync {
    /// The logical cluster itself and its ancestors, up to the root, with their paths. Empty when it is not known, or not any
    /// more, or when it or an ancestor is being deleted: nothing is placed there then.
    fn lineage(&self, cluster: LogicalClusterId) -> Vec<(LogicalClusterId, LogicalClusterPath)>;

    /// The logical cluster itself and all below it.
    fn subtree(&self, cluster: LogicalClusterId) -> Vec<LogicalClusterId>;
}

/// The RBAC verb `use` on physical clusters. Must answer from memory.
pub trait UseRights: Send + Sync {
    /// Whether objects of `cluster` may be placed on the physical cluster `name` that is registered in `home`, an ancestor or
    /// `cluster` itself.
    fn may_use(&self, cluster: LogicalClusterId, home: LogicalClusterId, name: &str) -> bool;
}

/// Which resource a kind is stored as.
pub trait KindCatalog: Send + Sync {
    /// The resource of a namespaced kind; `None` when there is no such kind.
    fn resource_of(&self, group: &str, kind: &str) -> Option<GroupResource>;
}

/// The kinds that are placed without a policy, and no custom ones.
#[derive(Clone, Copy, Debug, Default)]
pub struct BuiltinKinds;

impl KindCatalog for BuiltinKinds {
    fn resource_of(&self, group: &str, kind: &str) -> Option<GroupResource> {
        kinds::PLACEABLE.iter().find(|p| p.group == group && p.kind == kind).map(kinds::Placeable::resource)
    }
}
