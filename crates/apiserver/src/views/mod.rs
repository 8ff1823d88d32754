//! Views: the only reads and writes across logical clusters.
//!
//! A view is a set of logical clusters, a set of resources, and a rule of consent. Its contract:
//!
//! - The caller needs the provider's right in the logical cluster of the export: its own verb on `apiexports/content`.
//! - A logical cluster belongs to the view of an export while it has a binding that the server has bound to that very
//!   export: the status of the binding, which no client can write, names the export and its identity.
//! - Of such a logical cluster the view shows the bound resources, the binding itself, and the claimed built-in
//!   resources that the binding accepts, each limited by its verbs and its selector. Everything else looks as if it did
//!   not exist.
//! - Consent is read at every request, and at every event of a watch. When it is withdrawn, watches end with 410.
//! - The rights of the caller in the logical cluster itself do not matter, and no other check is skipped: admission,
//!   quotas, validation and limits are those of the logical cluster.
//!
//! This module decides on access and reads only bindings and exports. `objects::view_items` reads the objects.

mod address;
mod consent;
mod events;
pub(crate) mod flattened;
mod lifecycle;
mod view;

pub(crate) use address::{FLATTENED_SEGMENTS, SEGMENTS, export_of, flattened_export_of};
#[cfg(test)]
pub(crate) use consent::ViewedExport;
pub(crate) use consent::{Answer, Grant};
pub(crate) use events::{ViewEvents, WatchedResource};
pub(crate) use lifecycle::{LifecycleView, STEP_SEGMENTS, StepAddress};
#[cfg(test)]
pub(crate) use view::has_shared_objects;
pub(crate) use view::{ApiView, Members};
