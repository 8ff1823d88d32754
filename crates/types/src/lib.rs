//! Portolan's terms as types: names, ids, keys, resourceVersions, `Status`, records, Portolan's own kinds, and the
//! traits that are seams between crates.
//!
//! The crate does no IO. It knows no async runtime, no HTTP, no storage engine, and of kinds only Portolan's own.

pub mod addresses;
pub mod agent;
pub mod annotations;
pub mod apis;
pub mod client_counts;
pub mod declared_references;
pub mod duration;
pub mod event_draft;
pub mod failpoint;
pub mod fingerprint;
pub mod group;
pub mod imported_services;
pub mod json_patch;
pub mod key;
pub mod labels;
pub mod lifecycle;
pub mod names;
pub mod number;
pub mod object;
pub mod placement;
pub mod pod_security;
pub mod quantity;
pub mod quoted;
pub mod record;
pub mod references;
pub mod round_robin;
pub mod scale_fields;
pub mod seams;
pub mod status;
pub mod tree;
pub mod upstream;
pub mod version;
pub mod work;

pub use fingerprint::fingerprint;
pub use group::{GroupKind, GroupResource, GroupVersion, GroupVersionKind, GroupVersionResource};
pub use key::{ObjectKey, Scope};
pub use labels::LabelSelector;
pub use names::{InvalidName, LogicalClusterId, LogicalClusterPath, NamespaceName, ObjectName, Uid};
pub use record::Record;
pub use scale_fields::ScaleFields;
pub use seams::{Clock, Entropy, MonotonicInstant, Seams};
pub use status::{Reason, Status, StatusCause, StatusDetails};
pub use tree::ManagedFields;
pub use version::{InvalidResourceVersion, ReadAt, ResourceVersion};

/// A boxed future, so that seam traits can be used as `dyn`.
pub type BoxFuture<'a, T> = futures::future::BoxFuture<'a, T>;
