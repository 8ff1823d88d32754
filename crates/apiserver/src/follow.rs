//! Following the writes to a scope, whatever becomes of the watch.

use std::{sync::Arc, time::Duration};

use portolan_store::{DynStore, Event, WatchScope};
use portolan_types::{BoxFuture, ResourceVersion, Status};

use crate::errors::status_for;

/// First and longest pause after a watch that failed.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// Whoever keeps something in memory that others may write, too.
pub trait Follower: Send + Sync {
    /// Reads again what is to be known, and says from where on to follow. Called before each watch.
    ///
    /// # Errors
    /// When it cannot be read; it is tried again.
    fn catch_up(&self) -> BoxFuture<'_, Result<ResourceVersion, Status>>;

    /// From here on every event comes.
    fn following(&self) {}

    /// A write.
    fn take(&self, event: &Event);

    /// Events may be missed until the next [`Follower::following`].
    fn lost(&self) {}
}

/// Follows for ever. After a watch that ended or could not be opened, it catches up and opens the next one.
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
        tracing::warn!(what, error = %failure, "a watch ended; it starts again with a new list");
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(PAUSES.1);
    }
}

/// What is followed, in words.
fn followed(scope: &WatchScope) -> String {
    match scope {
        WatchScope::Resource(resource, None) => resource.to_string(),
        WatchScope::Resource(resource, Some(cluster)) => format!("{resource} of logical cluster {cluster}"),
        WatchScope::PlacedOn(uid) => format!("what is placed on {uid}"),
    }
}

/// Why the watch ended, and whether it ever brought something.
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
