//! Events of what is computed from physical clusters.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use portolan_store::{
    Change, DynStore, Event, EventBatch, EventStream, RangeRequest, RangeScope, StoreError, StoredObject,
};
use portolan_types::{BoxFuture, ObjectKey, ObjectName, Record, ResourceVersion};

use super::{Reach, physical_clusters};

/// The events of all physical clusters, as a logical cluster sees them. Who may use which one is as it was when the watch began.
pub(crate) struct ReachEvents {
    events: Box<dyn EventStream>,
    reach: Reach,
    store: DynStore,
    /// Places in the lineage where a physical cluster of a name is registered: the nearest one hides the others.
    homes: HashMap<ObjectName, BTreeSet<usize>>,
}

impl ReachEvents {
    /// Starts over the events of physical clusters in all logical clusters.
    ///
    /// # Errors
    /// Failures of the store.
    pub(crate) async fn open(events: Box<dyn EventStream>, reach: Reach, store: DynStore) -> Result<Self, StoreError> {
        let mut homes = HashMap::<ObjectName, BTreeSet<usize>>::new();
        for ancestor in &reach.lineage {
            let scope = RangeScope::Cluster(ancestor.cluster.id, physical_clusters());
            let mut next = Some(RangeRequest::slices(scope).past_damage());
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

    /// Returns an event as it is shown; `None` where the physical cluster is out of reach, or a nearer one has its name.
    async fn shown(&mut self, event: &Arc<Event>) -> Result<Option<Arc<Event>>, StoreError> {
        let Some(place) = self.reach.place(&event.key) else { return Ok(None) };
        let homes = self.homes.entry(event.key.name.clone()).or_default();
        if event.change == Change::Deleted {
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

    /// Returns the event by which a physical cluster is shown that the deleted one has hidden.
    async fn uncovered(&mut self, event: &Arc<Event>, place: usize) -> Result<Option<Arc<Event>>, StoreError> {
        let deleted = self.reach.event(event);
        let home = self.reach.lineage.get(place).map(|ancestor| ancestor.cluster.id);
        let key = home.map(|cluster| ObjectKey { cluster, ..event.key.clone() });
        let Some(key) = key else { return Ok(deleted) };
        let Some(stored) = self.store.get(&key).await? else { return Ok(deleted) };
        let shown = self.reach.shown(&stored).ok().flatten();
        let (Some(shown), Some(deleted)) = (shown, deleted) else { return Ok(None) };
        Ok(Some(Arc::new(Event {
            key: shown.key,
            change: Change::Updated,
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
                events.extend(self.shown(event).await?);
            }
            Ok(EventBatch { events, revision: batch.revision })
        })
    }

    fn progress(&self) -> ResourceVersion {
        self.events.progress()
    }
}

impl Reach {
    /// Returns the place in the lineage of a physical cluster within reach.
    fn place(&self, key: &ObjectKey) -> Option<usize> {
        self.home(key)?;
        self.lineage.iter().position(|ancestor| ancestor.cluster.id == key.cluster)
    }

    /// An event as it is shown; `None` where the physical cluster is out of reach.
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
            // One that is no JSON is shown to nobody; a list tells of it.
            self.shown(&stored).ok().flatten().map(|shown| shown.record)
        };
        Some(Arc::new(Event {
            key: self.key(&event.key),
            record: shown(&event.record)?,
            previous: event.previous.as_ref().and_then(shown),
            ..Event::clone(event)
        }))
    }
}
