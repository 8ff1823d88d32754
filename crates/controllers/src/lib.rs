//! Controllers that every logical cluster needs, each one for all logical clusters: namespaces, garbage collection,
//! ServiceAccounts and their tokens, quotas, Endpoints, workspaces, aggregated roles, CustomResourceDefinitions, type
//! checks of policies, and the deletion of expired objects.
//!
//! The crate reads and writes through the store and knows no HTTP. The rules of kinds come from `portolan-strategy` and
//! the crates before it.

pub mod apis;
mod concurrency;
pub mod definitions;
mod emptying;
pub mod ending_pods;
pub mod endpoints;
pub mod expiry;
pub mod garbage;
pub mod inventory;
pub mod namespaces;
pub mod plane;
pub mod protection;
pub mod quotas;
mod remaining_content;
pub mod roles;
pub mod runtime;
pub mod service_accounts;
pub mod token_secrets;
pub mod type_checks;
pub mod workspaces;

use std::sync::Arc;

use expiry::ExpiryController;
pub use plane::{Plane, PlaneError, PlaneObject};
pub use runtime::{Controller, LoopMetrics, Loops, TaskWrapper, WorkOutcome};

/// Adds the controllers of exports and bindings, which need a directory.
#[must_use]
pub fn shared_apis(loops: Loops, plane: &Arc<Plane>, directory: &Arc<dyn apis::ExportDirectory>) -> Loops {
    loops
        .with(apis::ExportController::new(plane.clone(), directory.clone()))
        .with(apis::BindingController::new(plane.clone(), directory.clone()))
        .with(apis::SliceController::new(plane.clone(), directory.clone()))
        .with(apis::DefaultBindingController::new(plane.clone(), directory.clone()))
}

/// Returns the controllers that every API server needs. The controller of workspaces needs a directory and is added
/// separately.
///
/// `root_ca` is the PEM by which clients in pods trust the API server. It is written to `kube-root-ca.crt` in every
/// namespace.
pub fn common(plane: &Arc<Plane>, root_ca: &str) -> Loops {
    Loops::new(plane.clone())
        .with(definitions::DefinitionController::new(plane.clone()))
        .with(namespaces::NamespaceController::new(plane.clone()))
        .with(garbage::GarbageCollector::new(plane.clone()))
        .with(service_accounts::ServiceAccountController::new(plane.clone(), root_ca))
        .with(roles::RoleAggregationController::new(plane.clone()))
        .with(ExpiryController::new(plane.clone(), expiry::EVENTS))
        .with(ExpiryController::new(plane.clone(), expiry::ENDED_JOBS))
        .with(ExpiryController::new(plane.clone(), expiry::CERTIFICATE_REQUESTS))
        .with(quotas::QuotaController::new(plane.clone()))
        .with(ending_pods::OrphanedPodController::new(plane.clone()))
        .with(protection::ProtectionController::new(plane.clone()))
        .with(endpoints::EndpointsController::new(plane.clone()))
        .with(type_checks::TypeCheckController::new(plane.clone()))
        .counting()
}
