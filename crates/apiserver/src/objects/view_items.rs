//! Objects of a view: read cluster by cluster at one revision, each marked with its logical cluster.

use std::{
    collections::{BTreeSet, VecDeque},
    sync::Arc,
};

use portolan_store::{Event, RangeRequest, RangeScope, StoredObject};
use portolan_types::{
    LogicalClusterId, ObjectKey, Record, ResourceVersion, Status,
    annotations::{KCP_CLUSTER, KCP_PATH},
    object,
};

use crate::{
    authz::shared_objects,
    directory::Directory,
    errors::{damaged, status_for},
    limits::MemoryCharge,
    options::ObjectSelection,
    request::{RequestContext, ResourceTarget},
    views::{ApiView, Grant},
};

use super::ReadContext;

/// Part of a view to read.
pub(crate) struct ViewPart<'a> {
    pub(crate) view: &'a ApiView,
    pub(crate) target: &'a ResourceTarget,
    pub(crate) selection: &'a ObjectSelection,
    /// Revision; `None` for the latest.
    pub(crate) at: Option<ResourceVersion>,
    /// Last object of the previous page.
    pub(crate) after: Option<ObjectKey>,
    /// Most objects to return.
    pub(crate) limit: Option<usize>,
}

/// Objects of a view.
pub(crate) struct ViewItems {
    pub(crate) revision: ResourceVersion,
    pub(crate) objects: Vec<StoredObject>,
    /// True if the limit left objects out.
    pub(crate) more: bool,
}

impl ViewPart<'_> {
    /// Reads the objects in the order of their keys; `charge` bounds their memory.
    ///
    /// # Errors
    /// 410 for a compacted revision, 429 for too much memory, failures of the store.
    pub(crate) async fn read(&self, context: &Arc<ReadContext>, charge: &MemoryCharge) -> Result<ViewItems, Status> {
        let store = &context.storage.store;
        let asked = self.target.resource();
        let members = self.view.members(store, (&asked, "list"), self.at).await.map_err(|e| status_for(&e))?;
        let (mut objects, mut bytes) = (Vec::new(), 0);
        let start = self.after.as_ref().map_or(LogicalClusterId::SYSTEM, |key| key.cluster);
        for (cluster, grant) in members.grants.range(start..) {
            let mut pages = self.member_pages(context, *cluster, members.revision).await?;
            while let Some(page) = pages.next(context).await? {
                for object in self.select(context, page, grant).await? {
                    if self.limit.is_some_and(|limit| objects.len() >= limit) {
                        return Ok(ViewItems { revision: members.revision, objects, more: true });
                    }
                    bytes += object.record.body().len();
                    charge.grow_to(bytes)?;
                    objects.push(object);
                }
            }
        }
        Ok(ViewItems { revision: members.revision, objects, more: false })
    }

    /// Returns the pages of one logical cluster: its objects, and the shared ones that it has not replaced.
    async fn member_pages(
        &self,
        context: &Arc<ReadContext>,
        cluster: LogicalClusterId,
        revision: ResourceVersion,
    ) -> Result<MemberPages, Status> {
        let (resource, namespace) = (self.target.stored_as(), self.target.namespace.as_ref());
        let scope = match namespace {
            None => RangeScope::Cluster(cluster, resource.clone()),
            Some(namespace) => RangeScope::Namespace(cluster, resource.clone(), namespace.clone()),
        };
        let after = self.after.clone().filter(|key| key.cluster == cluster);
        let mut shared = Vec::new();
        if shared_objects::has_shared(&resource, namespace)
            && let Some(cluster) = context.storage.directory.by_id(cluster)
        {
            shared = context.shared.all(&cluster, &resource).await?;
            shared.retain(|shared| {
                let is_there = namespace.is_none() || namespace == shared.key.namespace();
                is_there && after.as_ref().is_none_or(|after| shared.key > *after)
            });
            shared.sort_by(|one, other| one.key.cmp(&other.key));
        }
        let request = RangeRequest { at: Some(revision), after, ..RangeRequest::slices(scope) };
        Ok(MemberPages { next: Some(request), shared: shared.into() })
    }

    /// Returns the objects of a page that the grant and the selection admit, in the version of the request.
    async fn select(
        &self,
        context: &Arc<ReadContext>,
        mut page: Vec<StoredObject>,
        grant: &Grant,
    ) -> Result<Vec<StoredObject>, Status> {
        page.retain(|stored| grant.admits(&stored.record, &self.view.export));
        let page = context.conversion.in_version(self.target, page).await?;
        let mut selected = Vec::with_capacity(page.len());
        for stored in page {
            let matched = self.selection.matches(self.target, &stored.key, &stored.record, stored.revision);
            if matched.map_err(|e| damaged(&stored.key, &e))? {
                selected.push(marked(&context.storage.directory, stored)?);
            }
        }
        Ok(selected)
    }
}

/// Pages of one logical cluster, in the order of keys.
struct MemberPages {
    next: Option<RangeRequest>,
    /// Shared objects that are still to be merged in.
    shared: VecDeque<StoredObject>,
}

impl MemberPages {
    async fn next(&mut self, context: &ReadContext) -> Result<Option<Vec<StoredObject>>, Status> {
        let Some(request) = self.next.take() else { return Ok(None) };
        let page = context.storage.store.range(request.clone()).await.map_err(|e| status_for(&e))?;
        self.next = request.next(&page);
        let last = self.next.as_ref().and_then(|next| next.after.as_ref());
        let due = self.shared.partition_point(|shared| last.is_none_or(|last| shared.key <= *last));
        let mut objects = page.objects;
        if due > 0 {
            let own: BTreeSet<ObjectKey> = objects.iter().map(|stored| stored.key.clone()).collect();
            objects.extend(self.shared.drain(..due).filter(|shared| !own.contains(&shared.key)));
            objects.sort_by(|one, other| one.key.cmp(&other.key));
        }
        Ok(Some(objects))
    }
}

/// Returns an object with the annotation that names its logical cluster, whatever the object says itself.
///
/// # Errors
/// 500 for a damaged object.
pub(crate) fn marked(directory: &Directory, stored: StoredObject) -> Result<StoredObject, Status> {
    let record = marked_record(directory, &stored.key, &stored.record, stored.revision)?;
    Ok(StoredObject { record, ..stored })
}

/// Returns an event with objects that name their logical cluster.
///
/// # Errors
/// 500 for a damaged object.
pub(crate) fn marked_event(directory: &Directory, event: &Event) -> Result<Event, Status> {
    let mark = |record: &Arc<Record>| marked_record(directory, &event.key, record, event.revision);
    Ok(Event {
        record: mark(&event.record)?,
        previous: event.previous.as_ref().map(mark).transpose()?,
        ..event.clone()
    })
}

fn marked_record(
    directory: &Directory,
    key: &ObjectKey,
    record: &Record,
    revision: ResourceVersion,
) -> Result<Arc<Record>, Status> {
    let mut value = record.to_value(revision).map_err(|e| damaged(key, &e))?;
    object::metadata_mut(&mut value).remove("resourceVersion");
    object::set_annotation(&mut value, KCP_CLUSTER, Some(key.cluster.to_string()));
    if let Some(cluster) = directory.by_id(key.cluster) {
        object::set_annotation(&mut value, KCP_PATH, Some(cluster.path.to_string()));
    }
    Ok(Arc::new(Record::of(&value)))
}

/// Marks the objects of a request to one logical cluster of a view; others stay as they are.
///
/// # Errors
/// 500 for a damaged object.
pub(crate) fn marked_for(
    directory: &Directory,
    call: &RequestContext,
    stored: StoredObject,
) -> Result<StoredObject, Status> {
    if call.view.is_some() { marked(directory, stored) } else { Ok(stored) }
}
