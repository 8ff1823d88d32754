//! Empty lists and maps from clients. They are stored as absent, but a few rules of kube-apiserver distinguish them
//! from absent ones; those rules are here.

use std::borrow::Cow;

use serde_json::Value;

use super::WriteContext;
use portolan_codec::decode::{self, Emptiness};
use portolan_kinds::Kind;

/// Texts in the body that make it be read again, and the fields that are compared then.
type EmptinessRule = (&'static [&'static str], &'static [&'static str]);

/// Returns the fields whose presence is validated even if they are empty or, for times, the zero time.
fn validated_if_empty(kind: &Kind, subresource: Option<&str>, old: Option<&Value>) -> EmptinessRule {
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
    /// Returns the object to validate: with the client's empty values where they matter.
    pub(super) fn as_checked<'o>(
        &self,
        kind: &Kind,
        subresource: Option<&str>,
        old: Option<&Value>,
        object: &'o Value,
    ) -> Cow<'o, Value> {
        let (words, fields) = validated_if_empty(kind, subresource, old);
        // A second parse takes time, and clients rarely send any of these fields.
        if !words.iter().any(|word| self.names.is_some_and(|has| has(word))) {
            return Cow::Borrowed(object);
        }
        match self.with_empty(kind, subresource, object, Some(fields)) {
            Some(shown) => Cow::Owned(shown),
            None => Cow::Borrowed(object),
        }
    }

    /// Returns true if a client sent an empty value where `object` has none, for kinds whose generation counts that as
    /// a change (kube-apiserver compares them by `reflect.DeepEqual`).
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
