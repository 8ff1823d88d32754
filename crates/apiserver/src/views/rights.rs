//! Users in the logical cluster of an export.

use std::borrow::Cow;

use portolan_strategy::rbac::User;
use portolan_types::LogicalClusterId;

/// Extra of the user of a service account: its logical cluster.
const HOME: &str = "authentication.kubernetes.io/cluster-name";
const ACCOUNT: &str = "system:serviceaccount:";

/// Returns a user as another logical cluster knows it. A service account of elsewhere is a stranger with kcp's name for
/// it: one of the same name may exist there.
pub(crate) fn stranger(user: &User, cluster: LogicalClusterId) -> Cow<'_, User> {
    let home = user.extra.get(HOME).and_then(|names| names.first());
    let Some(account) = user.name.strip_prefix(ACCOUNT) else { return Cow::Borrowed(user) };
    let Some(home) = home.filter(|home| **home != cluster.to_string()) else { return Cow::Borrowed(user) };
    Cow::Owned(User {
        name: format!("system:kcp:serviceaccount:{home}:{account}"),
        groups: vec!["system:authenticated".into()],
        ..User::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_account_of_elsewhere_is_a_stranger() {
        let account = |home: LogicalClusterId| User {
            name: "system:serviceaccount:default:a".into(),
            groups: vec!["system:serviceaccounts".into()],
            extra: [(HOME.to_owned(), vec![home.to_string()])].into_iter().collect(),
            ..User::default()
        };
        let (here, there) = (LogicalClusterId::new(7), LogicalClusterId::new(8));
        let own = account(here);
        assert_eq!(stranger(&own, here).name, own.name);
        let foreign = account(there);
        let seen = stranger(&foreign, here);
        assert_eq!(seen.name, format!("system:kcp:serviceaccount:{there}:default:a"));
        assert_eq!((seen.groups.as_slice(), seen.extra.len()), (&["system:authenticated".to_owned()][..], 0));
    }
}
