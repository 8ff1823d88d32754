//! Physical clusters in reach of a logical cluster: its own, and those of its ancestors that it may use. Two
//! resources are computed from them on each read, and stored nowhere:
//!
//! - `nodes`: one Node per physical cluster;
//! - `physicalclusters` below root: the logical cluster's own, which are stored, and the inherited ones without their
//!   connection, which are read-only.

mod inherited;
mod node;
#[cfg(test)]
mod tests;
mod watch;

use std::{
    collections::HashSet,
    sync::{Arc, LazyLock},
};

use portolan_kinds::{Kind, KindTable};
use portolan_store::{RangeRequest, RangeScope, StoredObject};
use portolan_strategy::rbac::User;
use portolan_types::{GroupResource, LogicalClusterId, ObjectKey, Record, ResourceVersion, Status};

use crate::{
    authz::{RbacAuthorizer, UsableClusters, UseGrants, identity_of},
    directory::{Directory, LogicalCluster},
    errors::{damaged, status_for},
    limits::FlowKey,
    request::ResourceTarget,
    storage::StorageContext,
};

pub(crate) use watch::ReachEvents;

/// Group of physical clusters.
const GROUP: &str = "portolan.dev";
/// Plural of physical clusters.
const RESOURCE: &str = "physicalclusters";

/// Returns the resource of physical clusters.
pub(crate) fn physical_clusters() -> GroupResource {
    GroupResource::new(GROUP, RESOURCE)
}

/// Returns the kind Node as served where nodes are computed: read-only.
pub(crate) fn computed_node() -> &'static Arc<Kind> {
    static NODE: LazyLock<Arc<Kind>> = LazyLock::new(|| {
        let stored = KindTable::builtin().kind_named("", "v1", "Node").expect("the table has Kubernetes' kinds");
        let verbs = ["get", "list", "watch"].map(Arc::from).into();
        Arc::new(Kind { verbs, subresources: Box::default(), ..Kind::clone(stored) })
    });
    &NODE
}

/// Returns true for the kind of nodes.
pub(crate) fn is_node(kind: &Kind) -> bool {
    kind.gvk.group.is_empty() && *kind.resource == *"nodes"
}

/// Resource that is computed from physical clusters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReachView {
    Nodes,
    PhysicalClusters,
}

impl ReachView {
    /// Returns the view that `target` is in a logical cluster; `None` for a resource that is served as stored.
    fn of(context: &ReachContext, cluster: &LogicalCluster, target: &ResourceTarget) -> Option<Self> {
        match (&*target.kind.gvk.group, &*target.kind.resource) {
            ("", "nodes") if context.computes_nodes => Some(Self::Nodes),
            (GROUP, RESOURCE) if cluster.parent.is_some() => Some(Self::PhysicalClusters),
            _ => None,
        }
    }
}

/// Logical cluster of the lineage, with the grants on its physical clusters.
struct ReachAncestor {
    cluster: Arc<LogicalCluster>,
    grants: UseGrants,
}

/// Context of views on physical clusters.
pub(crate) struct ReachContext {
    pub(crate) storage: Arc<StorageContext>,
    pub(crate) rbac: Arc<RbacAuthorizer>,
    /// True if nodes are computed, see [`crate::ApiServerConfig::computes_nodes`].
    pub(crate) computes_nodes: bool,
}

/// View of a logical cluster on the physical clusters in its reach.
pub(crate) struct ClusterReach {
    view: ReachView,
    own: LogicalClusterId,
    identity: User,
    /// Lineage: itself first, root last.
    lineage: Vec<ReachAncestor>,
}

/// Rights of a logical cluster to use physical clusters, per logical cluster of its lineage.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ReachRights(Vec<(LogicalClusterId, UsableClusters)>);

impl ClusterReach {
    /// Returns the view for `target` in a logical cluster; `None` for a resource that is served as stored.
    ///
    /// # Errors
    /// Failure to read rights.
    pub(crate) async fn of(
        context: &ReachContext,
        cluster: &LogicalCluster,
        target: &ResourceTarget,
    ) -> Result<Option<Self>, Status> {
        let Some(view) = ReachView::of(context, cluster, target) else { return Ok(None) };
        let mut lineage = Vec::new();
        for ancestor in context.storage.directory.lineage(cluster.id) {
            let grants = UseGrants::of(&*context.rbac.roles(ancestor.id).await?);
            lineage.push(ReachAncestor { cluster: ancestor, grants });
        }
        Ok(Some(Self { view, own: cluster.id, identity: identity_of(cluster.id, &cluster.path), lineage }))
    }

    /// Returns the rights that the view of a logical cluster depended on at an earlier revision; `None` if that is
    /// compacted.
    ///
    /// # Errors
    /// 429 if too many read the past; failure to read rights.
    pub(crate) async fn rights_at(
        context: &ReachContext,
        cluster: &LogicalCluster,
        at: ResourceVersion,
        flow_key: &FlowKey<'_>,
    ) -> Result<Option<ReachRights>, Status> {
        let (identity, mut rights) = (identity_of(cluster.id, &cluster.path), Vec::new());
        for ancestor in context.storage.directory.lineage(cluster.id) {
            match context.rbac.use_grants_at(ancestor.id, at, flow_key).await {
                Ok(grants) => rights.push((ancestor.id, grants.usable_by(&identity))),
                Err(compacted) if compacted.code() == 410 => return Ok(None),
                Err(failure) => return Err(failure),
            }
        }
        Ok(Some(ReachRights(rights)))
    }

    /// Returns the rights that the view depends on.
    pub(crate) fn rights(&self) -> ReachRights {
        let of = |ancestor: &ReachAncestor| (ancestor.cluster.id, ancestor.grants.usable_by(&self.identity));
        ReachRights(self.lineage.iter().map(of).collect())
    }

    /// Lists the objects at a revision, or at the latest, ordered by name. Returns the revision as well.
    ///
    /// # Errors
    /// Failure of the store.
    pub(crate) async fn list(
        &self,
        storage: &StorageContext,
        at: Option<ResourceVersion>,
    ) -> Result<(ResourceVersion, Vec<StoredObject>), Status> {
        let (mut state, mut found, mut names) = (at, Vec::new(), HashSet::new());
        for ReachAncestor { cluster, .. } in &self.lineage {
            let mut next = Some(RangeRequest {
                at: state,
                ..RangeRequest::slices(RangeScope::Cluster(cluster.id, physical_clusters())).skip_damaged()
            });
            while let Some(request) = next {
                let page = storage.store.range(request.clone()).await.map_err(|error| status_for(&error))?;
                state = Some(page.revision);
                next = request.next(&page);
                for stored in page.objects {
                    // A nearer physical cluster hides others of the same name.
                    let shown = self.visible_object(&stored)?;
                    found.extend(shown.filter(|_| names.insert(stored.key.name.clone())));
                }
            }
        }
        found.sort_by(|a, b| a.key.name.cmp(&b.key.name));
        Ok((state.unwrap_or_else(|| storage.store.current()), found))
    }

    /// Reads the object of a name.
    ///
    /// # Errors
    /// Failure of the store.
    pub(crate) async fn get(&self, storage: &StorageContext, name: &ObjectKey) -> Result<Option<StoredObject>, Status> {
        for ReachAncestor { cluster, .. } in &self.lineage {
            let key = ObjectKey::cluster_scoped(cluster.id, physical_clusters(), name.name.clone());
            let stored = storage.store.get(&key).await.map_err(|error| status_for(&error))?;
            if let Some(shown) = stored.map(|stored| self.visible_object(&stored)).transpose()?.flatten() {
                return Ok(Some(shown));
            }
        }
        Ok(None)
    }

    /// Returns a physical cluster as shown; `None` if it is out of reach. An inherited one keeps the key of its home,
    /// which tells it from the logical cluster's own.
    fn visible_object(&self, stored: &StoredObject) -> Result<Option<StoredObject>, Status> {
        let Some(home) = self.home(&stored.key) else { return Ok(None) };
        if self.is_shown_as_stored(&stored.key) {
            return Ok(Some(stored.clone()));
        }
        let object = stored.record.to_value(stored.revision).map_err(|error| damaged(&stored.key, &error))?;
        let shown = match self.view {
            ReachView::Nodes => node::of(&object),
            ReachView::PhysicalClusters => inherited::of(object, &home.cluster.path),
        };
        let key = self.key(&stored.key);
        Ok(Some(StoredObject { key, record: Arc::new(Record::of(&shown)), ..stored.clone() }))
    }

    fn is_shown_as_stored(&self, key: &ObjectKey) -> bool {
        self.view == ReachView::PhysicalClusters && key.cluster == self.own
    }

    fn key(&self, stored: &ObjectKey) -> ObjectKey {
        match self.view {
            ReachView::Nodes => {
                ObjectKey::cluster_scoped(self.own, computed_node().group_resource(), stored.name.clone())
            }
            ReachView::PhysicalClusters => stored.clone(),
        }
    }

    /// Returns the logical cluster in which a physical cluster is registered, if it is in reach.
    fn home(&self, key: &ObjectKey) -> Option<&ReachAncestor> {
        let home = self.lineage.iter().find(|ancestor| ancestor.cluster.id == key.cluster)?;
        let may_use = || home.grants.allow(&self.identity, &key.name);
        (self.is_shown_as_stored(key) || may_use()).then_some(home)
    }
}

/// Returns the 403 for a write to an inherited physical cluster.
pub(crate) fn read_only(directory: &Directory, key: &ObjectKey) -> Status {
    let home = directory.by_id(key.cluster).map_or_else(String::new, |home| home.path.to_string());
    let why = format!("it is registered in workspace {home:?}, and read-only in the workspaces below that");
    Status::forbidden(&key.resource, &key.name, why)
}
