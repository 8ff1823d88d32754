//! Stored objects of all logical clusters, in one order of revisions, each marked with its logical cluster. Objects
//! that logical clusters share until they write to them are not stored, and left out.

use std::sync::Arc;

use portolan_store::{
    DynStore, Event, EventBatch, EventStream, RangeRequest, RangeScope, StoreError, StoredObject, WatchScope,
};
use portolan_types::{BoxFuture, GroupResource, LogicalClusterId, ObjectKey, Record, ResourceVersion, Status};

use crate::{
    directory::Directory,
    errors::{damaged, status_for},
    options::{ListOptions, ObjectSelection},
    request::{RequestContext, ResourceTarget},
};

use super::{
    ListResult, ObjectSlices, ReadContext,
    range::{ListStart, ObjectRange},
    view_items::{ViewItems, marked_record},
    view_list::{page_of, page_start},
};

/// Reads one page of a list of all logical clusters.
///
/// # Errors
/// The errors of a list of one logical cluster.
pub(crate) async fn read_all_clusters(
    context: &Arc<ReadContext>,
    call: &RequestContext,
    target: &ResourceTarget,
    options: &ListOptions,
) -> Result<ListResult, Status> {
    let start = page_start(context, call, target, options).await?;
    let range = ObjectRange { context, call, target, selection: &options.selection };
    Ok(page_of(context, call, target, read(range, start).await?))
}

/// Returns the objects of all logical clusters at the latest revision.
///
/// # Errors
/// The errors of [`read_all_clusters`].
pub(crate) async fn all_cluster_slices(
    context: &Arc<ReadContext>,
    call: &RequestContext,
    target: &ResourceTarget,
    selection: &ObjectSelection,
) -> Result<ObjectSlices, Status> {
    let range = ObjectRange { context, call, target, selection };
    let read = read(range, ListStart::default()).await?;
    Ok(ObjectSlices::of(range, read.revision, read.objects))
}

async fn read(range: ObjectRange<'_>, start: ListStart) -> Result<ViewItems, Status> {
    let ObjectRange { context, call, target, .. } = range;
    let request = RangeRequest::slices(RangeScope::AllClusters(target.stored_as()));
    let mut next = Some(RangeRequest { at: start.at, after: start.after, ..request });
    let mut all = ViewItems { revision: ResourceVersion::FIRST, objects: Vec::new(), more: false };
    let mut bytes = 0;
    while let Some(request) = next {
        let page = context.storage.store.range(request.clone()).await.map_err(|error| status_for(&error))?;
        (next, all.revision) = (request.next(&page), page.revision);
        let in_scope = page.objects.into_iter().filter(|stored| is_in_scope(&stored.key, target)).collect();
        for stored in context.conversion.in_version(target, in_scope).await? {
            let selected = range.selection.matches(target, &stored.key, &stored.record, stored.revision);
            if !selected.map_err(|error| damaged(&stored.key, &error))? {
                continue;
            }
            if start.limit.is_some_and(|limit| all.objects.len() >= limit) {
                all.more = true;
                return Ok(all);
            }
            bytes += stored.record.body().len();
            call.charge.grow_to(bytes)?;
            let record = marked_record(&context.storage.directory, &stored.key, &stored.record, stored.revision)?;
            all.objects.push(StoredObject { record, ..stored });
        }
    }
    Ok(all)
}

/// Returns true for an object of a logical cluster, false for the server's own objects.
fn is_in_scope(key: &ObjectKey, target: &ResourceTarget) -> bool {
    let wanted = target.namespace.as_ref();
    key.cluster != LogicalClusterId::SYSTEM && (wanted.is_none() || key.namespace() == wanted)
}

/// Returns an event with objects that name their logical cluster.
///
/// # Errors
/// 500 for a damaged object.
pub(crate) fn marked_event(directory: &Directory, event: &Event) -> Result<Event, Status> {
    let mark = |record: &Arc<Record>| marked_record(directory, &event.key, record, event.revision);
    let previous = event.previous.as_ref().map(mark).transpose()?;
    Ok(Event { record: mark(&event.record)?, previous, ..event.clone() })
}

/// Events of the objects of all logical clusters.
pub(crate) struct AllClusterEvents(Box<dyn EventStream>);

impl AllClusterEvents {
    /// Opens the events after a revision.
    ///
    /// # Errors
    /// Failure of the store; `Compacted` for a compacted revision.
    pub(crate) async fn open(
        store: &DynStore,
        resource: GroupResource,
        after: ResourceVersion,
    ) -> Result<Self, StoreError> {
        store.watch(WatchScope::Resource(resource, None), Some(after)).await.map(Self)
    }
}

impl EventStream for AllClusterEvents {
    fn next(&mut self) -> BoxFuture<'_, Result<EventBatch, StoreError>> {
        Box::pin(async move {
            let mut batch = self.0.next().await?;
            batch.events.retain(|event| event.key.cluster != LogicalClusterId::SYSTEM);
            Ok(batch)
        })
    }

    fn progress(&self) -> ResourceVersion {
        self.0.progress()
    }
}
