//! Brings placed objects down to one physical cluster and their status back up.
//!
//! The decisions are pure: [`plan`], [`transform`], [`status`], [`project`]. Around them stands one [`worker`] per physical cluster. It
//! reads and reports through [`portolan_types::upstream::Upstream`] and knows no store, and it reaches the physical cluster through a
//! [`connector::Connector`] and does not know which.

mod addresses;
mod client;
pub mod connector;
mod namespace_labels;
pub mod naming;
pub mod plan;
pub mod project;
pub mod rules;
pub mod status;
pub mod streams;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod transform;
pub mod worker;

pub use addresses::Addresses;
pub use connector::{ConnectError, Connector, DirectConnector};
pub use namespace_labels::NamespaceNaming;
pub use naming::{NamespaceIdentity, downstream_namespace};
pub use plan::{Proof, plan};
pub use rules::SyncRules;
pub use status::CopyStatus;
pub use worker::{LeftBehindOrder, SyncLimits, Syncer, SyncerConfig, SyncerHandle, SyncerStats, TaskWrapper};
