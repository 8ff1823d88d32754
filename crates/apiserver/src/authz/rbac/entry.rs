//! Entry of a workspace: the groups that it requires, and the verb `access` on the path `/`, as kcp has them. Only who
//! may enter has any rights there.

use portolan_strategy::rbac::{Action, User, Verdict, authorize};
use portolan_types::LogicalClusterId;

use crate::requester;

use super::{ClusterRoles, is_member};

/// Action of entering.
const ENTER: Action<'static> = Action::Path { verb: "access", path: "/" };
/// kcp's reason for a denial.
const NOT_PERMITTED: &str = "workspace access not permitted";

/// Workspace that users want to enter.
pub(super) struct WorkspaceEntry<'a> {
    pub(super) cluster: LogicalClusterId,
    pub(super) roles: &'a ClusterRoles,
    /// Groups that it requires: alternatives separated by `,`, each of groups separated by `;`.
    pub(super) required_groups: Option<&'a str>,
}

impl WorkspaceEntry<'_> {
    /// Returns the reason for which users may not enter together, if there is one. Every authenticated user may enter
    /// root, and a service account its own logical cluster.
    pub(super) fn refusal(&self, users: &[User], is_impersonated: bool) -> Option<String> {
        let is_own_account = users.first().is_some_and(requester::is_account);
        if self.cluster == LogicalClusterId::ROOT || is_own_account {
            return None;
        }
        if let Some(required) = self.required_groups.filter(|required| !meets(users, required)) {
            return Some(format!("user is not a member of required groups: {required}"));
        }
        if self.roles.admits_members() {
            return None;
        }
        let counts = |user: &&User| is_impersonated || is_member(self.cluster, self.roles, user);
        let enters = |user: &User| matches!(authorize(self.roles, user, ENTER), Verdict::Allowed(_));
        let may_enter = users.iter().filter(counts).any(enters);
        (!may_enter).then(|| NOT_PERMITTED.to_owned())
    }
}

/// Returns true if users together are in the groups of one alternative.
fn meets(users: &[User], required: &str) -> bool {
    let is_in = |group: &str| users.iter().any(|user| user.is_in(group));
    required.split(',').any(|alternative| alternative.split(';').all(|group| is_in(group.trim())))
}

#[cfg(test)]
mod tests {
    use portolan_strategy::rbac::MASTERS;
    use serde_json::{Value, json};

    use super::*;
    use crate::authz::OwnObjects;

    const HERE: LogicalClusterId = LogicalClusterId::new(7);

    fn binding(name: &str, role: &str, user: &str) -> Value {
        json!({
            "metadata": {"name": name}, "subjects": [{"kind": "User", "name": user}],
            "roleRef": {"kind": "ClusterRole", "name": role},
        })
    }

    fn user(name: &str, groups: &[&str]) -> User {
        let groups = groups.iter().map(|group| (*group).to_owned()).chain(["system:authenticated".into()]).collect();
        User { name: name.into(), groups, ..User::default() }
    }

    #[test]
    fn required_groups_are_alternatives_of_sets() {
        for (required, groups, expected) in [
            ("a", vec!["a"], true),
            ("a", vec!["b"], false),
            ("a;b", vec!["a"], false),
            ("a;b", vec!["a", "b"], true),
            ("a;b,c", vec!["c"], true),
            ("a;b, c", vec!["b"], false),
            ("", vec!["a"], false),
        ] {
            assert_eq!(meets(&[user("ann", &groups)], required), expected, "{required} {groups:?}");
        }
        assert!(meets(&[user("ann", &["a"]), user("bob", &["b"])], "a;b"), "those of a warrant count, too");
    }

    #[test]
    fn a_workspace_that_admits_no_members_takes_the_verb_access() {
        let closed = json!({
            "metadata": {"name": "portolan:workspace-access"},
            "roleRef": {"kind": "ClusterRole", "name": "system:kcp:workspace:access"},
        });
        let bindings = [binding("edits", "edit", "ann"), binding("enters", "system:kcp:workspace:access", "bob")];
        let open = ClusterRoles::new(OwnObjects { cluster_role_bindings: bindings.to_vec(), ..OwnObjects::default() });
        let strict = ClusterRoles::new(OwnObjects {
            cluster_role_bindings: bindings.into_iter().chain([closed]).collect(),
            ..OwnObjects::default()
        });
        let account = "system:serviceaccount:default:a";
        for (case, roles, required_groups, name, cluster, expected) in [
            ("every member enters", &open, None, "ann", HERE, true),
            ("without access a role is not enough", &strict, None, "ann", HERE, false),
            ("with access it is", &strict, None, "bob", HERE, true),
            ("a service account enters", &strict, Some("a"), account, HERE, true),
            ("groups are required first", &open, Some("a"), "bob", HERE, false),
            ("root is open", &strict, None, "ann", LogicalClusterId::ROOT, true),
        ] {
            let entry = WorkspaceEntry { cluster, roles, required_groups };
            let refused = entry.refusal(&[user(name, &[])], false);
            assert_eq!(refused.is_none(), expected, "{case}: {refused:?}");
        }
        let entry = WorkspaceEntry { cluster: HERE, roles: &strict, required_groups: None };
        assert!(entry.refusal(&[user("boss", &[MASTERS])], true).is_none(), "an administrator enters");
    }
}
