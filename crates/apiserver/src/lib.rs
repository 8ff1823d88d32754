//! The API server: from HTTP to typed requests through one pipeline, with discovery, list and watch.
//!
//! Every request passes the same stages: limits → authenticate → resolve the logical cluster → authorize → decode →
//! admit → act → encode. Every failure is a `Status`. The crate does not know how objects are stored, which physical
//! clusters exist, or who decides where objects run; these come in through the seams of [`hooks`].

mod accessible;
pub mod admission;
mod aggregation;
pub mod audit;
pub mod authn;
pub mod authz;
mod commit;
pub mod config;
mod conversion;
pub mod directory;
mod encode;
mod errors;
mod fair_cache;
mod front_proxy;
mod handlers;
pub mod hooks;
pub mod http;
mod kinds;
mod limits;
mod metrics;
mod objects;
mod options;
mod permission_policy;
mod pipeline;
pub mod pki;
mod reach;
mod request;
mod requester;
mod routing;
mod server;
mod step_access;
mod storage;
pub mod sync;
mod views;
mod watch;
pub mod webhooks;

pub use self::http::InProcess;
pub use config::{ApiServerConfig, ConfigError};
pub use directory::{Directory, LogicalCluster};
pub use encode::{Body, BodyError, full};
pub use limits::{FairShare, yield_long_slice};
pub use objects::TemplatedObject;
pub use portolan_strategy::rbac::User;
pub use routing::attributes;
pub use server::{ApiServer, StartError};
