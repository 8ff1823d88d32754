//! The loops that every logical cluster needs, each one task for all logical clusters: namespaces, garbage collection,
//! service accounts, workspaces, aggregated roles.
//!
//! This crate reads and writes through the store and knows no HTTP. What an object is, machinery tells it.

pub mod garbage;
pub mod namespaces;
pub mod plane;
pub mod roles;
pub mod runtime;
pub mod service_accounts;
pub mod workspaces;

use std::sync::Arc;

pub use plane::{Plane, PlaneError};
pub use runtime::{Controller, Outcome, run};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// Starts the loops that every API server needs; that of workspaces needs their directory and is started apart. They end after `shutdown`, and the owner of `tasks` awaits that.
///
/// `root_ca` is the PEM that clients in pods trust the API server by; it goes into `kube-root-ca.crt` of every namespace.
pub fn spawn_all(plane: &Arc<Plane>, root_ca: &str, shutdown: &CancellationToken, tasks: &mut JoinSet<()>) {
    tasks.spawn(run(plane.clone(), namespaces::Namespaces::new(plane.clone()), shutdown.clone()));
    tasks.spawn(run(plane.clone(), garbage::GarbageCollector::new(plane.clone()), shutdown.clone()));
    tasks.spawn(run(plane.clone(), service_accounts::ServiceAccounts::new(plane.clone(), root_ca), shutdown.clone()));
    tasks.spawn(run(plane.clone(), roles::AggregatedRoles::new(plane.clone()), shutdown.clone()));
}
