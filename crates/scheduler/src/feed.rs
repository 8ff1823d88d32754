//! Listing and watching one resource of all logical clusters.

use std::time::Duration;

use portolan_store::{RangeRequest, RangeScope, StoreError, WatchScope};
use portolan_types::{GroupResource, ResourceVersion};
use tracing::warn;

use crate::scheduler::Inner;

/// Objects that are read at once.
const PAGE: usize = 500;
/// First and longest pause after a failure.
pub(crate) const PAUSES: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(30));

impl Inner {
    /// Takes in all objects of a resource and returns the state that they were read at. Tries until it succeeds.
    pub(crate) async fn list_until_done(&self, resource: &GroupResource) -> ResourceVersion {
        let mut pause = PAUSES.0;
        loop {
            match self.list(resource).await {
                Ok(revision) => return revision,
                Err(error) => {
                    warn!(%resource, %error, ?pause, "could not list");
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(PAUSES.1);
                }
            }
        }
    }

    async fn list(&self, resource: &GroupResource) -> Result<ResourceVersion, StoreError> {
        self.start_listing(resource);
        let mut request =
            RangeRequest { limit: Some(PAGE), ..RangeRequest::slices(RangeScope::AllClusters(resource.clone())) };
        request = request.past_damage();
        loop {
            let page = self.objects.store().range(request.clone()).await?;
            page.objects.iter().for_each(|stored| self.observe_listed(stored));
            page.damaged.iter().for_each(|found| self.observe_unreadable(&found.key));
            if !page.more {
                return Ok(page.revision);
            }
            // Later pages show the state of the first, so that the watch goes on without a gap.
            request.at = Some(page.revision);
            request.after = page.last;
        }
    }

    /// Takes in events for ever. After a gap everything is listed and looked at again.
    pub(crate) async fn feed(&self, resource: GroupResource, mut after: ResourceVersion) {
        let mut pause = PAUSES.0;
        loop {
            let before = after;
            match self.follow_events(&resource, &mut after).await {
                // What was deleted as damaged is not among what is there now.
                StoreError::Compacted { .. } | StoreError::FutureRevision { .. } | StoreError::Damaged { .. } => {
                    after = self.list_until_done(&resource).await;
                    self.rescans.everything();
                }
                error => {
                    pause = if after > before { PAUSES.0 } else { pause };
                    warn!(%resource, %error, ?pause, "the watch ended");
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(PAUSES.1);
                }
            }
        }
    }

    async fn follow_events(&self, resource: &GroupResource, after: &mut ResourceVersion) -> StoreError {
        let scope = WatchScope::Resource(resource.clone(), None);
        let mut stream = match self.objects.store().watch(scope, Some(*after)).await {
            Ok(stream) => stream,
            Err(error) => return error,
        };
        loop {
            match stream.next().await {
                Ok(batch) => {
                    batch.events.iter().for_each(|event| self.observe(event));
                    *after = batch.revision;
                }
                Err(error) => return error,
            }
        }
    }
}
