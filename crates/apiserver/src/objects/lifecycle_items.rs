//! LogicalClusters that wait for a step: read and watched through the records of the directory, one order of revisions
//! for all.

use std::sync::Arc;

use portolan_store::{
    ChangeKind, DynStore, Event, EventBatch, EventStream, RangeRequest, RangeScope, StoreError, StoredObject,
    WatchScope,
};
use portolan_types::{BoxFuture, LogicalClusterId, Record, ResourceVersion, Status};

use crate::{
    directory::{LogicalCluster, read_record, records},
    errors::status_for,
    options::ObjectSelection,
    request::{RequestContext, ResourceTarget, computed::stored_logical_cluster},
    views::LifecycleView,
};

use super::{ObjectSlices, ReadContext, range::ObjectRange};

/// LogicalClusters at one revision.
pub(crate) struct WaitingClusters {
    pub(crate) revision: ResourceVersion,
    pub(crate) objects: Vec<StoredObject>,
}

/// Source of the LogicalClusters of a view.
pub(crate) struct LifecycleItems {
    pub(crate) store: DynStore,
    pub(crate) view: Arc<LifecycleView>,
    /// URL at which clients reach the server.
    pub(crate) url: String,
}

impl LifecycleItems {
    /// Reads them at a revision, or at the latest.
    ///
    /// # Errors
    /// Failure of the store.
    pub(crate) async fn read(&self, at: Option<ResourceVersion>) -> Result<WaitingClusters, StoreError> {
        let scope = RangeScope::Cluster(LogicalClusterId::SYSTEM, records());
        let labels = self.view.selector();
        let mut next = Some(RangeRequest { at, labels, ..RangeRequest::slices(scope).skip_damaged() });
        let (mut objects, mut revision) = (Vec::new(), ResourceVersion::FIRST);
        while let Some(request) = next {
            let page = self.store.range(request.clone()).await?;
            (next, revision) = (request.next(&page), page.revision);
            objects.extend(page.objects.iter().filter_map(|stored| self.visible_object(stored)));
        }
        Ok(WaitingClusters { revision, objects })
    }

    /// Opens the events after a revision.
    ///
    /// # Errors
    /// Failure of the store; `Compacted` for a compacted revision.
    pub(crate) async fn watch(self, after: ResourceVersion) -> Result<LifecycleEvents, StoreError> {
        let scope = WatchScope::Resource(records(), Some(LogicalClusterId::SYSTEM));
        let events = self.store.watch(scope, Some(after)).await?;
        Ok(LifecycleEvents { events, items: self })
    }

    fn is_shown(&self, cluster: &LogicalCluster) -> bool {
        self.view.admits(cluster.id, cluster.pending(self.view.address.stage))
    }

    fn visible_object(&self, stored: &StoredObject) -> Option<StoredObject> {
        let cluster = read_record(stored).ok().filter(|cluster| self.is_shown(cluster))?;
        Some(stored_logical_cluster(&cluster, stored.revision, &self.url))
    }

    /// Returns the event of a record as the view shows it; `None` if the view shows neither state.
    fn event(&self, event: &Event) -> Option<Arc<Event>> {
        let read = |record: &Arc<Record>| {
            let (key, record) = (event.key.clone(), record.clone());
            read_record(&StoredObject { key, revision: event.revision, created: event.revision, record }).ok()
        };
        let object = |cluster: &LogicalCluster| stored_logical_cluster(cluster, event.revision, &self.url);
        let is_shown = |cluster: &LogicalCluster| self.is_shown(cluster);
        let before = event.previous.as_ref().and_then(read).filter(is_shown).as_ref().map(object);
        let now = (event.change != ChangeKind::Deleted).then(|| read(&event.record)).flatten();
        let now = now.filter(is_shown).as_ref().map(object);
        let gone = if event.change == ChangeKind::Deleted { read(&event.record).filter(is_shown) } else { None };
        let (change, shown, previous) = match (before, now, gone.as_ref().map(object)) {
            (Some(before), Some(now), _) => (ChangeKind::Updated, now, Some(before.record)),
            (None, Some(now), _) => (ChangeKind::Created, now, None),
            (_, None, Some(gone)) => (ChangeKind::Deleted, gone, None),
            (Some(before), None, None) => (ChangeKind::Deleted, before, None),
            // Without the previous state it may have been shown.
            (None, None, None) if event.change == ChangeKind::Updated && event.previous.is_none() => {
                (ChangeKind::Deleted, object(&read(&event.record)?), None)
            }
            (None, None, None) => return None,
        };
        let StoredObject { key, record, .. } = shown;
        Some(Arc::new(Event { revision: event.revision, change, key, record, previous }))
    }
}

/// Returns the LogicalClusters that a watch starts with, at the latest revision.
///
/// # Errors
/// Failure of the store; 500 for a request without such a view.
pub(crate) async fn waiting_slices(
    context: &Arc<ReadContext>,
    call: &RequestContext,
    target: &ResourceTarget,
    selection: &ObjectSelection,
) -> Result<ObjectSlices, Status> {
    let view = call.waiting().cloned().ok_or_else(|| Status::internal("the request has no view"))?;
    let items = LifecycleItems { store: context.storage.store.clone(), view, url: context.url.clone() };
    let read = items.read(None).await.map_err(|error| status_for(&error))?;
    Ok(ObjectSlices::of(ObjectRange { context, call, target, selection }, read.revision, read.objects))
}

/// Events of the LogicalClusters of a view.
pub(crate) struct LifecycleEvents {
    events: Box<dyn EventStream>,
    items: LifecycleItems,
}

impl EventStream for LifecycleEvents {
    fn next(&mut self) -> BoxFuture<'_, Result<EventBatch, StoreError>> {
        Box::pin(async move {
            let batch = self.events.next().await?;
            let events = batch.events.iter().filter_map(|event| self.items.event(event)).collect();
            Ok(EventBatch { events, revision: batch.revision })
        })
    }

    fn progress(&self) -> ResourceVersion {
        self.events.progress()
    }
}
