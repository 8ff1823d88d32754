//! What may go down to a physical cluster at all.

use std::collections::BTreeSet;

use portolan_types::{GroupResource, object};
use serde_json::Value;

use crate::namespace_labels::NamespaceNaming;

/// Resources that go down when a physical cluster names none, each with the version that copies are written in.
const DEFAULT: [(&str, &str, &str); 17] = [
    ("", "v1", "configmaps"),
    ("", "v1", "persistentvolumeclaims"),
    ("", "v1", "pods"),
    ("", "v1", "replicationcontrollers"),
    ("", "v1", "secrets"),
    ("", "v1", "serviceaccounts"),
    ("", "v1", "services"),
    ("apps", "v1", "daemonsets"),
    ("apps", "v1", "deployments"),
    ("apps", "v1", "replicasets"),
    ("apps", "v1", "statefulsets"),
    ("autoscaling", "v2", "horizontalpodautoscalers"),
    ("batch", "v1", "cronjobs"),
    ("batch", "v1", "jobs"),
    ("networking.k8s.io", "v1", "ingresses"),
    ("networking.k8s.io", "v1", "networkpolicies"),
    ("policy", "v1", "poddisruptionbudgets"),
];
/// Groups that govern a cluster rather than run in it. No list of a physical cluster allows them.
const FORBIDDEN_GROUPS: [&str; 9] = [
    "rbac.authorization.k8s.io",
    "authorization.k8s.io",
    "authentication.k8s.io",
    "admissionregistration.k8s.io",
    "apiregistration.k8s.io",
    "apiextensions.k8s.io",
    "certificates.k8s.io",
    "flowcontrol.apiserver.k8s.io",
    "portolan.dev",
];
/// Resources that a physical cluster makes for itself, or that reach beyond a namespace.
const FORBIDDEN: [&str; 9] = [
    "namespaces",
    "nodes",
    "persistentvolumes",
    "events",
    "events.events.k8s.io",
    "endpoints",
    "endpointslices.discovery.k8s.io",
    "leases.coordination.k8s.io",
    "controllerrevisions.apps",
];

/// What never goes down and is shown above, when it was made from something that did.
const SHOWN: [(&str, &str); 2] = [("discovery.k8s.io", "endpointslices"), ("apps", "controllerrevisions")];

/// Why an object does not go down: the reason and message of its condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// One word.
    pub reason: &'static str,
    /// One sentence.
    pub message: String,
}

impl Refusal {
    /// The object may not go down to this physical cluster.
    pub fn not_syncable(message: impl Into<String>) -> Self {
        Self { reason: "NotSyncable", message: message.into() }
    }

    /// Something that is not ours is in the way.
    pub fn conflict(message: impl Into<String>) -> Self {
        Self { reason: "Conflict", message: message.into() }
    }

    /// The object is larger than what may be held of one.
    pub fn too_large(message: impl Into<String>) -> Self {
        Self { reason: "TooLarge", message: message.into() }
    }

    /// The logical cluster has used up its share of what is held of the physical cluster.
    pub fn share_exceeded(message: impl Into<String>) -> Self {
        Self { reason: "ShareExceeded", message: message.into() }
    }

    /// The physical cluster does not serve the kind.
    pub fn incompatible(message: impl Into<String>) -> Self {
        Self { reason: "Incompatible", message: message.into() }
    }
}

/// The resources that may go down to one physical cluster.
#[derive(Clone, Debug)]
pub struct SyncRules {
    allowed: BTreeSet<GroupResource>,
    naming: NamespaceNaming,
}

impl SyncRules {
    /// From `PhysicalClusterSpec::synced_resources`: `deployments.apps`, `pods`, …; the default ones when it is empty.
    pub fn new(synced_resources: &[String]) -> Self {
        let named = synced_resources.iter().map(|text| parse(text));
        let allowed = match synced_resources.is_empty() {
            true => DEFAULT.iter().map(|(group, _, resource)| GroupResource::new(*group, *resource)).collect(),
            false => named.filter(|resource| !is_forbidden(resource)).collect(),
        };
        Self { allowed, naming: NamespaceNaming::default() }
    }

    /// The same rules for namespaces that are named so.
    #[must_use]
    pub fn with_naming(self, naming: NamespaceNaming) -> Self {
        Self { naming, ..self }
    }

    /// Names and labels of namespaces on the physical cluster.
    pub fn naming(&self) -> &NamespaceNaming {
        &self.naming
    }

    /// The resources to look at below: those that may go down, and those that are only shown above.
    pub(crate) fn watched(&self) -> impl Iterator<Item = GroupResource> {
        let shown = SHOWN.map(|(group, resource)| GroupResource::new(group, resource));
        self.allowed.iter().cloned().chain(shown)
    }

    /// The allowed resources, in order.
    pub fn allowed(&self) -> impl Iterator<Item = &GroupResource> {
        self.allowed.iter()
    }

    /// Why objects of `resource` may not go down, if so.
    pub fn refusal(&self, resource: &GroupResource) -> Option<Refusal> {
        match self.allowed.contains(resource) {
            true => None,
            false if is_forbidden(resource) => {
                Some(Refusal::not_syncable(format!("{resource} never go to a physical cluster")))
            }
            false => {
                Some(Refusal::not_syncable(format!("{resource} are not among the physical cluster's syncedResources")))
            }
        }
    }
}

fn parse(text: &str) -> GroupResource {
    let (resource, group) = text.split_once('.').unwrap_or((text, ""));
    GroupResource::new(group, resource)
}

/// Whether a resource never goes down, whatever a physical cluster allows.
pub(crate) fn is_forbidden(resource: &GroupResource) -> bool {
    FORBIDDEN_GROUPS.contains(&&*resource.group) || FORBIDDEN.contains(&resource.to_string().as_str())
}

/// The version that copies of a built-in resource are written in; `None` for others, which go by what is preferred downstream.
pub(crate) fn version_of(resource: &GroupResource) -> Option<&'static str> {
    let found = DEFAULT.iter().find(|(group, _, name)| *group == &*resource.group && *name == &*resource.resource);
    found.map(|(_, version, _)| *version)
}

/// What every physical cluster has of its own in each namespace, so that no copy is needed: the default ServiceAccount, the
/// ConfigMap of its certificate authority, and the tokens of its ServiceAccounts.
pub fn is_local(resource: &GroupResource, object: &Value) -> bool {
    match (&*resource.group, &*resource.resource) {
        ("", "serviceaccounts") => object::name(object) == "default",
        ("", "configmaps") => object::name(object) == "kube-root-ca.crt",
        ("", "secrets") => object.get("type").and_then(Value::as_str) == Some("kubernetes.io/service-account-token"),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_goes_down_is_an_allow_list() {
        let default = SyncRules::new(&[]);
        let own = SyncRules::new(&[
            "widgets.example.com".into(),
            "nodes".into(),
            "clusterroles.rbac.authorization.k8s.io".into(),
        ]);
        for (case, rules, resource, allowed) in [
            ("workloads go by default", &default, "deployments.apps", true),
            ("custom resources do not", &default, "widgets.example.com", false),
            ("unless they are named", &own, "widgets.example.com", true),
            ("then the default ones do not", &own, "deployments.apps", false),
            ("RBAC never goes, named or not", &own, "clusterroles.rbac.authorization.k8s.io", false),
            ("nor do nodes", &own, "nodes", false),
            ("nor namespaces", &default, "namespaces", false),
        ] {
            assert_eq!(rules.refusal(&parse(resource)).is_none(), allowed, "{case}");
        }
    }

    #[test]
    fn what_each_physical_cluster_has_of_its_own_stays_above() {
        for (resource, object, local) in [
            ("serviceaccounts", json!({"metadata": {"name": "default"}}), true),
            ("serviceaccounts", json!({"metadata": {"name": "builder"}}), false),
            ("configmaps", json!({"metadata": {"name": "kube-root-ca.crt"}}), true),
            ("secrets", json!({"metadata": {"name": "t"}, "type": "kubernetes.io/service-account-token"}), true),
            ("secrets", json!({"metadata": {"name": "t"}, "type": "Opaque"}), false),
        ] {
            assert_eq!(is_local(&parse(resource), &object), local, "{object}");
        }
    }
}
