//! Tenants that share the reader threads fairly.

use std::sync::Arc;

use portolan_types::LogicalClusterId;

use crate::api::{RangeScope, WatchScope};

/// Tenant that something is read for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ReadTenant {
    /// Logical cluster.
    Cluster(LogicalClusterId),
    /// Syncer of one physical cluster, by its UID.
    PhysicalCluster(Arc<str>),
    /// Readers of all logical clusters: the controllers.
    Everybody,
    /// Sweeps of deleted logical clusters, however many.
    Sweeps,
}

impl ReadTenant {
    /// Returns the tenant of a range read.
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

    /// Returns the tenant of a watch.
    pub(crate) fn of_watch(scope: &WatchScope) -> Self {
        match scope {
            WatchScope::Resource(_, None) | WatchScope::All => Self::Everybody,
            WatchScope::Resource(_, Some(cluster)) => Self::Cluster(*cluster),
            WatchScope::PlacedOn(uid) => Self::PhysicalCluster(uid.as_str().into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use portolan_types::{GroupResource, round_robin::RoundRobinQueue};

    use super::*;

    #[test]
    fn each_physical_cluster_has_a_line_of_its_own() {
        let watched = |scope: WatchScope| ReadTenant::of_watch(&scope);
        let east = || ReadTenant::of_range(&RangeScope::PlacedOn("east".into()));
        assert_eq!(watched(WatchScope::PlacedOn("east".into())), east());
        assert_ne!(watched(WatchScope::PlacedOn("west".into())), east());
        assert_eq!(watched(WatchScope::Resource(GroupResource::new("", "pods"), None)), ReadTenant::Everybody);
        let mut turns = RoundRobinQueue::new(3);
        for _ in 0..100 {
            turns.push(east(), "east");
        }
        turns.push(watched(WatchScope::PlacedOn("west".into())), "west");
        turns.push(ReadTenant::of_range(&RangeScope::AllClusters(GroupResource::new("", "pods"))), "a loop");
        let taken: Vec<_> = std::iter::from_fn(|| turns.take().map(|(_, job)| job)).collect();
        assert_eq!(taken, ["east", "west", "a loop", "east", "east"]);
    }
}
