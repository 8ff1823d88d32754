//! Clients of requests, as the logical clusters know them. Imports no other folder.

use std::{borrow::Cow, sync::Arc};

use portolan_strategy::rbac::User;
use portolan_types::LogicalClusterId;

/// Group of all authenticated users.
pub const AUTHENTICATED: &str = "system:authenticated";
/// Group of the anonymous user.
pub const UNAUTHENTICATED: &str = "system:unauthenticated";
/// Extra of a service account's user: the id of its logical cluster.
pub(crate) const CLUSTER_NAME_EXTRA: &str = "authentication.kubernetes.io/cluster-name";
/// Prefix of the names of service accounts.
const ACCOUNT: &str = "system:serviceaccount:";
/// Prefix of the name of a service account of another logical cluster; kcp's.
const FOREIGN_ACCOUNT: &str = "system:kcp:serviceaccount:";
/// Prefix of the name of a user that another logical cluster vouches for: an impersonated one.
const FOREIGN_USER: &str = "system:portolan:user:";

/// Client of a request: its user, and the logical cluster that vouches for it. Checks in a logical cluster other than
/// that of the request take a requester, never only its user: a tenant may impersonate any user in its own workspace.
#[derive(Clone, Copy, Debug)]
pub struct Requester<'a> {
    /// Its user.
    pub user: &'a User,
    /// Logical cluster that its identity is valid in; `None` for one of the whole control plane.
    pub home: Option<LogicalClusterId>,
}

/// Verified token of a user's own, hidden from debug output.
#[derive(Clone, PartialEq, Eq)]
pub struct UserToken {
    /// Token.
    pub token: Arc<str>,
    /// Audiences that it is meant for.
    pub audiences: Vec<String>,
}

/// Returns the user of requests without credentials.
pub(crate) fn anonymous() -> User {
    User { name: "system:anonymous".into(), groups: vec![UNAUTHENTICATED.to_owned()], ..User::default() }
}

/// Returns true for the user of a service account.
pub(crate) fn is_account(user: &User) -> bool {
    user.name.starts_with(ACCOUNT)
}

impl<'a> Requester<'a> {
    /// Returns the user as it appears in a logical cluster. A user of another logical cluster gets a name that begins
    /// with `system:` and contains that logical cluster, because a local user of the same name may exist. Of its groups
    /// it keeps that of all authenticated users.
    pub(crate) fn known_in(self, cluster: LogicalClusterId) -> Cow<'a, User> {
        let Some(home) = self.home().filter(|home| *home != cluster.to_string()) else {
            return Cow::Borrowed(self.user);
        };
        if !self.user.is_in(AUTHENTICATED) {
            return Cow::Owned(anonymous());
        }
        let name = match self.user.name.strip_prefix(ACCOUNT) {
            Some(account) => format!("{FOREIGN_ACCOUNT}{home}:{account}"),
            None => format!("{FOREIGN_USER}{home}:{}", self.user.name),
        };
        Cow::Owned(User { name, groups: vec![AUTHENTICATED.into()], ..User::default() })
    }

    /// Returns the id of the logical cluster that vouches for the user. A service account has one in any case.
    fn home(self) -> Option<String> {
        let of_account = || {
            let extra = self.user.extra.get(CLUSTER_NAME_EXTRA)?.first();
            extra.filter(|_| self.user.name.starts_with(ACCOUNT)).cloned()
        };
        self.home.map(|home| home.to_string()).or_else(of_account)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: LogicalClusterId = LogicalClusterId::new(7);
    const THERE: LogicalClusterId = LogicalClusterId::new(8);

    fn user(name: &str, groups: &[&str]) -> User {
        let groups = groups.iter().map(|group| (*group).to_owned()).collect();
        User { name: name.into(), groups, ..User::default() }
    }

    fn as_known_here(user: &User, home: Option<LogicalClusterId>) -> (String, Vec<String>) {
        let known = Requester { user, home }.known_in(HERE).into_owned();
        assert!(known.extra.is_empty() || known == *user);
        (known.name, known.groups)
    }

    #[test]
    fn a_service_account_of_another_logical_cluster_is_a_stranger() {
        let account = user("system:serviceaccount:default:a", &["system:serviceaccounts", AUTHENTICATED]);
        assert_eq!(as_known_here(&account, Some(HERE)).0, account.name);
        let stranger = (format!("system:kcp:serviceaccount:{THERE}:default:a"), vec![AUTHENTICATED.to_owned()]);
        assert_eq!(as_known_here(&account, Some(THERE)), stranger);
        let extra = [(CLUSTER_NAME_EXTRA.to_owned(), vec![THERE.to_string()])].into_iter().collect();
        assert_eq!(as_known_here(&User { extra, ..account }, None), stranger, "by its token only");
    }

    #[test]
    fn a_user_that_another_logical_cluster_vouches_for_is_a_stranger() {
        let boss = user("boss", &["system:masters", AUTHENTICATED]);
        assert_eq!(as_known_here(&boss, None).0, "boss");
        assert_eq!(as_known_here(&boss, Some(HERE)).0, "boss");
        assert_eq!(
            as_known_here(&boss, Some(THERE)),
            (format!("system:portolan:user:{THERE}:boss"), vec![AUTHENTICATED.into()])
        );
        let anonymous = (anonymous().name, anonymous().groups);
        assert_eq!(as_known_here(&user("boss", &["system:masters"]), Some(THERE)), anonymous);
    }
}
