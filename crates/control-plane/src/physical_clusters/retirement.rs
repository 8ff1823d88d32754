//! Removal of all records about physical clusters that are gone, including those deleted while no server ran.

use std::{sync::Arc, time::Duration};

use portolan_controllers::{Controller, Plane, PlaneError, WorkOutcome};
use portolan_kinds::Kind;
use portolan_store::{ChangeKind, Event};
use portolan_types::{BoxFuture, GroupResource, LogicalClusterId, Status, Uid, upstream::Upstream as _};

use crate::upstream::{RetirementProgress, StoreUpstream, epochs};

/// Delay before the next attempt, while copies or workers are left.
const RECHECK: Duration = Duration::from_secs(2);

/// Controller of physical clusters that ever had a syncer.
pub(crate) struct RetirementController {
    upstream: Arc<StoreUpstream>,
    kind: &'static Kind,
}

impl RetirementController {
    pub(crate) fn new(plane: &Plane, upstream: Arc<StoreUpstream>) -> Self {
        let kind = super::physical_cluster_kind(plane);
        Self { upstream, kind }
    }
}

impl Controller for RetirementController {
    /// Uid of a physical cluster, under the system's logical cluster.
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
            (true, ChangeKind::Created) => event.key.name.parse().ok(),
            (false, ChangeKind::Deleted) => event.record.header.uid.parse().ok(),
            (true | false, _) => None,
        };
        uid.into_iter().map(|uid| (LogicalClusterId::SYSTEM, uid)).collect()
    }

    fn reconcile<'a>(&'a self, (_, physical): &'a Self::Key) -> BoxFuture<'a, Result<WorkOutcome, PlaneError>> {
        Box::pin(async move {
            if self.upstream.exists(physical).await.map_err(Status::internal)? {
                return Ok(WorkOutcome::Done);
            }
            if self.upstream.registered(physical).is_some() {
                return Ok(WorkOutcome::RequeueAfter(RECHECK)); // its workers have yet to stop
            }
            match self.upstream.retire(physical).await {
                Ok(RetirementProgress::Done) => Ok(WorkOutcome::Done),
                Ok(RetirementProgress::Placed) => Ok(WorkOutcome::RequeueAfter(RECHECK)),
                Err(error) => Err(Status::internal(error).into()),
            }
        })
    }
}
