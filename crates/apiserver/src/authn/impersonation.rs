//! `Impersonate-*` headers: acting as somebody else, with permission only.

use http::HeaderMap;
use portolan_machinery::rbac::{MASTERS, User};
use portolan_types::{LogicalClusterId, Status};

use crate::{attributes::Attributes, authz::Authorizer};

use super::{AUTHENTICATED, Identity, UNAUTHENTICATED, with_authenticated};

const EXTRA_PREFIX: &str = "impersonate-extra-";
/// Keys that authenticators give a meaning.
const RESERVED_EXTRA: [&str; 3] = ["kubernetes.io/", "kcp.io/", "portolan.dev/"];

/// Who a request wants to act as.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Impersonation {
    user: User,
}

impl Impersonation {
    /// Takes the headers off; `None` when there are none.
    ///
    /// # Errors
    /// 400 when they are incomplete or no text.
    pub(crate) fn take(headers: &mut HeaderMap) -> Result<Option<Self>, Status> {
        let mut user = User::default();
        let mut any = false;
        let names: Vec<http::HeaderName> =
            headers.keys().filter(|name| name.as_str().starts_with("impersonate-")).cloned().collect();
        for name in names {
            any = true;
            let values = headers.get_all(&name).iter().map(|value| value.to_str().map(str::to_owned));
            let values: Vec<String> =
                values.collect::<Result<_, _>>().map_err(|_| Status::bad_request("impersonation headers are text"))?;
            match name.as_str() {
                "impersonate-user" => user.name = values.first().cloned().unwrap_or_default(),
                "impersonate-uid" => user.uid = values.first().cloned().unwrap_or_default(),
                "impersonate-group" => user.groups = values,
                other => {
                    if let Some(key) = other.strip_prefix(EXTRA_PREFIX) {
                        user.extra.insert(extra_key(key)?, values);
                    }
                }
            }
            headers.remove(&name);
        }
        match (any, user.name.is_empty()) {
            (false, _) => Ok(None),
            (true, true) => {
                let asked = in_go(&user);
                Err(Status::bad_request(format!("requested {asked} without impersonating a user name")))
            }
            (true, false) => Ok(Some(Self { user })),
        }
    }
}

/// A user as Go's `%#v` shows it.
fn in_go(user: &User) -> String {
    let list = |values: &[String]| match values {
        [] => "[]string(nil)".to_owned(),
        values => format!("[]string{{{}}}", values.iter().map(|v| format!("{v:?}")).collect::<Vec<_>>().join(", ")),
    };
    let extra: Vec<String> = user.extra.iter().map(|(key, values)| format!("{key:?}:{}", list(values))).collect();
    let extra = match extra.as_slice() {
        [] => "map[string][]string(nil)".to_owned(),
        all => format!("map[string][]string{{{}}}", all.join(", ")),
    };
    let (name, uid, groups) = (&user.name, &user.uid, list(&user.groups));
    format!("&user.DefaultInfo{{Name:{name:?}, UID:{uid:?}, Groups:{groups}, Extra:{extra}}}")
}

fn extra_key(text: &str) -> Result<String, Status> {
    let key = percent_encoding::percent_decode_str(text).decode_utf8();
    key.map(|key| key.to_lowercase()).map_err(|_| Status::bad_request("impersonation headers are text"))
}

/// The identity that `asker` may act as in `cluster`.
///
/// # Errors
/// 403 for whatever the asker may not impersonate. Groups under `system:` are for members of `system:masters` only.
pub(crate) async fn authorize(
    authorizer: &dyn Authorizer,
    cluster: LogicalClusterId,
    asker: &User,
    wanted: Impersonation,
) -> Result<Identity, Status> {
    let user = wanted.user;
    let account = user.name.strip_prefix("system:serviceaccount:").and_then(|rest| rest.split_once(':'));
    let mut checks = vec![match account {
        Some((namespace, name)) => Attributes { namespace: namespace.into(), ..asks("", "serviceaccounts", "", name) },
        None => asks("", "users", "", &user.name),
    }];
    checks.extend(user.groups.iter().map(|group| asks("", "groups", "", group)));
    if !user.uid.is_empty() {
        checks.push(asks("authentication.k8s.io", "uids", "", &user.uid));
    }
    for (key, values) in &user.extra {
        checks.extend(values.iter().map(|value| asks("authentication.k8s.io", "userextras", key, value)));
    }
    for check in &checks {
        let escapes = !asker.is_in(MASTERS) && is_reserved(check);
        let verdict = authorizer.authorize(cluster, asker, check).await?;
        if escapes || !verdict.is_allowed() {
            return Err(check.denial(asker, ""));
        }
    }
    let home = (account.is_some() || !asker.is_in(MASTERS)).then_some(cluster);
    let user = User { groups: groups_of(&user, account), ..user };
    Ok(Identity { user, home, impersonated: true, warning: None })
}

fn asks(group: &str, resource: &str, subresource: &str, name: &str) -> Attributes {
    Attributes {
        verb: "impersonate".into(),
        group: group.into(),
        resource: resource.into(),
        subresource: subresource.into(),
        name: name.into(),
        ..Attributes::default()
    }
}

/// What no rule of a logical cluster can grant.
fn is_reserved(check: &Attributes) -> bool {
    match check.resource.as_str() {
        "groups" => check.name.starts_with("system:") && !check.name.starts_with("system:serviceaccounts"),
        "users" => check.name.starts_with("system:"),
        "userextras" => RESERVED_EXTRA.iter().any(|reserved| check.subresource.contains(reserved)),
        _ => false,
    }
}

fn groups_of(user: &User, account: Option<(&str, &str)>) -> Vec<String> {
    let mut groups = user.groups.clone();
    if let (Some((namespace, _)), true) = (account, groups.is_empty()) {
        groups = vec!["system:serviceaccounts".into(), format!("system:serviceaccounts:{namespace}")];
    }
    if user.name == "system:anonymous" {
        groups.retain(|g| g != AUTHENTICATED);
        groups.push(UNAUTHENTICATED.into());
        return groups;
    }
    with_authenticated(groups)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in pairs {
            map.append(*name, value.parse().unwrap());
        }
        map
    }

    #[test]
    fn headers_are_read_and_taken_off() {
        let mut map = headers(&[
            ("impersonate-user", "ann"),
            ("impersonate-group", "a"),
            ("impersonate-group", "b"),
            ("impersonate-extra-scopes%2fx", "y"),
            ("accept", "*/*"),
        ]);
        let user = Impersonation::take(&mut map).unwrap().unwrap().user;
        assert_eq!((user.name.as_str(), user.groups), ("ann", vec!["a".to_owned(), "b".to_owned()]));
        assert_eq!(user.extra["scopes/x"], ["y"]);
        assert_eq!(map.len(), 1);
        assert_eq!(Impersonation::take(&mut map), Ok(None));
        let refused = Impersonation::take(&mut headers(&[("impersonate-group", "a")])).unwrap_err();
        assert_eq!(
            (refused.code(), refused.message()),
            (
                400,
                r#"requested &user.DefaultInfo{Name:"", UID:"", Groups:[]string{"a"}, Extra:map[string][]string(nil)} without impersonating a user name"#
            )
        );
    }
}
