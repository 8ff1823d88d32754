//! What of a downstream object says nothing about what it was made from.

use serde_json::Value;

/// A downstream object without what changes there by itself: status, resourceVersion, generation and field ownership.
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
