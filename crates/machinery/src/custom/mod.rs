//! Custom resources: what a CustomResourceDefinition says, compiled to the shape that the kind table has for all kinds.
//!
//! A [`Definition`] is what the other definitions of a logical cluster and whoever serves it need to know of one. Compiling is
//! apart ([`compile`]), because what it gives is the same for the same content, in whatever logical cluster it is.

mod compile;
mod conversion;
mod definition;
mod names;
mod status;
#[cfg(test)]
mod tests;

pub use compile::{Fingerprint, compile, fingerprint};
pub use conversion::{Conversion, ConversionWebhook, Review};
pub use definition::{Definition, resource_named};
pub use names::{Names, Taken};
pub use status::{CLEANUP_FINALIZER, Instances, deletion_begins, settled, with_instances};
pub(crate) use status::{fresh_status, stored_versions};

/// Group of the kind that defines kinds.
pub const GROUP: &str = "apiextensions.k8s.io";
/// Its plural.
pub const RESOURCE: &str = "customresourcedefinitions";
