//! Resources that may be synced to a physical cluster.

use std::collections::BTreeSet;

use portolan_types::{
    GroupKind, GroupResource, object,
    placement::{MAX_CUSTOM_KINDS, is_governing_group},
};
use serde_json::Value;

use crate::namespace_naming::NamespaceNaming;

/// Resources that are synced when a physical cluster names none, each with the version of its copies.
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

/// Resources that are never synced downstream, and projected upstream when they were made from a copy.
const SHOWN: [(&str, &str); 2] = [("discovery.k8s.io", "endpointslices"), ("apps", "controllerrevisions")];

/// Refusal of an object: reason and message of its condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyncRefusal {
    /// Reason, one word.
    pub reason: &'static str,
    /// Message, one sentence.
    pub message: String,
}

impl SyncRefusal {
    /// The object may not be synced to this physical cluster.
    pub fn not_syncable(message: impl Into<String>) -> Self {
        Self { reason: "NotSyncable", message: message.into() }
    }

    /// A foreign object is in the way.
    pub fn conflict(message: impl Into<String>) -> Self {
        Self { reason: "Conflict", message: message.into() }
    }

    /// The object exceeds the limit of a single object.
    pub fn too_large(message: impl Into<String>) -> Self {
        Self { reason: "TooLarge", message: message.into() }
    }

    /// The logical cluster has used up its share of the cache of the physical cluster.
    pub fn share_exceeded(message: impl Into<String>) -> Self {
        Self { reason: "ShareExceeded", message: message.into() }
    }

    /// The physical cluster does not serve the custom kind, or not in the version of the object.
    pub fn kind_not_served(message: impl Into<String>) -> Self {
        Self { reason: "KindNotServed", message: message.into() }
    }

    /// The physical cluster does not serve the kind.
    pub fn incompatible(message: impl Into<String>) -> Self {
        Self { reason: "Incompatible", message: message.into() }
    }
}

/// Resources that may be synced to one physical cluster.
#[derive(Clone, Debug)]
pub struct SyncRules {
    allowed: BTreeSet<GroupResource>,
    /// Custom kinds that are allowed besides; `*` is any kind of its group.
    kinds: BTreeSet<GroupKind>,
    /// True if the physical cluster names no resources.
    is_default: bool,
    naming: NamespaceNaming,
}

impl SyncRules {
    /// Creates the rules from `PhysicalClusterSpec::synced_resources`: `deployments.apps`, `pods`, …; the default ones
    /// when it is empty.
    pub fn new(synced_resources: &[String]) -> Self {
        let named = synced_resources.iter().map(|text| parse(text));
        let allowed = if synced_resources.is_empty() {
            DEFAULT.iter().map(|(group, _, resource)| GroupResource::new(*group, *resource)).collect()
        } else {
            named.filter(|resource| !is_forbidden(resource)).collect()
        };
        let (kinds, is_default) = (BTreeSet::new(), synced_resources.is_empty());
        Self { allowed, kinds, is_default, naming: NamespaceNaming::default() }
    }

    /// Returns the same rules with these custom kinds instead of others. Where the physical cluster names its
    /// resources, they are all that it takes.
    #[must_use]
    pub fn with_kinds(self, kinds: &[GroupKind]) -> Self {
        let allowed = kinds.iter().filter(|kind| self.is_default && !is_governing_group(&kind.group));
        let kinds = allowed.take(MAX_CUSTOM_KINDS).cloned().collect();
        Self { kinds, ..self }
    }

    /// Returns the same rules with these names of namespaces.
    #[must_use]
    pub fn with_naming(self, naming: NamespaceNaming) -> Self {
        Self { naming, ..self }
    }

    /// Names and labels of namespaces on the physical cluster.
    pub fn naming(&self) -> &NamespaceNaming {
        &self.naming
    }

    /// Returns the resources to watch downstream: those that may be synced, and those that are only projected.
    pub(crate) fn watched(&self) -> impl Iterator<Item = GroupResource> {
        let shown = SHOWN.map(|(group, resource)| GroupResource::new(group, resource));
        self.allowed.iter().cloned().chain(shown)
    }

    /// Returns the allowed resources, in order.
    pub fn allowed(&self) -> impl Iterator<Item = &GroupResource> {
        self.allowed.iter()
    }

    /// Returns the custom kinds that are allowed besides the resources, in order.
    pub fn kinds(&self) -> impl Iterator<Item = &GroupKind> {
        self.kinds.iter()
    }

    /// Returns the groups of the resources and kinds that are not synced by default, in order.
    pub(crate) fn custom_groups(&self) -> BTreeSet<&str> {
        let resources = self.allowed.iter().filter(|resource| is_custom(resource)).map(|resource| &*resource.group);
        resources.chain(self.kinds.iter().map(|kind| &*kind.group)).collect()
    }

    /// Returns true if objects of a kind may be synced.
    pub(crate) fn allows(&self, resource: &GroupResource, kind: &str) -> bool {
        let is_it =
            |allowed: &GroupKind| allowed.group == resource.group && (*allowed.kind == *kind || *allowed.kind == *"*");
        self.allowed.contains(resource) || (is_custom(resource) && self.kinds.iter().any(is_it))
    }

    /// Returns why objects of `resource` may not be synced, if so.
    pub fn refusal(&self, resource: &GroupResource, kind: &str) -> Option<SyncRefusal> {
        if self.allows(resource, kind) {
            return None;
        }
        Some(SyncRefusal::not_syncable(if is_forbidden(resource) {
            format!("{resource} never go to a physical cluster")
        } else {
            format!(
                "{resource} are neither among the physical cluster's syncedResources nor named by a ClusterPlacementPolicy of the \
                 workspace where it is registered"
            )
        }))
    }
}

fn parse(text: &str) -> GroupResource {
    let (resource, group) = text.split_once('.').unwrap_or((text, ""));
    GroupResource::new(group, resource)
}

/// Returns true for a resource that is never synced downstream, whatever the physical cluster allows.
pub(crate) fn is_forbidden(resource: &GroupResource) -> bool {
    is_governing_group(&resource.group) || FORBIDDEN.contains(&resource.to_string().as_str())
}

/// Returns true for a group that has resources which are synced by default.
pub(crate) fn is_builtin_group(group: &str) -> bool {
    DEFAULT.iter().any(|(own, ..)| *own == group)
}

/// Returns true for a resource that is synced only where a physical cluster or a policy names it.
pub(crate) fn is_custom(resource: &GroupResource) -> bool {
    let is_shown = SHOWN.iter().any(|(group, name)| *group == &*resource.group && *name == &*resource.resource);
    version_of(resource).is_none() && !is_shown && !is_forbidden(resource)
}

/// Returns the version that copies of a built-in resource are written in; `None` for others, whose preferred downstream
/// version is used.
pub(crate) fn version_of(resource: &GroupResource) -> Option<&'static str> {
    let found = DEFAULT.iter().find(|(group, _, name)| *group == &*resource.group && *name == &*resource.resource);
    found.map(|(_, version, _)| *version)
}

/// Returns true for an object that every physical cluster has in each namespace, so that no copy is needed: the default
/// ServiceAccount, the ConfigMap of its certificate authority, and the tokens of its ServiceAccounts.
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
    fn synced_kinds_are_an_allow_list() {
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
            assert_eq!(rules.refusal(&parse(resource), "Widget").is_none(), allowed, "{case}");
        }
    }

    #[test]
    fn custom_kinds_are_allowed_beside_the_default_resources() {
        let kind = |group: &str, kind: &str| GroupKind { group: group.into(), kind: kind.into() };
        let kinds = [
            kind("example.com", "Widget"),
            kind("any.io", "*"),
            kind("rbac.authorization.k8s.io", "*"),
            kind("discovery.k8s.io", "*"),
            kind("tenancy.kcp.io", "*"),
        ];
        let rules = SyncRules::new(&[]).with_kinds(&kinds);
        for (case, resource, kind, allowed) in [
            ("a kind that is named", "widgets.example.com", "Widget", true),
            ("another of its group", "gadgets.example.com", "Gadget", false),
            ("any kind of a group", "things.any.io", "Thing", true),
            ("what governs a cluster never", "roles.rbac.authorization.k8s.io", "Role", false),
            ("nor the server's own", "workspaces.tenancy.kcp.io", "Workspace", false),
            ("nor what a physical cluster makes for itself", "endpointslices.discovery.k8s.io", "EndpointSlice", false),
            ("workloads as before", "deployments.apps", "Deployment", true),
        ] {
            assert_eq!(rules.refusal(&parse(resource), kind).is_none(), allowed, "{case}");
        }
        assert_eq!(
            rules.custom_groups().into_iter().collect::<Vec<_>>(),
            ["any.io", "discovery.k8s.io", "example.com"]
        );
        let own = SyncRules::new(&["deployments.apps".into(), "things.own.io".into()]).with_kinds(&kinds);
        assert!(own.refusal(&parse("widgets.example.com"), "Widget").is_some(), "a list of resources is all there is");
        assert_eq!(own.custom_groups().into_iter().collect::<Vec<_>>(), ["own.io"]);
    }

    #[test]
    fn cluster_specific_fields_are_never_synced() {
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
