//! Between the version a client uses and the version objects are stored in.
//!
//! Most resources are stored as they are served. Two are not: `events.k8s.io/v1` events are core events, and autoscaling/v1
//! horizontal pod autoscalers are autoscaling/v2 ones, whose further fields travel in annotations.

mod events;
mod scaling;
#[cfg(test)]
mod tests;

use serde_json::{Map, Value};

use crate::kinds::Kind;

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

/// The form that `kind` serves, of a stored object.
pub fn from_storage(kind: &Kind, object: Value) -> Value {
    let mut object = convert(kind, object, events::from_core, scaling::from_v2, kind.group_version().to_string());
    if let Some(content) = &kind.content {
        content.serve(&mut object);
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
