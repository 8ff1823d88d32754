//! Pods that an EndpointSlice names, under their upstream names.

use portolan_types::Uid;
use serde_json::{Value, json};

/// Upstream Pod of a downstream one.
pub enum PodLookup {
    /// Object of this name, and its uid once that is known.
    As(String, Option<Uid>),
    /// Not projected yet.
    Later,
    /// Never projected.
    Not,
}

/// Gives every target of a slice its namespace, name and uid upstream. Its version, which is that of the physical
/// cluster, is left out, and a target that is not shown upstream is no target there. Whether all is known that will be.
pub fn rename_targets(slice: &mut Value, namespace: &str, upstream: impl Fn(&str) -> PodLookup) -> bool {
    let mut is_whole = true;
    for endpoint in slice.get_mut("endpoints").and_then(Value::as_array_mut).into_iter().flatten() {
        let Some(fields) = endpoint.as_object_mut() else { continue };
        let target =
            fields.get("targetRef").and_then(|target| Some((target["kind"].as_str()?, target["name"].as_str()?)));
        let named = target.filter(|(kind, _)| *kind == "Pod").map_or(PodLookup::Not, |(_, name)| upstream(name));
        is_whole &= matches!(named, PodLookup::As(_, Some(_)) | PodLookup::Not);
        match named {
            PodLookup::As(name, uid) => {
                let mut target = json!({"kind": "Pod", "namespace": namespace, "name": name});
                if let Some(uid) = uid {
                    target["uid"] = json!(uid);
                }
                fields.insert("targetRef".into(), target);
            }
            PodLookup::Later | PodLookup::Not => drop(fields.remove("targetRef")),
        }
    }
    is_whole
}
