//! Following of the writes to a scope, across failed watches.

use std::{sync::Arc, time::Duration};

use portolan_store::{DynStore, Event, WatchScope};
use portolan_types::{BoxFuture, ResourceVersion, Status};

use crate::errors::status_for;

/// Shortest and longest pause after a failed watch.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// Owner of an in-memory copy of stored state that others may write.
pub trait Follower: Send + Sync {
    /// Rereads the state and returns the revision to follow from. Called before each watch.
    ///
    /// # Errors
    /// Failure to read; it is retried.
    fn catch_up(&self) -> BoxFuture<'_, Result<ResourceVersion, Status>>;

    /// Reports that no event is missed from here on.
    fn following(&self) {}

    /// Applies a write.
    fn take(&self, event: &Event);

    /// Reports that events may be missed until the next [`Follower::following`].
    fn lost(&self) {}
}

/// Follows forever. After a watch that ended or failed, it catches up and opens the next one.
pub async fn follow(store: DynStore, scope: WatchScope, follower: Arc<dyn Follower>) {
    let mut pause = PAUSES.0;
    loop {
        let failure = match follower.catch_up().await {
            Ok(after) => {
                let (failure, had_events) = watch_from(&store, scope.clone(), after, &*follower).await;
                if had_events {
                    pause = PAUSES.0;
                }
                failure
            }
            Err(failure) => failure,
        };
        let what = followed(&scope);
        tracing::warn!(what, error = %failure, "watch ended, restarting with a new list");
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(PAUSES.1);
    }
}

/// Describes the scope for the log.
fn followed(scope: &WatchScope) -> String {
    match scope {
        WatchScope::Resource(resource, None) => resource.to_string(),
        WatchScope::Resource(resource, Some(cluster)) => format!("{resource} of logical cluster {cluster}"),
        WatchScope::PlacedOn(uid) => format!("objects placed on {uid}"),
        WatchScope::All => "all objects".to_owned(),
    }
}

/// Watches until the watch ends. Returns the reason, and true if it ever delivered a batch.
async fn watch_from(
    store: &DynStore,
    scope: WatchScope,
    after: ResourceVersion,
    follower: &dyn Follower,
) -> (Status, bool) {
    let mut events = match store.watch(scope, Some(after)).await {
        Ok(events) => events,
        Err(error) => return (status_for(&error), false),
    };
    follower.following();
    let mut had_events = false;
    loop {
        match events.next().await {
            Ok(batch) => {
                had_events = true;
                batch.events.iter().for_each(|event| follower.take(event));
            }
            Err(error) => {
                follower.lost();
                return (status_for(&error), had_events);
            }
        }
    }
}
