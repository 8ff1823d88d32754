//! Objects that a request reads, wherever they come from: computed, in reach, or stored.

use std::sync::Arc;

use portolan_store::{RangeRequest, RangeScope};
use portolan_types::{ObjectKey, ResourceVersion, Status};

use crate::{
    options::ObjectSelection,
    reach::ClusterReach,
    request::{RequestContext, ResourceTarget, computed::computed_objects},
};

use super::{ObjectSlices, ReadContext};

/// Start of a read.
#[derive(Default)]
pub(super) struct ListStart {
    /// Revision; `None` for the latest.
    pub(super) at: Option<ResourceVersion>,
    /// Key before the first object.
    pub(super) after: Option<ObjectKey>,
    pub(super) limit: Option<usize>,
}

/// Selected objects of a target, as a request reads them.
#[derive(Clone, Copy)]
pub(super) struct ObjectRange<'a> {
    pub(super) context: &'a Arc<ReadContext>,
    pub(super) call: &'a RequestContext,
    pub(super) target: &'a ResourceTarget,
    pub(super) selection: &'a ObjectSelection,
}

impl ObjectRange<'_> {
    pub(super) async fn open(self, start: ListStart) -> Result<ObjectSlices, Status> {
        let Self { context, call, target, selection } = self;
        let ListStart { at, after, limit } = start;
        if let Some(objects) = computed_objects(&call.cluster, target, None, &context.url) {
            return Ok(ObjectSlices::of(self, context.storage.store.current(), objects));
        }
        if let Some(name) = selection.fields.exact_name().filter(|_| at.is_none() && after.is_none())
            && let Some(slices) = self.open_single(name).await?
        {
            return Ok(slices);
        }
        if let Some(reach) = ClusterReach::of(&context.reach, &call.cluster, target).await? {
            let (revision, mut objects) = reach.list(&context.storage, at).await?;
            objects.retain(|object| after.as_ref().is_none_or(|after| object.key.name > after.name));
            return Ok(ObjectSlices::of(self, revision, objects));
        }
        let (cluster, resource) = (call.cluster.id, target.stored_as());
        let scope = match &target.namespace {
            None => RangeScope::Cluster(cluster, resource),
            Some(namespace) => RangeScope::Namespace(cluster, resource, namespace.clone()),
        };
        let request = RangeRequest { at, after, limit, ..RangeRequest::slices(scope) };
        ObjectSlices::open(self, request).await
    }

    /// Reads one key for a selector of one name in one scope. Returns `None` when the revision of the read is not
    /// certain.
    async fn open_single(self, name: &str) -> Result<Option<ObjectSlices>, Status> {
        let Self { context, call, target, .. } = self;
        if target.kind.namespaced && target.namespace.is_none() {
            return Ok(None);
        }
        let Ok(key) = target.key(call, name) else { return Ok(None) };
        let revision = context.storage.store.current();
        let found = context.find_object(call, target, &key).await?.map(|found| found.stored);
        // An object newer than `revision` may have been written twice since; only a range read has a certain revision.
        if found.as_ref().is_some_and(|stored| stored.revision > revision) {
            return Ok(None);
        }
        Ok(Some(ObjectSlices::of(self, revision, found.into_iter().collect())))
    }
}
