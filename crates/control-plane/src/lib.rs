//! Control plane as a library: the API server, the controllers, the scheduler and the syncers of one process over one
//! store.
//!
//! [`open`] binds the socket and opens the store, [`OpenedControlPlane::start`] starts every part, and
//! [`ControlPlane::stop`] stops them in order. The crate uses all other library crates, but does not know the command
//! line.

mod autoscaling;
mod config;
mod control_plane;
pub mod data_dir;
mod elected;
#[cfg(debug_assertions)]
pub mod failpoints;
mod gate;
mod multicluster_services;
mod opening;
mod physical_clusters;
mod placement_status;
mod plane_name;
mod plans;
mod projected_writes;
mod readiness;
mod resource_metrics;
mod scheduler_hooks;
mod security;
mod shared_keys;
mod sharing;
mod streams;
mod tunnels;
mod type_descriptions;
mod upstream;
mod use_grants;
mod workspace_client;

pub use config::{Config, HISTORY, Storage, WORKSPACE_LIMITS};
pub use control_plane::ControlPlane;
pub use opening::{OpenedControlPlane, open};
pub use physical_clusters::ClusterAddresses;
pub use portolan_scheduler::FailoverTiming;
pub use readiness::EtcdOpeningCheck;
pub use security::SecurityConfig;
pub use workspace_client::WorkspaceClient;
