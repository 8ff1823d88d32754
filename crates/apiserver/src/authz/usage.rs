//! The right of logical clusters to use physical clusters: the RBAC verb `use`, decided where the physical cluster is
//! registered.

use portolan_machinery::rbac::{Action, Binding, PolicyRule, Roles as _, Subject, User};
use portolan_types::{LogicalClusterId, LogicalClusterPath};

use super::ClusterRoles;

/// The group of all logical clusters, in the RBAC of any.
const EVERYBODY: &str = "system:clusters";

/// Who a logical cluster is when something is placed for it.
///
/// User `system:cluster:<id>`; groups `system:clusters` (all logical clusters), `system:cluster:<path>` (this one), and
/// `system:clusters:<path>` for itself and every ancestor, so that a binding to `system:clusters:root:acme` means `root:acme`
/// and everything below.
pub fn identity_of(id: LogicalClusterId, path: &LogicalClusterPath) -> User {
    let lineage = std::iter::successors(Some(path.clone()), |path| path.parent());
    let mut groups = vec![EVERYBODY.to_owned(), format!("system:cluster:{path}")];
    groups.extend(lineage.map(|path| format!("{EVERYBODY}:{path}")));
    User { name: format!("system:cluster:{id}"), groups, ..User::default() }
}

/// Who may use which of the physical clusters that are registered in one logical cluster, taken from its RBAC.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UseGrants(Vec<(Subject, Named)>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Named {
    All,
    One(String),
}

impl UseGrants {
    /// What the ClusterRoleBindings of a logical cluster grant.
    pub fn of(roles: &ClusterRoles) -> Self {
        let grants = |binding: &Binding| {
            let rules = (binding.role_kind == "ClusterRole").then(|| roles.cluster_role_rules(&binding.role_name));
            let named: Vec<Named> = rules.flatten().into_iter().flatten().flat_map(named).collect();
            let pairs = binding.subjects.iter().flat_map(|subject| named.iter().map(|n| (subject.clone(), n.clone())));
            pairs.collect::<Vec<_>>()
        };
        Self(roles.cluster_role_bindings().iter().flat_map(grants).collect())
    }

    /// Whether a logical cluster, as [`identity_of`] names it, may use the physical cluster `name`.
    pub fn allow(&self, user: &User, name: &str) -> bool {
        let is_named = |named: &Named| match named {
            Named::All => true,
            Named::One(own) => own == name,
        };
        self.0.iter().any(|(subject, named)| is_named(named) && subject.is(user))
    }
}

/// The physical clusters that a rule lets its holders use.
fn named(rule: &PolicyRule) -> Vec<Named> {
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
        [] => allows("").then_some(Named::All).into_iter().collect(),
        names => names.iter().filter(|name| allows(name)).cloned().map(Named::One).collect(),
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
    fn whoever_is_bound_may_use_a_physical_cluster() {
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
            ("once the binding is empty nobody may", vec![closed.clone()], "east", false),
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
