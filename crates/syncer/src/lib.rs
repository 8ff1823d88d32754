//! Syncer between the upstream side and one physical cluster: it copies placed objects downstream and reports their
//! status upstream.
//!
//! Decisions are pure: [`plan`], [`transform`], [`status`], [`project`]. One [`worker`] per physical cluster does the
//! IO. It reads and reports through [`portolan_types::upstream::Upstream`] and knows no store. It reaches any type of
//! physical cluster through a [`connector::Connector`].

mod access;
mod addresses;
mod client;
pub mod connector;
mod definitions;
mod memory;
mod namespace_naming;
pub mod naming;
pub mod plan;
pub mod project;
pub mod rules;
pub mod status;
pub mod streams;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod transform;
pub mod usage;
pub mod worker;

pub use access::{AccessError, AccessService, AccessTokens};
pub use addresses::Addresses;
pub use connector::{ConnectError, Connector, DirectConnector};
pub use memory::SyncMemoryBudget;
pub use namespace_naming::NamespaceNaming;
pub use naming::{ADOPTABLE_NAMESPACE, NamespaceIdentity, downstream_namespace};
pub use plan::{Proof, plan};
pub use rules::SyncRules;
pub use status::CopyStatus;
pub use worker::{LeftBehindOrder, SyncLimits, Syncer, SyncerConfig, SyncerHandle, SyncerStats, TaskWrapper};
