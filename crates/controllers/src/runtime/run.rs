//! Feeds the queues of loops from the store, and works them off.

use std::{collections::BTreeMap, convert::Infallible, sync::Arc, time::Duration};

use portolan_store::{Change, DynStore, Event, RangeRequest, RangeScope, StoreError, WatchScope, Worklist};
use portolan_types::{BoxFuture, GroupResource, ResourceVersion, work::Backoff};
use tokio::task::JoinSet;
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
        for (resource, fed) in self.by_resource() {
            tasks.spawn(feed(self.plane.store().clone(), resource, fed));
        }
        for fed in self.loops {
            (0..fed.workers()).for_each(|_| drop(tasks.spawn(fed.clone().work())));
        }
        tokio::select! {
            () = shutdown.cancelled() => {}
            Some(Err(ended)) = tasks.join_next() => {
                if let Ok(panic) = ended.try_into_panic() {
                    std::panic::resume_unwind(panic);
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
    fn workers(&self) -> usize;
    fn take_in(&self, event: &Event);
    fn work(self: Arc<Self>) -> BoxFuture<'static, ()>;
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
    let mut request = RangeRequest::all(RangeScope::AllClusters(resource.clone()));
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
