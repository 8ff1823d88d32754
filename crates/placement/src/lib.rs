//! Placement as a pure function: policies, facts of physical clusters and a workload give a decision and its
//! explanation.
//!
//! The crate has no clock, no randomness, no IO and no store. Equal inputs give equal results, in any input order. The
//! scheduler reads the inputs and writes the results.

mod affinity;
mod cluster_facts;
mod custom_kinds;
mod decide;
mod divide;
mod divided_targets;
mod exclusion_reason;
mod explain;
mod expressions;
mod filters;
mod ineffective_parts;
mod legal_steps;
mod object_role;
mod overrides;
mod policy;
mod references;
mod refusal_status;
mod report;
mod rollout;
mod select;
mod template;
mod transition;
mod workload;

#[cfg(test)]
mod fixtures;

pub use cluster_facts::{ClusterFacts, ClusterInfo, Readiness, TaintFact};
pub use custom_kinds::allows_cluster;
pub use decide::{
    ChosenCluster, DecisionHold, DecisionOutcome, PlacementDecision, PlacementInputs, PodRefusal, RejectedCluster,
    place,
};
pub use divide::{ReplicaShare, divide};
pub use divided_targets::{DividedTarget, shares_of};
pub use exclusion_reason::ExclusionReason;
pub use explain::{ClusterTrace, Explanation, FilterVerdict, NearestChange, PolicyTrace, explain};
pub use expressions::ExpressionSubject;
pub use ineffective_parts::parts_without_effect;
pub use legal_steps::{IllegalStep, StepJustification, check_justification, is_legal};
pub use object_role::{Role, is_made_by_hand, is_managed_elsewhere, is_workload_kind, role_of};
pub use overrides::{
    OverrideInputs, changes_over_budget, patches_over_budget, with_overrides, with_shares_and_overrides,
};
pub use policy::{CompiledPolicy, LeveledPolicy};
pub use references::References;
pub use refusal_status::{
    RefusalFacts, admitted_status, refused_status, remaining_progress_deadline, status_while_refused,
};
pub use report::{
    AdmissionRecord, PlacementReport, PlacementSubject, TransitionCause, copy_statuses, is_refused, placed_condition,
    placement_object,
};
pub use rollout::{RolloutInputs, with_rollout};
pub use template::{TemplateClaim, TemplatePod, has_template, template_fingerprint, wanted_pods};
pub use transition::{
    CopyHealth, Demand, DisruptionBound, FrontEnd, MoveGates, PlacementStep, follow, transition, with_withdrawn,
};
pub use workload::{ClusterPin, MoveStrategy, PinScope, Workload, WorkloadNeighbor, abandons_volumes, contribution};
