//! Validation of objects, with the errors of kube-apiserver in its words and order.
//!
//! A folder or file per API group has a table of [`rules::Rules`] by kind. Rules are functions over a view of the JSON
//! tree ([`view::At`]).

mod admission;
mod apiextensions;
mod apiregistration;
mod apis;
mod apps;
mod autoscaling;
mod batch;
mod certificates;
mod core;
pub mod custom;
pub mod data_sources;
mod discovery;
mod dispatch;
mod flowcontrol;
mod internal;
mod managers;
mod metadata;
pub mod names;
mod networking;
mod policy;
mod policy_terms;
mod portolan;
pub mod qos;
mod rbac;
mod resource;
mod rules;
mod selectors;
mod small;
mod storage;
mod tenancy;
mod view;

use portolan_types::StatusCause;
use serde_json::Value;

pub use certificates::pair_fault;
pub use certificates::{certificate_ends, requested_organizations};
pub use managers::{MAX_MANAGER, field_manager};
pub use metadata::{annotations_at, labels as labels_at};
use portolan_kinds::field::{Errors, FieldError, Path};
pub use selectors::{cidr, sloppy_ip};

use portolan_codec::conversion;
use portolan_kinds::{Kind, KindTable};
use rules::Subject;

/// Validates a new object after defaulting. Returns one cause per fault.
pub fn validate_create(table: &KindTable, kind: &Kind, object: &Value) -> Vec<StatusCause> {
    let mut errors = Errors::default();
    let object = &*conversion::checked_as(kind, object);
    let subject = Subject { table, kind, old: None, new: object };
    subject.check(dispatch::rules_of(kind).create, &mut errors);
    custom::check(kind, (None, object), None, &mut errors);
    if errors.is_empty() {
        // Rules for every kind, for the parts that this kind's own rules do not check.
        metadata::validate_any(kind, object, &mut errors);
    }
    errors.into_causes()
}

/// Validates a changed object. `subresource` is the last part of the endpoint.
pub fn validate_update(
    table: &KindTable,
    kind: &Kind,
    subresource: Option<&str>,
    old: &Value,
    new: &Value,
) -> Vec<StatusCause> {
    check_update(table, kind, subresource, old, new).into_causes()
}

/// Validates like the function above, and also returns the warnings.
pub fn check_update(table: &KindTable, kind: &Kind, subresource: Option<&str>, old: &Value, new: &Value) -> Errors {
    let mut errors = Errors::default();
    if subresource == Some("binding") {
        // kube-apiserver writes the fields of a binding into the pod without validation.
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

/// Validates the addresses of a Service alone.
pub fn service_addresses(old: &Value, new: &Value, errors: &mut Errors) {
    core::service_addresses(old, new, errors);
}

/// Validates the metadata of an embedded object.
pub(crate) fn embedded_metadata(path: &Path, value: &Value, errors: &mut Errors) {
    metadata::embedded(path, value, errors);
}

/// Returns the error for an update without the resourceVersion it is based on.
pub fn no_resource_version() -> StatusCause {
    FieldError::invalid("metadata.resourceVersion", &Value::from(0), "must be specified for an update").into()
}
