//! Validation: what is wrong with an object, in upstream's words and order.

mod batch;
mod config;
mod containers;
mod cron;
mod dispatch;
mod error;
mod metadata;
pub(crate) mod names;
mod network;
mod pods;
mod policy;
mod portolan;
mod selectors;
mod services;
mod storage;
#[cfg(test)]
mod tests;
mod view;
mod volumes;
mod workloads;

use portolan_types::StatusCause;
use serde_json::Value;

pub use error::{Errors, FieldError, Path};

use crate::kinds::{Kind, KindTable};

/// What is wrong with a new object; empty when nothing is. Defaults have been applied.
pub fn validate_create(table: &KindTable, kind: &Kind, object: &Value) -> Vec<StatusCause> {
    let mut errors = Errors::default();
    metadata::validate(kind, object, &mut errors);
    dispatch::create(table, kind, object, &mut errors);
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
    let mut errors = Errors::default();
    metadata::validate(kind, new, &mut errors);
    metadata::validate_update(old, new, &mut errors);
    if !matches!(subresource, Some("status")) {
        dispatch::update(table, kind, subresource, old, new, &mut errors);
    }
    errors.into_causes()
}

/// An update must name the resourceVersion it is based on.
pub fn no_resource_version() -> StatusCause {
    FieldError::invalid("metadata.resourceVersion", &Value::from(""), "must be specified for an update").into()
}
