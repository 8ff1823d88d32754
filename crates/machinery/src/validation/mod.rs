//! Validation: what is wrong with an object, in upstream's words and order.
//!
//! A folder or file per API group holds a table of [`rules::Rules`] by kind; rules are functions over a view of the JSON tree
//! ([`view::At`]).

mod admission;
mod apiextensions;
mod apiregistration;
mod apps;
mod autoscaling;
mod batch;
mod certificates;
mod core;
#[cfg(test)]
mod coverage;
mod discovery;
mod dispatch;
mod error;
mod flowcontrol;
mod internal;
mod managers;
mod metadata;
pub(crate) mod names;
mod networking;
mod policy;
mod portolan;
mod rbac;
mod resource;
mod rules;
mod selectors;
mod small;
mod storage;
#[cfg(test)]
mod tests;
#[cfg(test)]
pub(crate) mod verdicts;
mod view;

use portolan_types::StatusCause;
use serde_json::Value;

pub(crate) use certificates::pair_fault;
pub use certificates::{certificate_ends, requested_organizations};
pub(crate) use error::escaped;
pub use error::{Errors, FieldError, Path};
pub use managers::{MAX_MANAGER, field_manager};
pub(crate) use metadata::{annotations_at, labels as labels_at};
pub(crate) use selectors::{cidr, sloppy_ip};

use crate::{
    conversion, custom,
    kinds::{Kind, KindTable},
};
use rules::Subject;

/// What is wrong with a new object; empty when nothing is. Defaults have been applied.
pub fn validate_create(table: &KindTable, kind: &Kind, object: &Value) -> Vec<StatusCause> {
    let mut errors = Errors::default();
    let object = &*conversion::checked_as(kind, object);
    let subject = Subject { table, kind, old: None, new: object };
    subject.check(dispatch::rules_of(kind).create, &mut errors);
    custom::check(kind, (None, object), None, &mut errors);
    if errors.is_empty() {
        // What holds for any kind, where the rules of this one do not look.
        metadata::validate_any(kind, object, &mut errors);
    }
    errors.into_causes()
}

/// What is wrong with a changed object, of whose endpoint `subresource` is the last part.
pub fn validate_update(
    table: &KindTable,
    kind: &Kind,
    subresource: Option<&str>,
    old: &Value,
    new: &Value,
) -> Vec<StatusCause> {
    check_update(table, kind, subresource, old, new).into_causes()
}

/// The same, with what clients are only warned of.
pub(crate) fn check_update(
    table: &KindTable,
    kind: &Kind,
    subresource: Option<&str>,
    old: &Value,
    new: &Value,
) -> Errors {
    let mut errors = Errors::default();
    if subresource == Some("binding") {
        // Upstream writes what a binding brings with it into the pod past all rules.
        return errors;
    }
    let (old, new) = (&*conversion::checked_as(kind, old), &*conversion::checked_as(kind, new));
    // The registry of any kind checks metadata before the rules of the kind do so again.
    metadata::validate_any(kind, new, &mut errors);
    metadata::validate_update_any(old, new, &mut errors);
    let subject = Subject { table, kind, old: Some(old), new };
    subject.check(dispatch::rules_of(kind).of_update(subresource), &mut errors);
    custom::check(kind, (Some(old), new), subresource, &mut errors);
    errors
}

/// What is wrong with the addresses of a service, without the rest of it.
pub(crate) fn service_addresses(old: &Value, new: &Value, errors: &mut Errors) {
    core::service_addresses(old, new, errors);
}

/// What is wrong with the metadata of an object inside of another.
pub(crate) fn embedded_metadata(path: &Path, value: &Value, errors: &mut Errors) {
    metadata::embedded(path, value, errors);
}

/// An update must name the resourceVersion it is based on.
pub fn no_resource_version() -> StatusCause {
    FieldError::invalid("metadata.resourceVersion", &Value::from(0), "must be specified for an update").into()
}
