//! Between the version a client uses and the version objects are stored in.
//!
//! Most resources are stored as they are served. Two are not: `events.k8s.io/v1` events are core events, and autoscaling/v1
//! horizontal pod autoscalers are autoscaling/v2 ones, whose further fields travel in annotations.

mod events;
mod internal;
mod metrics;
mod scaling;
#[cfg(test)]
mod tests;

use std::borrow::Cow;

use serde_json::{Map, Value};

use crate::kinds::Kind;

pub use internal::{blank, hides_number, internal, is_internal};
pub(crate) use internal::{served, settle_number};

/// The fields of an object.
type Fields = Map<String, Value>;

/// Whether objects of `kind` are stored in another form than they are served in, or may have been stored by another definition.
pub fn is_needed(kind: &Kind) -> bool {
    is_other_version(kind) || !kind.is_typed()
}

/// Whether an object that is stored in the version of `kind` is served as it is, as JSON.
pub fn is_served_as_stored(kind: &Kind, body: &[u8]) -> bool {
    !is_other_version(kind) && kind.content.as_ref().is_none_or(|content| content.is_served_as_stored(body))
}

fn is_other_version(kind: &Kind) -> bool {
    kind.storage.group != kind.gvk.group || kind.storage.version != kind.gvk.version
}

/// The stored form of an object of `kind`.
pub fn to_storage(kind: &Kind, object: Value) -> Value {
    let mut object = convert(kind, object, events::to_core, scaling::to_v2, storage_version(kind));
    if let Some(content) = &kind.content {
        content.store(&mut object);
    }
    object
}

/// Whether the version of `kind` cannot say in which order the stored form has its parts.
pub fn loses_order(kind: &Kind) -> bool {
    is_scaler(kind) && is_other_version(kind)
}

/// The stored form of an object of which only the status was written: the spec stays as it is in `stored`.
pub fn status_to_storage(kind: &Kind, object: &Value, stored: &Value) -> Value {
    let mut object = to_storage(kind, object.clone());
    object["spec"] = stored.get("spec").cloned().unwrap_or_default();
    object
}

/// The form that `kind` serves, of a stored object.
pub fn from_storage(kind: &Kind, object: Value) -> Value {
    let mut object = convert(kind, object, events::from_core, scaling::from_v2, kind.group_version().to_string());
    if let Some(content) = &kind.content {
        content.serve(&mut object);
    }
    object
}

/// Fills in what going through the other form does: upstream reads autoscalers into one form, whatever their version. In the new
/// one annotations of the old say nothing.
pub(crate) fn pass_through(kind: &Kind, object: &mut Value) {
    match (is_scaler(kind), object.as_object_mut()) {
        (true, Some(_)) if is_other_version(kind) => *object = from_storage(kind, to_storage(kind, object.take())),
        (true, Some(fields)) => scaling::drop_annotations(fields),
        _ => {}
    }
}

fn is_scaler(kind: &Kind) -> bool {
    (&*kind.gvk.group, &*kind.gvk.kind) == ("autoscaling", "HorizontalPodAutoscaler")
}

/// The form in which an object is checked: upstream knows autoscalers in one form only.
pub(crate) fn checked_as<'o>(kind: &Kind, object: &'o Value) -> Cow<'o, Value> {
    match is_scaler(kind) && is_other_version(kind) {
        true => Cow::Owned(to_storage(kind, object.clone())),
        false => Cow::Borrowed(object),
    }
}

/// Works on an object in the form in which it is checked.
pub(crate) fn in_that_form(kind: &Kind, object: &mut Value, work: impl FnOnce(&mut Value)) {
    let is_other = is_scaler(kind) && is_other_version(kind);
    if is_other {
        *object = to_storage(kind, object.take());
    }
    work(object);
    if is_other {
        *object = from_storage(kind, object.take());
    }
}

/// Completes an object that is stored in the version of `kind` as that version has it, before others are made of it.
pub fn complete_stored(kind: &Kind, object: &mut Value) {
    if let Some(content) = &kind.content {
        content.serve(object);
    }
}

/// The form that `kind` serves, of an object that was converted to its version. What it has no value for is not filled in: its
/// defaults are for what is written in its version.
pub fn from_other_version(kind: &Kind, mut object: Value) -> Value {
    if let Some(content) = &kind.content {
        content.prune(&mut object);
    }
    object
}

fn storage_version(kind: &Kind) -> String {
    match &*kind.storage.group {
        "" => kind.storage.version.to_string(),
        group => format!("{group}/{}", kind.storage.version),
    }
}

fn convert(kind: &Kind, object: Value, event: fn(&mut Fields), scaler: fn(&mut Fields), version: String) -> Value {
    if !is_other_version(kind) {
        return object;
    }
    let Value::Object(mut fields) = object else { return object };
    match (&*kind.gvk.group, &*kind.gvk.kind) {
        ("events.k8s.io", "Event") => event(&mut fields),
        ("autoscaling", "HorizontalPodAutoscaler") => scaler(&mut fields),
        _ => {}
    }
    fields.insert("apiVersion".into(), version.into());
    Value::Object(fields)
}

/// Moves a field to another name.
fn rename(fields: &mut Fields, from: &str, to: &str) {
    if let Some(value) = fields.remove(from) {
        fields.insert(to.to_owned(), value);
    }
}
