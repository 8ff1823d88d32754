//! Barrier between the facts and the decisions that depend on them.
//!
//! Each resource has a feed of its own, so an object may arrive before a policy that was written earlier. A decision
//! about an object therefore waits until the feeds of facts have observed all writes up to the object's revision:
//! a client that creates a policy and then a workload never sees the workload placed without that policy.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use futures::future::try_join_all;
use portolan_types::ResourceVersion;
use tokio::sync::{Notify, watch};

use crate::scheduler::SchedulerError;

/// First and longest pause between two checks of a feed. All pauses together take one second.
const PAUSES: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(512));

/// Progress of one feed: the revision up to which its events have been observed.
pub(crate) struct FeedProgress {
    /// 0 while the resource is listed.
    observed: watch::Sender<u64>,
    requested: Notify,
    recount: Notify,
}

impl FeedProgress {
    /// Makes the progress of a feed that has observed a list at `revision`.
    pub(crate) fn at(revision: ResourceVersion) -> Self {
        Self { observed: watch::Sender::new(revision.get()), requested: Notify::new(), recount: Notify::new() }
    }

    /// Records that all events up to `revision` have been observed.
    pub(crate) fn reach(&self, revision: ResourceVersion) {
        self.observed.send_if_modified(|observed| {
            let is_later = revision.get() > *observed;
            *observed = revision.get().max(*observed);
            is_later
        });
    }

    /// Records that the facts are incomplete until the next [`FeedProgress::reach`].
    pub(crate) fn restart(&self) {
        self.observed.send_replace(0);
    }

    /// Waits until a decision asks for the progress.
    pub(crate) async fn requested(&self) {
        self.requested.notified().await;
    }

    /// Asks the feed to count its objects again.
    pub(crate) fn request_recount(&self) {
        self.recount.notify_one();
    }

    /// Waits until the objects have to be counted again.
    pub(crate) async fn recount_requested(&self) {
        self.recount.notified().await;
    }

    fn has_reached(&self, revision: ResourceVersion) -> bool {
        *self.observed.borrow() >= revision.get()
    }

    async fn wait_for(&self, revision: ResourceVersion) -> Result<(), SchedulerError> {
        let mut observed = self.observed.subscribe();
        let mut pause = PAUSES.0;
        while pause <= PAUSES.1 {
            if tokio::time::timeout(pause, observed.wait_for(|seen| *seen >= revision.get())).await.is_ok() {
                return Ok(());
            }
            self.requested.notify_one();
            pause *= 2;
        }
        Err(SchedulerError::Behind)
    }
}

/// Barrier in front of decisions: the progress of all feeds of facts.
#[derive(Default)]
pub(crate) struct FactBarrier {
    feeds: Mutex<Vec<Arc<FeedProgress>>>,
}

impl FactBarrier {
    /// Adds a feed of facts.
    pub(crate) fn add(&self, feed: Arc<FeedProgress>) {
        self.feeds.lock().unwrap_or_else(PoisonError::into_inner).push(feed);
    }

    /// Waits until the facts include all writes up to `revision`.
    ///
    /// # Errors
    /// `Behind` after one second.
    pub(crate) async fn wait_for(&self, revision: ResourceVersion) -> Result<(), SchedulerError> {
        let late = self.late_feeds(revision);
        late.iter().for_each(|feed| feed.requested.notify_one());
        try_join_all(late.iter().map(|feed| feed.wait_for(revision))).await.map(drop)
    }

    fn late_feeds(&self, revision: ResourceVersion) -> Vec<Arc<FeedProgress>> {
        let feeds = self.feeds.lock().unwrap_or_else(PoisonError::into_inner);
        feeds.iter().filter(|feed| !feed.has_reached(revision)).cloned().collect()
    }
}
