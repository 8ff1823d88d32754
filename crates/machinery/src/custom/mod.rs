//! Custom resources: what a CustomResourceDefinition says, compiled to the shape that the kind table has for all kinds.
//!
//! A [`Definition`] is what the other definitions of a logical cluster and whoever serves it need to know of one. Compiling is
//! apart ([`compile`]), because what it gives is the same for the same content, in whatever logical cluster it is.

mod approval;
mod builtin;
mod columns;
mod compile;
mod content;
mod conversion;
mod defaults;
mod definition;
mod deprecation;
mod jsonpath;
mod names;
mod publish;
mod review;
mod rules;
mod scale;
mod schema;
mod status;
#[cfg(test)]
mod tests;
mod values;

pub(crate) use approval::{APPROVAL, approval, approval_in_any_group};
pub use builtin::is_builtin_resource;
pub(crate) use builtin::is_own_group;
pub use columns::Columns;
pub use compile::{CompileError, Fingerprint, compile, compile_names, fingerprint};
pub use content::Content;
pub(crate) use content::{check, has_rules};
pub use conversion::{Conversion, ConversionWebhook, Review};
pub(crate) use defaults::{DefaultsAllowance, check_defaults};
pub use definition::{Definition, instances_named, resource_named};
pub use names::{Names, Taken};
pub use review::Answer;
pub use rules::RulesWatch;
pub(crate) use rules::check_rules;
pub use scale::{JsonPath, ScalePaths};
pub use schema::{
    Additional, Bound, Checks, Default, Format, ListKind, Pattern, Properties, Schema, TooLarge, ValueKind,
};
pub use status::{CLEANUP_FINALIZER, Instances, deletion_begins, settled, with_instances};
pub(crate) use status::{fresh_status, stored_versions};

/// Group of the kind that defines kinds.
pub const GROUP: &str = "apiextensions.k8s.io";
/// Its plural.
pub const RESOURCE: &str = "customresourcedefinitions";
pub(crate) use schema::{MAX_NODES, META_FIELDS, is_known_format};
pub(crate) use values::{PatternBudget, go_float};
