//! Access to the common parts of an object, which is a JSON tree.

use jiff::Timestamp;
use serde_json::{Map, Value};

use crate::names::Uid;

/// JSON object.
pub type Object = Map<String, Value>;

/// Returns `metadata` of an object; an empty map if it has none.
pub fn metadata(object: &Value) -> &Object {
    static EMPTY: std::sync::LazyLock<Object> = std::sync::LazyLock::new(Object::new);
    object.get("metadata").and_then(Value::as_object).unwrap_or(&EMPTY)
}

/// Returns `metadata` of an object; creates it if it is missing or not an object.
///
/// # Panics
/// Panics if `object` is not a JSON object, which decoding rules out.
pub fn metadata_mut(object: &mut Value) -> &mut Object {
    child_mut(object.as_object_mut().expect("an API object is a JSON object"), "metadata")
}

/// Returns the object under `key`; creates it if it is missing or not an object.
pub fn child_mut<'a>(parent: &'a mut Object, key: &str) -> &'a mut Object {
    if !parent.get(key).is_some_and(Value::is_object) {
        parent.insert(key.to_owned(), Value::Object(Object::new()));
    }
    parent.get_mut(key).and_then(Value::as_object_mut).expect("it was made above")
}

/// Returns the text at `metadata.<key>`; empty if missing.
pub fn meta_text<'a>(object: &'a Value, key: &str) -> &'a str {
    metadata(object).get(key).and_then(Value::as_str).unwrap_or_default()
}

/// Returns `metadata.name`; empty if missing.
pub fn name(object: &Value) -> &str {
    meta_text(object, "name")
}

/// Returns `metadata.namespace`; empty if missing.
pub fn namespace(object: &Value) -> &str {
    meta_text(object, "namespace")
}

/// Returns `metadata.uid` if it exists and is well formed.
pub fn uid(object: &Value) -> Option<Uid> {
    meta_text(object, "uid").parse().ok()
}

/// Returns `metadata.generation`; 0 if missing.
pub fn generation(object: &Value) -> i64 {
    metadata(object).get("generation").and_then(Value::as_i64).unwrap_or(0)
}

/// Returns true if the object is being deleted.
pub fn is_deleting(object: &Value) -> bool {
    metadata(object).get("deletionTimestamp").is_some_and(|v| !v.is_null())
}

/// Returns the deletion timestamp, at which the grace period ends.
pub fn deletion_time(object: &Value) -> Option<Timestamp> {
    metadata(object).get("deletionTimestamp")?.as_str()?.parse().ok()
}

/// Returns the value of an annotation.
pub fn annotation<'a>(object: &'a Value, key: &str) -> Option<&'a str> {
    metadata(object).get("annotations")?.get(key)?.as_str()
}

/// Sets an annotation, or removes it with `None`; removes empty `annotations`.
pub fn set_annotation(object: &mut Value, key: &str, value: Option<String>) {
    set_entry(object, "annotations", key, value);
}

/// Sets a label, or removes it with `None`.
pub fn set_label(object: &mut Value, key: &str, value: Option<String>) {
    set_entry(object, "labels", key, value);
}

/// Sets or removes an entry of a map in the metadata. An empty map is removed.
fn set_entry(object: &mut Value, map: &str, key: &str, value: Option<String>) {
    let metadata = metadata_mut(object);
    match value {
        Some(text) => {
            child_mut(metadata, map).insert(key.to_owned(), Value::String(text));
        }
        None => {
            let Some(entries) = metadata.get_mut(map).and_then(Value::as_object_mut) else { return };
            entries.remove(key);
            if entries.is_empty() {
                metadata.remove(map);
            }
        }
    }
}

/// Returns the value of a label.
pub fn label<'a>(object: &'a Value, key: &str) -> Option<&'a str> {
    metadata(object).get("labels")?.get(key)?.as_str()
}

/// Returns `metadata.finalizers`.
pub fn finalizers(object: &Value) -> impl Iterator<Item = &str> {
    list(object, "finalizers").iter().filter_map(Value::as_str)
}

/// Returns the owner references, as JSON.
pub fn owner_references(object: &Value) -> &[Value] {
    list(object, "ownerReferences")
}

/// Returns the owner reference with `controller: true`.
pub fn controller_of(object: &Value) -> Option<&Value> {
    owner_references(object).iter().find(|owner| owner.get("controller").and_then(Value::as_bool) == Some(true))
}

/// Returns the condition that states that a Job has ended, successfully or not.
pub fn end_of_job(job: &Value) -> Option<&Value> {
    let conditions = job.pointer("/status/conditions").and_then(Value::as_array);
    conditions.into_iter().flatten().find(|condition| {
        let text = |key: &str| condition.get(key).and_then(Value::as_str).unwrap_or_default();
        matches!(text("type"), "Complete" | "Failed") && text("status") == "True"
    })
}

/// Returns true for a Job or a Pod that has ended.
pub fn has_ended(group: &str, kind: &str, object: &Value) -> bool {
    match (group, kind) {
        ("batch", "Job") => end_of_job(object).is_some(),
        ("", "Pod") => {
            matches!(object.pointer("/status/phase").and_then(Value::as_str), Some("Succeeded" | "Failed"))
        }
        _ => false,
    }
}

fn list<'a>(object: &'a Value, key: &str) -> &'a [Value] {
    metadata(object).get(key).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}
