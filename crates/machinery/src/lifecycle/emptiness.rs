//! Lists and maps that a client sends empty. They are stored as if they had not been sent, but Go tells them from those that were
//! not: here are the rules that do so, too.

use std::borrow::Cow;

use serde_json::Value;

use super::WriteContext;
use crate::{
    decode::{self, Emptiness},
    kinds::Kind,
};

/// What of the text that was sent makes all be read again, and which fields are looked at then.
type Looked = (&'static [&'static str], &'static [&'static str]);

/// Fields of which validation says whether they may be there, also empty or, if they are times, as the zero time.
fn looked_at(kind: &Kind, subresource: Option<&str>, old: Option<&Value>) -> Looked {
    let is_fixed = || old.is_some_and(|old| old.get("immutable") == Some(&Value::Bool(true)));
    let of = |fields: &'static [&'static str]| (fields, fields);
    match (&*kind.gvk.group, &*kind.gvk.kind, subresource) {
        ("", "ConfigMap", None) if is_fixed() => of(&["data", "binaryData"]),
        ("", "Secret", None) if is_fixed() => of(&["data"]),
        ("", "Pod", Some("ephemeralcontainers")) => of(&["ports", "resizePolicy", "restartPolicyRules"]),
        ("", "Pod" | "PodTemplate" | "ReplicationController", None) | ("apps" | "batch", _, None) if old.is_none() => {
            of(&["claims", "restartPolicyRules", "supplementalGroups"])
        }
        ("" | "events.k8s.io", "Event", None) => (&["0001-01-01"], EVENT_TIMES),
        ("resource.k8s.io", "ResourceSlice", None) => of(&["devices", "sharedCounters"]),
        ("resource.k8s.io", "ResourceClaimTemplate", None) => {
            of(&["deletionTimestamp", "finalizers", "managedFields", "ownerReferences"])
        }
        _ => (&[], &[]),
    }
}

const EVENT_TIMES: &[&str] =
    &["deprecatedFirstTimestamp", "deprecatedLastTimestamp", "eventTime", "firstTimestamp", "lastTimestamp"];

impl WriteContext<'_> {
    /// An object as it is checked: with what was sent empty where that counts.
    pub(super) fn as_checked<'o>(
        &self,
        kind: &Kind,
        subresource: Option<&str>,
        old: Option<&Value>,
        object: &'o Value,
    ) -> Cow<'o, Value> {
        let (words, fields) = looked_at(kind, subresource, old);
        // To read all again takes time, and hardly anybody sends any of it.
        if !words.iter().any(|word| self.names.is_some_and(|has| has(word))) {
            return Cow::Borrowed(object);
        }
        match self.with_empty(kind, subresource, object, Some(fields)) {
            Some(shown) => Cow::Owned(shown),
            None => Cow::Borrowed(object),
        }
    }

    /// Whether a client sent something empty where `object` has nothing, for kinds whose generation counts that as a change
    /// (upstream compares them by `reflect.DeepEqual`).
    pub(super) fn changes_emptiness(&self, kind: &Kind, object: &Value) -> bool {
        let part = match (&*kind.gvk.group, &*kind.gvk.kind) {
            ("networking.k8s.io", "NetworkPolicy") => "spec",
            ("admissionregistration.k8s.io", "MutatingWebhookConfiguration" | "ValidatingWebhookConfiguration") => {
                "webhooks"
            }
            _ => return false,
        };
        self.with_empty(kind, None, object, None).is_some_and(|shown| shown.get(part) != object.get(part))
    }

    fn with_empty(
        &self,
        kind: &Kind,
        subresource: Option<&str>,
        object: &Value,
        only: Option<&[&str]>,
    ) -> Option<Value> {
        let (sent, mut shown) = (self.sent?()?, object.clone());
        decode::restore_empty(Emptiness { table: self.table, only }, kind, subresource, &sent, &mut shown);
        Some(shown)
    }
}
