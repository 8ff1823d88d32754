//! Events of a view, in the order of the store. Bindings are followed beside the objects, so that consent is known at
//! each event: a new logical cluster joins the watch, and one that leaves ends it.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use portolan_store::{
    ChangeKind, DynStore, Event, EventBatch, EventStream, RangeRequest, RangeScope, StoreError, StoredObject,
    WatchScope,
};
use portolan_types::{BoxFuture, GroupResource, LogicalClusterId, ObjectName, ResourceVersion, apis};

use super::{
    consent::{Answer, Grant, consent_of},
    view::ApiView,
};

/// Interval at which the watch of bindings is checked, while it is behind that of the objects.
const CATCH_UP: Duration = Duration::from_millis(1);

/// Resource that is watched: as it is asked for, and as it is stored.
#[derive(Clone)]
pub(crate) struct WatchedResource {
    pub(crate) asked: GroupResource,
    pub(crate) stored: GroupResource,
}

/// Logical cluster of a watch.
struct Member {
    grant: Grant,
    /// Events up to this revision were sent when it joined.
    since: ResourceVersion,
}

/// Events of the objects of a view.
pub(crate) struct ViewEvents {
    objects: Box<dyn EventStream>,
    bindings: Box<dyn EventStream>,
    view: Arc<ApiView>,
    store: DynStore,
    resource: WatchedResource,
    /// Logical clusters with the bindings that consent.
    members: BTreeMap<LogicalClusterId, BTreeMap<ObjectName, Member>>,
    /// Changes of bindings that are still to be applied.
    changes: VecDeque<Arc<Event>>,
    /// Objects of logical clusters that have joined.
    joined: Vec<Arc<Event>>,
    /// Changes of objects that wait for those of bindings before them.
    batch: Option<EventBatch>,
    /// Revision up to which all events have been delivered.
    delivered: ResourceVersion,
}

impl ViewEvents {
    /// Opens the events after a revision.
    ///
    /// # Errors
    /// Failure of the store; `Compacted` for a compacted revision.
    pub(crate) async fn open(
        store: &DynStore,
        view: Arc<ApiView>,
        resource: WatchedResource,
        after: ResourceVersion,
    ) -> Result<Self, StoreError> {
        let (_, consents) = view.consents(store, Some(after)).await?;
        let mut members = BTreeMap::<_, BTreeMap<_, _>>::new();
        for (key, consent) in consents {
            if let Answer::Granted(grant) = consent.grant(&resource.asked, "watch") {
                let member = Member { grant, since: ResourceVersion::FIRST };
                members.entry(key.cluster).or_default().insert(key.name, member);
            }
        }
        let scope = WatchScope::Resource(resource.stored.clone(), view.target);
        let objects = store.watch(scope, Some(after)).await?;
        let scope = WatchScope::Resource(apis::resource(apis::BINDINGS), view.target);
        let bindings = store.watch(scope, Some(after)).await?;
        let store = store.clone();
        let (changes, joined) = (VecDeque::new(), Vec::new());
        Ok(Self { objects, bindings, view, store, resource, members, changes, joined, batch: None, delivered: after })
    }

    /// Applies the change of a binding.
    ///
    /// # Errors
    /// `Compacted` when a logical cluster leaves, or shows another part of its objects: what a client has seen it must
    /// forget, so it lists again.
    async fn apply(&mut self, event: &Event) -> Result<(), StoreError> {
        let now = if event.change == ChangeKind::Deleted {
            None
        } else {
            consent_of(&event.key, &event.record, &self.view.export)
        };
        let answer = now.map(|(_, consent)| consent.grant(&self.resource.asked, "watch"));
        let grant = match answer {
            Some(Answer::Granted(grant)) => Some(grant),
            _ => None,
        };
        let known = self.members.get(&event.key.cluster).and_then(|own| own.get(&event.key.name));
        match (known, grant) {
            (Some(member), Some(grant)) if member.grant == grant => Ok(()),
            // The binding itself is an object of this watch, and its deletion an event.
            (Some(_), None) if self.shows_bindings() => Ok(()),
            (Some(_), _) => Err(StoreError::Compacted { asked: event.revision, oldest: event.revision }),
            (None, None) => Ok(()),
            (None, Some(grant)) => self.join(event, grant).await,
        }
    }

    fn shows_bindings(&self) -> bool {
        self.resource.asked == apis::resource(apis::BINDINGS)
    }

    /// Adds a logical cluster, with the objects that it has already.
    async fn join(&mut self, event: &Event, grant: Grant) -> Result<(), StoreError> {
        let (since, mut found) = (event.revision, Vec::new());
        if !self.shows_bindings() {
            let scope = RangeScope::Cluster(event.key.cluster, self.resource.stored.clone());
            let mut next = Some(RangeRequest { at: Some(since), ..RangeRequest::slices(scope).skip_damaged() });
            while let Some(request) = next {
                let page = self.store.range(request.clone()).await?;
                next = request.next(&page);
                let seen = page.objects.into_iter().filter(|own| grant.admits(&own.record, &self.view.export));
                found.extend(seen.map(created));
            }
        }
        self.joined.extend(found);
        let bindings = self.members.entry(event.key.cluster).or_default();
        bindings.insert(event.key.name.clone(), Member { grant, since });
        Ok(())
    }

    fn grant_in(&self, cluster: LogicalClusterId, revision: ResourceVersion) -> Option<&Grant> {
        let mut own = self.members.get(&cluster)?.values();
        own.find(|member| revision > member.since).map(|member| &member.grant)
    }

    /// Returns an event as the view shows it; `None` if it is out of the view.
    fn shown(&self, event: &Arc<Event>) -> Option<Arc<Event>> {
        let own = Grant::OwnBindings;
        let grant = if self.shows_bindings() { &own } else { self.grant_in(event.key.cluster, event.revision)? };
        let export = &self.view.export;
        let now = grant.admits(&event.record, export);
        let before = event.previous.as_ref().map(|previous| grant.admits(previous, export));
        match (event.change, before, now) {
            (ChangeKind::Updated, Some(false), true) => {
                Some(Arc::new(Event { change: ChangeKind::Created, previous: None, ..Event::clone(event) }))
            }
            (ChangeKind::Updated, Some(true), false) => Some(Arc::new(Event {
                change: ChangeKind::Deleted,
                record: event.previous.clone()?,
                previous: None,
                ..Event::clone(event)
            })),
            (_, _, true) => Some(event.clone()),
            (_, _, false) => None,
        }
    }
}

fn created(stored: StoredObject) -> Arc<Event> {
    Arc::new(Event {
        revision: stored.revision,
        change: ChangeKind::Created,
        key: stored.key,
        record: stored.record,
        previous: None,
    })
}

impl EventStream for ViewEvents {
    /// Waits for the next batch. Anything taken from a stream is kept in `self`: the caller may drop the future.
    fn next(&mut self) -> BoxFuture<'_, Result<EventBatch, StoreError>> {
        Box::pin(async move {
            loop {
                while let Some(event) = self.changes.front().cloned() {
                    self.apply(&event).await?;
                    self.changes.pop_front();
                }
                if !self.joined.is_empty() {
                    let events = self.joined.drain(..).collect();
                    return Ok(EventBatch { events, revision: self.delivered });
                }
                if self.batch.as_ref().is_some_and(|batch| self.bindings.progress() < batch.revision) {
                    if let Ok(batch) = tokio::time::timeout(CATCH_UP, self.bindings.next()).await {
                        self.changes.extend(batch?.events);
                    }
                    continue;
                }
                if let Some(batch) = self.batch.take() {
                    let events = batch.events.iter().filter_map(|event| self.shown(event)).collect();
                    self.delivered = batch.revision;
                    return Ok(EventBatch { events, revision: batch.revision });
                }
                tokio::select! {
                    biased;
                    batch = self.bindings.next() => self.changes.extend(batch?.events),
                    batch = self.objects.next() => self.batch = Some(batch?),
                }
            }
        })
    }

    fn progress(&self) -> ResourceVersion {
        if self.batch.is_some() || !self.changes.is_empty() || !self.joined.is_empty() {
            return self.delivered;
        }
        self.objects.progress().min(self.bindings.progress())
    }
}
