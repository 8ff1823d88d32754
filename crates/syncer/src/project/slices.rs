//! The Pods that an EndpointSlice names, as they are called above.

use portolan_types::Uid;
use serde_json::{Value, json};

/// What a Pod of below is above.
pub enum Named {
    /// The object of this name; of this uid, as soon as that is known.
    As(String, Option<Uid>),
    /// Nothing yet.
    Later,
    /// It is not shown.
    Not,
}

/// Gives every target of a slice its namespace, name and uid above. Its version, which is that of below, is left out, and a target
/// that is not shown above is no target there. Whether all is known that will be.
pub fn rename_targets(slice: &mut Value, namespace: &str, above: impl Fn(&str) -> Named) -> bool {
    let mut is_whole = true;
    for endpoint in slice.get_mut("endpoints").and_then(Value::as_array_mut).into_iter().flatten() {
        let Some(fields) = endpoint.as_object_mut() else { continue };
        let target =
            fields.get("targetRef").and_then(|target| Some((target["kind"].as_str()?, target["name"].as_str()?)));
        let named = target.filter(|(kind, _)| *kind == "Pod").map_or(Named::Not, |(_, name)| above(name));
        is_whole &= matches!(named, Named::As(_, Some(_)) | Named::Not);
        match named {
            Named::As(name, uid) => {
                let mut target = json!({"kind": "Pod", "namespace": namespace, "name": name});
                if let Some(uid) = uid {
                    target["uid"] = json!(uid);
                }
                fields.insert("targetRef".into(), target);
            }
            Named::Later | Named::Not => drop(fields.remove("targetRef")),
        }
    }
    is_whole
}
