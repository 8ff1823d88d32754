//! One resource of all logical clusters, listed and watched for the loops that are about it.

use std::{sync::Arc, time::Duration};

use portolan_store::{Change, DynStore, Event, EventStream, RangeRequest, RangeScope, StoreError, WatchScope};
use portolan_types::{GroupResource, ResourceVersion};
use tokio::sync::watch;
use tracing::warn;

/// Objects read per step of a listing.
const PAGE: usize = 500;
/// Wait before a broken feed is set up again.
const RETRY: Duration = Duration::from_millis(200);
/// How often a feed that is to end looks how far it has come: while nothing is written nothing tells it.
const LOOK: Duration = Duration::from_millis(50);

/// Takes in what a feed brings.
pub(super) trait Fed: Send + Sync {
    /// Name in logs.
    fn name(&self) -> &'static str;
    /// An event has been seen. Listed objects come as `Created`.
    fn take_in(&self, event: &Event);
    /// All objects that are there come now.
    fn listing(&self) {}
    /// They all came, as of this revision.
    fn listed(&self, _: ResourceVersion) {}
}

/// Up to which revision a feed runs; `None` is for as long as anybody is there to tell it.
pub(super) type Upto = Option<ResourceVersion>;

/// Lists, then watches; starts over when the watch breaks. Ends when it has brought everything up to where it is to end.
pub(super) async fn feed(
    store: DynStore,
    resource: GroupResource,
    fed: Vec<Arc<dyn Fed>>,
    mut upto: watch::Receiver<Upto>,
) {
    loop {
        let result = async {
            let revision = list(&store, &resource, &fed).await?;
            watch(&store, &resource, revision, &fed, &mut upto).await
        };
        let Err(error) = result.await else { return };
        let loops: Vec<_> = fed.iter().map(|fed| fed.name()).collect();
        warn!(?loops, %resource, %error, "feed broke, listing again");
        tokio::time::sleep(RETRY).await;
    }
}

async fn list(store: &DynStore, resource: &GroupResource, fed: &[Arc<dyn Fed>]) -> Result<ResourceVersion, StoreError> {
    fed.iter().for_each(|fed| fed.listing());
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
            fed.iter().for_each(|fed| fed.listed(page.revision));
            return Ok(page.revision);
        }
    }
}

async fn watch(
    store: &DynStore,
    resource: &GroupResource,
    after: ResourceVersion,
    fed: &[Arc<dyn Fed>],
    upto: &mut watch::Receiver<Upto>,
) -> Result<(), StoreError> {
    let scope = WatchScope::Resource(resource.clone(), None);
    let mut events = store.watch(scope, Some(after)).await?;
    loop {
        let until = *upto.borrow_and_update();
        if until.is_some_and(|until| has_come_to(&*events, until)) {
            return Ok(());
        }
        tokio::select! {
            batch = events.next() => {
                for event in batch?.events {
                    fed.iter().for_each(|fed| fed.take_in(&event));
                }
            }
            Ok(()) = upto.changed() => {}
            () = tokio::time::sleep(LOOK), if until.is_some() => {}
        }
    }
}

fn has_come_to(events: &dyn EventStream, until: ResourceVersion) -> bool {
    events.progress() >= until
}
