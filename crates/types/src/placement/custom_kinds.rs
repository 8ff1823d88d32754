//! Custom kinds on physical clusters: the shapes in policies and in the status of a `PhysicalCluster`.

use serde::{Deserialize, Serialize};

use crate::group::GroupResource;

/// Groups of Kubernetes and of Portolan that govern a cluster rather than run in it. Their objects never go to a
/// physical cluster, whatever policies and physical clusters allow.
pub const GOVERNING_GROUPS: [&str; 9] = [
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

/// Returns true for a group whose objects never go to a physical cluster: one that governs a cluster, or one of this
/// server's own.
pub fn is_governing_group(group: &str) -> bool {
    let is_kcp = group == "kcp.io" || group.ends_with(".kcp.io");
    is_kcp || group.ends_with(".portolan.dev") || GOVERNING_GROUPS.contains(&group)
}

/// Most custom kinds that one physical cluster may take.
pub const MAX_CUSTOM_KINDS: usize = 256;

/// Sync of the definition of custom resources to the physical clusters that the resources go to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum DefinitionSync {
    /// The physical cluster has to serve the kind by itself.
    #[default]
    None,
    /// The definition is copied there too, unless the physical cluster has another definition of that name.
    Sync,
}

impl DefinitionSync {
    pub(super) fn is_none(&self) -> bool {
        *self == Self::None
    }
}

/// Custom kind that a physical cluster may take: an entry of `status.customKinds`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CustomKindStatus {
    /// API group.
    pub group: String,
    /// Kind; empty while only the resource is known, or `*` for any kind of the group that is not served.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub kind: String,
    /// Plural; empty while only the kind is known.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub resource: String,
    /// Versions that the physical cluster serves; empty if objects of the kind cannot go there now.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub versions: Vec<String>,
    /// Reason that they cannot, one sentence, if more is known than that the kind is not served.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
}

impl CustomKindStatus {
    /// Returns true if the entry is about objects of this resource and kind.
    pub fn is_about(&self, resource: &GroupResource, kind: &str) -> bool {
        self.group == *resource.group
            && (self.resource.is_empty() || self.resource == *resource.resource)
            && (self.kind.is_empty() || self.kind == "*" || self.kind == kind)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_about_what_it_names() {
        let entry = |kind: &str, resource: &str| CustomKindStatus {
            group: "example.com".into(),
            kind: kind.into(),
            resource: resource.into(),
            ..CustomKindStatus::default()
        };
        let widgets = GroupResource::new("example.com", "widgets");
        for (case, entry, expected) in [
            ("both", entry("Widget", "widgets"), true),
            ("the kind alone", entry("Widget", ""), true),
            ("the resource alone", entry("", "widgets"), true),
            ("any kind of the group", entry("*", ""), true),
            ("another kind", entry("Gadget", ""), false),
            ("another resource of the kind", entry("Widget", "gadgets"), false),
            ("another group", CustomKindStatus { group: "other.com".into(), ..entry("Widget", "") }, false),
        ] {
            assert_eq!(entry.is_about(&widgets, "Widget"), expected, "{case}");
        }
    }

    #[test]
    fn groups_that_govern_a_cluster_never_go_to_one() {
        for (group, expected) in [
            ("rbac.authorization.k8s.io", true),
            ("apiextensions.k8s.io", true),
            ("internal.portolan.dev", true),
            ("tenancy.kcp.io", true),
            ("example.com", false),
            ("gateway.networking.k8s.io", false),
            ("notkcp.io", false),
        ] {
            assert_eq!(is_governing_group(group), expected, "{group}");
        }
    }
}
