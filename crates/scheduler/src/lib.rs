//! The loop around placement: it watches what can be placed, policies and physical clusters of all logical clusters, and
//! writes the record and the `Placement` that explains it in one transaction.
//!
//! The decisions are made in `portolan-placement`; this crate reads facts and writes answers. It knows no HTTP and no kind
//! table: where logical clusters stand in the tree, who may use what, the resources of custom kinds, and whether pods are let
//! in come in by traits.
//!
//! Level-based: the queue holds keys, objects are read when their turn comes. One task per watched resource and a fixed
//! number of workers; nothing per logical cluster. In memory are policies, physical clusters and sums of what is placed.

mod admission;
mod advice;
mod commit;
mod events;
mod explain;
mod facts;
mod feed;
mod followers;
mod gates;
mod gather;
mod inhabited;
mod kinds;
mod object;
mod observe;
mod peek;
mod physical;
mod policies;
mod queue;
mod rescan;
mod scheduler;
mod seams;
mod told;
mod usage_status;

#[cfg(test)]
mod tests;

pub use physical::FINALIZER;
pub use portolan_placement::{Refusal, WouldBeClaim, has_template, is_refused, still_refused_status};
pub use scheduler::{Parts, Scheduler, SchedulerError};
pub use seams::{
    AdmittedPod, BuiltinKinds, Charge, Charged, ClusterTree, KindCatalog, NotAdmitted, PodGate, UseRights,
};
