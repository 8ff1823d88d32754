//! HTTP to typed requests: one pipeline, discovery, list and watch.
//!
//! Every request takes the same way: limits → authenticate → resolve the logical cluster → authorize → decode → admit → act →
//! encode, and every failure leaves as a `Status`. This crate does not know how objects are stored, which physical clusters
//! there are, or who decides where things run; what it lacks comes in through the seams of [`hooks`].

pub mod admission;
pub mod attributes;
pub mod authn;
pub mod authz;
mod bootstrap;
mod call;
pub mod config;
mod continue_token;
mod conversion;
pub mod directory;
mod encode;
mod errors;
pub mod follow;
mod handlers;
pub mod hooks;
mod in_process;
mod kinds;
mod limits;
mod measured;
mod metrics;
mod notes;
mod objects;
mod options;
mod path;
mod pipeline;
pub mod pki;
mod process;
mod query;
mod reach;
mod routes;
pub mod serve;
mod server;
mod version;
mod warnings;
mod watch;
pub mod webhooks;

pub use config::{ApiServerConfig, ConfigError};
pub use directory::{Directory, LogicalCluster};
pub use encode::{Body, BodyError, full};
pub use in_process::InProcess;
pub use limits::{FairShare, yield_long_slice};
pub use portolan_machinery::rbac::User;
pub use server::{ApiServer, StartError};
