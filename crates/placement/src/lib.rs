//! Policies, cluster facts and a workload give a placement and its explanation.
//!
//! Everything here is pure: no clock, no randomness, no IO, no store. Equal facts give an equal answer, in whatever order
//! they arrive. Who reads the facts and writes the answer is the scheduler's part.

mod decide;
mod divide;
mod explain;
mod facts;
mod filters;
mod legal;
mod overrides;
mod policy;
mod reason;
mod references;
mod refused;
mod report;
mod role;
mod select;
mod shares;
mod template;
mod transition;
mod workload;

#[cfg(test)]
mod fixtures;

pub use decide::{Chosen, Decision, Outcome, Question, Refusal, Rejected, place};
pub use divide::{Share, divide};
pub use explain::{ClusterTrace, Explanation, PolicyTrace, Verdict, explain};
pub use facts::{ClusterFacts, ClusterInfo, Readiness, TaintFact};
pub use legal::{Grounds, IllegalStep, check_grounds, is_legal};
pub use overrides::{Overriding, changes_over_budget, patches_over_budget, with_overrides, with_shares_and_overrides};
pub use policy::{LeveledPolicy, Policy};
pub use reason::Reason;
pub use references::References;
pub use refused::{Told, left_to_progress, let_in_status, refused_status, still_refused_status};
pub use report::{About, Admitted, Report, copy_statuses, is_refused, placed_condition, placement_object};
pub use role::{Role, is_made_by_hand, is_managed_elsewhere, is_workload_kind, role_of};
pub use shares::{DividedTarget, shares_of};
pub use template::{WouldBeClaim, WouldBePod, has_template, template_fingerprint, wanted_pods};
pub use transition::{Demand, Health, Step, follow, transition};
pub use workload::{Moves, Pin, PinOn, Workload, abandons_volumes, contribution};
