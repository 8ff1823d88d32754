//! The loops that every logical cluster needs, each one for all logical clusters: namespaces, garbage collection, service
//! accounts and their tokens, quotas, Endpoints, workspaces, aggregated roles, definitions of custom resources, type checks of
//! policies, and what goes when its time is over.
//!
//! This crate reads and writes through the store and knows no HTTP. What an object is, machinery tells it.

mod at_once;
pub mod definitions;
mod emptying;
pub mod ending_pods;
pub mod endpoints;
pub mod expiry;
pub mod garbage;
pub mod namespaces;
pub mod plane;
pub mod protection;
pub mod quotas;
mod remains;
pub mod roles;
pub mod runtime;
pub mod service_accounts;
pub mod token_secrets;
pub mod type_checks;
pub mod workspaces;

use std::sync::Arc;

use expiry::Expiry;
pub use plane::{Found, Plane, PlaneError};
pub use runtime::{Controller, LoopMetrics, Loops, Outcome, TaskWrapper};

/// The loops that every API server needs; that of workspaces needs their directory and is added apart.
///
/// `root_ca` is the PEM that clients in pods trust the API server by; it goes into `kube-root-ca.crt` of every namespace.
pub fn common(plane: &Arc<Plane>, root_ca: &str) -> Loops {
    Loops::new(plane.clone())
        .with(definitions::Definitions::new(plane.clone()))
        .with(namespaces::Namespaces::new(plane.clone()))
        .with(garbage::GarbageCollector::new(plane.clone()))
        .with(service_accounts::ServiceAccounts::new(plane.clone(), root_ca))
        .with(roles::AggregatedRoles::new(plane.clone()))
        .with(Expiry::new(plane.clone(), expiry::EVENTS))
        .with(Expiry::new(plane.clone(), expiry::ENDED_JOBS))
        .with(Expiry::new(plane.clone(), expiry::CERTIFICATE_REQUESTS))
        .with(quotas::Quotas::new(plane.clone()))
        .with(ending_pods::EndingPods::new(plane.clone()))
        .with(protection::Protection::new(plane.clone()))
        .with(endpoints::Endpoints::new(plane.clone()))
        .with(type_checks::TypeChecks::new(plane.clone()))
        .counting()
}
