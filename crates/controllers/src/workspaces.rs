//! Takes along what is in a workspace that is deleted: workspaces below it first, then what is placed or has finalizers,
//! then all the rest in one tombstone.

use std::{collections::HashSet, sync::Arc, time::Duration};

use portolan_machinery::{
    kinds::Kind,
    lifecycle::{DeleteOptions, Propagation},
};
use portolan_store::{Event, RangeRequest, RangeScope, StoreError};
use portolan_types::{BoxFuture, GroupResource, GroupVersionKind, LogicalClusterId, ObjectKey, object};
use serde_json::Value;

use crate::{
    emptying::{Emptying, LINGER, RECHECK},
    plane::{Plane, PlaneError, Step},
    runtime::{Controller, Outcome},
};

/// Holds a Workspace until its logical cluster is gone; kcp's name.
pub const FINALIZER: &str = "core.kcp.io/logicalcluster";
/// Objects read per step while looking for what holds a workspace.
const PAGE: usize = 500;

/// The workspace loop.
pub struct Workspaces {
    plane: Arc<Plane>,
    directory: Arc<dyn Directory>,
    kind: &'static Kind,
    emptying: Emptying<LogicalClusterId, ObjectKey>,
}

/// Which logical clusters there are, as the API server knows them.
pub trait Directory: Send + Sync {
    /// No workspace is made in `cluster` any more.
    fn mark_deleting(&self, cluster: LogicalClusterId) -> BoxFuture<'_, Result<(), StoreError>>;

    /// The logical clusters whose workspaces are in `parent`.
    fn children(&self, parent: LogicalClusterId) -> Vec<LogicalClusterId>;

    /// From now on it is as if `cluster` had never been.
    fn remove(&self, cluster: LogicalClusterId) -> BoxFuture<'_, Result<(), StoreError>>;
}

impl Workspaces {
    /// On the objects of `plane`.
    pub fn new(plane: Arc<Plane>, directory: Arc<dyn Directory>) -> Self {
        let gvk = GroupVersionKind::new("tenancy.kcp.io", "v1alpha1", "Workspace");
        let kind = plane.table().kind(&gvk).expect("the table has tenancy.kcp.io");
        Self { plane, directory, kind, emptying: Emptying::default() }
    }

    /// Asks everything that holds `cluster`, which goes because of the workspace `key`, to go; the number of what is left.
    async fn empty(&self, cluster: LogicalClusterId, key: &ObjectKey) -> Result<usize, PlaneError> {
        self.directory.mark_deleting(cluster).await?;
        portolan_types::failpoint!("controllers/workspace-marked");
        self.emptying.begin(cluster, key.clone());
        let mut children = self.plane.slices(RangeScope::Cluster(cluster, self.kind.group_resource()));
        let (mut left, mut known) = (0, HashSet::new());
        while let Some(slice) = children.next().await? {
            for child in &slice.found {
                self.plane.delete(self.kind, &child.key, &background()).await?;
            }
            left += slice.found.len();
            known.extend(slice.found.iter().filter_map(|child| cluster_of(&child.object)));
        }
        // One whose Workspace cannot be read, or was deleted as such, goes without it.
        for child in self.directory.children(cluster).into_iter().filter(|child| !known.contains(child)) {
            let of_child = Box::pin(self.empty(child, key)).await?;
            if of_child == 0 {
                self.end(child).await?;
            }
            left += of_child;
        }
        match left {
            0 => self.release_held(cluster).await,
            left => Ok(left),
        }
    }

    async fn release_held(&self, cluster: LogicalClusterId) -> Result<usize, PlaneError> {
        // What is damaged holds nothing: it goes with the rest.
        let mut request = RangeRequest::all(RangeScope::Everything(cluster)).past_damage();
        request.limit = Some(PAGE);
        let mut held = 0;
        loop {
            let page = self.plane.store().range(request.clone()).await?;
            request.after = page.last.clone();
            for stored in page.objects {
                let header = &stored.record.header;
                if !header.has_finalizers && header.placed_on.is_empty() {
                    continue;
                }
                let kind = self.plane.kind_of(cluster, &stored.key.resource).await?;
                // What nobody can read or write any more would hold the workspace for ever.
                if kind.is_some() || !header.placed_on.is_empty() {
                    held += 1;
                }
                if let Some(kind) = kind {
                    self.plane.delete(&kind, &stored.key, &background()).await?;
                }
            }
            if !page.more {
                return Ok(held);
            }
        }
    }

    /// The logical cluster goes, then its entry in the directory.
    async fn end(&self, cluster: LogicalClusterId) -> Result<(), PlaneError> {
        match self.plane.store().delete_cluster(cluster).await {
            Ok(_) | Err(StoreError::ClusterGone { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        portolan_types::failpoint!("controllers/logical-cluster-deleted");
        self.directory.remove(cluster).await?;
        portolan_types::failpoint!("controllers/directory-entry-removed");
        self.emptying.end(&cluster);
        Ok(())
    }

    fn is_asked_to_go(&self, event: &Event) -> bool {
        event.record.header.is_deleting && event.key.resource == self.kind.group_resource()
    }

    async fn release(&self, key: &ObjectKey) -> Result<(), PlaneError> {
        let release = |workspace: &mut Value| {
            if let Some(finalizers) =
                object::metadata_mut(workspace).get_mut("finalizers").and_then(Value::as_array_mut)
            {
                finalizers.retain(|finalizer| finalizer != FINALIZER);
            }
            Step::Write(None)
        };
        self.plane.change(self.kind, key, release).await.map(drop)
    }
}

/// The logical cluster that a Workspace is.
fn cluster_of(workspace: &Value) -> Option<LogicalClusterId> {
    workspace.pointer("/spec/cluster").and_then(Value::as_str)?.parse().ok()
}

fn background() -> DeleteOptions {
    DeleteOptions { propagation: Some(Propagation::Background), ..DeleteOptions::default() }
}

impl Controller for Workspaces {
    type Key = ObjectKey;

    fn name(&self) -> &'static str {
        "workspaces"
    }

    fn resources(&self) -> Vec<GroupResource> {
        self.plane.stored_resources()
    }

    fn follows_defined(&self) -> bool {
        true
    }

    fn keys(&self, event: &Event) -> Vec<ObjectKey> {
        let around = self.emptying.key(|| Some(event.key.cluster));
        let itself = self.is_asked_to_go(event).then(|| event.key.clone());
        around.into_iter().chain(itself).collect()
    }

    fn linger(&self, event: &Event, _: &Self::Key) -> Duration {
        if self.is_asked_to_go(event) { Duration::ZERO } else { LINGER }
    }

    fn reconcile<'a>(&'a self, key: &'a ObjectKey) -> BoxFuture<'a, Result<Outcome, PlaneError>> {
        Box::pin(async move {
            let Some(workspace) = self.plane.get(key).await? else { return Ok(Outcome::Done) };
            let held = object::finalizers(&workspace.object).any(|finalizer| finalizer == FINALIZER);
            if !object::is_deleting(&workspace.object) || !held {
                return Ok(Outcome::Done);
            }
            if let Some(cluster) = cluster_of(&workspace.object) {
                if self.empty(cluster, key).await? > 0 {
                    return Ok(Outcome::CheckAgainIn(RECHECK));
                }
                self.end(cluster).await?;
            }
            self.release(key).await?;
            Ok(Outcome::Done)
        })
    }
}
