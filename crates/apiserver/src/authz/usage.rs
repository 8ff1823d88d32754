//! Right of logical clusters to use physical clusters: the RBAC verb `use`, checked where the physical cluster is
//! registered.

use std::collections::BTreeSet;

use portolan_strategy::rbac::{Action, Binding, PolicyRule, Roles as _, Subject, User};
use portolan_types::{LogicalClusterId, LogicalClusterPath};

use super::ClusterRoles;

/// Group of all logical clusters, valid in the RBAC of each.
const EVERYBODY: &str = "system:clusters";

/// Returns the identity of a logical cluster when something is placed for it.
///
/// User `system:cluster:<id>`; groups `system:clusters` (all logical clusters), `system:cluster:<path>` (this one),
/// and `system:clusters:<path>` for itself and every ancestor, so that a binding to `system:clusters:root:acme` means
/// `root:acme` and everything below.
pub fn identity_of(id: LogicalClusterId, path: &LogicalClusterPath) -> User {
    let lineage = std::iter::successors(Some(path.clone()), |path| path.parent());
    let mut groups = vec![EVERYBODY.to_owned(), format!("system:cluster:{path}")];
    groups.extend(lineage.map(|path| format!("{EVERYBODY}:{path}")));
    User { name: format!("system:cluster:{id}"), groups, ..User::default() }
}

/// Grants of `use` on the physical clusters of one logical cluster, taken from its RBAC.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UseGrants(Vec<(Subject, UsableNames)>);

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum UsableNames {
    All,
    One(String),
}

impl UseGrants {
    /// Collects the grants of the ClusterRoleBindings.
    pub fn of(roles: &ClusterRoles) -> Self {
        let grants = |binding: &Binding| {
            let rules = (binding.role_kind == "ClusterRole").then(|| roles.cluster_role_rules(&binding.role_name));
            let usable_names: Vec<UsableNames> = rules.flatten().into_iter().flatten().flat_map(usable_names).collect();
            let pairs =
                binding.subjects.iter().flat_map(|subject| usable_names.iter().map(|n| (subject.clone(), n.clone())));
            pairs.collect::<Vec<_>>()
        };
        Self(roles.cluster_role_bindings().iter().flat_map(grants).collect())
    }

    /// Returns true if the logical cluster with this [`identity_of`] may use the physical cluster `name`.
    pub fn allow(&self, user: &User, name: &str) -> bool {
        let is_named = |usable_names: &UsableNames| match usable_names {
            UsableNames::All => true,
            UsableNames::One(own) => own == name,
        };
        self.0.iter().any(|(subject, usable_names)| is_named(usable_names) && subject.is(user))
    }

    /// Returns the physical clusters that the logical cluster with this [`identity_of`] may use.
    pub(crate) fn usable_by(&self, user: &User) -> UsableClusters {
        let granted: BTreeSet<_> =
            self.0.iter().filter(|(subject, _)| subject.is(user)).map(|(_, names)| names).collect();
        if granted.contains(&UsableNames::All) {
            UsableClusters(BTreeSet::from([UsableNames::All]))
        } else {
            UsableClusters(granted.into_iter().cloned().collect())
        }
    }
}

/// Physical clusters of one logical cluster that another one may use. Equal sets grant the same.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct UsableClusters(BTreeSet<UsableNames>);

/// Returns the physical clusters that a rule covers.
fn usable_names(rule: &PolicyRule) -> Vec<UsableNames> {
    let allows = |name: &str| {
        rule.allows(Action::Resource {
            verb: "use",
            group: "portolan.dev",
            resource: "physicalclusters",
            subresource: "",
            name,
            namespace: "",
        })
    };
    match rule.resource_names.as_slice() {
        [] => allows("").then_some(UsableNames::All).into_iter().collect(),
        names => names.iter().filter(|name| allows(name)).cloned().map(UsableNames::One).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::authz::OwnObjects;
    use serde_json::{Value, json};

    fn binding(subjects: Value, role: &str) -> Value {
        json!({"metadata": {"name": role}, "subjects": subjects, "roleRef": {"kind": "ClusterRole", "name": "r"}})
    }

    fn group(name: &str) -> Value {
        json!([{"kind": "Group", "name": name}])
    }

    #[test]
    fn bound_logical_clusters_may_use_a_physical_cluster() {
        let shop = identity_of(LogicalClusterId::new(7), &"root:acme:shop".parse().unwrap());
        let role = json!({"metadata": {"name": "r"}, "rules": [
            {"verbs": ["use"], "apiGroups": ["portolan.dev"], "resources": ["physicalclusters"], "resourceNames": ["east"]},
        ]});
        let closed = json!({
            "metadata": {"name": "portolan:physicalcluster-users"},
            "roleRef": {"kind": "ClusterRole", "name": "portolan:physicalcluster-user"},
        });
        for (case, bindings, name, expected) in [
            ("from the start everybody may", vec![], "east", true),
            ("an empty binding allows no user", vec![closed.clone()], "east", false),
            (
                "all below a workspace",
                vec![closed.clone(), binding(group("system:clusters:root:acme"), "r")],
                "east",
                true,
            ),
            (
                "only what the role names",
                vec![closed.clone(), binding(group("system:clusters:root:acme"), "r")],
                "west",
                false,
            ),
            ("one workspace", vec![closed.clone(), binding(group("system:cluster:root:acme:shop"), "r")], "east", true),
            (
                "its parent is another",
                vec![closed.clone(), binding(group("system:cluster:root:acme"), "r")],
                "east",
                false,
            ),
            (
                "a logical cluster by id",
                vec![closed, binding(json!([{"kind": "User", "name": shop.name}]), "r")],
                "east",
                true,
            ),
        ] {
            let own = OwnObjects {
                cluster_roles: vec![role.clone()],
                cluster_role_bindings: bindings,
                ..OwnObjects::default()
            };
            assert_eq!(UseGrants::of(&ClusterRoles::new(own)).allow(&shop, name), expected, "{case}");
        }
    }
}
