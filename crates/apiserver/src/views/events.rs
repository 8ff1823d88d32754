//! Events of a view, in the order of the store. Bindings are followed beside the objects, so that consent is known at
//! each event: a new logical cluster joins the watch, and one that leaves ends it.
//!
//! The objects of a logical cluster that joins come after all events up to its binding, and before all later ones. A
//! client that resumes at the revision of one of them therefore misses no event of another logical cluster. Until the
//! last of them, the watch reports a progress below the binding's revision: a client that resumes there sees the join
//! again.
//!
//! In a flattened view a logical cluster that leaves ends no watch: its objects come as deleted, in the same way.

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
    /// Revision at which it leaves, until its objects have been sent as deleted.
    until: Option<ResourceVersion>,
}

/// Logical cluster that joins a watch, or leaves that of a flattened view: the page of its objects that is read next.
struct Join {
    cluster: LogicalClusterId,
    /// Revision of the binding.
    since: ResourceVersion,
    grant: Grant,
    next: RangeRequest,
    /// `Created` if it joins, `Deleted` if it leaves.
    change: ChangeKind,
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
    /// Logical clusters that join, in the order of their bindings.
    joins: VecDeque<Join>,
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
                let member = Member { grant, since: ResourceVersion::FIRST, until: None };
                members.entry(key.cluster).or_default().insert(key.name, member);
            }
        }
        if let Some(names) = &view.flattened {
            members.remove(&names.own());
            let own = Member { grant: Grant::All, since: ResourceVersion::FIRST, until: None };
            let shown = (names.shows_own && view.target.is_none()).then(|| (names.own(), [(own_member(), own)].into()));
            members.extend(shown);
        }
        let scope = WatchScope::Resource(resource.stored.clone(), view.target);
        let objects = store.watch(scope, Some(after)).await?;
        let scope = WatchScope::Resource(apis::resource(apis::BINDINGS), view.target);
        let bindings = store.watch(scope, Some(after)).await?;
        let store = store.clone();
        let (changes, joins) = (VecDeque::new(), VecDeque::new());
        Ok(Self { objects, bindings, view, store, resource, members, changes, joins, batch: None, delivered: after })
    }

    /// Applies the change of a binding.
    ///
    /// # Errors
    /// `Compacted` when a logical cluster leaves, or shows another part of its objects: the client must forget objects
    /// that it has seen, so it lists again.
    fn apply(&mut self, event: &Event) -> Result<(), StoreError> {
        if self.view.flattened.as_ref().is_some_and(|names| names.own() == event.key.cluster) {
            return Ok(());
        }
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
            (Some(member), Some(grant)) if member.grant == grant && member.until.is_none() => Ok(()),
            // The binding itself is an object of this watch, and its deletion an event.
            (Some(_), None) if self.shows_bindings() => Ok(()),
            (Some(_), None) if self.view.flattened.is_some() => self.leave(event),
            (Some(_), _) => Err(StoreError::Compacted { asked: event.revision, oldest: event.revision }),
            (None, None) => Ok(()),
            (None, Some(_)) if self.has_unstored() => {
                Err(StoreError::Compacted { asked: event.revision, oldest: event.revision })
            }
            (None, Some(grant)) => {
                self.join(event, grant);
                Ok(())
            }
        }
    }

    /// Returns true for a resource of a flattened view with objects that logical clusters share: those have no events.
    fn has_unstored(&self) -> bool {
        self.view.shows_shared(&self.resource.stored) && self.view.flattened.is_some()
    }

    fn shows_bindings(&self) -> bool {
        self.resource.asked == apis::resource(apis::BINDINGS)
    }

    /// Removes a logical cluster of a flattened view, with the objects that it had until then: so an operator that
    /// serves many logical clusters loses one without a new list of all.
    ///
    /// # Errors
    /// `Compacted` if another binding of it consents to a part of the objects.
    fn leave(&mut self, event: &Event) -> Result<(), StoreError> {
        let compacted = || StoreError::Compacted { asked: event.revision, oldest: event.revision };
        let is_unstored = self.has_unstored();
        let mut bindings = self.members.get_mut(&event.key.cluster).into_iter().flat_map(BTreeMap::values_mut);
        let (Some(member), None) = (bindings.next(), bindings.next()) else { return Err(compacted()) };
        if member.until.is_some() || is_unstored {
            return Err(compacted());
        }
        member.until = Some(event.revision);
        let grant = member.grant.clone();
        let before = ResourceVersion::new(event.revision.get() - 1).ok_or_else(compacted)?;
        let scope = RangeScope::Cluster(event.key.cluster, self.resource.stored.clone());
        let next = RangeRequest { at: Some(before), ..RangeRequest::slices(scope).skip_damaged() };
        let (cluster, since) = (event.key.cluster, event.revision);
        self.joins.push_back(Join { cluster, since, grant, next, change: ChangeKind::Deleted });
        Ok(())
    }

    /// Adds a logical cluster, with the objects that it has already.
    fn join(&mut self, event: &Event, grant: Grant) {
        let since = event.revision;
        if !self.shows_bindings() {
            let scope = RangeScope::Cluster(event.key.cluster, self.resource.stored.clone());
            let next = RangeRequest { at: Some(since), ..RangeRequest::slices(scope).skip_damaged() };
            let (cluster, grant) = (event.key.cluster, grant.clone());
            self.joins.push_back(Join { cluster, since, grant, next, change: ChangeKind::Created });
        }
        let bindings = self.members.entry(event.key.cluster).or_default();
        bindings.insert(event.key.name.clone(), Member { grant, since, until: None });
    }

    /// Returns the next page of the logical cluster that joins or leaves first.
    ///
    /// # Errors
    /// Failure of the store; `Compacted` if its state at the binding is no longer kept.
    async fn next_joined(&mut self) -> Result<EventBatch, StoreError> {
        let Some(join) = self.joins.front_mut() else { return Ok(self.delivering(Vec::new())) };
        let page = self.store.range(join.next.clone()).await?;
        if join.change == ChangeKind::Deleted && !page.damaged.is_empty() {
            return Err(StoreError::Compacted { asked: join.since, oldest: join.since });
        }
        let rest = join.next.next(&page);
        let shown = page.objects.into_iter().filter(|own| join.grant.admits(&own.record, &self.view.export));
        let change = join.change;
        let events = shown.map(|stored| passed(stored, change)).collect();
        match rest {
            Some(rest) => join.next = rest,
            None => {
                self.delivered = self.delivered.max(join.since);
                if change == ChangeKind::Deleted {
                    self.members.remove(&join.cluster);
                }
                self.joins.pop_front();
            }
        }
        Ok(self.delivering(events))
    }

    /// Takes the events of objects up to a revision that are still to be delivered before a join at that revision.
    fn take_events_up_to(&mut self, since: ResourceVersion) -> Vec<Arc<Event>> {
        let Some(batch) = &mut self.batch else { return Vec::new() };
        let later = batch.events.partition_point(|event| event.revision <= since);
        let earlier: Vec<_> = batch.events.drain(..later).collect();
        earlier.iter().filter_map(|event| self.visible_event(event)).collect()
    }

    fn delivering(&self, events: Vec<Arc<Event>>) -> EventBatch {
        EventBatch { events, revision: self.delivered }
    }

    /// Returns true if the stream of objects has delivered all events up to a revision, or has them in the batch.
    fn has_events_up_to(&self, since: ResourceVersion) -> bool {
        match &self.batch {
            Some(batch) => batch.revision >= since,
            None => self.objects.progress() >= since,
        }
    }

    fn grant_in(&self, cluster: LogicalClusterId, revision: ResourceVersion) -> Option<&Grant> {
        let mut own = self.members.get(&cluster)?.values();
        let is_seen = |member: &&Member| revision > member.since && member.until.is_none_or(|until| revision <= until);
        own.find(is_seen).map(|member| &member.grant)
    }

    /// Returns an event as the view shows it; `None` if it is out of the view.
    fn visible_event(&self, event: &Arc<Event>) -> Option<Arc<Event>> {
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

/// Returns the name that stands for a binding of the export's logical cluster in a flattened view.
fn own_member() -> ObjectName {
    "!".parse().expect("it is a path segment")
}

/// Returns the event of an object whose logical cluster joins or leaves.
fn passed(stored: StoredObject, change: ChangeKind) -> Arc<Event> {
    Arc::new(Event { revision: stored.revision, change, key: stored.key, record: stored.record, previous: None })
}

impl EventStream for ViewEvents {
    /// Waits for the next batch. Cancel safe: events that were taken from a stream are kept in `self`.
    fn next(&mut self) -> BoxFuture<'_, Result<EventBatch, StoreError>> {
        Box::pin(async move {
            loop {
                while let Some(event) = self.changes.front().cloned() {
                    self.apply(&event)?;
                    self.changes.pop_front();
                }
                if let Some(since) = self.joins.front().map(|join| join.since) {
                    if self.has_events_up_to(since) {
                        let events = self.take_events_up_to(since);
                        return if events.is_empty() { self.next_joined().await } else { Ok(self.delivering(events)) };
                    }
                    if self.batch.is_none() {
                        if let Ok(batch) = tokio::time::timeout(CATCH_UP, self.objects.next()).await {
                            self.batch = Some(batch?);
                        }
                        continue;
                    }
                }
                if self.batch.as_ref().is_some_and(|batch| self.bindings.progress() < batch.revision) {
                    if let Ok(batch) = tokio::time::timeout(CATCH_UP, self.bindings.next()).await {
                        self.changes.extend(batch?.events);
                    }
                    continue;
                }
                if let Some(batch) = self.batch.take() {
                    let events = batch.events.iter().filter_map(|event| self.visible_event(event)).collect();
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
        if self.batch.is_some() || !self.changes.is_empty() || !self.joins.is_empty() {
            return self.delivered;
        }
        self.objects.progress().min(self.bindings.progress())
    }
}
