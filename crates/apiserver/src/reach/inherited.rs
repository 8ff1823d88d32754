//! A physical cluster as the descendants of its workspace see it.

use portolan_types::{LogicalClusterPath, object};
use serde_json::{Value, json};

/// Annotation with the workspace that a physical cluster is registered in.
const WORKSPACE: &str = "portolan.dev/workspace";
/// Annotation with the kind of connection, which the column MODE prints.
const MODE: &str = "portolan.dev/mode";
/// Kinds of connection, as fields of `spec.connection`.
const MODES: [&str; 3] = ["direct", "tunnel", "simulated"];
/// Fields of the metadata that are shown.
const METADATA: [&str; 6] = ["name", "uid", "labels", "creationTimestamp", "generation", "deletionTimestamp"];
/// Fields of the spec that descendants see: those that placement depends on. New fields are hidden unless listed here.
const SPEC: [&str; 5] = ["taints", "unschedulable", "bounds", "namespaceMapping", "syncedResources"];

/// Returns a physical cluster without its connection and its administrators' notes: annotations may contain the whole
/// object, and messages of conditions its address.
pub(super) fn of(mut physical: Value, home: &LogicalClusterPath) -> Value {
    let connection = &physical["spec"]["connection"];
    let mode = MODES.into_iter().find(|mode| connection.get(mode).is_some_and(|set| !set.is_null()));
    let metadata = object::metadata_mut(&mut physical);
    metadata.retain(|key, _| METADATA.contains(&key.as_str()));
    let mut annotations = json!({WORKSPACE: home});
    if let Some(mode) = mode {
        annotations[MODE] = mode.into();
    }
    metadata.insert("annotations".into(), annotations);
    if let Some(spec) = physical.get_mut("spec").and_then(Value::as_object_mut) {
        spec.retain(|key, _| SPEC.contains(&key.as_str()));
    }
    let conditions = physical.pointer_mut("/status/conditions").and_then(Value::as_array_mut);
    for condition in conditions.into_iter().flatten() {
        condition["message"] = "".into();
    }
    physical
}
