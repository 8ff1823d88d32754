//! Events (`v1`) that Portolan writes about an object, for `kubectl describe`: one per object and reason, overwritten when it
//! happens again, and owned by the object, so that it goes with it.

use serde_json::{Value, json};

use crate::{GroupResource, ObjectKey, Scope, Seams, object};

/// Most of an object's name that goes into the Event's.
const MAX_NAME: usize = 180;
/// Where Events about objects without a namespace are.
const NO_NAMESPACE: &str = "default";

/// What is to be said about an object.
#[derive(Clone, Copy, Debug)]
pub struct Note<'a> {
    /// Who says it, such as `portolan-scheduler`.
    pub component: &'a str,
    /// Told apart by it from others about the same object, such as `placement-moving`: lower case, digits and dashes.
    pub name: &'a str,
    /// Whether somebody should look.
    pub is_warning: bool,
    /// One word.
    pub reason: &'a str,
    /// One sentence.
    pub message: &'a str,
}

impl Note<'_> {
    /// The Event about `object`, which is at `key`; `None` when it can have no name.
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
