//! `Impersonate-*` headers.

mod modes;

use http::{HeaderMap, HeaderName, HeaderValue};
use portolan_strategy::rbac::User;
use portolan_types::{Status, quoted::go_quoted};

pub(crate) use modes::{AskingUser, authorize};

const EXTRA_PREFIX: &str = "impersonate-extra-";

/// Identity that a request wants to act as.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Impersonation {
    user: User,
}

impl Impersonation {
    /// Takes the headers out of a request; `None` if there are none.
    ///
    /// # Errors
    /// 400 if they are incomplete or not UTF-8.
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

/// Returns true for headers that are defined; others of the prefix are ignored.
fn is_ours(name: &HeaderName) -> bool {
    let name = name.as_str();
    matches!(name, "impersonate-user" | "impersonate-uid" | "impersonate-group") || name.starts_with(EXTRA_PREFIX)
}

fn text(value: &HeaderValue) -> Result<String, Status> {
    let text = std::str::from_utf8(value.as_bytes());
    text.map(str::to_owned).map_err(|_| Status::bad_request("impersonation headers are text"))
}

/// Formats a user as Go's `%#v`.
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

/// Decodes an extra key. Header names are lower case, the encoded text keeps its case; an invalid encoding is taken
/// literally.
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
    fn headers_are_parsed_and_removed() {
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
    fn extra_keys_are_lowered_before_decoding_and_unknown_headers_are_ignored() {
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
