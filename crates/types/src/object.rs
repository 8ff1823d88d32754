//! Reading and writing the common parts of an object that is a JSON tree.

use jiff::Timestamp;
use serde_json::{Map, Value};

use crate::names::Uid;

/// A JSON object.
pub type Object = Map<String, Value>;

/// `metadata` of an object; an empty map where it has none.
pub fn metadata(object: &Value) -> &Object {
    static EMPTY: std::sync::LazyLock<Object> = std::sync::LazyLock::new(Object::new);
    object.get("metadata").and_then(Value::as_object).unwrap_or(&EMPTY)
}

/// `metadata` of an object, made when it is missing or no object.
///
/// # Panics
/// When `object` is no JSON object; decoding lets nothing else in.
pub fn metadata_mut(object: &mut Value) -> &mut Object {
    child_mut(object.as_object_mut().expect("an API object is a JSON object"), "metadata")
}

/// The object under `key`, made when it is missing or no object.
pub fn child_mut<'a>(parent: &'a mut Object, key: &str) -> &'a mut Object {
    if !parent.get(key).is_some_and(Value::is_object) {
        parent.insert(key.to_owned(), Value::Object(Object::new()));
    }
    parent.get_mut(key).and_then(Value::as_object_mut).expect("it was made above")
}

/// Text at `metadata.<key>`; empty where it is missing.
pub fn meta_text<'a>(object: &'a Value, key: &str) -> &'a str {
    metadata(object).get(key).and_then(Value::as_str).unwrap_or_default()
}

/// `metadata.name`; empty where it is missing.
pub fn name(object: &Value) -> &str {
    meta_text(object, "name")
}

/// `metadata.namespace`; empty where it is missing.
pub fn namespace(object: &Value) -> &str {
    meta_text(object, "namespace")
}

/// `metadata.uid`, when it is there and well formed.
pub fn uid(object: &Value) -> Option<Uid> {
    meta_text(object, "uid").parse().ok()
}

/// `metadata.generation`; 0 where it is missing.
pub fn generation(object: &Value) -> i64 {
    metadata(object).get("generation").and_then(Value::as_i64).unwrap_or(0)
}

/// Whether deletion has been asked for.
pub fn is_deleting(object: &Value) -> bool {
    metadata(object).get("deletionTimestamp").is_some_and(|v| !v.is_null())
}

/// When it is, or was, to be gone, if it is being deleted.
pub fn deletion_time(object: &Value) -> Option<Timestamp> {
    metadata(object).get("deletionTimestamp")?.as_str()?.parse().ok()
}

/// The value of an annotation.
pub fn annotation<'a>(object: &'a Value, key: &str) -> Option<&'a str> {
    metadata(object).get("annotations")?.get(key)?.as_str()
}

/// Sets an annotation, or removes it with `None`; no empty `annotations` stays behind.
pub fn set_annotation(object: &mut Value, key: &str, value: Option<String>) {
    set_entry(object, "annotations", key, value);
}

/// Sets a label, or takes it off.
pub fn set_label(object: &mut Value, key: &str, value: Option<String>) {
    set_entry(object, "labels", key, value);
}

/// An empty map is taken off with its last entry.
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

/// The value of a label.
pub fn label<'a>(object: &'a Value, key: &str) -> Option<&'a str> {
    metadata(object).get("labels")?.get(key)?.as_str()
}

/// `metadata.finalizers`.
pub fn finalizers(object: &Value) -> impl Iterator<Item = &str> {
    list(object, "finalizers").iter().filter_map(Value::as_str)
}

/// The owner references, as JSON.
pub fn owner_references(object: &Value) -> &[Value] {
    list(object, "ownerReferences")
}

/// The one owner reference with `controller: true`.
pub fn controller_of(object: &Value) -> Option<&Value> {
    owner_references(object).iter().find(|owner| owner.get("controller").and_then(Value::as_bool) == Some(true))
}

/// The condition that says that a Job has ended, well or not.
pub fn end_of_job(job: &Value) -> Option<&Value> {
    let conditions = job.pointer("/status/conditions").and_then(Value::as_array);
    conditions.into_iter().flatten().find(|condition| {
        let text = |key: &str| condition.get(key).and_then(Value::as_str).unwrap_or_default();
        matches!(text("type"), "Complete" | "Failed") && text("status") == "True"
    })
}

/// Whether an object of a kind is something that ends, a Job or a Pod, and has.
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
