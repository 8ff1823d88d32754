//! For whom is read, who so takes turns with the others.

use std::sync::Arc;

use portolan_types::LogicalClusterId;

use crate::{RangeScope, WatchScope};

/// For whom something is read.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Party {
    /// One logical cluster.
    Cluster(LogicalClusterId),
    /// What syncs one physical cluster, by its uid.
    PhysicalCluster(Arc<str>),
    /// Whoever reads all logical clusters: the loops.
    Everybody,
    /// Who removes what is left of logical clusters that are gone, however many these are.
    Sweeps,
}

impl Party {
    /// Whose a read of many objects is.
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

    /// Whose a watch is.
    pub(crate) fn of_watch(scope: &WatchScope) -> Self {
        match scope {
            WatchScope::Resource(_, None) => Self::Everybody,
            WatchScope::Resource(_, Some(cluster)) => Self::Cluster(*cluster),
            WatchScope::PlacedOn(uid) => Self::PhysicalCluster(uid.as_str().into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use portolan_types::{GroupResource, turns::Turns};

    use super::*;

    #[test]
    fn each_physical_cluster_has_a_line_of_its_own() {
        let watched = |scope: WatchScope| Party::of_watch(&scope);
        let east = || Party::of_range(&RangeScope::PlacedOn("east".into()));
        assert_eq!(watched(WatchScope::PlacedOn("east".into())), east());
        assert_ne!(watched(WatchScope::PlacedOn("west".into())), east());
        assert_eq!(watched(WatchScope::Resource(GroupResource::new("", "pods"), None)), Party::Everybody);
        let mut turns = Turns::new(3);
        for _ in 0..100 {
            turns.push(east(), "east");
        }
        turns.push(watched(WatchScope::PlacedOn("west".into())), "west");
        turns.push(Party::of_range(&RangeScope::AllClusters(GroupResource::new("", "pods"))), "a loop");
        let taken: Vec<_> = std::iter::from_fn(|| turns.take().map(|(_, job)| job)).collect();
        assert_eq!(taken, ["east", "west", "a loop", "east", "east"]);
    }
}
