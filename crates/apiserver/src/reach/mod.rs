//! The physical clusters within reach of a logical cluster: its own and those of its ancestors that it may use. Two resources are
//! computed from them when they are read, and stored nowhere:
//!
//! - `nodes`: one Node per physical cluster;
//! - `physicalclusters` below root: those of the logical cluster, which are stored, and beside them what it inherits, without the way
//!   to connect to it. What is inherited is read-only.

mod inherited;
mod node;
#[cfg(test)]
mod tests;
mod watch;

use std::{
    collections::HashSet,
    sync::{Arc, LazyLock},
};

use portolan_machinery::{
    kinds::{Kind, KindTable},
    rbac::User,
};
use portolan_store::{RangeRequest, RangeScope, StoredObject};
use portolan_types::{GroupResource, LogicalClusterId, ObjectKey, Record, ResourceVersion, Status};

use crate::{
    ApiServer,
    authz::{UseGrants, identity_of},
    call::Target,
    directory::LogicalCluster,
    errors::{damaged, status_for},
};

pub(crate) use watch::ReachEvents;

/// Group of physical clusters.
const GROUP: &str = "portolan.dev";
/// Their plural.
const RESOURCE: &str = "physicalclusters";

/// The resource of physical clusters.
pub(crate) fn physical_clusters() -> GroupResource {
    GroupResource::new(GROUP, RESOURCE)
}

/// Node as it is served where nodes are computed: nobody writes one.
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

/// A resource that is computed from physical clusters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum View {
    Nodes,
    PhysicalClusters,
}

/// A logical cluster of the lineage, and who may use what is registered in it.
struct Ancestor {
    cluster: Arc<LogicalCluster>,
    grants: UseGrants,
}

/// View of a logical cluster on the physical clusters within its reach.
pub(crate) struct Reach {
    view: View,
    own: LogicalClusterId,
    identity: User,
    /// Itself first, root last.
    lineage: Vec<Ancestor>,
}

impl Reach {
    /// Returns the view that `target` is in a logical cluster; `None` for a resource that is shown as it is stored.
    ///
    /// # Errors
    /// Rights that cannot be read.
    pub(crate) async fn of(api: &ApiServer, cluster: &LogicalCluster, target: &Target) -> Result<Option<Self>, Status> {
        let view = match (&*target.kind.gvk.group, &*target.kind.resource) {
            ("", "nodes") if api.config.computes_nodes => View::Nodes,
            (GROUP, RESOURCE) if cluster.parent.is_some() => View::PhysicalClusters,
            _ => return Ok(None),
        };
        let mut lineage = Vec::new();
        for ancestor in api.directory.lineage(cluster.id) {
            let grants = UseGrants::of(&*api.rbac.roles(ancestor.id).await?);
            lineage.push(Ancestor { cluster: ancestor, grants });
        }
        Ok(Some(Self { view, own: cluster.id, identity: identity_of(cluster.id, &cluster.path), lineage }))
    }

    /// The objects at a state, or at the latest one, by name; and which state that is.
    ///
    /// # Errors
    /// Failures of the store.
    pub(crate) async fn list(
        &self,
        api: &ApiServer,
        at: Option<ResourceVersion>,
    ) -> Result<(ResourceVersion, Vec<StoredObject>), Status> {
        let (mut state, mut found, mut names) = (at, Vec::new(), HashSet::new());
        for Ancestor { cluster, .. } in &self.lineage {
            let mut next = Some(RangeRequest {
                at: state,
                ..RangeRequest::slices(RangeScope::Cluster(cluster.id, physical_clusters())).past_damage()
            });
            while let Some(request) = next {
                let page = api.store.range(request.clone()).await.map_err(|error| status_for(&error))?;
                state = Some(page.revision);
                next = request.next(&page);
                for stored in page.objects {
                    // What is nearer hides what it shares its name with.
                    let shown = self.shown(&stored)?;
                    found.extend(shown.filter(|_| names.insert(stored.key.name.clone())));
                }
            }
        }
        found.sort_by(|a, b| a.key.name.cmp(&b.key.name));
        Ok((state.unwrap_or_else(|| api.store.current()), found))
    }

    /// The object of a name.
    ///
    /// # Errors
    /// Failures of the store.
    pub(crate) async fn get(&self, api: &ApiServer, name: &ObjectKey) -> Result<Option<StoredObject>, Status> {
        for Ancestor { cluster, .. } in &self.lineage {
            let key = ObjectKey::cluster_scoped(cluster.id, physical_clusters(), name.name.clone());
            let stored = api.store.get(&key).await.map_err(|error| status_for(&error))?;
            if let Some(shown) = stored.map(|stored| self.shown(&stored)).transpose()?.flatten() {
                return Ok(Some(shown));
            }
        }
        Ok(None)
    }

    /// A physical cluster as it is shown, with the key of the view; `None` where it is out of reach. What is inherited keeps the key
    /// of its home, by which it is told from the logical cluster's own.
    fn shown(&self, stored: &StoredObject) -> Result<Option<StoredObject>, Status> {
        let Some(home) = self.home(&stored.key) else { return Ok(None) };
        if self.is_shown_as_stored(&stored.key) {
            return Ok(Some(stored.clone()));
        }
        let object = stored.record.to_value(stored.revision).map_err(|error| damaged(&stored.key, &error))?;
        let shown = match self.view {
            View::Nodes => node::of(&object),
            View::PhysicalClusters => inherited::of(object, &home.cluster.path),
        };
        let key = self.key(&stored.key);
        Ok(Some(StoredObject { key, record: Arc::new(Record::of(&shown)), ..stored.clone() }))
    }

    fn is_shown_as_stored(&self, key: &ObjectKey) -> bool {
        self.view == View::PhysicalClusters && key.cluster == self.own
    }

    fn key(&self, stored: &ObjectKey) -> ObjectKey {
        match self.view {
            View::Nodes => ObjectKey::cluster_scoped(self.own, computed_node().group_resource(), stored.name.clone()),
            View::PhysicalClusters => stored.clone(),
        }
    }

    /// Returns the logical cluster that a physical cluster is registered in, if it is within reach.
    fn home(&self, key: &ObjectKey) -> Option<&Ancestor> {
        let home = self.lineage.iter().find(|ancestor| ancestor.cluster.id == key.cluster)?;
        let may_use = || home.grants.allow(&self.identity, &key.name);
        (self.is_shown_as_stored(key) || may_use()).then_some(home)
    }
}

/// 403 of a write to a physical cluster that is inherited.
pub(crate) fn read_only(api: &ApiServer, key: &ObjectKey) -> Status {
    let home = api.directory.by_id(key.cluster).map_or_else(String::new, |home| home.path.to_string());
    let why = format!("it is registered in workspace {home:?}, and read-only in the workspaces below that");
    Status::forbidden(&key.resource, &key.name, why)
}
