//! Objects of a view: read cluster by cluster at one revision, each marked with its logical cluster.

use std::{collections::BTreeSet, sync::Arc};

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
        let (store, resource) = (&context.storage.store, self.target.stored_as());
        let asked = self.target.resource();
        let members = self.view.members(store, (&asked, "list"), self.at).await.map_err(|e| status_for(&e))?;
        let (mut objects, mut bytes) = (Vec::new(), 0);
        let start = self.after.as_ref().map_or(LogicalClusterId::SYSTEM, |key| key.cluster);
        for (cluster, grant) in members.grants.range(start..) {
            let scope = match &self.target.namespace {
                None => RangeScope::Cluster(*cluster, resource.clone()),
                Some(namespace) => RangeScope::Namespace(*cluster, resource.clone(), namespace.clone()),
            };
            let after = self.after.clone().filter(|key| key.cluster == *cluster);
            let request = RangeRequest { at: Some(members.revision), after, ..RangeRequest::slices(scope) };
            for object in self.read_member(context, request, (*cluster, grant)).await? {
                if self.limit.is_some_and(|limit| objects.len() >= limit) {
                    return Ok(ViewItems { revision: members.revision, objects, more: true });
                }
                bytes += object.record.body().len();
                charge.grow_to(bytes)?;
                objects.push(object);
            }
        }
        Ok(ViewItems { revision: members.revision, objects, more: false })
    }

    async fn read_member(
        &self,
        context: &Arc<ReadContext>,
        request: RangeRequest,
        (cluster, grant): (LogicalClusterId, &Grant),
    ) -> Result<Vec<StoredObject>, Status> {
        let after = request.after.clone();
        let (mut found, mut next) = (Vec::new(), Some(request));
        while let Some(request) = next {
            let page = context.storage.store.range(request.clone()).await.map_err(|e| status_for(&e))?;
            next = request.next(&page);
            found.extend(page.objects);
            // A page is enough, and bounds the memory.
            if self.limit.is_some_and(|limit| found.len() > limit) {
                next = None;
            }
        }
        self.add_shared(context, cluster, after.as_ref(), &mut found).await?;
        found.retain(|stored| grant.admits(&stored.record, &self.view.export));
        let found = context.conversion.in_version(self.target, found).await?;
        let mut selected = Vec::with_capacity(found.len());
        for stored in found {
            let matched = self.selection.matches(self.target, &stored.key, &stored.record, stored.revision);
            if matched.map_err(|e| damaged(&stored.key, &e))? {
                selected.push(marked(&context.storage.directory, stored)?);
            }
        }
        Ok(selected)
    }

    /// Adds the shared objects that the logical cluster has not replaced.
    async fn add_shared(
        &self,
        context: &Arc<ReadContext>,
        cluster: LogicalClusterId,
        after: Option<&ObjectKey>,
        found: &mut Vec<StoredObject>,
    ) -> Result<(), Status> {
        let (resource, namespace) = (self.target.stored_as(), self.target.namespace.as_ref());
        if !shared_objects::has_shared(&resource, namespace) {
            return Ok(());
        }
        let Some(cluster) = context.storage.directory.by_id(cluster) else { return Ok(()) };
        let own: BTreeSet<ObjectKey> = found.iter().map(|stored| stored.key.clone()).collect();
        let shared = context.shared.all(&cluster, &resource).await?.into_iter();
        found.extend(shared.filter(|shared| {
            let is_there = namespace.is_none() || namespace == shared.key.namespace();
            is_there && !own.contains(&shared.key) && after.is_none_or(|after| shared.key > *after)
        }));
        found.sort_by(|one, other| one.key.cmp(&other.key));
        Ok(())
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
