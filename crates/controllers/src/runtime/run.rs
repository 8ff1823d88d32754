//! Feeds a controller's queue from the store, and works it off.

use std::{sync::Arc, time::Duration};

use portolan_store::{Change, DynStore, Event, RangeRequest, RangeScope, StoreError, WatchScope, Worklist};
use portolan_types::{GroupResource, ResourceVersion, work::Backoff};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use super::Controller;
use crate::Plane;

/// Objects read per step of the first listing.
const PAGE: usize = 500;
/// Wait before a broken feed is set up again.
const FEED_RETRY: Duration = Duration::from_millis(200);

/// Runs one controller until `shutdown`.
pub async fn run<C: Controller>(plane: Arc<Plane>, controller: C, shutdown: CancellationToken) {
    let controller = Arc::new(controller);
    let queue = Arc::new(Worklist::new(Backoff::default(), plane.seams()));
    let mut tasks = JoinSet::new();
    for resource in controller.resources() {
        tasks.spawn(feed(plane.store().clone(), controller.clone(), queue.clone(), resource));
    }
    for _ in 0..controller.workers() {
        tasks.spawn(work(controller.clone(), queue.clone()));
    }
    tokio::select! {
        () = shutdown.cancelled() => {}
        ended = tasks.join_next() => panicked(ended),
    }
    tasks.shutdown().await;
}

/// A part that panicked takes the loop with it: half a loop would look like a whole one.
fn panicked(ended: Option<Result<(), tokio::task::JoinError>>) {
    if let Some(Err(error)) = ended
        && let Ok(panic) = error.try_into_panic()
    {
        std::panic::resume_unwind(panic);
    }
}

async fn work<C: Controller>(controller: Arc<C>, queue: Arc<Worklist<C::Key>>) {
    loop {
        let key = queue.next().await;
        match controller.reconcile(&key).await {
            Ok(outcome) => queue.finish(key, outcome),
            Err(error) => {
                debug!(controller = controller.name(), ?key, %error, "reconcile failed, will try again");
                queue.fail(key);
            }
        }
    }
}

/// Lists, then watches; starts over when the watch ends.
async fn feed<C: Controller>(
    store: DynStore,
    controller: Arc<C>,
    queue: Arc<Worklist<C::Key>>,
    resource: GroupResource,
) {
    loop {
        let result = async {
            let revision = list(&store, &*controller, &queue, &resource).await?;
            watch(&store, &*controller, &queue, &resource, revision).await
        };
        let Err(error) = result.await;
        warn!(controller = controller.name(), %resource, %error, "feed broke, listing again");
        tokio::time::sleep(FEED_RETRY).await;
    }
}

async fn list<C: Controller>(
    store: &DynStore,
    controller: &C,
    queue: &Worklist<C::Key>,
    resource: &GroupResource,
) -> Result<ResourceVersion, StoreError> {
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
            controller.keys(&event).into_iter().for_each(|key| queue.add(key));
        }
        if !page.more {
            return Ok(page.revision);
        }
    }
}

async fn watch<C: Controller>(
    store: &DynStore,
    controller: &C,
    queue: &Worklist<C::Key>,
    resource: &GroupResource,
    after: ResourceVersion,
) -> Result<std::convert::Infallible, StoreError> {
    let scope = WatchScope::Resource(resource.clone(), None);
    let mut events = store.watch(scope, Some(after)).await?;
    loop {
        for event in events.next().await?.events {
            controller.keys(&event).into_iter().for_each(|key| queue.add(key));
        }
    }
}
