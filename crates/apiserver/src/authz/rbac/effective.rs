//! Scopes and warrants of a user, as kcp has them: a scope limits a user to logical clusters, and a warrant adds the
//! rights of another user.

use std::borrow::Cow;

use portolan_strategy::rbac::{MASTERS, User};
use portolan_types::LogicalClusterId;
use serde::Deserialize;

use crate::requester::{self, AUTHENTICATED, CLUSTER_NAME_EXTRA};

/// Extra key with scopes. The scopes of one value are alternatives, and every value has to match.
pub(crate) const SCOPES: &str = "authentication.kcp.io/scopes";
/// Extra key with warrants: users in JSON.
const WARRANT: &str = "authorization.kcp.io/warrant";
/// Scope of a logical cluster, before its id.
const CLUSTER: &str = "cluster:";
/// Limit of the users of one user, so that nested warrants end.
const MAX_USERS: usize = 16;

#[derive(Deserialize)]
#[serde(default)]
#[derive(Default)]
struct Warrant {
    user: String,
    uid: String,
    groups: Vec<String>,
    extra: std::collections::BTreeMap<String, Vec<String>>,
}

/// Returns the users whose rights a user has in a logical cluster: itself, or a user without a name outside of its
/// scopes, and those of its warrants.
pub(super) fn effective_users(cluster: LogicalClusterId, user: &User) -> Cow<'_, [User]> {
    if !user.extra.contains_key(SCOPES) && !user.extra.contains_key(WARRANT) {
        return Cow::Borrowed(std::slice::from_ref(user));
    }
    let mut users = vec![if is_in_scope(cluster, user) { user.clone() } else { stranger(user) }];
    let mut with_warrants = vec![user.clone()];
    while let Some(next) = with_warrants.pop() {
        for warrant in next.extra.get(WARRANT).into_iter().flatten().filter_map(|text| read(text)) {
            if users.len() == MAX_USERS {
                return Cow::Owned(users);
            }
            users.push(if is_in_scope(cluster, &warrant) { warrant.clone() } else { stranger(&warrant) });
            with_warrants.push(warrant);
        }
    }
    Cow::Owned(users)
}

/// Returns true if a user has the rights of further users.
pub(super) fn has_warrants(user: &User) -> bool {
    user.extra.contains_key(WARRANT)
}

/// Returns true if a user counts in a logical cluster: its scopes have it, and a service account is its own.
fn is_in_scope(cluster: LogicalClusterId, user: &User) -> bool {
    let id = cluster.to_string();
    let has = |scopes: &String| scopes.split(',').any(|scope| scope.strip_prefix(CLUSTER) == Some(&id));
    let is_own = match user.extra.get(CLUSTER_NAME_EXTRA).map(Vec::as_slice) {
        Some([home]) if requester::is_account(user) => *home == id,
        Some([_, ..]) => !requester::is_account(user),
        Some([]) | None => true,
    };
    is_own && user.extra.get(SCOPES).into_iter().flatten().all(has)
}

/// Returns the user that a user is outside of its scopes.
fn stranger(user: &User) -> User {
    let anonymous = requester::anonymous();
    if user.is_in(AUTHENTICATED) { User { groups: vec![AUTHENTICATED.into()], ..anonymous } } else { anonymous }
}

/// Reads a warrant. One for a service account has to say of which logical cluster, and none makes an administrator of
/// the server.
fn read(text: &str) -> Option<User> {
    let Warrant { user: name, uid, mut groups, extra } = serde_json::from_str(text).ok()?;
    groups.retain(|group| group != MASTERS);
    let user = User { name, uid, groups, extra };
    let is_placed = user.extra.get(CLUSTER_NAME_EXTRA).is_some_and(|names| !names.is_empty());
    (is_placed || !requester::is_account(&user)).then_some(user)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const HERE: LogicalClusterId = LogicalClusterId::new(7);

    fn user(name: &str, extra: &[(&str, &[&str])]) -> User {
        let extra = extra.iter().map(|(key, values)| {
            ((*key).to_owned(), values.iter().map(|value| (*value).to_owned()).collect::<Vec<_>>())
        });
        User { name: name.into(), groups: vec![AUTHENTICATED.into()], extra: extra.collect(), ..User::default() }
    }

    fn names(user: &User) -> Vec<String> {
        effective_users(HERE, user).iter().map(|user| user.name.clone()).collect()
    }

    #[test]
    fn a_scope_limits_a_user_to_logical_clusters() {
        let (here, other) = (format!("cluster:{HERE}"), format!("cluster:{}", LogicalClusterId::new(8)));
        let both = format!("{other},{here}");
        for (case, scopes, expected) in [
            ("no scope", vec![], "ann"),
            ("this logical cluster", vec![&*here], "ann"),
            ("one of several", vec![&*both], "ann"),
            ("every value has to match", vec![&*both, &*other], "system:anonymous"),
            ("another logical cluster", vec![&*other], "system:anonymous"),
            ("no scope of a logical cluster", vec!["namespace:x"], "system:anonymous"),
        ] {
            let user = if scopes.is_empty() { user("ann", &[]) } else { user("ann", &[(SCOPES, &scopes)]) };
            let found = effective_users(HERE, &user).into_owned();
            assert_eq!(found.len(), 1, "{case}");
            assert_eq!(found[0].name, expected, "{case}");
            assert_eq!(found[0].groups, [AUTHENTICATED], "{case}: it stays authenticated");
        }
    }

    #[test]
    fn a_warrant_adds_the_rights_of_another_user() {
        let other = format!("cluster:{}", LogicalClusterId::new(8));
        let nested = json!({"user": "bob", "extra": {WARRANT: [json!({"user": "cid"}).to_string()]}}).to_string();
        let elsewhere = json!({"user": "bob", "groups": [AUTHENTICATED], "extra": {SCOPES: [other]}}).to_string();
        let account = "system:serviceaccount:default:a";
        let placed = json!({"user": account, "extra": {CLUSTER_NAME_EXTRA: [HERE.to_string()]}}).to_string();
        for (case, warrants, expected) in [
            ("a user", vec![r#"{"user": "bob"}"#], vec!["ann", "bob"]),
            ("several", vec![r#"{"user": "bob"}"#, r#"{"user": "cid"}"#], vec!["ann", "bob", "cid"]),
            ("nested", vec![&*nested], vec!["ann", "bob", "cid"]),
            ("out of its scope", vec![&*elsewhere], vec!["ann", "system:anonymous"]),
            ("no JSON", vec!["bob"], vec!["ann"]),
            ("an account of no logical cluster", vec![r#"{"user": "system:serviceaccount:default:a"}"#], vec!["ann"]),
            ("an account of this logical cluster", vec![&*placed], vec!["ann", account]),
        ] {
            assert_eq!(names(&user("ann", &[(WARRANT, &warrants)])), expected, "{case}");
        }
        let boss = r#"{"user": "boss", "groups": ["system:masters", "dev"]}"#;
        let found = effective_users(HERE, &user("ann", &[(WARRANT, &[boss])])).into_owned();
        assert_eq!(found[1].groups, ["dev"], "no warrant makes an administrator of the server");
        let many: Vec<&str> = std::iter::repeat_n(boss, 100).collect();
        assert_eq!(names(&user("ann", &[(WARRANT, &many)])).len(), MAX_USERS);
    }
}
