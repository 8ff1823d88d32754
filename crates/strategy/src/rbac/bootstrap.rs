//! The roles and bindings that every logical cluster has from the start, from one shared table.

use std::sync::LazyLock;

use portolan_types::object;
use serde_json::Value;

/// kube-apiserver's bootstrap policy, written by `e2e/codegen/rbactable`, and Portolan's own additions.
const DATA: [&str; 2] = [include_str!("../../data/rbac.json"), include_str!("../../data/rbac-portolan.json")];

/// The shared roles and bindings, without uids and revisions.
#[derive(Debug)]
pub struct Bootstrap {
    /// ClusterRoles, by name; rules of aggregated ones are to be computed.
    pub cluster_roles: Vec<Value>,
    /// ClusterRoleBindings, by name.
    pub cluster_role_bindings: Vec<Value>,
    /// Roles, by namespace and name.
    pub roles: Vec<Value>,
}

/// Returns the shared table. Parsed once.
pub fn bootstrap() -> &'static Bootstrap {
    static TABLE: LazyLock<Bootstrap> = LazyLock::new(|| {
        let lines = DATA.iter().flat_map(|text| text.lines());
        let objects = lines.map(|line| serde_json::from_str::<Value>(line).expect("the table is tested to parse"));
        let mut objects: Vec<Value> = objects.collect();
        objects.sort_by(|a, b| address(a).cmp(&address(b)));
        let mut of_kind = |kind: &str| {
            objects.extract_if(.., |object| object.get("kind").and_then(Value::as_str) == Some(kind)).collect()
        };
        Bootstrap {
            cluster_roles: of_kind("ClusterRole"),
            cluster_role_bindings: of_kind("ClusterRoleBinding"),
            roles: of_kind("Role"),
        }
    });
    &TABLE
}

fn address(object: &Value) -> (&str, &str) {
    (object::namespace(object), object::name(object))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_the_roles_that_users_bind() {
        let table = bootstrap();
        for name in ["admin", "cluster-admin", "edit", "view", "system:discovery", "system:basic-user"] {
            assert!(table.cluster_roles.iter().any(|r| object::name(r) == name), "{name}");
        }
        assert_eq!(
            table.roles.iter().map(address).collect::<Vec<_>>(),
            [("kube-system", "extension-apiserver-authentication-reader")]
        );
        let bound: Vec<&str> = table.cluster_role_bindings.iter().map(object::name).collect();
        assert!(bound.contains(&"cluster-admin") && bound.contains(&"system:discovery"), "{bound:?}");
    }
}
