//! Evaluation of the roles and bindings of a logical cluster for a user.

use std::collections::HashSet;

use portolan_types::quoted::go_quoted;

use super::{Action, Binding, Bindings, MASTERS, PolicyRule, User};

/// The roles and bindings of one logical cluster, the shared ones included.
pub trait Roles {
    /// Returns all ClusterRoleBindings.
    fn cluster_role_bindings(&self) -> &Bindings;
    /// Returns the RoleBindings of a namespace; `None` when it has none.
    fn role_bindings(&self, namespace: &str) -> Option<&Bindings>;
    /// Returns the rules of a ClusterRole, aggregated ones computed; `None` when there is no such role.
    fn cluster_role_rules(&self, name: &str) -> Option<&[PolicyRule]>;
    /// Returns the rules of a Role; `None` when there is no such role.
    fn role_rules(&self, namespace: &str, name: &str) -> Option<&[PolicyRule]>;
}

/// The answer of [`authorize`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Some rule allows it; the text names the binding.
    Allowed(String),
    /// No rule allows it. Names roles that bindings of the user point to and that do not exist.
    NoOpinion(Vec<String>),
}

/// Returns whether any rule allows `user` to do `action`. Members of `system:masters` may do everything.
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
        match grant.rules() {
            Some(rules) if rules.iter().any(|rule| rule.allows(action)) => return Verdict::Allowed(grant.why(user)),
            Some(_) => {}
            None => missing.push(grant.missing()),
        }
    }
    Verdict::NoOpinion(missing)
}

/// Returns all rules that `user` holds in `namespace`, cluster-wide ones included; an empty namespace asks for the
/// latter only.
pub fn rules_for(roles: &dyn Roles, user: &User, namespace: &str) -> Vec<PolicyRule> {
    grants(roles, user, namespace).filter_map(|grant| grant.rules()).flatten().cloned().collect()
}

/// Most permissions that are compared one by one: lists of a few thousand each multiply to more than any memory.
const MAX_ATOMS: usize = 100_000;

/// Most words that one question compares: rules of many megabytes each would multiply to minutes.
const MAX_WORDS: usize = 20_000_000;

/// Returns the rules of `wanted` that no single rule of `held` covers: granting them would be an escalation. Among
/// rules that together name more than 100 000 permissions, a rule counts as covered only if one rule of `held` covers
/// it whole. After 20 million comparisons everything else counts as uncovered. A rule that is held unchanged costs
/// none.
pub fn uncovered(wanted: &[PolicyRule], held: &[PolicyRule]) -> Vec<PolicyRule> {
    let mut search = Search { held, words: MAX_WORDS };
    let same: HashSet<&PolicyRule> = held.iter().collect();
    let differ = wanted.iter().filter(|rule| !same.contains(rule));
    let open: Vec<&PolicyRule> = differ.filter(|rule| !search.finds_cover(rule)).collect();
    let atoms = open.iter().fold(0, |sum: usize, rule| sum.saturating_add(rule.count_atoms()));
    if atoms > MAX_ATOMS {
        return open.into_iter().cloned().collect();
    }
    open.into_iter().flat_map(PolicyRule::atoms).filter(|atom| !search.finds_cover(atom)).collect()
}

/// Looks for rules that cover others, as long as its effort lasts.
struct Search<'a> {
    held: &'a [PolicyRule],
    /// Comparisons that are left.
    words: usize,
}

impl Search<'_> {
    fn finds_cover(&mut self, wanted: &PolicyRule) -> bool {
        for rule in self.held {
            let Some(left) = self.words.checked_sub(rule.effort_to_cover(wanted)) else {
                self.words = 0;
                return false;
            };
            self.words = left;
            if rule.covers(wanted) {
                return true;
            }
        }
        false
    }
}

/// A binding of the user; `namespace` is empty for ClusterRoleBindings.
struct Grant<'a> {
    roles: &'a dyn Roles,
    binding: &'a Binding,
    namespace: &'a str,
}

impl<'a> Grant<'a> {
    fn rules(&self) -> Option<&'a [PolicyRule]> {
        let Binding { role_kind, role_name, .. } = self.binding;
        match role_kind.as_str() {
            "ClusterRole" => self.roles.cluster_role_rules(role_name),
            "Role" if !self.namespace.is_empty() => self.roles.role_rules(self.namespace, role_name),
            _ => Some(&[]),
        }
    }

    /// Returns the reason in kube-apiserver's words; it names the first subject that matches the user.
    fn why(&self, user: &User) -> String {
        let Binding { name, role_kind, role_name, subjects } = self.binding;
        let binding = match self.namespace {
            "" => format!("ClusterRoleBinding {}", go_quoted(name)),
            namespace => format!("RoleBinding {}", go_quoted(&format!("{name}/{namespace}"))),
        };
        let to = subjects.iter().find(|subject| subject.is(user)).map(|subject| format!(" to {subject}"));
        format!("RBAC: allowed by {binding} of {role_kind} {}{}", go_quoted(role_name), to.unwrap_or_default())
    }

    fn missing(&self) -> String {
        let kind = self.binding.role_kind.to_lowercase();
        format!("{kind}.rbac.authorization.k8s.io {} not found", go_quoted(&self.binding.role_name))
    }
}

fn grants<'a>(roles: &'a dyn Roles, user: &'a User, namespace: &'a str) -> impl Iterator<Item = Grant<'a>> + 'a {
    let cluster_wide = roles.cluster_role_bindings().of(user);
    let namespaced = roles.role_bindings(namespace).filter(|_| !namespace.is_empty()).map(|known| known.of(user));
    let cluster_wide = cluster_wide.map(move |binding| Grant { roles, binding, namespace: "" });
    let namespaced = namespaced.into_iter().flatten().map(move |binding| Grant { roles, binding, namespace });
    cluster_wide.chain(namespaced)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    struct Fixture {
        cluster_bindings: Bindings,
        bindings: Bindings,
        reader: Vec<PolicyRule>,
    }

    impl Fixture {
        fn new(cluster_bindings: &[Value], bindings: &[Value]) -> Self {
            let read = |objects: &[Value]| Bindings::new(objects.iter().map(Binding::of).collect());
            let reader = json!({"rules": [{"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]}]});
            Self { cluster_bindings: read(cluster_bindings), bindings: read(bindings), reader: PolicyRule::of(&reader) }
        }
    }

    impl Roles for Fixture {
        fn cluster_role_bindings(&self) -> &Bindings {
            &self.cluster_bindings
        }
        fn role_bindings(&self, namespace: &str) -> Option<&Bindings> {
            (namespace == "shop").then_some(&self.bindings)
        }
        fn cluster_role_rules(&self, name: &str) -> Option<&[PolicyRule]> {
            (name == "reader").then_some(&self.reader)
        }
        fn role_rules(&self, _: &str, _: &str) -> Option<&[PolicyRule]> {
            None
        }
    }

    fn binding(subject: Value, role: &str) -> Value {
        let metadata = json!({"name": "b", "namespace": "shop"});
        json!({"metadata": metadata, "subjects": [subject], "roleRef": {"kind": "ClusterRole", "name": role}})
    }

    #[test]
    fn bindings_reach_users_groups_and_service_accounts() {
        let roles = Fixture::new(
            &[binding(json!({"kind": "Group", "name": "staff"}), "reader")],
            &[
                binding(json!({"kind": "ServiceAccount", "name": "robot"}), "reader"),
                binding(json!({"kind": "User", "name": "eve"}), "gone"),
            ],
        );
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
            ("no permission", user("ann", "x"), "shop", false),
            ("a service account in its namespace", user("system:serviceaccount:shop:robot", ""), "shop", true),
            ("a namesake of another namespace", user("system:serviceaccount:x:robot", ""), "shop", false),
            ("masters", user("root", MASTERS), "shop", true),
        ] {
            let allowed = matches!(authorize(&roles, &user, get(namespace)), Verdict::Allowed(_));
            assert_eq!(allowed, expected, "{case}");
        }
        for (user, namespace, binding, to) in [
            (user("ann", "staff"), "other", r#"ClusterRoleBinding "b""#, r#"Group "staff""#),
            (
                user("system:serviceaccount:shop:robot", ""),
                "shop",
                r#"RoleBinding "b/shop""#,
                r#"ServiceAccount "robot/shop""#,
            ),
        ] {
            let why = format!(r#"RBAC: allowed by {binding} of ClusterRole "reader" to {to}"#);
            assert_eq!(authorize(&roles, &user, get(namespace)), Verdict::Allowed(why));
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

    #[test]
    fn very_many_rules_are_not_compared_each_with_each() {
        let on = |resource: String| PolicyRule {
            verbs: vec!["get".into()],
            api_groups: vec!["g".into()],
            resources: vec![resource],
            ..PolicyRule::default()
        };
        let held: Vec<PolicyRule> = (0..50_000).map(|n| on(format!("r{n}"))).collect();
        let wanted: Vec<PolicyRule> = (0..50_000).map(|n| on(format!("w{n}"))).collect();
        let mut search = Search { held: &held, words: MAX_WORDS };
        let asked = wanted.iter().take_while(|rule| !search.finds_cover(rule) && search.words > 0).count();
        assert!((50..200).contains(&asked), "{asked} of 50,000 were compared with all");
        assert_eq!(uncovered(&wanted, &held).len(), 50_000);
        assert_eq!(uncovered(&held, &held).len(), 0, "exactly the held permissions");
        let less: Vec<PolicyRule> = held[..1000].to_vec();
        let more = |rule: &PolicyRule| PolicyRule { verbs: vec!["get".into(), "list".into()], ..rule.clone() };
        let more: Vec<PolicyRule> = less.iter().map(more).collect();
        assert_eq!(uncovered(&less, &more).len(), 0, "as many as anybody has");
    }
}
