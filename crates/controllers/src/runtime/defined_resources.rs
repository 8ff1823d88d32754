//! Custom resources and their feeds. A feed runs from the first definition of its resource until the last is gone.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, MutexGuard},
};

use portolan_kinds::custom;
use portolan_store::{ChangeKind, DynStore, Event};
use portolan_types::{GroupResource, LogicalClusterId, ObjectKey, ResourceVersion, apis};
use tokio::{
    sync::{Notify, watch},
    task::JoinSet,
};

use super::{
    feed::{EventSink, FeedEnd, feed},
    loops::TaskWrapper,
};

/// Definitions by resource, as they are observed.
#[derive(Default)]
pub(super) struct DefinedResources {
    state: Mutex<DefinedState>,
    more: Notify,
}

#[derive(Default)]
struct DefinedState {
    /// Logical clusters that define a resource, each with the last list that showed it.
    by: HashMap<GroupResource, HashMap<LogicalClusterId, u32>>,
    listing: u32,
    /// Changes of resources since the last call of `next`.
    changed: BTreeMap<GroupResource, FeedEnd>,
}

impl DefinedResources {
    pub(super) fn resource() -> GroupResource {
        GroupResource::new(custom::GROUP, custom::RESOURCE)
    }

    /// Waits for resources that are newly defined, or whose last definition is gone as of a revision.
    async fn next(&self) -> BTreeMap<GroupResource, FeedEnd> {
        self.more.notified().await;
        std::mem::take(&mut self.lock().changed)
    }

    fn define(&self, resource: GroupResource, cluster: LogicalClusterId) {
        let listing = self.lock().listing;
        self.define_from(resource, cluster, listing);
    }

    fn define_from(&self, resource: GroupResource, cluster: LogicalClusterId, listing: u32) {
        let mut state = self.lock();
        let is_new = !state.by.contains_key(&resource);
        let by = state.by.entry(resource.clone()).or_default();
        by.insert(cluster, listing);
        if is_new || (by.len() == 1 && listing != FOREVER) {
            state.changed.insert(resource, None);
            self.more.notify_one();
        }
    }

    fn is_defined(&self, resource: &GroupResource) -> bool {
        self.lock().by.contains_key(resource)
    }

    fn lock(&self) -> MutexGuard<'_, DefinedState> {
        self.state.lock().expect("no code panics under this lock")
    }
}

impl EventSink for DefinedResources {
    fn name(&self) -> &'static str {
        "defined-resources"
    }

    fn handle_event(&self, event: &Event) {
        let Some(resource) = custom::instances_named(event.key.name.as_str()) else { return };
        let mut state = self.lock();
        let cluster = event.key.cluster;
        let change = match event.change {
            ChangeKind::Created | ChangeKind::Updated => {
                drop(state);
                return self.define(resource, cluster);
            }
            ChangeKind::Deleted => {
                let is_last =
                    state.by.get_mut(&resource).is_some_and(|by| by.remove(&cluster).is_some() && by.is_empty());
                is_last.then(|| {
                    state.by.remove(&resource);
                    Some(event.revision)
                })
            }
        };
        if let Some(upto) = change {
            state.changed.insert(resource, upto);
            self.more.notify_one();
        }
    }

    /// The name of a definition names its resource.
    fn unreadable(&self, key: &ObjectKey) {
        if let Some(resource) = custom::instances_named(key.name.as_str()) {
            self.define(resource, key.cluster);
        }
    }

    fn listing(&self, _: &GroupResource) {
        self.lock().listing += 1;
    }

    fn listed(&self, _: &GroupResource, at: ResourceVersion) {
        let mut state = self.lock();
        let DefinedState { by, listing, changed } = &mut *state;
        by.retain(|resource, by| {
            // It was deleted while no watch ran.
            by.retain(|_, seen| seen == listing || *seen == FOREVER);
            if by.is_empty() {
                changed.insert(resource.clone(), Some(at));
            }
            !by.is_empty()
        });
        self.more.notify_one();
    }
}

/// List of an entry that no list removes.
const FOREVER: u32 = u32::MAX;

/// Records of the schemas that bindings serve. They stay, so a feed of their resource does not end.
pub(super) struct BoundSchemas(Arc<DefinedResources>);

impl EventSink for BoundSchemas {
    fn name(&self) -> &'static str {
        "bound-schemas"
    }

    fn handle_event(&self, event: &Event) {
        self.unreadable(&event.key);
    }

    fn unreadable(&self, key: &ObjectKey) {
        let resource = apis::resource_of_bound_schema(key.name.as_str());
        if let Some(resource) = resource.filter(|resource| !custom::is_builtin_resource(resource)) {
            // No definition is in this logical cluster.
            self.0.define_from(resource, LogicalClusterId::SYSTEM, FOREVER);
        }
    }
}

/// Feeds of all resources, built-in and custom ones, for the controllers that follow them.
pub(super) struct ResourceFeeds {
    store: DynStore,
    defined: Arc<DefinedResources>,
    /// Controllers that follow every custom resource.
    interested: Vec<Arc<dyn EventSink>>,
    /// End of each feed of a custom resource.
    ends: HashMap<GroupResource, watch::Sender<FeedEnd>>,
    tasks: JoinSet<GroupResource>,
    /// Feeds of built-in resources never end.
    never: watch::Sender<FeedEnd>,
    wrapper: TaskWrapper,
}

impl ResourceFeeds {
    /// Starts the feeds of built-in resources; custom ones are for the sinks in `interested`.
    pub(super) fn new(
        store: DynStore,
        mut builtin: BTreeMap<GroupResource, Vec<Arc<dyn EventSink>>>,
        interested: Vec<Arc<dyn EventSink>>,
        wrapper: TaskWrapper,
    ) -> Self {
        let (defined, never) = (Arc::new(DefinedResources::default()), watch::Sender::new(None));
        if !interested.is_empty() {
            builtin.entry(DefinedResources::resource()).or_default().push(defined.clone());
            builtin.entry(apis::bound_schemas()).or_default().push(Arc::new(BoundSchemas(defined.clone())));
        }
        let mut feeds =
            Self { store, defined, interested, ends: HashMap::new(), tasks: JoinSet::new(), never, wrapper };
        for (resource, fed) in builtin {
            feeds.run(resource, fed, feeds.never.subscribe());
        }
        feeds
    }

    fn run(&mut self, resource: GroupResource, fed: Vec<Arc<dyn EventSink>>, upto: watch::Receiver<FeedEnd>) {
        let feeding = (self.wrapper)(Box::pin(feed(self.store.clone(), resource.clone(), fed, upto)));
        self.tasks.spawn(async move {
            feeding.await;
            resource
        });
    }

    /// Starts and ends feeds as definitions come and go, forever.
    pub(super) async fn keep(&mut self) {
        loop {
            self.step().await;
        }
    }

    async fn step(&mut self) {
        tokio::select! {
            changed = self.defined.next() => {
                for (resource, upto) in changed {
                    self.settle(resource, upto);
                }
            }
            Some(ended) = self.tasks.join_next() => match ended {
                Ok(resource) => {
                    self.ends.remove(&resource);
                    // It may have been defined again after the feed reached its end.
                    if self.defined.is_defined(&resource) {
                        self.settle(resource, None);
                    }
                }
                Err(error) => if let Ok(panic) = error.try_into_panic() {
                    std::panic::resume_unwind(panic);
                },
            }
        }
    }

    fn settle(&mut self, resource: GroupResource, upto: FeedEnd) {
        match (self.ends.get(&resource), upto) {
            (Some(end), upto) => drop(end.send_replace(upto)),
            (None, Some(_)) => {}
            (None, None) => {
                let end = watch::Sender::new(None);
                self.run(resource.clone(), self.interested.clone(), end.subscribe());
                self.ends.insert(resource, end);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::HashSet, time::Duration};

    use portolan_store::{Expect, Transaction};
    use portolan_types::{ObjectKey, Record};
    use serde_json::json;

    use super::*;

    /// Sink that records the names that it was shown.
    #[derive(Default)]
    struct RecordingSink(Mutex<Vec<(ChangeKind, String)>>);

    impl EventSink for RecordingSink {
        fn name(&self) -> &'static str {
            "seen"
        }

        fn handle_event(&self, event: &Event) {
            self.0.lock().unwrap().push((event.change, event.key.name.to_string()));
        }
    }

    struct FeedFixture {
        store: DynStore,
        seen: Arc<RecordingSink>,
        feeds: ResourceFeeds,
    }

    impl FeedFixture {
        fn new() -> Self {
            let (store, seen) = (portolan_store::memory(), Arc::new(RecordingSink::default()));
            Self {
                feeds: ResourceFeeds::new(store.clone(), BTreeMap::new(), vec![seen.clone()], Arc::new(|task| task)),
                store,
                seen,
            }
        }

        async fn write(&self, cluster: u64, resource: GroupResource, name: &str, is_there: bool) {
            let key = ObjectKey::cluster_scoped(LogicalClusterId::new(cluster), resource, name.parse().unwrap());
            let record = is_there.then(|| Record::of(&json!({"metadata": {"name": name}})));
            self.store.commit(Transaction::one(key, Expect::Anything, record)).await.unwrap();
        }

        async fn define(&self, cluster: u64, plural: &str, is_there: bool) {
            self.write(cluster, DefinedResources::resource(), &format!("{plural}.example.dev"), is_there).await;
        }

        async fn until(&mut self, what: &str, test: impl Fn(&Self) -> bool) {
            let waiting = async {
                while !test(self) {
                    let _ = tokio::time::timeout(Duration::from_millis(20), self.feeds.step()).await;
                }
            };
            tokio::time::timeout(Duration::from_secs(60), waiting).await.unwrap_or_else(|_| panic!("{what}"));
        }

        fn has_seen(&self, change: ChangeKind, name: &str) -> bool {
            self.seen.0.lock().unwrap().contains(&(change, name.to_owned()))
        }
    }

    #[tokio::test]
    async fn a_feed_ends_with_the_last_definition_and_what_happened_before() {
        let widgets = || GroupResource::new("example.dev", "widgets");
        let mut f = FeedFixture::new();
        f.define(1, "widgets", true).await;
        f.define(2, "widgets", true).await;
        f.until("the resource is followed", |f| f.feeds.ends.contains_key(&widgets())).await;
        f.define(1, "widgets", false).await;
        f.write(2, widgets(), "one", true).await;
        f.until("another logical cluster defines it", |f| f.has_seen(ChangeKind::Created, "one")).await;
        f.write(2, widgets(), "one", false).await;
        f.define(2, "widgets", false).await;
        f.until("no logical cluster defines it", |f| f.feeds.ends.is_empty()).await;
        assert!(f.has_seen(ChangeKind::Deleted, "one"), "what happened before the end was seen");
        assert_eq!(f.feeds.tasks.len(), 2, "only definitions and bound schemas are followed");
        f.write(3, widgets(), "two", true).await;
        f.define(3, "widgets", true).await;
        f.until("it is defined again", |f| f.has_seen(ChangeKind::Created, "two")).await;
    }

    #[tokio::test]
    async fn definitions_that_come_and_go_leave_nothing_behind() {
        let mut f = FeedFixture::new();
        for n in 0..200 {
            f.define(1, &format!("widgets{n}"), true).await;
            f.define(1, &format!("widgets{n}"), false).await;
        }
        f.define(1, "last", true).await;
        let followed = |f: &FeedFixture| f.feeds.ends.keys().map(ToString::to_string).collect::<HashSet<_>>();
        f.until("only what is defined is followed", |f| followed(f) == HashSet::from(["last.example.dev".to_owned()]))
            .await;
        assert_eq!(f.feeds.defined.lock().by.len(), 1);
    }

    #[test]
    fn a_definition_deleted_while_unwatched_is_gone() {
        let defined = DefinedResources::default();
        let event = |name: &str| Event {
            revision: ResourceVersion::FIRST,
            change: ChangeKind::Created,
            key: ObjectKey::cluster_scoped(LogicalClusterId::ROOT, DefinedResources::resource(), name.parse().unwrap()),
            record: Arc::new(Record::of(&json!({}))),
            previous: None,
        };
        defined.listing(&DefinedResources::resource());
        ["a.example.dev", "b.example.dev"].iter().for_each(|name| defined.handle_event(&event(name)));
        defined.listed(&DefinedResources::resource(), ResourceVersion::FIRST);
        defined.listing(&DefinedResources::resource());
        defined.handle_event(&event("b.example.dev"));
        defined.listed(&DefinedResources::resource(), ResourceVersion::FIRST);
        let state = defined.lock();
        let changed: Vec<_> =
            state.changed.iter().map(|(resource, upto)| (&*resource.resource, upto.is_some())).collect();
        assert_eq!(changed, [("a", true), ("b", false)]);
    }
}
