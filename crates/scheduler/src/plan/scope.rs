//! Objects that the scheduler decides about after changes.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use portolan_placement::CompiledPolicy;
use portolan_store::RangeScope;
use portolan_types::{GroupResource, LogicalClusterId, NamespaceName, ObjectKey};

use super::change::PlannedChange;
use crate::{context::SchedulerContext, kinds};

/// Larger subtrees are read as one range over all logical clusters.
pub(super) const MAX_SINGLE_RANGES: usize = 32;

/// Objects that the scheduler decides about after changes in one logical cluster.
pub(super) struct PlanScope {
    home: LogicalClusterId,
    /// The logical cluster and its descendants, if the changes are about all of them.
    subtree: Option<Vec<LogicalClusterId>>,
    members: HashSet<LogicalClusterId>,
    /// Namespaces of the logical cluster, unless the changes are about all of it.
    namespaces: BTreeSet<NamespaceName>,
    /// Objects that would be written themselves.
    pub(super) objects: BTreeSet<ObjectKey>,
    /// True if followers of all namespaces may move without a workload that moves.
    pub(super) moves_followers: bool,
}

impl PlanScope {
    /// Returns the scope of changes, as the rescans of the scheduler have it.
    pub(super) fn of(ctx: &SchedulerContext, home: LogicalClusterId, changes: &[PlannedChange]) -> Self {
        let mut scope = Self {
            home,
            subtree: None,
            members: HashSet::from([home]),
            namespaces: BTreeSet::new(),
            objects: BTreeSet::new(),
            moves_followers: false,
        };
        for key in changes.iter().map(PlannedChange::key) {
            let is_policy = kinds::policies().contains(&key.resource);
            match key.namespace() {
                Some(namespace) if is_policy => {
                    scope.namespaces.insert(namespace.clone());
                }
                Some(namespace) => {
                    scope.namespaces.extend(kinds::is_follower(&key.resource).then(|| namespace.clone()));
                    scope.moves_followers |= kinds::is_follower(&key.resource);
                    scope.objects.insert(key.clone());
                }
                None if key.resource == kinds::namespaces() => scope.namespaces.extend(key.name.parse()),
                None => scope.subtree = Some(ctx.tree.subtree(home)),
            }
        }
        scope.members.extend(scope.subtree.iter().flatten());
        scope
    }

    /// Notes if policies decide about followers, or may: their namespaces have to be looked at then.
    pub(super) fn add_policies<'a>(&mut self, policies: impl IntoIterator<Item = &'a CompiledPolicy>) {
        let is_about_followers = |policy: &CompiledPolicy| {
            kinds::PLACEABLE.iter().filter(|placeable| placeable.follows).any(|p| policy.is_about_kind(p.group, p.kind))
        };
        self.moves_followers |= policies.into_iter().any(is_about_followers);
    }

    /// Returns the logical cluster of the changes.
    pub(super) fn home(&self) -> LogicalClusterId {
        self.home
    }

    /// Returns the logical clusters that the scope has objects of.
    pub(super) fn clusters(&self) -> &HashSet<LogicalClusterId> {
        &self.members
    }

    /// Returns true if an object is in the scope, by its own or with its namespace or logical cluster.
    pub(super) fn contains(&self, key: &ObjectKey) -> bool {
        let by_namespace =
            || key.cluster == self.home && key.namespace().is_some_and(|own| self.namespaces.contains(own));
        match &self.subtree {
            Some(_) => self.members.contains(&key.cluster),
            None => by_namespace() || self.objects.contains(key),
        }
    }

    /// Returns the ranges of resources, in the order in which the scheduler reads them.
    pub(super) fn ranges(&self, resources: &[GroupResource]) -> Vec<RangeScope> {
        match &self.subtree {
            Some(subtree) if subtree.len() > MAX_SINGLE_RANGES => {
                resources.iter().cloned().map(RangeScope::AllClusters).collect()
            }
            Some(subtree) => {
                let of = |cluster: &LogicalClusterId| {
                    let cluster = *cluster;
                    resources.iter().cloned().map(move |resource| RangeScope::Cluster(cluster, resource))
                };
                subtree.iter().flat_map(of).collect()
            }
            None => {
                let of = |namespace: &NamespaceName| {
                    let (home, namespace) = (self.home, namespace.clone());
                    let range = move |resource| RangeScope::Namespace(home, resource, namespace.clone());
                    resources.iter().cloned().map(range)
                };
                self.namespaces.iter().flat_map(of).collect()
            }
        }
    }
}

/// Namespaces by logical cluster.
pub(super) type NamespaceSet = BTreeMap<LogicalClusterId, BTreeSet<NamespaceName>>;
