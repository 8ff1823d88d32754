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
    /// Gone downstream, though the slice still names it.
    Gone,
}

/// Downstream Pod that an endpoint names.
pub struct PodTarget<'a> {
    /// Name downstream.
    pub name: &'a str,
    /// Uid; empty if the endpoint has none.
    pub uid: &'a str,
}

/// Gives every target of a slice its namespace, name and uid upstream. The resourceVersion, which belongs to the
/// physical cluster, is left out, and so is a target that is not shown upstream. An endpoint of a pod that is gone is
/// not ready. Returns true if the upstream name and uid of every target is known.
pub fn rename_targets(slice: &mut Value, namespace: &str, upstream: impl Fn(PodTarget) -> PodLookup) -> bool {
    let mut is_whole = true;
    for endpoint in slice.get_mut("endpoints").and_then(Value::as_array_mut).into_iter().flatten() {
        let Some(fields) = endpoint.as_object_mut() else { continue };
        let target = fields.get("targetRef").filter(|target| target["kind"] == "Pod");
        let named = target.and_then(pod_target).map_or(PodLookup::Not, &upstream);
        is_whole &= !matches!(named, PodLookup::As(_, None) | PodLookup::Later);
        match named {
            PodLookup::As(name, uid) => {
                let mut target = json!({"kind": "Pod", "namespace": namespace, "name": name});
                if let Some(uid) = uid {
                    target["uid"] = json!(uid);
                }
                fields.insert("targetRef".into(), target);
            }
            PodLookup::Later | PodLookup::Not => drop(fields.remove("targetRef")),
            PodLookup::Gone => {
                fields.remove("targetRef");
                set_not_ready(endpoint);
            }
        }
    }
    is_whole
}

fn pod_target(target: &Value) -> Option<PodTarget<'_>> {
    Some(PodTarget { name: target["name"].as_str()?, uid: target["uid"].as_str().unwrap_or_default() })
}

/// Marks an endpoint as not accepting requests. A missing condition counts as ready.
pub(super) fn set_not_ready(endpoint: &mut Value) {
    for name in ["ready", "serving"] {
        endpoint["conditions"][name] = false.into();
    }
}
