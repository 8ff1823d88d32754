//! Custom resources: a CustomResourceDefinition is compiled to the shape that the kind table has for all kinds.
//!
//! A [`Definition`] holds the facts of one definition that the other definitions of a logical cluster, and its servers,
//! need. Compiling is separate ([`compile`]), because equal content gives an equal result in every logical cluster.

mod approval;
mod builtin;
mod columns;
mod compile;
mod content;
mod conversion;
mod definition;
mod deprecation;
mod exported;
mod names;
mod publish;
mod rules;
mod scale;
mod schema;
mod status;
pub mod values;

pub use approval::{APPROVAL, approval, approval_in_any_group};
pub use builtin::is_builtin_resource;
pub use builtin::is_own_group;
pub use columns::{Column, Columns};
pub use compile::{CompileError, Fingerprint, compile, compile_names, fingerprint};
pub use content::Content;
pub use content::has_rules;
pub use conversion::{Conversion, ConversionWebhook};
pub use definition::{Definition, instances_named, resource_named};
pub use exported::definition_of_schema;
pub use names::{Names, TakenNames};
pub use rules::{DefaultRules, MAX_DEFAULT_RULES, Rules, RulesWatch, check_rules};
pub use scale::{JsonPath, ScalePaths};
pub use schema::{
    Additional, Checks, Default, Format, ListKind, NumberBound, Pattern, Properties, Schema, TooLarge, ValueKind,
};
pub use status::{CLEANUP_FINALIZER, Instances, deletion_begins, settled, with_instances};
pub use status::{fresh_status, stored_versions};

/// Group of the kind that defines kinds.
pub const GROUP: &str = "apiextensions.k8s.io";
/// Its plural.
pub const RESOURCE: &str = "customresourcedefinitions";
pub use schema::{MAX_NODES, META_FIELDS, is_known_format};
pub use values::{PatternBudget, prefixed};
