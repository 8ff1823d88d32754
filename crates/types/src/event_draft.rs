//! Events (`v1`) that Portolan writes about objects: one per object and reason, overwritten on repetition, and owned by
//! the object, so that it is deleted with it.

use serde_json::{Value, json};

use crate::{GroupResource, ObjectKey, Scope, Seams, object};

/// Most bytes of the object's name in the Event's name.
const MAX_NAME: usize = 180;
/// Namespace of Events about cluster-scoped objects.
const NO_NAMESPACE: &str = "default";

/// Draft of an Event about an object.
#[derive(Clone, Copy, Debug)]
pub struct EventDraft<'a> {
    /// Component that reports, such as `portolan-scheduler`.
    pub component: &'a str,
    /// Identifier among the Events about the object, such as `placement-moving`: lower case, digits and dashes.
    pub name: &'a str,
    /// True for a warning.
    pub is_warning: bool,
    /// Reason: one word.
    pub reason: &'a str,
    /// Message: one sentence.
    pub message: &'a str,
}

impl EventDraft<'_> {
    /// Returns the key and Event about `object`, which is at `key`; `None` if no valid name results.
    pub fn about(&self, seams: &Seams, key: &ObjectKey, object: &Value) -> Option<(ObjectKey, Value)> {
        let text = |field: &str| object.get(field).and_then(Value::as_str).unwrap_or_default();
        let (api_version, kind, now) = (text("apiVersion"), text("kind"), seams.now_text());
        let (name, uid) = (object::name(object), object::meta_text(object, "uid"));
        let short: String = name.chars().take(MAX_NAME).collect();
        let event = format!("{short}.{}", self.name);
        let namespace = key.namespace().map_or(NO_NAMESPACE, |namespace| namespace.as_str());
        let body = json!({
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {
                "name": event, "namespace": namespace, "uid": seams.uid().as_str(), "creationTimestamp": now,
                "ownerReferences": [{"apiVersion": api_version, "kind": kind, "name": name, "uid": uid}],
            },
            "involvedObject": {
                "apiVersion": api_version, "kind": kind, "namespace": object::namespace(object), "name": name, "uid": uid,
            },
            "reason": self.reason, "message": self.message, "type": if self.is_warning { "Warning" } else { "Normal" },
            "count": 1, "firstTimestamp": now, "lastTimestamp": now, "source": {"component": self.component},
            "reportingComponent": self.component, "reportingInstance": "",
        });
        let scope = Scope::Namespace(namespace.parse().ok()?);
        let key = ObjectKey {
            cluster: key.cluster,
            resource: GroupResource::new("", "events"),
            scope,
            name: event.parse().ok()?,
        };
        Some((key, body))
    }
}
