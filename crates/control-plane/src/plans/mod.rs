//! `PlacementPlan`s, and plans of writes: the requests of the API server, answered by the scheduler.

mod view;
mod writes;

use std::{collections::HashMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use portolan_apiserver::{
    ApiServer, LogicalCluster,
    hooks::{Requester, check_whole_object},
};
use portolan_scheduler::{Plan, PlanError, PlannedChange, Scheduler};
use portolan_types::{
    GroupKind, LogicalClusterId, Reason, Status, StatusCause, object,
    placement::{DEFAULT_PLAN_ROWS, GROUP, PlacementPlanSpec},
};
use serde_json::Value;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit};

use view::PlanView;
pub(crate) use writes::planner_of;

/// Maximum number of concurrent plans. Each takes a processor.
const AT_ONCE: usize = 2;
/// Time for which a request waits for its permit.
const WAIT: Duration = Duration::from_secs(5);
/// Longest time that a plan may take.
const LONGEST: Duration = Duration::from_secs(20);
/// Seconds after which a refused plan may be tried again.
const RETRY_AFTER: u32 = 1;

/// Permits of plans. A logical cluster has one at a time, so that no tenant takes all of them.
pub(crate) struct PlanLimiter {
    permits: Semaphore,
    /// Turns of the logical clusters with requests.
    turns: Mutex<HashMap<LogicalClusterId, Arc<Semaphore>>>,
}

impl Default for PlanLimiter {
    fn default() -> Self {
        Self { permits: Semaphore::new(AT_ONCE), turns: Mutex::default() }
    }
}

impl PlanLimiter {
    /// Plans changes in a logical cluster, within the limits of number and time.
    ///
    /// # Errors
    /// 429 while others are made, 413 for too many objects, 504 for one that takes too long, 500 for failures.
    pub(crate) async fn plan(
        &self,
        scheduler: &Scheduler,
        home: LogicalClusterId,
        changes: &[PlannedChange],
    ) -> Result<Plan, Status> {
        let _permit = self.permit(home).await?;
        match tokio::time::timeout(LONGEST, scheduler.plan(home, changes)).await {
            Ok(Ok(plan)) => Ok(plan),
            Ok(Err(error @ PlanError::TooManyObjects)) => Err(Status::too_large(error)),
            Ok(Err(error)) => Err(Status::internal(error)),
            Err(_) => Err(Status::new(Reason::Timeout, format!("the plan took longer than {} s", LONGEST.as_secs()))),
        }
    }

    /// Waits for a permit, in the order of arrival.
    ///
    /// # Errors
    /// 429 once the wait is over.
    async fn permit(&self, home: LogicalClusterId) -> Result<(OwnedSemaphorePermit, SemaphorePermit<'_>), Status> {
        let turn = {
            let mut turns = self.turns.lock();
            turns.retain(|_, turn| Arc::strong_count(turn) > 1);
            turns.entry(home).or_insert_with(|| Arc::new(Semaphore::new(1))).clone()
        };
        let permits = async { Some((turn.acquire_owned().await.ok()?, self.permits.acquire().await.ok()?)) };
        let busy = || Status::too_many_requests("other plans are being made, please try again".to_owned(), RETRY_AFTER);
        tokio::time::timeout(WAIT, permits).await.ok().flatten().ok_or_else(busy)
    }
}

/// Request of a plan, with the parts of the server that answer it.
pub(crate) struct PlanRequest<'a> {
    pub(crate) api: &'a Arc<ApiServer>,
    pub(crate) scheduler: &'a Scheduler,
    pub(crate) limiter: &'a PlanLimiter,
    pub(crate) cluster: &'a LogicalCluster,
    pub(crate) caller: Requester<'a>,
}

impl PlanRequest<'_> {
    /// Answers a `PlacementPlan`.
    ///
    /// # Errors
    /// 422 for changes that cannot be planned, and the errors of [`PlanLimiter::plan`].
    pub(crate) async fn answer(&self, mut review: Value) -> Result<Value, Status> {
        let name = object::name(&review).to_owned();
        let refuse = |causes| Err(Status::invalid(&kind(), &name, causes));
        let spec = match read_spec(&review) {
            Ok(spec) => spec,
            Err(causes) => return refuse(causes),
        };
        let changes = self.scheduler.planned_changes(self.cluster.id, &spec).await.map_err(Status::internal)?;
        let changes = match changes {
            Ok(changes) => changes,
            Err(causes) => return refuse(causes),
        };
        let plan = self.limiter.plan(self.scheduler, self.cluster.id, &changes).await?;
        let limit = spec.limit.map_or(DEFAULT_PLAN_ROWS, |limit| limit as usize);
        let status = PlanView::new(self.api, self.cluster, self.caller).status_of(plan, limit).await?;
        review["status"] = serde_json::to_value(status).map_err(Status::internal)?;
        Ok(review)
    }
}

fn kind() -> GroupKind {
    GroupKind { group: GROUP.into(), kind: "PlacementPlan".into() }
}

/// Reads the spec, and checks the objects in it.
fn read_spec(review: &Value) -> Result<PlacementPlanSpec, Vec<StatusCause>> {
    let spec = review.get("spec").cloned().unwrap_or_default();
    let mut spec: PlacementPlanSpec = serde_json::from_value(spec).map_err(|error| {
        let message = format!("Invalid value: {error}");
        vec![StatusCause { reason: "FieldValueInvalid".into(), message, field: "spec".into() }]
    })?;
    let mut causes = Vec::new();
    for (at, change) in spec.changes.iter_mut().enumerate() {
        let Some(applied) = &mut change.apply else { continue };
        match check_whole_object(&format!("spec.changes[{at}].apply"), applied) {
            Ok(complete) => *applied = complete,
            Err(more) => causes.extend(more),
        }
    }
    if causes.is_empty() { Ok(spec) } else { Err(causes) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn one_tenant_leaves_a_permit_to_others() {
        let (limiter, id) = (PlanLimiter::default(), LogicalClusterId::new);
        let first = limiter.permit(id(1)).await.unwrap();
        let second = limiter.permit(id(1)).await.err().unwrap();
        assert_eq!((second.code(), second.message()), (429, "other plans are being made, please try again"));
        let other = limiter.permit(id(2)).await.unwrap();
        assert!(limiter.permit(id(3)).await.is_err(), "two are made at once");
        drop(first);
        drop(limiter.permit(id(1)).await.unwrap());
        drop((other, limiter.permit(id(3)).await.unwrap()));
        drop(limiter.permit(id(4)).await.unwrap());
        assert!(limiter.turns.lock().len() <= 1, "turns end with their requests");
    }
}
