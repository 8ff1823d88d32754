//! Consent of one binding: what the provider of its export may see and do in its logical cluster.

use std::collections::BTreeSet;

use portolan_kinds::custom;
use portolan_types::{
    GroupResource, LabelSelector, ObjectKey, Record,
    apis::{self, ExportAddress},
    labels::LabelSelectorSpec,
    object,
};
use serde_json::Value;

/// Export, with the parts of it that consent depends on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ViewedExport {
    pub(crate) address: ExportAddress,
    pub(crate) object: Value,
    pub(crate) identity: String,
}

/// Objects of a resource in one logical cluster that a provider may see.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Grant {
    /// All objects.
    All,
    /// Objects with labels.
    Labelled(LabelSelector),
    /// Bindings to the export.
    OwnBindings,
}

/// Consent of one binding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Consent {
    bound: BTreeSet<GroupResource>,
    claims: Vec<Value>,
}

/// Answer to the question for a resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// The resource is part of the view, with this verb.
    Granted(Grant),
    /// The resource is part of the view, but not with this verb.
    WithoutVerb,
    /// The resource is not part of the view.
    Unknown,
}

impl Consent {
    /// Returns the consent of a binding; `None` unless it is bound to this very export.
    pub(crate) fn of(binding: &Value, export: &ViewedExport) -> Option<Self> {
        let is_bound = binding.pointer("/status/phase").and_then(Value::as_str) == Some("Bound");
        if !is_bound || ExportAddress::of_bound(binding).as_ref() != Some(&export.address) {
            return None;
        }
        let identity = |bound: &Value| bound.pointer("/schema/identityHash").and_then(Value::as_str).map(str::to_owned);
        // An export that was deleted and created again is another one.
        if apis::bound_resources(binding).any(|(_, bound)| identity(bound).as_deref() != Some(&export.identity)) {
            return None;
        }
        let bound = apis::bound_resources(binding).map(|(resource, _)| resource).collect();
        let mut claims = apis::applied_claims(&export.object, binding);
        // A custom resource belongs to the view of its own export.
        let is_builtin = |claim: &Value| custom::is_builtin_resource(&apis::claimed_resource(claim));
        claims.retain(|claim| is_builtin(claim) && claim["identityHash"] == "");
        Some(Self { bound, claims })
    }

    /// Returns the objects of a resource that a verb may be used on.
    pub(crate) fn grant(&self, resource: &GroupResource, verb: &str) -> Answer {
        if self.bound.contains(resource) {
            return Answer::Granted(Grant::All);
        }
        if *resource == apis::resource(apis::BINDINGS) {
            let reads = matches!(verb, "get" | "list" | "watch");
            return if reads { Answer::Granted(Grant::OwnBindings) } else { Answer::WithoutVerb };
        }
        let claim = self.claims.iter().find(|claim| claimed_forms(claim).contains(resource));
        match claim {
            None => Answer::Unknown,
            Some(claim) if !apis::has_verb(claim, verb) => Answer::WithoutVerb,
            Some(claim) => selector_of(claim).map_or(Answer::WithoutVerb, Answer::Granted),
        }
    }
}

/// Returns the resources of a claim: the claimed one, and the other form of the same stored objects.
pub(super) fn claimed_forms(claim: &Value) -> Vec<GroupResource> {
    let claimed = apis::claimed_resource(claim);
    let other = match (&*claimed.group, &*claimed.resource) {
        ("", "events") => Some("events.k8s.io"),
        ("events.k8s.io", "events") => Some(""),
        _ => None,
    };
    let other = other.map(|group| GroupResource::new(group, "events"));
    [claimed].into_iter().chain(other).collect()
}

/// Returns the objects that a claim selects; `None` for a selector that cannot be read.
fn selector_of(claim: &Value) -> Option<Grant> {
    let selector = claim.get("selector")?;
    if selector.get("matchAll") == Some(&Value::Bool(true)) {
        return Some(Grant::All);
    }
    let spec: LabelSelectorSpec = serde_json::from_value(selector.clone()).ok()?;
    // An empty selector would select everything, which only `matchAll` means.
    (!spec.is_empty()).then(|| LabelSelector::try_from(&spec).ok().map(Grant::Labelled)).flatten()
}

impl Grant {
    /// Returns true for an object that may be seen.
    pub(crate) fn admits(&self, record: &Record, export: &ViewedExport) -> bool {
        match self {
            Self::All => true,
            Self::Labelled(labels) => labels.matches(|key| record.header.label(key)),
            Self::OwnBindings => {
                let binding = record.to_value(portolan_types::ResourceVersion::FIRST).unwrap_or_default();
                ExportAddress::of_bound(&binding).as_ref() == Some(&export.address)
            }
        }
    }

    /// Returns true for a tree that may be seen or written.
    pub(crate) fn admits_tree(&self, value: &Value, export: &ViewedExport) -> bool {
        match self {
            Self::All => true,
            Self::Labelled(labels) => labels.matches(|key| object::label(value, key)),
            Self::OwnBindings => ExportAddress::of_bound(value).as_ref() == Some(&export.address),
        }
    }
}

/// Returns the consent of a stored binding, with its key.
pub(crate) fn consent_of(key: &ObjectKey, record: &Record, export: &ViewedExport) -> Option<(ObjectKey, Consent)> {
    let binding = record.to_value(portolan_types::ResourceVersion::FIRST).ok()?;
    Some((key.clone(), Consent::of(&binding, export)?))
}

#[cfg(test)]
mod tests {
    use portolan_types::LogicalClusterId;
    use serde_json::json;

    use super::*;

    fn export(claims: Value) -> ViewedExport {
        ViewedExport {
            address: ExportAddress { cluster: LogicalClusterId::new(7), name: "widgets".parse().unwrap() },
            object: json!({"spec": {"permissionClaims": claims}}),
            identity: "id".into(),
        }
    }

    fn binding(cluster: LogicalClusterId, identity: &str, claims: Value) -> Value {
        json!({
            "spec": {"reference": {"export": {"name": "widgets"}}, "permissionClaims": claims},
            "status": {"phase": "Bound", "apiExportClusterName": cluster.to_string(), "boundResources": [{
                "group": "example.dev", "resource": "widgets", "schema": {"identityHash": identity},
            }]},
        })
    }

    #[test]
    fn only_a_binding_to_this_very_export_consents() {
        let here = LogicalClusterId::new(7);
        let claims = || json!([]);
        let mut unbound = binding(here, "id", claims());
        unbound["status"]["phase"] = "Binding".into();
        for (what, binding, expected) in [
            ("a binding to it", binding(here, "id", claims()), true),
            ("a binding to one of its name elsewhere", binding(LogicalClusterId::new(8), "id", claims()), false),
            ("a binding to one of its name before", binding(here, "other", claims()), false),
            ("a binding that is not bound yet", unbound, false),
            ("no binding", json!({}), false),
        ] {
            assert_eq!(Consent::of(&binding, &export(claims())).is_some(), expected, "{what}");
        }
    }

    #[test]
    fn claims_need_both_sides() {
        let claim = |resource: &str, verbs: Value, selector: Value| json!({"resource": resource, "verbs": verbs, "selector": selector, "state": "Accepted"});
        let all = || json!({"matchAll": true});
        let claimed = json!([
            {"resource": "configmaps", "verbs": ["*"]}, {"resource": "secrets", "verbs": ["get"]},
            {"group": "other.dev", "resource": "things", "verbs": ["*"]}, {"resource": "pods", "verbs": ["*"]},
            {"resource": "events", "verbs": ["create"]},
        ]);
        let mut things = claim("things", json!(["*"]), all());
        things["group"] = "other.dev".into();
        let accepted = json!([
            claim("configmaps", json!(["*"]), json!({"matchLabels": {"a": "b"}})),
            claim("secrets", json!(["*"]), all()),
            things,
            claim("pods", json!(["*"]), json!({})),
            claim("services", json!(["*"]), all()),
            claim("events", json!(["*"]), all()),
        ]);
        let consent = Consent::of(&binding(LogicalClusterId::new(7), "id", accepted), &export(claimed)).unwrap();
        let labelled = Answer::Granted(Grant::Labelled(LabelSelector::parse("a=b").unwrap()));
        for (what, group, resource, verb, expected) in [
            ("the bound resource", "example.dev", "widgets", "delete", Answer::Granted(Grant::All)),
            ("a selecting claim", "", "configmaps", "update", labelled),
            ("a claimed verb", "", "secrets", "get", Answer::Granted(Grant::All)),
            ("a verb that is not claimed", "", "secrets", "list", Answer::WithoutVerb),
            ("a custom resource of another export", "other.dev", "things", "get", Answer::Unknown),
            ("a selector that selects nothing", "", "pods", "get", Answer::WithoutVerb),
            ("what only the consumer wants", "", "services", "get", Answer::Unknown),
            ("its binding", "apis.kcp.io", "apibindings", "list", Answer::Granted(Grant::OwnBindings)),
            ("a write of its binding", "apis.kcp.io", "apibindings", "update", Answer::WithoutVerb),
            ("events in their other form", "events.k8s.io", "events", "create", Answer::Granted(Grant::All)),
            ("a verb on them that is not claimed", "events.k8s.io", "events", "list", Answer::WithoutVerb),
            ("anything else", "", "namespaces", "get", Answer::Unknown),
        ] {
            assert_eq!(consent.grant(&GroupResource::new(group, resource), verb), expected, "{what}");
        }
    }
}
