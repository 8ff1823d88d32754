//! Feed of one resource of all logical clusters: a list and a watch, for the controllers that follow it.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use portolan_store::{ChangeKind, DynStore, Event, EventStream, RangeRequest, RangeScope, StoreError, WatchScope};
use portolan_types::{GroupResource, ObjectKey, ResourceVersion};
use tokio::sync::watch;
use tracing::warn;

/// Objects per page.
const PAGE: usize = 500;
/// First and longest backoff of a broken feed.
const RETRY: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(30));
/// Interval at which a feed that is to end checks its progress: without writes nothing else tells.
const LOOK: Duration = Duration::from_millis(50);

/// Receiver of the events of a feed.
pub(super) trait EventSink: Send + Sync {
    /// Name in logs.
    fn name(&self) -> &'static str;
    /// Handles an event. Listed objects come as `Created`.
    fn handle_event(&self, event: &Event);
    /// Handles an object that cannot be read.
    fn unreadable(&self, _: &ObjectKey) {}
    /// Handles the absence of a damaged object, of which only the key is known.
    fn lost(&self, _: &ObjectKey) {}
    /// Begins a list.
    fn listing(&self, _: &GroupResource) {}
    /// Ends a list, as of this revision.
    fn listed(&self, _: &GroupResource, _: ResourceVersion) {}
}

/// Revision at which a feed ends; `None` runs on.
pub(super) type FeedEnd = Option<ResourceVersion>;

/// Lists, then watches; starts over after a broken watch. Ends after the revision at which it is to end.
pub(super) async fn feed(
    store: DynStore,
    resource: GroupResource,
    fed: Vec<Arc<dyn EventSink>>,
    mut upto: watch::Receiver<FeedEnd>,
) {
    let (mut pause, mut unreadable) = (RETRY.0, BTreeSet::new());
    loop {
        let error = match list(&store, &resource, &fed, &mut unreadable).await {
            Ok(revision) => {
                pause = RETRY.0;
                match watch(&store, &resource, revision, &fed, &mut upto).await {
                    Ok(()) => return,
                    Err(error) => {
                        // An object that was deleted after it was listed is missing in the next list.
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
        warn!(?loops, %resource, %error, ?pause, "watch broke, will list again");
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(RETRY.1);
    }
}

/// Lists all objects. `unreadable` are the damaged ones, of the last list and then of this one; those missing in this
/// one may be gone.
async fn list(
    store: &DynStore,
    resource: &GroupResource,
    fed: &[Arc<dyn EventSink>],
    unreadable: &mut BTreeSet<ObjectKey>,
) -> Result<ResourceVersion, StoreError> {
    let mut now = BTreeSet::new();
    fed.iter().for_each(|fed| fed.listing(resource));
    let mut request = RangeRequest::slices(RangeScope::AllClusters(resource.clone())).skip_damaged();
    request.limit = Some(PAGE);
    loop {
        let page = store.range(request.clone()).await?;
        // All pages are read at the revision of the first, so that the watch has no gap.
        request.at = Some(page.revision);
        request.after = page.last.clone();
        for found in &page.damaged {
            fed.iter().for_each(|fed| fed.unreadable(&found.key));
            now.insert(found.key.clone());
        }
        for object in page.objects {
            let event = Event {
                revision: object.revision,
                change: ChangeKind::Created,
                key: object.key,
                record: object.record,
                previous: None,
            };
            fed.iter().for_each(|fed| fed.handle_event(&event));
        }
        if !page.more {
            fed.iter().for_each(|fed| fed.listed(resource, page.revision));
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
    fed: &[Arc<dyn EventSink>],
    upto: &mut watch::Receiver<FeedEnd>,
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
                    fed.iter().for_each(|fed| fed.handle_event(&event));
                    // A long batch yields to other tasks.
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
