//! Account of a physical cluster for users' requests: `join --access`.

use anyhow::{Context as _, ensure};
use clap::Args;
use portolan_types::placement::{ACCESS_USER, MappedIdentity, MemberAccess};
use serde_json::{Value, json};

use super::super::cluster_api::{ClusterApi, objects_of};

/// Account, and the right of the syncer's to its tokens.
const MANIFEST: &str = include_str!("../../../../../manifests/syncer/access.yaml");

/// Users who reach a physical cluster through the proxy of its registration.
#[derive(Args, Clone, Default)]
pub(super) struct UserAccessArgs {
    /// Allow requests of users to the physical cluster itself, as the users and groups that are mapped.
    #[arg(long)]
    access: bool,
    /// User who has access, and its name on the physical cluster if that is another. Can be repeated.
    #[arg(long, value_name = "NAME[=THERE]", requires = "access", value_parser = mapped)]
    access_user: Vec<MappedIdentity>,
    /// Group that has access, and its name on the physical cluster if that is another. Can be repeated.
    #[arg(long, value_name = "NAME[=THERE]", requires = "access", value_parser = mapped)]
    access_group: Vec<MappedIdentity>,
}

impl UserAccessArgs {
    /// Checks the mapped names.
    ///
    /// # Errors
    /// There are none.
    pub(super) fn check(&self) -> anyhow::Result<()> {
        let is_empty = self.access_user.is_empty() && self.access_group.is_empty();
        ensure!(
            !self.access || !is_empty,
            "name who has access: --access-user NAME[=THERE], --access-group NAME[=THERE]"
        );
        Ok(())
    }

    /// Returns true if users have access.
    pub(super) fn is_allowed(&self) -> bool {
        self.access
    }

    /// Returns the manifest of the account; `None` without access.
    ///
    /// # Errors
    /// The manifest cannot be written.
    pub(super) fn manifest(&self) -> anyhow::Result<Option<String>> {
        if !self.access {
            return Ok(None);
        }
        let role = serde_json::to_string(&self.role()).context("the role cannot be written")?;
        Ok(Some(format!("{MANIFEST}---\n{role}\n")))
    }

    /// Returns the role of the account. It may impersonate the mapped users and groups by name.
    fn role(&self) -> Value {
        let names = |mapped: &[MappedIdentity]| -> Vec<String> {
            mapped.iter().filter_map(MappedIdentity::mapped).map(str::to_owned).collect()
        };
        let mut users = names(&self.access_user);
        users.push(ACCESS_USER.to_owned());
        let mut rules = vec![json!({
            "apiGroups": [""], "resources": ["users"], "resourceNames": users, "verbs": ["impersonate"],
        })];
        // Without names, the rule would allow every group.
        let groups = names(&self.access_group);
        if !groups.is_empty() {
            rules.push(json!({
                "apiGroups": [""], "resources": ["groups"], "resourceNames": groups, "verbs": ["impersonate"],
            }));
        }
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
            "metadata": {"name": "portolan-access"}, "rules": rules,
        })
    }

    /// Stores the mapping in the registration.
    ///
    /// # Errors
    /// A refusal.
    pub(super) async fn register(&self, upstream: &ClusterApi, path: &str) -> anyhow::Result<()> {
        let access = MemberAccess {
            users: self.access_user.clone(),
            groups: self.access_group.clone(),
            ..MemberAccess::default()
        };
        let patch = json!({"spec": {"access": access}});
        upstream.merge(path, &patch).await.context("the access of users cannot be registered")?;
        Ok(())
    }
}

/// Returns the objects of the account, for their removal.
///
/// # Errors
/// The manifest is broken.
pub(super) fn objects() -> anyhow::Result<Vec<Value>> {
    let access = UserAccessArgs { access: true, ..UserAccessArgs::default() };
    objects_of(&access.manifest()?.unwrap_or_default())
}

fn mapped(text: &str) -> Result<MappedIdentity, String> {
    let (name, downstream) = text.split_once('=').unwrap_or((text, ""));
    let identity = MappedIdentity { name: name.to_owned(), downstream: downstream.to_owned() };
    if name.is_empty() || identity.mapped().is_none() {
        return Err("name a user or group, with another name there if it begins with system:".into());
    }
    Ok(identity)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_account_may_impersonate_the_mapped_names_and_do_nothing_else() {
        let access_user = vec![mapped("ann").unwrap(), mapped("bob=robert").unwrap()];
        let access_group = vec![mapped("system:masters=portolan:admins").unwrap()];
        for (case, access, expected) in [
            (
                "users and groups",
                UserAccessArgs { access: true, access_user, access_group },
                json!([["ann", "robert", "portolan:access"], ["portolan:admins"]]),
            ),
            (
                "no group is no rule, not one for all groups",
                UserAccessArgs { access: true, ..UserAccessArgs::default() },
                json!([["portolan:access"]]),
            ),
        ] {
            let objects = objects_of(&access.manifest().unwrap().unwrap()).unwrap();
            let role = objects.iter().find(|object| object["kind"] == "ClusterRole").unwrap();
            let rules = role["rules"].as_array().unwrap();
            let names: Vec<&Value> = rules.iter().map(|rule| &rule["resourceNames"]).collect();
            assert_eq!(json!(names), expected, "{case}");
            assert!(rules.iter().all(|rule| rule["verbs"] == json!(["impersonate"])), "{case}");
            let role = objects.iter().find(|object| object["kind"] == "Role").unwrap();
            let rule = json!({"apiGroups": [""], "resources": ["serviceaccounts/token"], "resourceNames": ["access"],
                "verbs": ["create"]});
            assert_eq!(role["rules"], json!([rule]), "{case}");
        }
        assert!(UserAccessArgs { access: false, ..UserAccessArgs::default() }.manifest().unwrap().is_none());
        for refused in ["", "=a", "system:masters", "a=system:masters"] {
            assert!(mapped(refused).is_err(), "{refused}");
        }
    }
}
