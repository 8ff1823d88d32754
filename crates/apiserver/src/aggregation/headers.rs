//! Headers of requests to aggregated API servers, and of their answers. Pure.

use http::{HeaderMap, HeaderName, HeaderValue, header};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use portolan_strategy::rbac::User;

/// Headers of a request that are passed on.
const PASSED: [HeaderName; 9] = [
    header::ACCEPT,
    header::ACCEPT_LANGUAGE,
    header::CONTENT_TYPE,
    header::IF_MATCH,
    header::IF_NONE_MATCH,
    header::IF_MODIFIED_SINCE,
    header::USER_AGENT,
    HeaderName::from_static("kubectl-command"),
    HeaderName::from_static("kubectl-session"),
];
/// Headers of an answer that are passed on. Others could act on the origin of this server.
const ANSWERED: [HeaderName; 9] = [
    header::CONTENT_TYPE,
    header::CONTENT_LENGTH,
    header::ETAG,
    header::LAST_MODIFIED,
    header::RETRY_AFTER,
    header::WARNING,
    header::VARY,
    header::CACHE_CONTROL,
    HeaderName::from_static("audit-id"),
];
const USER: HeaderName = HeaderName::from_static("x-remote-user");
const UID: HeaderName = HeaderName::from_static("x-remote-uid");
const GROUP: HeaderName = HeaderName::from_static("x-remote-group");
/// Prefix of the headers of extra values of a user.
const EXTRA: &str = "x-remote-extra-";
/// Characters that are encoded in the key of an extra value, as in client-go.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Returns the headers of a request for another API server: those that it needs, and the user. No credential of the
/// client is among them.
pub(crate) fn request_headers(asked: &HeaderMap, user: &User) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for name in PASSED {
        for value in asked.get_all(&name) {
            headers.append(name.clone(), value.clone());
        }
    }
    let value = |text: &str| HeaderValue::from_bytes(text.as_bytes()).ok();
    headers.extend(value(&user.name).map(|name| (USER, name)));
    headers.extend(value(&user.uid).filter(|uid| !uid.is_empty()).map(|uid| (UID, uid)));
    for group in user.groups.iter().filter_map(|group| value(group)) {
        headers.append(GROUP, group);
    }
    for (key, values) in &user.extra {
        let name = format!("{EXTRA}{}", utf8_percent_encode(&key.to_lowercase(), ENCODED));
        let Ok(name) = HeaderName::try_from(name) else { continue };
        for text in values.iter().filter_map(|text| value(text)) {
            headers.append(name.clone(), text);
        }
    }
    headers
}

/// Returns the headers of an answer for the client. A page in it is confined: it has the origin of this server.
pub(crate) fn answer_headers(answered: &HeaderMap) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for name in ANSWERED {
        for value in answered.get_all(&name) {
            headers.append(name.clone(), value.clone());
        }
    }
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static("sandbox"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-cache, private"));
    headers
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap())).collect()
    }

    #[test]
    fn a_request_names_its_user_and_carries_no_credential() {
        let asked = map(&[
            ("accept", "application/json"),
            ("authorization", "Bearer secret"),
            ("cookie", "session=1"),
            ("x-remote-user", "root"),
            ("x-remote-group", "system:masters"),
            ("impersonate-user", "root"),
            ("x-forwarded-for", "1.1.1.1"),
            ("connection", "upgrade"),
        ]);
        let user = User {
            name: "ann".into(),
            groups: vec!["dev".into(), "system:authenticated".into()],
            extra: [("Example.com/Key".to_owned(), vec!["a".to_owned()])].into(),
            ..User::default()
        };
        let mut sent: Vec<String> = request_headers(&asked, &user)
            .iter()
            .map(|(name, value)| format!("{name}: {}", value.to_str().unwrap()))
            .collect();
        sent.sort();
        let expected = [
            "accept: application/json",
            "x-remote-extra-example.com%2fkey: a",
            "x-remote-group: dev",
            "x-remote-group: system:authenticated",
            "x-remote-user: ann",
        ];
        assert_eq!(sent, expected);
    }

    #[test]
    fn an_answer_does_nothing_to_this_origin() {
        let answered = map(&[
            ("content-type", "text/html"),
            ("set-cookie", "session=mine"),
            ("location", "https://evil.example"),
            ("access-control-allow-origin", "*"),
            ("content-security-policy", "default-src *"),
            ("connection", "x"),
        ]);
        let expected = map(&[
            ("content-type", "text/html"),
            ("content-security-policy", "sandbox"),
            ("x-content-type-options", "nosniff"),
            ("cache-control", "no-cache, private"),
        ]);
        assert_eq!(answer_headers(&answered), expected);
    }
}
