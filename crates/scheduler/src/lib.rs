//! The loop around placement. It watches placeable objects, policies and physical clusters of all logical clusters, and
//! writes the placement record of an object and the `Placement` that explains it in one transaction.
//!
//! Decisions are made in `portolan-placement`; this crate reads facts and writes answers. It knows no HTTP and no kind
//! table: the tree of logical clusters, rights, resources of kinds, and the admission of pods come in through traits
//! (`seams`).
//!
//! Level-based: the queue holds keys, and a worker reads the object when its turn comes. Each task takes the same path:
//!
//! 1. `observe` turns watch events into `facts` and tasks of the `queue`.
//! 2. `inputs` reads the inputs of a decision.
//! 3. `decide` decides, plans the next legal step, and admits and charges the pods.
//! 4. `commit` writes the step. `reconcile` calls 2 to 4 per kind of task.
//!
//! `plan` computes the effect of changes that are not written, by the same code.
//! `failover` follows the heartbeats of physical clusters, and taints those that are lost.
//!
//! `status` writes the status of policies and physical clusters; `explain` answers on demand. There is one task per
//! watched resource and a fixed number of workers; nothing per logical cluster. The scheduler keeps policies, physical
//! clusters and sums of the placed objects in memory.

mod commit;
mod context;
mod decide;
mod drain;
mod explain;
mod facts;
mod failover;
mod inputs;
mod kinds;
mod metrics;
mod observe;
mod plan;
mod queue;
mod reconcile;
mod scheduler;
mod seams;
mod status;

#[cfg(test)]
mod tests;

pub use failover::{EvictionRates, FailoverStats, FailoverTiming};
pub use kinds::heartbeats;
pub use metrics::SchedulerCollector;
pub use plan::{
    BudgetRow, CapacityRow, Plan, PlanError, PlanRow, PlannedChange, PlannedPlace, ReadChanges, RefusedRow,
};
pub use portolan_placement::{
    PodRefusal, TemplateClaim, allows_cluster, has_template, is_refused, status_while_refused,
};
pub use reconcile::FINALIZER;
pub use scheduler::{Scheduler, SchedulerError, SchedulerParts};
pub use seams::{
    AdmittedPod, BuiltinKinds, ClusterTree, KindCatalog, NotAdmitted, PodCharge, PodChargeWrites, PodGate, UseRights,
};
