//! Deletion of workspaces with their content: descendants first, then objects that are placed or have finalizers, then
//! all others in one tombstone.

use std::{collections::HashSet, sync::Arc, time::Duration};

use portolan_kinds::Kind;
use portolan_store::{Event, RangeRequest, RangeScope, StoreError};
use portolan_strategy::lifecycle::{DeleteOptions, Propagation};
use portolan_types::{BoxFuture, GroupResource, GroupVersionKind, LogicalClusterId, ObjectKey, Status, object};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::{
    emptying::{CarriedState, EmptyingScopes, LINGER, RECHECK, REQUEUE_NOW, SHARE, waits_for_others},
    plane::{Plane, PlaneChange, PlaneError},
    remaining_content::{RemainingContent, set_conditions},
    runtime::{Controller, WorkOutcome},
};

/// Finalizer that holds a Workspace until its logical cluster is gone; kcp's name.
pub const FINALIZER: &str = "core.kcp.io/logicalcluster";

/// Most objects whose finalizers are reported; the others are only counted.
const READ: usize = 1000;

/// Workspaces whose deletion makes progress at the same time.
const WORKERS: usize = 16;

/// Interval at which pending terminators are checked, in case an event of their end was missed.
const TERMINATORS_RECHECK: Duration = Duration::from_secs(30);

/// Controller of workspaces.
pub struct WorkspaceController {
    plane: Arc<Plane>,
    directory: Arc<dyn ClusterDirectory>,
    kind: &'static Kind,
    emptying: EmptyingScopes<LogicalClusterId, ObjectKey>,
    cuts: CarriedState<LogicalClusterId, ObjectKey>,
}

/// Result of a pass over a logical cluster that is being deleted.
#[derive(Clone, Copy, PartialEq, Eq)]
enum HoldState {
    /// Nothing holds it.
    Nothing,
    /// Objects that are being deleted hold it.
    Some,
    /// The pass had its share, and there may be more.
    More,
}

/// Directory of logical clusters, as the API server knows them.
pub trait ClusterDirectory: Send + Sync {
    /// Begins the deletion of `cluster`: no workspace is created in it. Returns true once its content may be deleted,
    /// which waits for its terminators; its Workspace shows them.
    fn begin_deletion(&self, cluster: LogicalClusterId) -> BoxFuture<'_, Result<bool, Status>>;

    /// Begins the deletion of `cluster` without waiting for terminators, because it has no Workspace.
    fn mark_deleting(&self, cluster: LogicalClusterId) -> BoxFuture<'_, Result<(), StoreError>>;

    /// Returns the logical cluster of a Workspace in `parent`; `None` if it is gone, or of another Workspace.
    fn child<'a>(
        &'a self,
        parent: LogicalClusterId,
        workspace: &'a Value,
    ) -> BoxFuture<'a, Result<Option<LogicalClusterId>, StoreError>>;

    /// Returns the logical clusters whose workspaces are in `parent`.
    fn children(&self, parent: LogicalClusterId) -> Vec<LogicalClusterId>;

    /// Removes `cluster` from the directory.
    fn remove(&self, cluster: LogicalClusterId) -> BoxFuture<'_, Result<(), StoreError>>;
}

impl WorkspaceController {
    /// Makes the controller.
    pub fn new(plane: Arc<Plane>, directory: Arc<dyn ClusterDirectory>) -> Self {
        let gvk = GroupVersionKind::new("tenancy.kcp.io", "v1alpha1", "Workspace");
        let kind = plane.table().kind(&gvk).expect("the table has tenancy.kcp.io");
        Self { plane, directory, kind, emptying: EmptyingScopes::default(), cuts: CarriedState::default() }
    }

    /// Deletes a share of the objects that hold `cluster`, which goes because of the workspace `key`. `remains`
    /// records the remaining objects.
    async fn delete_content(
        &self,
        cluster: LogicalClusterId,
        key: &ObjectKey,
        remains: &mut RemainingContent,
    ) -> Result<HoldState, PlaneError> {
        self.directory.mark_deleting(cluster).await?;
        portolan_types::failpoint!("controllers/workspace-marked");
        self.emptying.begin(cluster, key.clone());
        let mut children = self.plane.slices(RangeScope::Cluster(cluster, self.kind.group_resource()));
        let (mut left, mut asked, mut known) = (false, 0, HashSet::new());
        while let Some(slice) = children.next().await? {
            for child in slice.found.iter().filter(|child| !object::is_deleting(&child.object)) {
                self.plane.delete(self.kind, &child.key, &background()).await?;
                asked += 1;
            }
            if asked >= SHARE {
                return Ok(HoldState::More);
            }
            slice.found.iter().for_each(|child| remains.add(&child.key.resource, &child.object));
            left |= !slice.found.is_empty();
            known.extend(slice.found.iter().filter_map(|child| cluster_of(&child.object)));
        }
        // A descendant whose Workspace cannot be read, or is deleted already, is removed here.
        for child in self.directory.children(cluster).into_iter().filter(|child| !known.contains(child)) {
            match Box::pin(self.delete_content(child, key, remains)).await? {
                HoldState::Nothing => self.remove_cluster(child).await?,
                HoldState::Some => left = true,
                HoldState::More => return Ok(HoldState::More),
            }
        }
        if left { Ok(HoldState::Some) } else { self.release_held(cluster, remains).await }
    }

    async fn release_held(
        &self,
        cluster: LogicalClusterId,
        remains: &mut RemainingContent,
    ) -> Result<HoldState, PlaneError> {
        let from = self.cuts.take(&cluster);
        let is_whole = from.is_none();
        remains.is_part |= !is_whole;
        // Damaged objects hold nothing: the tombstone removes them.
        let mut request = RangeRequest::slices(RangeScope::Everything(cluster)).skip_damaged();
        (request.after, request.limit) = (from, Some(SHARE));
        let (mut held, mut asked) = (false, 0);
        loop {
            let page = self.plane.store().range(request.clone()).await?;
            for stored in page.objects {
                let header = &stored.record.header;
                if !header.has_finalizers && header.placed_on.is_empty() {
                    continue;
                }
                let kind = self.plane.kind_of(cluster, &stored.key.resource).await?;
                // An object that cannot be read or written would hold the workspace forever.
                if kind.is_some() || !header.placed_on.is_empty() {
                    held = true;
                    // Without a readable body, no finalizer can be named.
                    let read = if remains.objects() < READ { stored.to_value().ok() } else { None };
                    remains.add(&stored.key.resource, &read.unwrap_or_default());
                }
                if let Some(kind) = kind.filter(|_| !waits_for_others(header)) {
                    self.plane.delete(&kind, &stored.key, &background()).await?;
                    asked += 1;
                }
            }
            match page.last.filter(|_| page.more) {
                None if held => return Ok(HoldState::Some),
                None if is_whole => return Ok(HoldState::Nothing),
                // Objects before the start of this pass may hold it.
                None => return Ok(HoldState::More),
                Some(last) if asked >= SHARE => {
                    self.cuts.keep(cluster, last);
                    return Ok(HoldState::More);
                }
                last => request.after = last,
            }
        }
    }

    /// Reports on the Workspace which objects block its deletion, or that none does, as kcp does. Other objects are not
    /// reported.
    async fn write_conditions(&self, key: &ObjectKey, remains: &RemainingContent) -> Result<(), PlaneError> {
        let words: Vec<_> = remains.resources().into_iter().chain(remains.finalizers("workspace")).collect();
        let condition = if words.is_empty() {
            json!({"type": "WorkspaceContentDeleted", "status": "True"})
        } else {
            json!({
                "type": "WorkspaceContentDeleted",
                "status": "False",
                "severity": "Info",
                "reason": "SomeResourcesRemain",
                "message": words.join("; "),
            })
        };
        let now = self.plane.seams().now_text();
        let write_down = |workspace: &mut Value| {
            if set_conditions(workspace, [condition.clone()], &now) {
                PlaneChange::Write(Some("status"))
            } else {
                PlaneChange::Keep
            }
        };
        self.plane.change(self.kind, key, write_down).await.map(drop)
    }

    /// Removes the logical cluster, then its entry in the directory.
    async fn remove_cluster(&self, cluster: LogicalClusterId) -> Result<(), PlaneError> {
        match self.plane.store().delete_cluster(cluster).await {
            Ok(_) | Err(StoreError::ClusterGone { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        portolan_types::failpoint!("controllers/logical-cluster-deleted");
        self.directory.remove(cluster).await?;
        portolan_types::failpoint!("controllers/directory-entry-removed");
        self.cuts.take(&cluster);
        self.emptying.end(&cluster);
        Ok(())
    }

    fn is_deletion(&self, event: &Event) -> bool {
        event.record.header.is_deleting && event.key.resource == self.kind.group_resource()
    }
}

/// Returns the logical cluster of a Workspace.
fn cluster_of(workspace: &Value) -> Option<LogicalClusterId> {
    workspace.pointer("/spec/cluster").and_then(Value::as_str)?.parse().ok()
}

fn background() -> DeleteOptions {
    DeleteOptions { propagation: Some(Propagation::Background), ..DeleteOptions::default() }
}

impl Controller for WorkspaceController {
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
        let itself = self.is_deletion(event).then(|| event.key.clone());
        around.into_iter().chain(itself).collect()
    }

    fn linger(&self, event: &Event, _: &Self::Key) -> Duration {
        if self.is_deletion(event) { Duration::ZERO } else { LINGER }
    }

    fn reconcile<'a>(&'a self, key: &'a ObjectKey) -> BoxFuture<'a, Result<WorkOutcome, PlaneError>> {
        Box::pin(async move {
            let Some(workspace) = self.plane.get_reconciled(key).await? else { return Ok(WorkOutcome::Done) };
            let held = object::finalizers(&workspace.object).any(|finalizer| finalizer == FINALIZER);
            if !object::is_deleting(&workspace.object) || !held {
                return Ok(WorkOutcome::Done);
            }
            if let Some(cluster) = self.directory.child(key.cluster, &workspace.object).await? {
                if !self.directory.begin_deletion(cluster).await? {
                    // The end of the last terminator writes the Workspace.
                    return Ok(WorkOutcome::RequeueAfter(TERMINATORS_RECHECK));
                }
                if let Some(rest) = self.emptying.rest(&cluster) {
                    return Ok(WorkOutcome::RequeueAfter(rest));
                }
                let (began, mut remains) = (Instant::now(), RemainingContent::default());
                match self.delete_content(cluster, key, &mut remains).await? {
                    HoldState::Nothing => {
                        self.remove_cluster(cluster).await?;
                        if object::finalizers(&workspace.object).any(|finalizer| finalizer != FINALIZER) {
                            self.write_conditions(key, &RemainingContent::default()).await?;
                        }
                    }
                    HoldState::More => return Ok(REQUEUE_NOW),
                    HoldState::Some => {
                        self.emptying.record_pass(&cluster, began);
                        if !remains.is_part {
                            self.write_conditions(key, &remains).await?;
                        }
                        return Ok(WorkOutcome::RequeueAfter(RECHECK));
                    }
                }
            }
            self.plane.drop_finalizer(self.kind, key, FINALIZER).await?;
            Ok(WorkOutcome::Done)
        })
    }

    /// A deletion waits for three commits, which one flush to the disk serves for many.
    fn workers(&self) -> usize {
        WORKERS
    }
}
