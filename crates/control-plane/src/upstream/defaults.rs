//! Detection of default values.

use portolan_controllers::Plane;
use portolan_strategy::defaults;
use portolan_types::upstream::UpstreamObject;
use serde_json::Value;

/// Returns true if the field is empty, or has the value that defaulting would set.
pub(super) fn is_default(plane: &Plane, object: &UpstreamObject, pointer: &str) -> bool {
    let Some(said) = object.object.pointer(pointer) else { return true };
    if is_empty(said) {
        return true;
    }
    let (Some(kind), Some((parent, field))) = (plane.table().kind(&object.kind), pointer.rsplit_once('/')) else {
        return false;
    };
    let mut without = object.object.clone();
    if let Some(parent) = without.pointer_mut(parent).and_then(Value::as_object_mut) {
        parent.remove(&field.replace("~1", "/").replace("~0", "~"));
    }
    drop(defaults::apply(plane.table(), kind, &mut without));
    without.pointer(pointer) == Some(said)
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Object(fields) => fields.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    }
}
