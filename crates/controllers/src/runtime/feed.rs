//! One resource of all logical clusters, listed and watched for the loops that are about it.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use portolan_store::{Change, DynStore, Event, EventStream, RangeRequest, RangeScope, StoreError, WatchScope};
use portolan_types::{GroupResource, ObjectKey, ResourceVersion};
use tokio::sync::watch;
use tracing::warn;

/// Objects read per step of a listing.
const PAGE: usize = 500;
/// Wait before a broken feed is set up again: at first, and at most when it never comes to its watch.
const RETRY: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(30));
/// How often a feed that is to end looks how far it has come: while nothing is written nothing tells it.
const LOOK: Duration = Duration::from_millis(50);

/// Takes in what a feed brings.
pub(super) trait Fed: Send + Sync {
    /// Name in logs.
    fn name(&self) -> &'static str;
    /// An event has been seen. Listed objects come as `Created`.
    fn take_in(&self, event: &Event);
    /// An object is there and cannot be read.
    fn unreadable(&self, _: &ObjectKey) {}
    /// A damaged object is not there any more, of which nothing is known but its address.
    fn lost(&self, _: &ObjectKey) {}
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
    let (mut pause, mut unreadable) = (RETRY.0, BTreeSet::new());
    loop {
        let error = match list(&store, &resource, &fed, &mut unreadable).await {
            Ok(revision) => {
                pause = RETRY.0;
                match watch(&store, &resource, revision, &fed, &mut upto).await {
                    Ok(()) => return,
                    Err(error) => {
                        // What is deleted after it was listed is found missing in the next listing.
                        if let StoreError::Damaged { key, .. } = &error {
                            unreadable.insert(key.clone());
                        }
                        error
                    }
                }
            }
            Err(error) => error,
        };
        let loops: Vec<_> = fed.iter().map(|fed| fed.name()).collect();
        warn!(?loops, %resource, %error, ?pause, "feed broke, listing again");
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(RETRY.1);
    }
}

/// Brings all that is there. `unreadable` is what could not be read: before, and then now; what is none of it any more may be gone.
async fn list(
    store: &DynStore,
    resource: &GroupResource,
    fed: &[Arc<dyn Fed>],
    unreadable: &mut BTreeSet<ObjectKey>,
) -> Result<ResourceVersion, StoreError> {
    let mut now = BTreeSet::new();
    fed.iter().for_each(|fed| fed.listing());
    let mut request = RangeRequest::slices(RangeScope::AllClusters(resource.clone())).past_damage();
    request.limit = Some(PAGE);
    loop {
        let page = store.range(request.clone()).await?;
        // All pages at the first one's revision, so that the watch goes on without a gap.
        request.at = Some(page.revision);
        request.after = page.last.clone();
        for found in &page.damaged {
            fed.iter().for_each(|fed| fed.unreadable(&found.key));
            now.insert(found.key.clone());
        }
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
            for key in unreadable.difference(&now) {
                fed.iter().for_each(|fed| fed.lost(key));
            }
            *unreadable = now;
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
                    // A long batch lets others in.
                    tokio::task::consume_budget().await;
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
