//! The two fields that name the source of a claim's data.

use portolan_types::object::Object;
use serde_json::Value;

/// Makes `dataSource` and `dataSourceRef` of a claim's spec equal, if it has one of them.
pub fn same_sources(spec: &mut Object) {
    match (spec.get("dataSource").cloned(), spec.get("dataSourceRef").cloned()) {
        (Some(source), None) => drop(spec.insert("dataSourceRef".into(), source)),
        (None, Some(mut reference)) if !is_elsewhere(&reference) => {
            if let Some(fields) = reference.as_object_mut() {
                fields.remove("namespace");
            }
            spec.insert("dataSource".into(), reference);
        }
        _ => {}
    }
}

/// Returns true if a source names a namespace.
pub fn is_elsewhere(reference: &Value) -> bool {
    reference.get("namespace").and_then(Value::as_str).is_some_and(|namespace| !namespace.is_empty())
}
