//! Takes along what is in a workspace that is deleted: workspaces below it first, then what is placed or has finalizers,
//! then all the rest in one tombstone.

use std::{collections::HashSet, sync::Arc, time::Duration};

use portolan_machinery::{
    kinds::Kind,
    lifecycle::{DeleteOptions, Propagation},
};
use portolan_store::{Event, RangeRequest, RangeScope, StoreError};
use portolan_types::{BoxFuture, GroupResource, GroupVersionKind, LogicalClusterId, ObjectKey, object};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::{
    emptying::{Cuts, Emptying, GO_ON, LINGER, RECHECK, SHARE, waits_for_others},
    plane::{Plane, PlaneError, Step},
    remains::{Remains, set_conditions},
    runtime::{Controller, Outcome},
};

/// Holds a Workspace until its logical cluster is gone; kcp's name.
pub const FINALIZER: &str = "core.kcp.io/logicalcluster";

/// Objects whose finalizers are told of a logical cluster that goes: of all others it is known that they are there.
const READ: usize = 1000;

/// The workspace loop.
pub struct Workspaces {
    plane: Arc<Plane>,
    directory: Arc<dyn Directory>,
    kind: &'static Kind,
    emptying: Emptying<LogicalClusterId, ObjectKey>,
    cuts: Cuts<LogicalClusterId, ObjectKey>,
}

/// What a look at a logical cluster that goes has found.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Left {
    /// Nothing holds it any more.
    Nothing,
    /// Something that has been asked to go.
    Some,
    /// The look had its share, and there may be more.
    More,
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
        Self { plane, directory, kind, emptying: Emptying::default(), cuts: Cuts::default() }
    }

    /// Asks everything that holds `cluster`, which goes because of the workspace `key`, to go: a share of it. `remains` takes in
    /// what is left.
    async fn empty(
        &self,
        cluster: LogicalClusterId,
        key: &ObjectKey,
        remains: &mut Remains,
    ) -> Result<Left, PlaneError> {
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
                return Ok(Left::More);
            }
            slice.found.iter().for_each(|child| remains.add(&child.key.resource, &child.object));
            left |= !slice.found.is_empty();
            known.extend(slice.found.iter().filter_map(|child| cluster_of(&child.object)));
        }
        // One whose Workspace cannot be read, or was deleted as such, goes without it.
        for child in self.directory.children(cluster).into_iter().filter(|child| !known.contains(child)) {
            match Box::pin(self.empty(child, key, remains)).await? {
                Left::Nothing => self.end(child).await?,
                Left::Some => left = true,
                Left::More => return Ok(Left::More),
            }
        }
        if left { Ok(Left::Some) } else { self.release_held(cluster, remains).await }
    }

    async fn release_held(&self, cluster: LogicalClusterId, remains: &mut Remains) -> Result<Left, PlaneError> {
        let from = self.cuts.take(&cluster);
        let is_whole = from.is_none();
        remains.is_part |= !is_whole;
        // What is damaged holds nothing: it goes with the rest.
        let mut request = RangeRequest::slices(RangeScope::Everything(cluster)).past_damage();
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
                // What nobody can read or write any more would hold the workspace for ever.
                if kind.is_some() || !header.placed_on.is_empty() {
                    held = true;
                    // One whose header alone can be read is held by nothing that could be told.
                    let read = if remains.objects() < READ { stored.to_value().ok() } else { None };
                    remains.add(&stored.key.resource, &read.unwrap_or_default());
                }
                if let Some(kind) = kind.filter(|_| !waits_for_others(header)) {
                    self.plane.delete(&kind, &stored.key, &background()).await?;
                    asked += 1;
                }
            }
            match page.last.filter(|_| page.more) {
                None if held => return Ok(Left::Some),
                None if is_whole => return Ok(Left::Nothing),
                // What it began behind may hold it.
                None => return Ok(Left::More),
                Some(last) if asked >= SHARE => {
                    self.cuts.keep(cluster, last);
                    return Ok(Left::More);
                }
                last => request.after = last,
            }
        }
    }

    /// Says on the Workspace what holds it, or that nothing does any more, as kcp does. What holds nothing is not told of: it goes
    /// with the rest.
    async fn tell(&self, key: &ObjectKey, remains: &Remains) -> Result<(), PlaneError> {
        let words: Vec<_> = remains.resources().into_iter().chain(remains.finalizers("workspace")).collect();
        let condition = match words.is_empty() {
            true => json!({"type": "WorkspaceContentDeleted", "status": "True"}),
            false => json!({
                "type": "WorkspaceContentDeleted",
                "status": "False",
                "severity": "Info",
                "reason": "SomeResourcesRemain",
                "message": words.join("; "),
            }),
        };
        let now = self.plane.seams().now_text();
        let write_down = |workspace: &mut Value| match set_conditions(workspace, [condition.clone()], &now) {
            true => Step::Write(Some("status")),
            false => Step::Keep,
        };
        self.plane.change(self.kind, key, write_down).await.map(drop)
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
        self.cuts.take(&cluster);
        self.emptying.end(&cluster);
        Ok(())
    }

    fn is_asked_to_go(&self, event: &Event) -> bool {
        event.record.header.is_deleting && event.key.resource == self.kind.group_resource()
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
                if let Some(rest) = self.emptying.rest(&cluster) {
                    return Ok(Outcome::CheckAgainIn(rest));
                }
                let (began, mut remains) = (Instant::now(), Remains::default());
                match self.empty(cluster, key, &mut remains).await? {
                    Left::Nothing => {
                        self.end(cluster).await?;
                        if object::finalizers(&workspace.object).any(|finalizer| finalizer != FINALIZER) {
                            self.tell(key, &Remains::default()).await?;
                        }
                    }
                    Left::More => return Ok(GO_ON),
                    Left::Some => {
                        self.emptying.looked(&cluster, began);
                        if !remains.is_part {
                            self.tell(key, &remains).await?;
                        }
                        return Ok(Outcome::CheckAgainIn(RECHECK));
                    }
                }
            }
            self.plane.drop_finalizer(self.kind, key, FINALIZER).await?;
            Ok(Outcome::Done)
        })
    }
}
