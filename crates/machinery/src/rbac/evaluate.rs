//! What the roles and bindings of a logical cluster allow a user.

use portolan_types::object;
use serde_json::Value;

use super::{Action, MASTERS, PolicyRule, User};

/// The roles and bindings of one logical cluster, the shared ones included.
pub trait Roles {
    /// All ClusterRoleBindings.
    fn cluster_role_bindings(&self) -> Box<dyn Iterator<Item = &Value> + '_>;
    /// The RoleBindings of a namespace.
    fn role_bindings(&self, namespace: &str) -> Box<dyn Iterator<Item = &Value> + '_>;
    /// The rules of a ClusterRole, aggregated ones computed; `None` when there is no such role.
    fn cluster_role_rules(&self, name: &str) -> Option<Vec<PolicyRule>>;
    /// The rules of a Role; `None` when there is no such role.
    fn role_rules(&self, namespace: &str, name: &str) -> Option<Vec<PolicyRule>>;
}

/// The answer of [`authorize`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Some rule allows it; the text says which binding brought it.
    Allowed(String),
    /// No rule allows it. Names roles that bindings of the user point to and that do not exist.
    NoOpinion(Vec<String>),
}

/// Whether any rule allows `user` to do `action`. Members of `system:masters` may do everything.
pub fn authorize(roles: &dyn Roles, user: &User, action: Action<'_>) -> Verdict {
    if user.is_in(MASTERS) {
        return Verdict::Allowed(String::new());
    }
    let namespace = match action {
        Action::Resource { namespace, .. } => namespace,
        Action::Path { .. } => "",
    };
    let mut missing = Vec::new();
    for grant in grants(roles, user, namespace) {
        match grant.rules {
            Some(rules) if rules.iter().any(|rule| rule.allows(action)) => return Verdict::Allowed(grant.why),
            Some(_) => {}
            None => missing.push(grant.role),
        }
    }
    Verdict::NoOpinion(missing)
}

/// All rules that `user` holds in `namespace`, cluster-wide ones included; an empty namespace asks for the latter only.
pub fn rules_for(roles: &dyn Roles, user: &User, namespace: &str) -> Vec<PolicyRule> {
    if user.is_in(MASTERS) {
        let all = || vec!["*".to_owned()];
        let resources = PolicyRule { verbs: all(), api_groups: all(), resources: all(), ..PolicyRule::default() };
        return vec![resources, PolicyRule { verbs: all(), non_resource_urls: all(), ..PolicyRule::default() }];
    }
    grants(roles, user, namespace).filter_map(|grant| grant.rules).flatten().collect()
}

/// Most permissions that are compared one by one: lists of a few thousand each multiply to more than any memory.
const MAX_ATOMS: usize = 100_000;

/// What of `wanted` no single rule of `held` covers: granting it would be an escalation. Of rules that together name more
/// than 100 000 permissions, only those count as covered that one rule of `held` covers whole.
pub fn uncovered(wanted: &[PolicyRule], held: &[PolicyRule]) -> Vec<PolicyRule> {
    let covered = |wanted: &PolicyRule| held.iter().any(|rule| rule.covers(wanted));
    let open: Vec<&PolicyRule> = wanted.iter().filter(|rule| !covered(rule)).collect();
    let atoms = open.iter().fold(0, |sum: usize, rule| sum.saturating_add(rule.count_atoms()));
    if atoms > MAX_ATOMS {
        return open.into_iter().cloned().collect();
    }
    open.into_iter().flat_map(PolicyRule::atoms).filter(|atom| !covered(atom)).collect()
}

struct Grant {
    rules: Option<Vec<PolicyRule>>,
    role: String,
    why: String,
}

fn grants<'a>(roles: &'a dyn Roles, user: &'a User, namespace: &'a str) -> impl Iterator<Item = Grant> + 'a {
    let cluster_wide = roles
        .cluster_role_bindings()
        .filter(|binding| binds(binding, user, ""))
        .map(|binding| grant(roles, binding, ""));
    let in_namespace = (!namespace.is_empty()).then(|| roles.role_bindings(namespace));
    let namespaced = in_namespace
        .into_iter()
        .flatten()
        .filter(move |binding| binds(binding, user, namespace))
        .map(move |binding| grant(roles, binding, namespace));
    cluster_wide.chain(namespaced)
}

fn grant(roles: &dyn Roles, binding: &Value, namespace: &str) -> Grant {
    let text = |key: &str| binding.get("roleRef").and_then(|r| r.get(key)).and_then(Value::as_str).unwrap_or_default();
    let (kind, name) = (text("kind"), text("name"));
    let (rules, role) = match kind {
        "ClusterRole" => (roles.cluster_role_rules(name), "clusterrole"),
        "Role" if !namespace.is_empty() => (roles.role_rules(namespace, name), "role"),
        _ => (Some(Vec::new()), "role"),
    };
    let binding_kind = if namespace.is_empty() { "ClusterRoleBinding" } else { "RoleBinding" };
    let place = if namespace.is_empty() { String::new() } else { format!("/{namespace}") };
    let bound = object::name(binding);
    Grant {
        rules,
        role: format!("{role}.rbac.authorization.k8s.io {name:?} not found"),
        why: format!("RBAC: allowed by {binding_kind} \"{bound}{place}\" of {kind} {name:?}"),
    }
}

/// Whether one of the binding's subjects is `user`. A service account without a namespace takes the binding's.
fn binds(binding: &Value, user: &User, binding_namespace: &str) -> bool {
    let subjects = binding.get("subjects").and_then(Value::as_array);
    subjects.into_iter().flatten().any(|subject| {
        let text = |key: &str| subject.get(key).and_then(Value::as_str).unwrap_or_default();
        match text("kind") {
            "User" => user.name == text("name"),
            "Group" => user.is_in(text("name")),
            "ServiceAccount" => {
                let own = text("namespace");
                let namespace = if own.is_empty() { binding_namespace } else { own };
                let account = user.name.strip_prefix("system:serviceaccount:").and_then(|a| a.split_once(':'));
                !namespace.is_empty() && account == Some((namespace, text("name")))
            }
            _ => false,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    struct Fixture {
        cluster_bindings: Vec<Value>,
        bindings: Vec<Value>,
    }

    impl Roles for Fixture {
        fn cluster_role_bindings(&self) -> Box<dyn Iterator<Item = &Value> + '_> {
            Box::new(self.cluster_bindings.iter())
        }
        fn role_bindings(&self, namespace: &str) -> Box<dyn Iterator<Item = &Value> + '_> {
            let here = if namespace == "shop" { self.bindings.as_slice() } else { &[] };
            Box::new(here.iter())
        }
        fn cluster_role_rules(&self, name: &str) -> Option<Vec<PolicyRule>> {
            let rule = json!({"rules": [{"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]}]});
            (name == "reader").then(|| PolicyRule::of(&rule))
        }
        fn role_rules(&self, _: &str, _: &str) -> Option<Vec<PolicyRule>> {
            None
        }
    }

    fn binding(subject: Value, role: &str) -> Value {
        json!({"metadata": {"name": "b"}, "subjects": [subject], "roleRef": {"kind": "ClusterRole", "name": role}})
    }

    #[test]
    fn bindings_reach_users_groups_and_service_accounts() {
        let roles = Fixture {
            cluster_bindings: vec![binding(json!({"kind": "Group", "name": "staff"}), "reader")],
            bindings: vec![
                binding(json!({"kind": "ServiceAccount", "name": "robot"}), "reader"),
                binding(json!({"kind": "User", "name": "eve"}), "gone"),
            ],
        };
        let get = |namespace| Action::Resource {
            verb: "get",
            group: "",
            resource: "pods",
            subresource: "",
            name: "p",
            namespace,
        };
        let user = |name: &str, group: &str| User { name: name.into(), groups: vec![group.into()], ..User::default() };
        for (case, user, namespace, expected) in [
            ("a group, cluster-wide", user("ann", "staff"), "other", true),
            ("nobody", user("ann", "x"), "shop", false),
            ("a service account in its namespace", user("system:serviceaccount:shop:robot", ""), "shop", true),
            ("a namesake of another namespace", user("system:serviceaccount:x:robot", ""), "shop", false),
            ("masters", user("root", MASTERS), "shop", true),
        ] {
            let allowed = matches!(authorize(&roles, &user, get(namespace)), Verdict::Allowed(_));
            assert_eq!(allowed, expected, "{case}");
        }
        let missing = authorize(&roles, &user("eve", ""), get("shop"));
        let named = vec!["clusterrole.rbac.authorization.k8s.io \"gone\" not found".to_owned()];
        assert_eq!(missing, Verdict::NoOpinion(named));
    }

    #[test]
    fn granting_needs_every_permission() {
        let rules = |value: Value| PolicyRule::of(&json!({"rules": value}));
        let held = rules(json!([
            {"verbs": ["get", "list"], "apiGroups": [""], "resources": ["pods", "services"]},
            {"verbs": ["*"], "apiGroups": ["apps"], "resources": ["*"]},
        ]));
        for (case, wanted, expected) in [
            ("a subset", json!([{"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]}]), 0),
            ("one verb too many", json!([{"verbs": ["get", "delete"], "apiGroups": [""], "resources": ["pods"]}]), 1),
            ("all resources", json!([{"verbs": ["get"], "apiGroups": [""], "resources": ["*"]}]), 1),
            (
                "by name",
                json!([{"verbs": ["get"], "apiGroups": [""], "resources": ["pods"], "resourceNames": ["a"]}]),
                0,
            ),
            (
                "in a whole group",
                json!([{"verbs": ["patch"], "apiGroups": ["apps"], "resources": ["deployments/scale"]}]),
                0,
            ),
            ("a path", json!([{"verbs": ["get"], "nonResourceURLs": ["/metrics"]}]), 1),
        ] {
            assert_eq!(uncovered(&rules(wanted), &held).len(), expected, "{case}");
        }
    }

    #[test]
    fn a_rule_that_multiplies_is_not_taken_apart() {
        let many = |word: &str| (0..5000).map(|n| format!("{word}{n}")).collect::<Vec<_>>();
        let huge = PolicyRule {
            verbs: many("v"),
            api_groups: many("g"),
            resources: many("r"),
            resource_names: many("n"),
            ..PolicyRule::default()
        };
        assert_eq!(uncovered(std::slice::from_ref(&huge), &[]).len(), 1);
        assert_eq!(uncovered(std::slice::from_ref(&huge), std::slice::from_ref(&huge)).len(), 0);
    }
}
