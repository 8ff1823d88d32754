//! The resources that logical clusters define, and their feeds: each runs from its first definition until its last is gone.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, MutexGuard},
};

use portolan_machinery::custom;
use portolan_store::{Change, DynStore, Event};
use portolan_types::{GroupResource, LogicalClusterId, ObjectKey, ResourceVersion};
use tokio::{
    sync::{Notify, watch},
    task::JoinSet,
};

use super::{
    feed::{Fed, Upto, feed},
    run::TaskWrapper,
};

/// Who defines what, as definitions are seen.
#[derive(Default)]
pub(super) struct Defined {
    state: Mutex<State>,
    more: Notify,
}

#[derive(Default)]
struct State {
    /// The logical clusters that define a resource, each with the listing that has shown it last.
    by: HashMap<GroupResource, HashMap<LogicalClusterId, u32>>,
    listing: u32,
    /// What has become of resources since it was asked last.
    changed: BTreeMap<GroupResource, Upto>,
}

impl Defined {
    pub(super) fn resource() -> GroupResource {
        GroupResource::new(custom::GROUP, custom::RESOURCE)
    }

    /// Waits for resources that have been defined for the first time, or whose last definition is gone as of a revision.
    async fn next(&self) -> BTreeMap<GroupResource, Upto> {
        self.more.notified().await;
        std::mem::take(&mut self.lock().changed)
    }

    fn define(&self, resource: GroupResource, cluster: LogicalClusterId) {
        let mut state = self.lock();
        let listing = state.listing;
        let by = state.by.entry(resource.clone()).or_default();
        by.insert(cluster, listing);
        if by.len() == 1 {
            state.changed.insert(resource, None);
            self.more.notify_one();
        }
    }

    fn is_defined(&self, resource: &GroupResource) -> bool {
        self.lock().by.contains_key(resource)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no code panics under this lock")
    }
}

impl Fed for Defined {
    fn name(&self) -> &'static str {
        "defined-resources"
    }

    fn take_in(&self, event: &Event) {
        let Some(resource) = custom::instances_named(event.key.name.as_str()) else { return };
        let mut state = self.lock();
        let cluster = event.key.cluster;
        let change = match event.change {
            Change::Created | Change::Updated => {
                drop(state);
                return self.define(resource, cluster);
            }
            Change::Deleted => {
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

    /// A definition says by its name what it defines.
    fn unreadable(&self, key: &ObjectKey) {
        if let Some(resource) = custom::instances_named(key.name.as_str()) {
            self.define(resource, key.cluster);
        }
    }

    fn listing(&self) {
        self.lock().listing += 1;
    }

    fn listed(&self, at: ResourceVersion) {
        let mut state = self.lock();
        let State { by, listing, changed } = &mut *state;
        by.retain(|resource, by| {
            // Its deletion happened while nobody watched.
            by.retain(|_, seen| seen == listing);
            if by.is_empty() {
                changed.insert(resource.clone(), Some(at));
            }
            !by.is_empty()
        });
        self.more.notify_one();
    }
}

/// The feeds of all resources, built-in ones and defined ones, for the loops that are about each.
pub(super) struct Feeds {
    store: DynStore,
    defined: Arc<Defined>,
    /// Loops that are about every defined resource.
    interested: Vec<Arc<dyn Fed>>,
    /// Where each feed of a defined resource ends.
    ends: HashMap<GroupResource, watch::Sender<Upto>>,
    tasks: JoinSet<GroupResource>,
    /// Those of built-in resources never end.
    never: watch::Sender<Upto>,
    wrapper: TaskWrapper,
}

impl Feeds {
    /// Of these built-in resources, and of every defined resource for those that are `interested`.
    pub(super) fn new(
        store: DynStore,
        mut builtin: BTreeMap<GroupResource, Vec<Arc<dyn Fed>>>,
        interested: Vec<Arc<dyn Fed>>,
        wrapper: TaskWrapper,
    ) -> Self {
        let (defined, never) = (Arc::new(Defined::default()), watch::Sender::new(None));
        if !interested.is_empty() {
            builtin.entry(Defined::resource()).or_default().push(defined.clone());
        }
        let mut feeds =
            Self { store, defined, interested, ends: HashMap::new(), tasks: JoinSet::new(), never, wrapper };
        for (resource, fed) in builtin {
            feeds.run(resource, fed, feeds.never.subscribe());
        }
        feeds
    }

    fn run(&mut self, resource: GroupResource, fed: Vec<Arc<dyn Fed>>, upto: watch::Receiver<Upto>) {
        let feeding = (self.wrapper)(Box::pin(feed(self.store.clone(), resource.clone(), fed, upto)));
        self.tasks.spawn(async move {
            feeding.await;
            resource
        });
    }

    /// Begins and ends feeds as definitions come and go, for ever.
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
                    // It may have been defined again when the end was reached already.
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

    fn settle(&mut self, resource: GroupResource, upto: Upto) {
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

    /// Names of all that it was shown.
    #[derive(Default)]
    struct Seen(Mutex<Vec<(Change, String)>>);

    impl Fed for Seen {
        fn name(&self) -> &'static str {
            "seen"
        }

        fn take_in(&self, event: &Event) {
            self.0.lock().unwrap().push((event.change, event.key.name.to_string()));
        }
    }

    struct Fixture {
        store: DynStore,
        seen: Arc<Seen>,
        feeds: Feeds,
    }

    impl Fixture {
        fn new() -> Self {
            let (store, seen) = (portolan_store::memory(), Arc::new(Seen::default()));
            Self {
                feeds: Feeds::new(store.clone(), BTreeMap::new(), vec![seen.clone()], Arc::new(|task| task)),
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
            self.write(cluster, Defined::resource(), &format!("{plural}.example.dev"), is_there).await;
        }

        async fn until(&mut self, what: &str, test: impl Fn(&Self) -> bool) {
            let waiting = async {
                while !test(self) {
                    let _ = tokio::time::timeout(Duration::from_millis(20), self.feeds.step()).await;
                }
            };
            tokio::time::timeout(Duration::from_secs(60), waiting).await.unwrap_or_else(|_| panic!("{what}"));
        }

        fn has_seen(&self, change: Change, name: &str) -> bool {
            self.seen.0.lock().unwrap().contains(&(change, name.to_owned()))
        }
    }

    #[tokio::test]
    async fn a_feed_ends_with_the_last_definition_and_what_happened_before() {
        let widgets = || GroupResource::new("example.dev", "widgets");
        let mut f = Fixture::new();
        f.define(1, "widgets", true).await;
        f.define(2, "widgets", true).await;
        f.until("the resource is followed", |f| f.feeds.ends.contains_key(&widgets())).await;
        f.define(1, "widgets", false).await;
        f.write(2, widgets(), "one", true).await;
        f.until("another logical cluster defines it", |f| f.has_seen(Change::Created, "one")).await;
        f.write(2, widgets(), "one", false).await;
        f.define(2, "widgets", false).await;
        f.until("nobody defines it", |f| f.feeds.ends.is_empty()).await;
        assert!(f.has_seen(Change::Deleted, "one"), "what happened before the end was seen");
        assert_eq!(f.feeds.tasks.len(), 1, "only definitions are followed");
        f.write(3, widgets(), "two", true).await;
        f.define(3, "widgets", true).await;
        f.until("it is defined again", |f| f.has_seen(Change::Created, "two")).await;
    }

    #[tokio::test]
    async fn definitions_that_come_and_go_leave_nothing_behind() {
        let mut f = Fixture::new();
        for n in 0..200 {
            f.define(1, &format!("widgets{n}"), true).await;
            f.define(1, &format!("widgets{n}"), false).await;
        }
        f.define(1, "last", true).await;
        let followed = |f: &Fixture| f.feeds.ends.keys().map(ToString::to_string).collect::<HashSet<_>>();
        f.until("only what is defined is followed", |f| followed(f) == HashSet::from(["last.example.dev".to_owned()]))
            .await;
        assert_eq!(f.feeds.defined.lock().by.len(), 1);
    }

    #[test]
    fn what_was_deleted_while_nobody_watched_is_not_defined() {
        let defined = Defined::default();
        let event = |name: &str| Event {
            revision: ResourceVersion::FIRST,
            change: Change::Created,
            key: ObjectKey::cluster_scoped(LogicalClusterId::ROOT, Defined::resource(), name.parse().unwrap()),
            record: Arc::new(Record::of(&json!({}))),
            previous: None,
        };
        defined.listing();
        ["a.example.dev", "b.example.dev"].iter().for_each(|name| defined.take_in(&event(name)));
        defined.listed(ResourceVersion::FIRST);
        defined.listing();
        defined.take_in(&event("b.example.dev"));
        defined.listed(ResourceVersion::FIRST);
        let state = defined.lock();
        let changed: Vec<_> =
            state.changed.iter().map(|(resource, upto)| (&*resource.resource, upto.is_some())).collect();
        assert_eq!(changed, [("a", true), ("b", false)]);
    }
}
