//! Watches of resources that are computed from physical clusters.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use portolan_store::{
    ChangeKind, DynStore, Event, EventBatch, EventStream, RangeRequest, RangeScope, StoreError, StoredObject,
};
use portolan_types::{BoxFuture, ObjectKey, ObjectName, Record, ResourceVersion};

use super::{ClusterReach, physical_clusters};

/// Events of all physical clusters, as a logical cluster sees them.
pub(crate) struct ReachEvents {
    events: Box<dyn EventStream>,
    reach: ClusterReach,
    store: DynStore,
    /// Levels of the lineage that register a physical cluster of a name: the nearest one hides the others.
    homes: HashMap<ObjectName, BTreeSet<usize>>,
}

impl ReachEvents {
    /// Wraps the events of physical clusters in all logical clusters.
    ///
    /// # Errors
    /// Failure of the store.
    pub(crate) async fn open(
        events: Box<dyn EventStream>,
        reach: ClusterReach,
        store: DynStore,
    ) -> Result<Self, StoreError> {
        let mut homes = HashMap::<ObjectName, BTreeSet<usize>>::new();
        for ancestor in &reach.lineage {
            let scope = RangeScope::Cluster(ancestor.cluster.id, physical_clusters());
            let mut next = Some(RangeRequest::slices(scope).skip_damaged());
            while let Some(request) = next {
                let page = store.range(request.clone()).await?;
                next = request.next(&page);
                for key in page.objects.into_iter().map(|stored| stored.key) {
                    if let Some(place) = reach.place(&key) {
                        homes.entry(key.name).or_default().insert(place);
                    }
                }
            }
        }
        Ok(Self { events, reach, store, homes })
    }

    /// Returns an event as shown; `None` if the physical cluster is out of reach or hidden by a nearer one.
    async fn visible_event(&mut self, event: &Arc<Event>) -> Result<Option<Arc<Event>>, StoreError> {
        let Some(place) = self.reach.place(&event.key) else { return Ok(None) };
        let homes = self.homes.entry(event.key.name.clone()).or_default();
        if event.change == ChangeKind::Deleted {
            homes.remove(&place);
        } else {
            homes.insert(place);
        }
        let nearest = homes.first().copied();
        if homes.is_empty() {
            self.homes.remove(&event.key.name);
        }
        match nearest {
            Some(nearest) if nearest < place => Ok(None),
            Some(farther) if nearest != Some(place) => self.uncovered(event, farther).await,
            _ => Ok(self.reach.event(event)),
        }
    }

    /// Returns the event that shows the physical cluster which the deleted one has hidden.
    async fn uncovered(&mut self, event: &Arc<Event>, place: usize) -> Result<Option<Arc<Event>>, StoreError> {
        let deleted = self.reach.event(event);
        let home = self.reach.lineage.get(place).map(|ancestor| ancestor.cluster.id);
        let key = home.map(|cluster| ObjectKey { cluster, ..event.key.clone() });
        let Some(key) = key else { return Ok(deleted) };
        let Some(stored) = self.store.get(&key).await? else { return Ok(deleted) };
        let shown = self.reach.visible_object(&stored).ok().flatten();
        let (Some(shown), Some(deleted)) = (shown, deleted) else { return Ok(None) };
        Ok(Some(Arc::new(Event {
            key: shown.key,
            change: ChangeKind::Updated,
            record: shown.record,
            previous: Some(deleted.record.clone()),
            ..Event::clone(event)
        })))
    }
}

impl EventStream for ReachEvents {
    fn next(&mut self) -> BoxFuture<'_, Result<EventBatch, StoreError>> {
        Box::pin(async move {
            let batch = self.events.next().await?;
            let mut events = Vec::new();
            for event in &batch.events {
                events.extend(self.visible_event(event).await?);
            }
            Ok(EventBatch { events, revision: batch.revision })
        })
    }

    fn progress(&self) -> ResourceVersion {
        self.events.progress()
    }
}

impl ClusterReach {
    /// Returns the level in the lineage of a physical cluster in reach.
    fn place(&self, key: &ObjectKey) -> Option<usize> {
        self.home(key)?;
        self.lineage.iter().position(|ancestor| ancestor.cluster.id == key.cluster)
    }

    /// Returns an event as shown; `None` if the physical cluster is out of reach.
    pub(super) fn event(&self, event: &Arc<Event>) -> Option<Arc<Event>> {
        self.home(&event.key)?;
        if self.is_shown_as_stored(&event.key) {
            return Some(event.clone());
        }
        let shown = |record: &Arc<Record>| {
            let stored = StoredObject {
                key: event.key.clone(),
                revision: event.revision,
                created: event.revision,
                record: record.clone(),
            };
            // An object that is not JSON is skipped; a list reports it.
            self.visible_object(&stored).ok().flatten().map(|shown| shown.record)
        };
        Some(Arc::new(Event {
            key: self.key(&event.key),
            record: shown(&event.record)?,
            previous: event.previous.as_ref().and_then(shown),
            ..Event::clone(event)
        }))
    }
}
