//! Feeds the queues of loops from the store, and works them off.

use std::{
    collections::{BTreeMap, HashSet},
    convert::Infallible,
    sync::{Arc, Mutex},
    time::Duration,
};

use portolan_machinery::custom;
use portolan_store::{Change, DynStore, Event, RangeRequest, RangeScope, StoreError, WatchScope, Worklist};
use portolan_types::{BoxFuture, GroupResource, ResourceVersion, work::Backoff};
use tokio::{sync::Notify, task::JoinSet};
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use super::Controller;
use crate::Plane;

/// Objects read per step of the first listing.
const PAGE: usize = 500;
/// Wait before a broken feed is set up again.
const FEED_RETRY: Duration = Duration::from_millis(200);

/// Loops over the objects of one plane. They share its watches: each resource is listed and watched once for all of them, so
/// that a write wakes one task however many loops there are.
pub struct Loops {
    plane: Arc<Plane>,
    loops: Vec<Arc<dyn Fed>>,
}

impl Loops {
    /// None yet.
    pub fn new(plane: Arc<Plane>) -> Self {
        Self { plane, loops: Vec::new() }
    }

    /// The plane that they are about.
    pub fn plane(&self) -> &Arc<Plane> {
        &self.plane
    }

    /// One more loop.
    #[must_use]
    pub fn with(mut self, controller: impl Controller) -> Self {
        let queue = Worklist::new(Backoff::default(), self.plane.seams());
        self.loops.push(Arc::new(Loop { controller, queue }));
        self
    }

    /// Runs them until `shutdown`. One that panicked ends all: half a loop would look like a whole one.
    pub async fn run(self, shutdown: CancellationToken) {
        let mut tasks = JoinSet::new();
        let defined = Arc::new(Defined::default());
        let mut by_resource = self.by_resource();
        by_resource.entry(Defined::resource()).or_default().push(defined.clone());
        let mut followed: HashSet<GroupResource> = by_resource.keys().cloned().collect();
        for (resource, fed) in by_resource {
            tasks.spawn(feed(self.plane.store().clone(), resource, fed));
        }
        for fed in &self.loops {
            (0..fed.workers()).for_each(|_| drop(tasks.spawn(fed.clone().work())));
        }
        let interested: Vec<_> = self.loops.iter().filter(|fed| fed.follows_defined()).cloned().collect();
        loop {
            tokio::select! {
                () = shutdown.cancelled() => break,
                new = defined.next() => {
                    for resource in new.into_iter().filter(|_| !interested.is_empty()) {
                        if followed.insert(resource.clone()) {
                            tasks.spawn(feed(self.plane.store().clone(), resource, interested.clone()));
                        }
                    }
                }
                Some(ended) = tasks.join_next() => {
                    if let Some(Ok(panic)) = ended.err().map(tokio::task::JoinError::try_into_panic) {
                        std::panic::resume_unwind(panic);
                    }
                }
            }
        }
        tasks.shutdown().await;
    }

    fn by_resource(&self) -> BTreeMap<GroupResource, Vec<Arc<dyn Fed>>> {
        let mut all: BTreeMap<_, Vec<Arc<dyn Fed>>> = BTreeMap::new();
        for fed in &self.loops {
            for resource in fed.resources() {
                all.entry(resource).or_default().push(fed.clone());
            }
        }
        all
    }
}

/// A loop, whatever its keys are.
trait Fed: Send + Sync {
    fn name(&self) -> &'static str;
    fn resources(&self) -> Vec<GroupResource>;
    fn follows_defined(&self) -> bool;
    fn workers(&self) -> usize;
    fn take_in(&self, event: &Event);
    fn work(self: Arc<Self>) -> BoxFuture<'static, ()>;
}

/// Resources that logical clusters define, as their definitions are seen. What was followed once is followed on: the same
/// resource may be defined elsewhere.
#[derive(Default)]
struct Defined {
    seen: Mutex<HashSet<GroupResource>>,
    more: Notify,
}

impl Defined {
    fn resource() -> GroupResource {
        GroupResource::new(custom::GROUP, custom::RESOURCE)
    }

    /// Waits for resources that have been seen since it was asked last.
    async fn next(&self) -> HashSet<GroupResource> {
        self.more.notified().await;
        std::mem::take(&mut *self.seen.lock().expect("no code panics under this lock"))
    }
}

impl Fed for Defined {
    fn name(&self) -> &'static str {
        "defined-resources"
    }

    fn resources(&self) -> Vec<GroupResource> {
        vec![Self::resource()]
    }

    fn follows_defined(&self) -> bool {
        false
    }

    fn workers(&self) -> usize {
        0
    }

    fn take_in(&self, event: &Event) {
        let Some(resource) = custom::resource_named(event.key.name.as_str()) else { return };
        self.seen.lock().expect("no code panics under this lock").insert(resource);
        self.more.notify_one();
    }

    fn work(self: Arc<Self>) -> BoxFuture<'static, ()> {
        Box::pin(std::future::ready(()))
    }
}

struct Loop<C: Controller> {
    controller: C,
    queue: Worklist<C::Key>,
}

impl<C: Controller> Fed for Loop<C> {
    fn name(&self) -> &'static str {
        self.controller.name()
    }

    fn resources(&self) -> Vec<GroupResource> {
        self.controller.resources()
    }

    fn follows_defined(&self) -> bool {
        self.controller.follows_defined()
    }

    fn workers(&self) -> usize {
        self.controller.workers()
    }

    fn take_in(&self, event: &Event) {
        let linger = self.controller.linger(event);
        for key in self.controller.keys(event) {
            match linger.is_zero() {
                true => self.queue.add(key),
                false => self.queue.add_after(key, linger),
            }
        }
    }

    fn work(self: Arc<Self>) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            loop {
                let key = self.queue.next().await;
                match self.controller.reconcile(&key).await {
                    Ok(outcome) => self.queue.finish(key, outcome),
                    Err(error) => {
                        debug!(controller = self.name(), ?key, %error, "reconcile failed, will try again");
                        self.queue.fail(key);
                    }
                }
            }
        })
    }
}

/// Lists, then watches; starts over when the watch ends.
async fn feed(store: DynStore, resource: GroupResource, fed: Vec<Arc<dyn Fed>>) {
    loop {
        let result = async {
            let revision = list(&store, &resource, &fed).await?;
            watch(&store, &resource, revision, &fed).await
        };
        let Err(error) = result.await;
        let loops: Vec<_> = fed.iter().map(|fed| fed.name()).collect();
        warn!(?loops, %resource, %error, "feed broke, listing again");
        tokio::time::sleep(FEED_RETRY).await;
    }
}

async fn list(store: &DynStore, resource: &GroupResource, fed: &[Arc<dyn Fed>]) -> Result<ResourceVersion, StoreError> {
    let mut request = RangeRequest::slices(RangeScope::AllClusters(resource.clone()));
    request.limit = Some(PAGE);
    loop {
        let page = store.range(request.clone()).await?;
        // All pages at the first one's revision, so that the watch goes on without a gap.
        request.at = Some(page.revision);
        request.after = page.objects.last().map(|o| o.key.clone());
        for object in page.objects {
            let event = Event {
                revision: object.revision,
                change: Change::Created,
                key: object.key,
                record: object.record,
                previous: None,
            };
            fed.iter().for_each(|fed| fed.take_in(&event));
        }
        if !page.more {
            return Ok(page.revision);
        }
    }
}

async fn watch(
    store: &DynStore,
    resource: &GroupResource,
    after: ResourceVersion,
    fed: &[Arc<dyn Fed>],
) -> Result<Infallible, StoreError> {
    let scope = WatchScope::Resource(resource.clone(), None);
    let mut events = store.watch(scope, Some(after)).await?;
    loop {
        for event in events.next().await?.events {
            fed.iter().for_each(|fed| fed.take_in(&event));
        }
    }
}
