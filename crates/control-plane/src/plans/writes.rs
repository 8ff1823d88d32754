//! Plans of writes: policies, physical clusters, and pins.

use std::sync::Arc;

use portolan_apiserver::hooks::{AdmittedWrite, WritePlan, WritePlanner};
use portolan_scheduler::PlannedChange;
use portolan_types::{BoxFuture, Status, annotations, object, placement::is_plan_input};

use crate::scheduler_hooks::SchedulerHooks;

/// Planner of writes.
struct HookedPlanner(SchedulerHooks);

/// Returns the planner of writes.
pub(crate) fn planner_of(hooks: &SchedulerHooks) -> Arc<dyn WritePlanner> {
    Arc::new(HookedPlanner(hooks.clone()))
}

impl WritePlanner for HookedPlanner {
    fn concerns(&self, write: &AdmittedWrite<'_>) -> bool {
        let pin = |object| object::annotation(object, annotations::PIN);
        is_plan_input(&write.key.resource) || pin(write.object) != write.old.and_then(pin)
    }

    fn plan<'a>(&'a self, write: AdmittedWrite<'a>) -> BoxFuture<'a, Result<WritePlan, Status>> {
        Box::pin(async move {
            let change = PlannedChange::Write { key: write.key.clone(), object: write.object.clone() };
            let plan = self.0.plan_changes(write.cluster.id, &[change]).await?;
            Ok(WritePlan { summary: plan.summary(), hash: plan.hash, fences: plan.fences })
        })
    }
}
