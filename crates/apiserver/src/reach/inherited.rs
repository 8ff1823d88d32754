//! A physical cluster as the descendants of its workspace see it.

use portolan_types::{LogicalClusterPath, object};
use serde_json::{Value, json};

/// Annotation with the workspace that a physical cluster is registered in.
const WORKSPACE: &str = "portolan.dev/workspace";
/// Fields of the metadata that are shown.
const METADATA: [&str; 6] = ["name", "uid", "labels", "creationTimestamp", "generation", "deletionTimestamp"];
/// Fields of the spec that are shown: those that decide what is placed there. A field that is added later is not, unless it is listed.
const SPEC: [&str; 5] = ["taints", "unschedulable", "bounds", "namespaceMapping", "syncedResources"];

/// Returns a physical cluster without the way to connect to it, and without what its administrators noted: annotations may hold the
/// whole object, and messages of conditions say where it is.
pub(super) fn of(mut physical: Value, home: &LogicalClusterPath) -> Value {
    let metadata = object::metadata_mut(&mut physical);
    metadata.retain(|key, _| METADATA.contains(&key.as_str()));
    metadata.insert("annotations".into(), json!({WORKSPACE: home}));
    if let Some(spec) = physical.get_mut("spec").and_then(Value::as_object_mut) {
        spec.retain(|key, _| SPEC.contains(&key.as_str()));
    }
    let conditions = physical.pointer_mut("/status/conditions").and_then(Value::as_array_mut);
    for condition in conditions.into_iter().flatten() {
        condition["message"] = "".into();
    }
    physical
}
