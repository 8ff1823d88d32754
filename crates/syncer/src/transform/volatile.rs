//! Comparison of downstream objects without their volatile fields.

use serde_json::Value;

/// Returns a downstream object without its volatile fields: status, resourceVersion, generation and field ownership.
pub(crate) fn without_volatile(object: &Value) -> Value {
    let mut object = object.clone();
    if let Some(map) = object.as_object_mut() {
        map.remove("status");
        if let Some(metadata) = map.get_mut("metadata").and_then(Value::as_object_mut) {
            ["resourceVersion", "managedFields", "generation"].iter().for_each(|key| drop(metadata.remove(*key)));
        }
    }
    object
}
