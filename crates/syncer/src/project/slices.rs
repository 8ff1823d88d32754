//! The Pods that an EndpointSlice names, as they are called above.

use serde_json::Value;

/// Gives every target of a slice its namespace and name above. Their uids and versions are those of below: they are left out.
/// A target that is not shown above is no target there.
pub fn rename_targets(slice: &mut Value, namespace: &str, name_above: impl Fn(&str) -> Option<String>) {
    for endpoint in slice.get_mut("endpoints").and_then(Value::as_array_mut).into_iter().flatten() {
        let Some(fields) = endpoint.as_object_mut() else { continue };
        let target =
            fields.get("targetRef").and_then(|target| Some((target["kind"].as_str()?, target["name"].as_str()?)));
        let above = target.filter(|(kind, _)| *kind == "Pod").and_then(|(_, name)| name_above(name));
        match above {
            Some(name) => {
                let target = serde_json::json!({"kind": "Pod", "namespace": namespace, "name": name});
                fields.insert("targetRef".into(), target);
            }
            None => drop(fields.remove("targetRef")),
        }
    }
}
