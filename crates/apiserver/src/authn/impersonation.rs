//! `Impersonate-*` headers: acting as somebody else, with permission only.

mod modes;

use http::{HeaderMap, HeaderName, HeaderValue};
use portolan_machinery::rbac::User;
use portolan_types::{Status, quoted::go_quoted};

pub(crate) use modes::authorize;

const EXTRA_PREFIX: &str = "impersonate-extra-";

/// Who a request wants to act as.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
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
        let names: Vec<HeaderName> = headers.keys().filter(|name| is_ours(name)).cloned().collect();
        for name in names {
            let values: Vec<String> = headers.get_all(&name).iter().map(text).collect::<Result<_, _>>()?;
            headers.remove(&name);
            let first = || values.first().cloned().unwrap_or_default();
            match name.as_str() {
                "impersonate-user" => user.name = first(),
                "impersonate-uid" => user.uid = first(),
                "impersonate-group" => user.groups = values,
                other => user.extra.entry(extra_key(&other[EXTRA_PREFIX.len()..])).or_default().extend(values),
            }
        }
        let asks_more = !user.uid.is_empty() || !user.groups.is_empty() || !user.extra.is_empty();
        match (user.name.is_empty(), asks_more) {
            (true, false) => Ok(None),
            (true, true) => {
                let asked = in_go(&user);
                Err(Status::bad_request(format!("requested {asked} without impersonating a user name")))
            }
            (false, _) => Ok(Some(Self { user })),
        }
    }
}

/// Whether a header has a meaning here; others of such a name have none.
fn is_ours(name: &HeaderName) -> bool {
    let name = name.as_str();
    matches!(name, "impersonate-user" | "impersonate-uid" | "impersonate-group") || name.starts_with(EXTRA_PREFIX)
}

fn text(value: &HeaderValue) -> Result<String, Status> {
    let text = std::str::from_utf8(value.as_bytes());
    text.map(str::to_owned).map_err(|_| Status::bad_request("impersonation headers are text"))
}

/// A user as Go's `%#v` shows it.
fn in_go(user: &User) -> String {
    let list = |values: &[String]| match values {
        [] => "[]string(nil)".to_owned(),
        values => format!("[]string{{{}}}", values.iter().map(|v| go_quoted(v)).collect::<Vec<_>>().join(", ")),
    };
    let extra: Vec<String> =
        user.extra.iter().map(|(key, values)| format!("{}:{}", go_quoted(key), list(values))).collect();
    let extra = match extra.as_slice() {
        [] => "map[string][]string(nil)".to_owned(),
        all => format!("map[string][]string{{{}}}", all.join(", ")),
    };
    let (name, uid, groups) = (go_quoted(&user.name), go_quoted(&user.uid), list(&user.groups));
    format!("&user.DefaultInfo{{Name:{name}, UID:{uid}, Groups:{groups}, Extra:{extra}}}")
}

/// The key as it is meant. Names of headers are lower case; what is encoded in them is as it was. What is encoded wrongly counts as
/// it stands.
fn extra_key(encoded: &str) -> String {
    let is_hex = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_hexdigit);
    let bytes = encoded.as_bytes();
    let is_whole = |(at, _): (usize, &str)| is_hex(bytes.get(at + 1)) && is_hex(bytes.get(at + 2));
    match percent_encoding::percent_decode_str(encoded).decode_utf8() {
        Ok(key) if encoded.match_indices('%').all(is_whole) => key.into_owned(),
        _ => encoded.to_owned(),
    }
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
    #[test]
    fn extra_keys_are_lowered_before_they_are_decoded_and_unknown_headers_mean_nothing() {
        for (name, expected) in [
            ("impersonate-extra-Scopes", "scopes"),
            ("impersonate-extra-a%2Fb%41", "a/bA"),
            ("impersonate-extra-a%2", "a%2"),
            ("impersonate-extra-a%zz%41", "a%zz%41"),
        ] {
            let mut map = headers(&[("impersonate-user", "ann")]);
            map.append(name.parse::<HeaderName>().unwrap(), "x".parse().unwrap());
            let user = Impersonation::take(&mut map).unwrap().unwrap().user;
            assert_eq!(user.extra.keys().collect::<Vec<_>>(), [expected], "{name}");
        }
        assert_eq!(Impersonation::take(&mut headers(&[("impersonate-other", "x")])), Ok(None));
        assert_eq!(Impersonation::take(&mut headers(&[("impersonate-user", "")])), Ok(None));
    }
}
