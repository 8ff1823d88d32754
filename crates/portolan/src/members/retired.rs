//! Forgets what is kept about physical clusters that are gone, also those that went while no server ran.

use std::{sync::Arc, time::Duration};

use portolan_controllers::{Controller, Outcome, Plane, PlaneError};
use portolan_machinery::kinds::Kind;
use portolan_store::{Change, Event};
use portolan_types::{BoxFuture, GroupResource, LogicalClusterId, Status, Uid, upstream::Upstream as _};

use crate::upstream::{Left, StoreUpstream, epochs};

/// When to look again at what others have yet to finish.
const RECHECK: Duration = Duration::from_secs(2);

/// The loop over physical clusters that ever had a syncer.
pub(crate) struct Retired {
    upstream: Arc<StoreUpstream>,
    kind: &'static Kind,
}

impl Retired {
    pub(crate) fn new(plane: &Plane, upstream: Arc<StoreUpstream>) -> Self {
        let kind = super::physical_clusters(plane);
        Self { upstream, kind }
    }
}

impl Controller for Retired {
    /// The uid of a physical cluster. What is kept about it is nobody's in particular.
    type Key = (LogicalClusterId, Uid);

    fn name(&self) -> &'static str {
        "retired-physical-clusters"
    }

    fn resources(&self) -> Vec<GroupResource> {
        vec![self.kind.group_resource(), epochs()]
    }

    fn keys(&self, event: &Event) -> Vec<Self::Key> {
        let is_count = event.key.resource == epochs();
        let uid = match (is_count, event.change) {
            (true, Change::Created) => event.key.name.parse().ok(),
            (false, Change::Deleted) => event.record.header.uid.parse().ok(),
            (true | false, _) => None,
        };
        uid.into_iter().map(|uid| (LogicalClusterId::SYSTEM, uid)).collect()
    }

    fn reconcile<'a>(&'a self, (_, physical): &'a Self::Key) -> BoxFuture<'a, Result<Outcome, PlaneError>> {
        Box::pin(async move {
            if self.upstream.exists(physical).await.map_err(Status::internal)? {
                return Ok(Outcome::Done);
            }
            if self.upstream.registered(physical).is_some() {
                return Ok(Outcome::CheckAgainIn(RECHECK)); // its workers have yet to stop
            }
            match self.upstream.retire(physical).await {
                Ok(Left::Nothing) => Ok(Outcome::Done),
                Ok(Left::Placements) => Ok(Outcome::CheckAgainIn(RECHECK)),
                Err(error) => Err(Status::internal(error).into()),
            }
        })
    }
}
