//! URLs, as Go's `net/url` takes them apart.

/// The parts of a URL that are looked at.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Url<'t> {
    pub(super) scheme: String,
    pub(super) host: &'t str,
    pub(super) user: Option<&'t str>,
    pub(super) query: &'t str,
    pub(super) fragment: &'t str,
}

/// The parts of `text`, or what is wrong with it.
pub(super) fn parse(text: &str) -> Result<Url<'_>, String> {
    let fail = |why: &str| Err(format!("parse {text:?}: {why}"));
    if text.bytes().any(|b| b < b' ' || b == 0x7f) {
        return fail("net/url: invalid control character in URL");
    }
    let (rest, fragment) = text.split_once('#').unwrap_or((text, ""));
    let Some((scheme, rest)) = scheme(rest) else { return fail("missing protocol scheme") };
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let mut url = Url { scheme: scheme.to_ascii_lowercase(), query, fragment, ..Url::default() };
    if !rest.starts_with('/') {
        let first = rest.split('/').next().unwrap_or_default();
        return match scheme.is_empty() && first.contains(':') {
            true => fail("first path segment in URL cannot contain colon"),
            false => Ok(url),
        };
    }
    let authority = rest.strip_prefix("//").filter(|_| !scheme.is_empty() || !rest.starts_with("///"));
    let Some(authority) = authority.map(|rest| rest.split('/').next().unwrap_or_default()) else { return Ok(url) };
    let (user, host) = authority.rsplit_once('@').map_or((None, authority), |(user, host)| (Some(user), host));
    let port = host.rfind(']').map_or(host, |at| &host[at..]).rsplit_once(':').map_or("", |(_, port)| port);
    if !port.bytes().all(|b| b.is_ascii_digit()) {
        return fail(&format!("invalid port {:?} after host", format!(":{port}")));
    }
    if let Some(bad) = host.chars().find(|c| c.is_ascii() && " <>\"^`{|}\\".contains(*c)) {
        return fail(&format!("invalid character {:?} in host name", bad.to_string()));
    }
    (url.user, url.host) = (user, host);
    Ok(url)
}

/// The scheme and what comes after it; `None` when there is a colon and nothing before it.
fn scheme(text: &str) -> Option<(&str, &str)> {
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' => {}
            b'0'..=b'9' | b'+' | b'-' | b'.' if at > 0 => {}
            b':' if at == 0 => return None,
            b':' => return Some((&text[..at], &text[at + 1..])),
            _ => break,
        }
    }
    Some(("", text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_taken_apart_as_go_does() {
        for (text, expected) in [
            ("https://a.b:1/c?d#e", Ok(("https", "a.b:1", None, "d", "e"))),
            ("https://u:p@a/c", Ok(("https", "a", Some("u:p"), "", ""))),
            ("HTTP://[::1]:80", Ok(("http", "[::1]:80", None, "", ""))),
            ("a b!", Ok(("", "", None, "", ""))),
            ("mailto:a@b", Ok(("mailto", "", None, "", ""))),
            ("", Ok(("", "", None, "", ""))),
            (":a", Err("parse \":a\": missing protocol scheme")),
            ("1a:b", Err("parse \"1a:b\": first path segment in URL cannot contain colon")),
            ("https://a:b", Err("parse \"https://a:b\": invalid port \":b\" after host")),
            ("https://a b", Err("parse \"https://a b\": invalid character \" \" in host name")),
            ("a\u{7}", Err("parse \"a\\u{7}\": net/url: invalid control character in URL")),
        ] {
            let url = parse(text);
            let found = url.as_ref().map(|url| (&*url.scheme, url.host, url.user, url.query, url.fragment));
            assert_eq!(found.map_err(String::as_str), expected, "{text}");
        }
    }
}
