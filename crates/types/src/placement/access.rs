//! Identities of upstream users on a physical cluster, for requests that are proxied there.

use serde::{Deserialize, Serialize};

/// Namespace of Portolan's accounts on a physical cluster.
pub const ACCESS_NAMESPACE: &str = "portolan";
/// ServiceAccount by which requests are proxied: it may impersonate mapped users and groups, and nothing else.
pub const ACCESS_ACCOUNT: &str = "access";
/// User on the physical cluster for a request that only has mapped groups.
pub const ACCESS_USER: &str = "portolan:access";
/// Most users, and most groups, that are mapped for one physical cluster.
pub const MAX_MAPPED_IDENTITIES: usize = 256;

/// `spec.access` of a `PhysicalCluster`: users and groups of its workspace who reach it through the proxy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MemberAccess {
    /// Users.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub users: Vec<MappedIdentity>,
    /// Groups.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<MappedIdentity>,
    /// Consent to forward the own tokens of users.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub forward_tokens: Option<TokenForwarding>,
}

/// Consent to forward the tokens of users unchanged.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TokenForwarding {
    /// Audiences of which a token must have one.
    pub audiences: Vec<String>,
}

/// Name of a user or group upstream, and downstream.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MappedIdentity {
    /// Name upstream.
    pub name: String,
    /// Name downstream; the same if empty.
    #[serde(rename = "as", skip_serializing_if = "String::is_empty")]
    pub downstream: String,
}

/// User that a proxied request acts as on the physical cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberUser {
    /// Name.
    pub name: String,
    /// Groups, besides those that Kubernetes adds.
    pub groups: Vec<String>,
}

impl MemberAccess {
    /// Returns true if a token with these audiences may be forwarded.
    pub fn forwards(&self, audiences: &[String]) -> bool {
        let consent = self.forward_tokens.as_ref();
        consent.is_some_and(|consent| consent.audiences.iter().any(|own| audiences.contains(own)))
    }

    /// Returns the downstream identity of a user; `None` if neither the user nor a group is mapped. Names of system
    /// components are never a downstream identity.
    pub fn user_of(&self, name: &str, groups: &[String]) -> Option<MemberUser> {
        let user = self.users.iter().take(MAX_MAPPED_IDENTITIES).find(|user| user.name == name);
        let user = user.and_then(MappedIdentity::mapped);
        let of_user = |group: &&MappedIdentity| groups.contains(&group.name);
        let groups = self.groups.iter().take(MAX_MAPPED_IDENTITIES).filter(of_user);
        let groups: Vec<String> = groups.filter_map(MappedIdentity::mapped).map(str::to_owned).collect();
        if user.is_none() && groups.is_empty() {
            return None;
        }
        Some(MemberUser { name: user.unwrap_or(ACCESS_USER).to_owned(), groups })
    }
}

impl MappedIdentity {
    /// Returns the name downstream; `None` if it is one of the system.
    pub fn mapped(&self) -> Option<&str> {
        let name = if self.downstream.is_empty() { &self.name } else { &self.downstream };
        (!name.is_empty() && !name.starts_with("system:")).then_some(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_forwarded_with_consent_to_its_audience() {
        let of = |audiences: &[&str]| audiences.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        let consenting = |audiences: Option<&[&str]>| MemberAccess {
            forward_tokens: audiences.map(|audiences| TokenForwarding { audiences: of(audiences) }),
            ..MemberAccess::default()
        };
        for (case, consent, token, expected) in [
            ("no consent", None, vec!["kubeapps"], false),
            ("a listed audience", Some(&["kubeapps", "other"][..]), vec!["kubeapps"], true),
            ("one of the token's", Some(&["kubeapps"][..]), vec!["portolan", "kubeapps"], true),
            ("another audience", Some(&["kubeapps"][..]), vec!["portolan"], false),
            ("an empty list", Some(&[][..]), vec!["kubeapps"], false),
            ("a token for none", Some(&["kubeapps"][..]), vec![], false),
        ] {
            assert_eq!(consenting(consent).forwards(&of(&token)), expected, "{case}");
        }
    }

    #[test]
    fn identities_on_a_physical_cluster() {
        let mapped = |name: &str, downstream: &str| MappedIdentity { name: name.into(), downstream: downstream.into() };
        let access = MemberAccess {
            users: vec![mapped("ann", ""), mapped("bob", "robert"), mapped("eve", "system:admin")],
            groups: vec![
                mapped("devs", "portolan:devs"),
                mapped("system:masters", "portolan:admins"),
                mapped("ops", "system:masters"),
            ],
            forward_tokens: None,
        };
        for (case, name, groups, expected) in [
            ("a mapped user", "ann", vec![], Some(("ann", vec![]))),
            ("under another name", "bob", vec!["devs"], Some(("robert", vec!["portolan:devs"]))),
            ("a member of a mapped group", "cid", vec!["devs"], Some((ACCESS_USER, vec!["portolan:devs"]))),
            ("an administrator", "root", vec!["system:masters"], Some((ACCESS_USER, vec!["portolan:admins"]))),
            ("a stranger", "dan", vec!["others"], None),
            ("no user becomes a component of the cluster", "eve", vec!["ops"], None),
        ] {
            let groups: Vec<String> = groups.into_iter().map(str::to_owned).collect();
            let expected = expected.map(|(name, groups): (&str, Vec<&str>)| MemberUser {
                name: name.into(),
                groups: groups.into_iter().map(str::to_owned).collect(),
            });
            assert_eq!(access.user_of(name, &groups), expected, "{case}");
        }
    }
}
