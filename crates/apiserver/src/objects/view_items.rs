//! Objects of a view: read cluster by cluster at one revision, each marked with its logical cluster.

use std::{
    collections::{BTreeSet, VecDeque},
    sync::Arc,
};

use portolan_kinds::custom;
use portolan_store::{Event, RangeRequest, RangeScope, StoredObject};
use portolan_types::{
    LabelSelector, LogicalClusterId, ObjectKey, Record, ResourceVersion, Scope, Status,
    annotations::{KCP_CLUSTER, KCP_PATH},
    apis, object,
};

use crate::{
    authz::shared_objects,
    directory::Directory,
    errors::{damaged, status_for},
    limits::MemoryCharge,
    options::ObjectSelection,
    request::{RequestContext, ResourceTarget},
    views::{ApiView, Members},
};

use super::ReadContext;

/// Members of a view from which the objects of a resource are read across logical clusters.
const MANY_MEMBERS: usize = 16;

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

/// Objects of several logical clusters, in the order of their keys.
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
        let mut read = ViewRead { objects: Vec::new(), bytes: 0, limit: self.limit, more: false, charge };
        if members.grants.len() > MANY_MEMBERS && self.is_read_across() {
            self.read_across(context, &members, &mut read).await?;
        } else {
            self.read_each(context, &members, &mut read).await?;
        }
        Ok(ViewItems { revision: members.revision, objects: read.objects, more: read.more })
    }

    /// Reads one logical cluster after the other.
    async fn read_each(
        &self,
        context: &Arc<ReadContext>,
        members: &Members,
        read: &mut ViewRead<'_>,
    ) -> Result<(), Status> {
        let start = self.after.as_ref().map_or(LogicalClusterId::SYSTEM, |key| key.cluster);
        for (cluster, _) in members.grants.range(start..) {
            let mut pages = self.member_pages(context, *cluster, members.revision).await?;
            while let Some(page) = pages.next(context).await? {
                read.add(self.select(context, page, members).await?)?;
                if read.more {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Returns true for a resource whose objects are almost all in the view: reading them in one order costs less than
    /// a read of each logical cluster.
    fn is_read_across(&self) -> bool {
        let asked = self.target.resource();
        let is_own = self.is_of_bindings() || !custom::is_builtin_resource(&asked);
        is_own && self.target.namespace.is_none() && !shared_objects::has_shared(&self.target.stored_as(), None)
    }

    fn is_of_bindings(&self) -> bool {
        self.target.resource() == apis::resource(apis::BINDINGS)
    }

    /// Reads the objects of all logical clusters, and leaves out those that are not members.
    async fn read_across(
        &self,
        context: &Arc<ReadContext>,
        members: &Members,
        read: &mut ViewRead<'_>,
    ) -> Result<(), Status> {
        let scope = RangeScope::AllClusters(self.target.stored_as());
        let labels = if self.is_of_bindings() { self.view.label() } else { LabelSelector::everything() };
        let (at, after) = (Some(members.revision), self.after.clone());
        let mut next = Some(RangeRequest { at, after, labels, ..RangeRequest::slices(scope).skip_damaged() });
        while let Some(request) = next {
            let page = context.storage.store.range(request.clone()).await.map_err(|e| status_for(&e))?;
            // A damaged object of another logical cluster does not affect this view.
            let damaged = page.damaged.iter().find(|damaged| members.grants.contains_key(&damaged.key.cluster));
            if let Some(damaged) = damaged {
                return Err(status_for(&damaged.clone().into()));
            }
            next = request.next(&page).and_then(|next| to_next_member(next, members));
            read.add(self.select(context, page.objects, members).await?)?;
            if read.more {
                return Ok(());
            }
        }
        Ok(())
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
        let is_own = self.view.export.address.cluster == cluster;
        if (is_own || self.view.shows_shared(&resource))
            && shared_objects::has_shared(&resource, namespace)
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

    /// Returns the objects of a page that the grants and the selection admit, in the version of the request.
    async fn select(
        &self,
        context: &Arc<ReadContext>,
        mut page: Vec<StoredObject>,
        members: &Members,
    ) -> Result<Vec<StoredObject>, Status> {
        page.retain(|stored| {
            let grant = members.grants.get(&stored.key.cluster);
            grant.is_some_and(|grant| grant.admits(&stored.record, &self.view.export))
        });
        let page = context.conversion.in_version(self.target, page).await?;
        let mut selected = Vec::with_capacity(page.len());
        for stored in page {
            let marks = ViewMarks { directory: &context.storage.directory, view: self.view, target: self.target };
            if let Some(names) = &self.view.flattened {
                // Selectors are about the names that the view shows.
                let Some(key) = names.shown_key(&stored.key) else { continue };
                let shown = marks.stored(stored)?;
                let matched = self.selection.matches(self.target, &key, &shown.record, shown.revision);
                if matched.map_err(|e| damaged(&shown.key, &e))? {
                    selected.push(shown);
                }
                continue;
            }
            let matched = self.selection.matches(self.target, &stored.key, &stored.record, stored.revision);
            if matched.map_err(|e| damaged(&stored.key, &e))? {
                selected.push(marks.stored(stored)?);
            }
        }
        Ok(selected)
    }
}

/// Objects of a view that have been read so far.
struct ViewRead<'a> {
    objects: Vec<StoredObject>,
    /// Bytes of the objects.
    bytes: usize,
    limit: Option<usize>,
    /// True once an object was left out.
    more: bool,
    charge: &'a MemoryCharge,
}

impl ViewRead<'_> {
    /// Adds objects up to the limit.
    ///
    /// # Errors
    /// 429 for too much memory.
    fn add(&mut self, objects: Vec<StoredObject>) -> Result<(), Status> {
        for object in objects {
            if self.limit.is_some_and(|limit| self.objects.len() >= limit) {
                self.more = true;
                break;
            }
            self.bytes += object.record.body().len();
            self.charge.grow_to(self.bytes)?;
            self.objects.push(object);
        }
        Ok(())
    }
}

/// Name in front of the names of all objects.
const FIRST_NAME: &str = "!";

/// Continues at the next member, if the last object read is of no member; `None` after the last member.
fn to_next_member(mut next: RangeRequest, members: &Members) -> Option<RangeRequest> {
    let last = next.after.as_ref()?;
    let (following, _) = members.grants.range(last.cluster..).next()?;
    if *following != last.cluster {
        // The store continues after a key, whether it is there or not. No object is in front of this one.
        let name = FIRST_NAME.parse().expect("it is a path segment");
        next.after = Some(ObjectKey { cluster: *following, scope: Scope::Cluster, name, ..last.clone() });
    }
    Some(next)
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

/// Changes that a view makes to objects: annotations that name the logical cluster and, in a flattened view, other
/// names.
pub(crate) struct ViewMarks<'a> {
    pub(crate) directory: &'a Directory,
    pub(crate) view: &'a ApiView,
    pub(crate) target: &'a ResourceTarget,
}

impl ViewMarks<'_> {
    /// Returns an object with its marks.
    ///
    /// # Errors
    /// 500 for a damaged object.
    fn stored(&self, stored: StoredObject) -> Result<StoredObject, Status> {
        let record = self.record(&stored.key, &stored.record, stored.revision)?;
        Ok(StoredObject { record, ..stored })
    }

    /// Returns an event with marked objects; `None` for one of an object that the view does not show.
    ///
    /// # Errors
    /// 500 for a damaged object.
    pub(crate) fn event(&self, event: &Event) -> Result<Option<Event>, Status> {
        let key = match &self.view.flattened {
            None => event.key.clone(),
            Some(names) => match names.shown_key(&event.key) {
                None => return Ok(None),
                Some(key) => key,
            },
        };
        let mark = |record: &Arc<Record>| self.record(&event.key, record, event.revision);
        let previous = event.previous.as_ref().map(mark).transpose()?;
        Ok(Some(Event { key, record: mark(&event.record)?, previous, ..event.clone() }))
    }

    fn record(&self, key: &ObjectKey, record: &Arc<Record>, revision: ResourceVersion) -> Result<Arc<Record>, Status> {
        let Some(names) = &self.view.flattened else { return marked_record(self.directory, key, record, revision) };
        if names.own() == key.cluster {
            return Ok(record.clone());
        }
        let marked = marked_record(self.directory, key, record, revision)?;
        let mut value = marked.to_value(revision).map_err(|e| damaged(key, &e))?;
        object::metadata_mut(&mut value).remove("resourceVersion");
        names.show((&self.target.table, self.target.stored_kind()), key.cluster, &mut value);
        Ok(Arc::new(Record::of(&value)))
    }
}

/// Returns an object with the annotations that name its logical cluster. They replace annotations of the same keys.
///
/// # Errors
/// 500 for a damaged object.
pub(super) fn marked_record(
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
    if call.view.is_none() {
        return Ok(stored);
    }
    // The response of a flattened view has its other names.
    let record = marked_record(directory, &stored.key, &stored.record, stored.revision)?;
    Ok(StoredObject { record, ..stored })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use portolan_types::GroupResource;

    use crate::views::Grant;

    use super::*;

    #[test]
    fn a_read_across_skips_runs_of_other_logical_clusters() {
        let resource = GroupResource::new("example.dev", "widgets");
        let key = |cluster, name: &str| {
            ObjectKey::cluster_scoped(LogicalClusterId::new(cluster), resource.clone(), name.parse().unwrap())
        };
        let grants = BTreeMap::from([5, 20].map(|cluster| (LogicalClusterId::new(cluster), Grant::All)));
        let members = Members { revision: ResourceVersion::FIRST, grants };
        for (case, last, expected) in [
            ("a member continues after its last object", key(5, "b"), Some(key(5, "b"))),
            ("others before a member are skipped", key(7, "b"), Some(key(20, FIRST_NAME))),
            ("also the one directly in front of it", key(19, "c"), Some(key(20, FIRST_NAME))),
            ("the last member", key(20, "b"), Some(key(20, "b"))),
            ("behind the last member nothing is read", key(21, "b"), None),
        ] {
            let request = RangeRequest::slices(RangeScope::AllClusters(resource.clone()));
            let next = to_next_member(RangeRequest { after: Some(last), ..request }, &members);
            assert_eq!(next.and_then(|next| next.after), expected, "{case}");
        }
    }
}
