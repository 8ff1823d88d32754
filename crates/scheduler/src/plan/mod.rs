//! Plans: the exact effect of changes on placements, computed by the code that decides, and never written.
//!
//! A plan reads one revision of the store (`snapshot`) with the changes over it, and decides with a copy of the facts
//! (`shadow`). It decides about the objects that the scheduler would queue for the changes (`scope`), in its order:
//! first each workload until its decision stays the same (`workloads`, `objects`), then what follows them
//! (`followers`). It assumes that copies become ready, and that leaving copies end if their physical cluster answers.
//! It does not ask admission or quotas about new pods.
//!
//! Memory holds a row per object that would move or would be refused, and a page of objects. Nothing runs in parallel.

mod budgets;
mod capacity;
mod change;
mod followers;
mod hash;
mod objects;
mod planned_drain;
mod request;
mod rows;
mod scope;
mod settle;
mod shadow;
mod snapshot;
mod workloads;

use portolan_store::StoreError;
use portolan_types::{LogicalClusterId, placement::MAX_PLANNED_OBJECTS};

pub use change::PlannedChange;
pub use request::ReadChanges;
pub use rows::{BudgetRow, CapacityRow, Plan, PlanRow, PlannedPlace, RefusedRow};

use crate::scheduler::{Scheduler, SchedulerError};
use workloads::PlanRun;

/// Failure of a plan.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// The scope of the changes is too large.
    #[error(
        "the changes are about more than {MAX_PLANNED_OBJECTS} objects: plan them for a workspace further down, or for a \
         namespace"
    )]
    TooManyObjects,
    /// The inputs could not be read.
    #[error(transparent)]
    Scheduler(#[from] SchedulerError),
}

impl From<StoreError> for PlanError {
    fn from(error: StoreError) -> Self {
        Self::Scheduler(error.into())
    }
}

impl Scheduler {
    /// Plans changes of objects in the logical cluster `home`, as if they were written at once. The rows are complete:
    /// the caller removes those that its own caller may not see.
    ///
    /// # Errors
    /// `TooManyObjects` if the scheduler would decide about more than [`MAX_PLANNED_OBJECTS`]; failures of the store;
    /// `Behind` if the facts are older than the store for a second.
    pub async fn plan(&self, home: LogicalClusterId, changes: &[PlannedChange]) -> Result<Plan, PlanError> {
        self.plan_within(home, changes, MAX_PLANNED_OBJECTS).await
    }

    /// Plans changes as [`Scheduler::plan`] does, about at most `most` objects.
    pub(crate) async fn plan_within(
        &self,
        home: LogicalClusterId,
        changes: &[PlannedChange],
        most: usize,
    ) -> Result<Plan, PlanError> {
        let _timer = self.ctx.metrics.plan_seconds.start_timer();
        self.ctx.fact_barrier.wait_for(self.ctx.objects.store().current()).await?;
        PlanRun::start(&self.ctx, home, changes).await?.within(most).finish().await
    }
}
