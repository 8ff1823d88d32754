//! `net/url`: URLs taken apart as Go's `Parse` and `ParseRequestURI` do, with their errors.

use std::{borrow::Cow, net::IpAddr};

use portolan_types::quoted::go_quoted;

/// Parts of a URL, as written except for `scheme` and `fragment`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Url<'t> {
    /// Scheme in lower case; empty without one.
    pub scheme: String,
    /// Host with its port and brackets.
    pub host: &'t str,
    /// User and password in front of the host.
    pub user: Option<&'t str>,
    /// Path with its escapes.
    pub path: &'t str,
    /// Query without the question mark.
    pub query: &'t str,
    /// Fragment without escapes.
    pub fragment: Cow<'t, str>,
}

/// Form that a text must have.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    /// Any reference, also a relative one.
    Reference,
    /// The target of a request: an absolute URL, a path from the root or `*`.
    RequestUri,
}

/// Parses a reference (`url.Parse`).
///
/// # Errors
/// Go's, with the text in it.
pub fn parse(text: &str) -> Result<Url<'_>, String> {
    let fail = |text: &str, why: String| format!("parse {}: {why}", go_quoted(text));
    let (rest, fragment) = text.split_once('#').unwrap_or((text, ""));
    let mut url = parts(rest, Form::Reference).map_err(|why| fail(rest, why))?;
    url.fragment = unescaped(fragment, UrlPart::Rest).map_err(|why| fail(text, why))?;
    Ok(url)
}

/// Parses the target of a request (`url.ParseRequestURI`). A fragment is cut off.
///
/// # Errors
/// Go's, with the text in it.
pub fn parse_request_uri(text: &str) -> Result<Url<'_>, String> {
    let wrong = |why: String| format!("parse {}: {why}", go_quoted(text));
    check_characters(text).map_err(wrong)?;
    let (rest, fragment) = text.split_once('#').map_or((text, None), |(rest, fragment)| (rest, Some(fragment)));
    if rest.is_empty() && fragment.is_some() {
        return Err(wrong("invalid URI for request".to_owned()));
    }
    parts(rest, Form::RequestUri).map_err(wrong)
}

/// Returns true for the target of a request.
#[must_use]
pub fn is_request_uri(text: &str) -> bool {
    parse_request_uri(text).is_ok()
}

/// Returns the host without its brackets, and the port.
#[must_use]
pub fn split_host(host: &str) -> (&str, &str) {
    if let Some(rest) = host.strip_prefix('[') {
        let (name, port) = rest.split_once(']').unwrap_or((rest, ""));
        return (name, port.strip_prefix(':').unwrap_or_default());
    }
    host.rsplit_once(':').unwrap_or((host, ""))
}

/// Escapes characters that a path may not contain (`URL.EscapedPath`).
#[must_use]
pub fn escaped_path(path: &str) -> String {
    let mut escaped = String::with_capacity(path.len());
    for byte in path.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~$&+,/:;=@!'()*%[]".contains(&byte) {
            escaped.push(char::from(byte));
        } else {
            escaped += &format!("%{byte:02X}");
        }
    }
    escaped
}

/// Unescapes a name or a value of a query (`url.QueryUnescape`); `None` for a broken escape.
#[must_use]
pub fn query_unescape(text: &str) -> Option<String> {
    let spaced = text.replace('+', " ");
    unescaped(&spaced, UrlPart::Rest).ok().map(Cow::into_owned)
}

fn check_characters(text: &str) -> Result<(), String> {
    if text.bytes().any(|byte| byte < b' ' || byte == 0x7f) {
        Err("net/url: invalid control character in URL".to_owned())
    } else {
        Ok(())
    }
}

fn parts(text: &str, form: Form) -> Result<Url<'_>, String> {
    let fail = |why: &str| Err(why.to_owned());
    check_characters(text)?;
    match (text, form) {
        ("", Form::RequestUri) => return fail("empty url"),
        ("*", Form::RequestUri) => return Ok(Url { path: "*", ..Url::default() }),
        _ => {}
    }
    let Some((scheme, rest)) = scheme(text) else { return fail("missing protocol scheme") };
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let mut url = Url { scheme: scheme.to_ascii_lowercase(), query, ..Url::default() };
    if !rest.starts_with('/') {
        if !scheme.is_empty() {
            return Ok(url);
        }
        if form == Form::RequestUri {
            return fail("invalid URI for request");
        }
        if rest.split('/').next().unwrap_or_default().contains(':') {
            return fail("first path segment in URL cannot contain colon");
        }
    }
    let has_authority = rest.starts_with("//") && (!scheme.is_empty() || !rest.starts_with("///"));
    url.path = rest;
    if has_authority {
        let (authority, path) = rest[2..].split_at(rest[2..].find('/').unwrap_or(rest.len() - 2));
        (url.user, url.host) = parse_authority(&url.scheme, authority)?;
        url.path = path;
    }
    unescaped(url.path, UrlPart::Rest)?;
    Ok(url)
}

fn parse_authority<'t>(scheme: &str, authority: &'t str) -> Result<(Option<&'t str>, &'t str), String> {
    let (user, host) = authority.rsplit_once('@').map_or((None, authority), |(user, host)| (Some(user), host));
    check_host(scheme, host)?;
    if let Some(user) = user {
        let is_good = |c: char| c.is_ascii_alphanumeric() || "-._:~!$&'()*+,;=%@".contains(c);
        if !user.chars().all(is_good) {
            return Err("net/url: invalid userinfo".to_owned());
        }
        let (name, password) = user.split_once(':').unwrap_or((user, ""));
        unescaped(name, UrlPart::Rest)?;
        unescaped(password, UrlPart::Rest)?;
    }
    Ok((user, host))
}

fn check_host(scheme: &str, host: &str) -> Result<(), String> {
    match host.rfind('[') {
        Some(0) => return check_literal(host),
        Some(_) => return Err("invalid IP-literal".to_owned()),
        None => {}
    }
    // Others than these may list several hosts, each with a port.
    let colon = if matches!(scheme, "http" | "https") { host.find(':') } else { host.rfind(':') };
    check_port(colon.map_or("", |at| &host[at..]))?;
    unescaped(host, UrlPart::Host)?;
    Ok(())
}

/// Checks an address in brackets.
fn check_literal(host: &str) -> Result<(), String> {
    let Some(end) = host.rfind(']') else { return Err("missing ']' in host".to_owned()) };
    check_port(&host[end + 1..])?;
    let inner = &host[1..end];
    let (address, zone) = inner.split_at(inner.find("%25").unwrap_or(inner.len()));
    let address = unescaped(address, UrlPart::Host)?;
    let zone = unescaped(zone, UrlPart::Zone)?;
    match address.parse::<IpAddr>() {
        Ok(IpAddr::V6(_)) if zone != "%" => Ok(()),
        Ok(IpAddr::V4(_)) if zone.is_empty() => Err("invalid IP-literal".to_owned()),
        _ => Err(format!("invalid host: ParseAddr({}): unable to parse IP", go_quoted(&format!("{address}{zone}")))),
    }
}

fn check_port(port: &str) -> Result<(), String> {
    let is_number = |port: &str| port.bytes().all(|b| b.is_ascii_digit());
    if port.is_empty() || port.strip_prefix(':').is_some_and(is_number) {
        Ok(())
    } else {
        Err(format!("invalid port {} after host", go_quoted(port)))
    }
}

/// Part of a URL that contains an escape.
#[derive(Clone, Copy, PartialEq, Eq)]
enum UrlPart {
    Host,
    Zone,
    Rest,
}

/// Returns true if a host name may contain the character unescaped.
fn is_of_hosts(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!\"$&'()*+,-.:;<=>[]_~".contains(&byte)
}

/// Returns `text` without escapes, or the error in it.
fn unescaped(text: &str, within: UrlPart) -> Result<Cow<'_, str>, String> {
    let (bytes, mut out, mut at) = (text.as_bytes(), Vec::with_capacity(text.len()), 0);
    while let Some(&byte) = bytes.get(at) {
        if byte != b'%' {
            if within != UrlPart::Rest && byte.is_ascii() && !is_of_hosts(byte) {
                return Err(format!("invalid character {} in host name", go_quoted(&char::from(byte).to_string())));
            }
            out.push(byte);
            at += 1;
            continue;
        }
        let part = &bytes[at..bytes.len().min(at + 3)];
        let value =
            if part.len() == 3 { hex(part[1]).zip(hex(part[2])).map(|(high, low)| high * 16 + low) } else { None };
        let is_good = |value: u8| match within {
            UrlPart::Host => !value.is_ascii() || value == b'%',
            UrlPart::Zone => !value.is_ascii() || is_of_hosts(value) || matches!(value, b'%' | b' '),
            UrlPart::Rest => true,
        };
        let Some(value) = value.filter(|value| is_good(*value)) else {
            return Err(format!("invalid URL escape {}", go_quoted(&String::from_utf8_lossy(part))));
        };
        out.push(value);
        at += 3;
    }
    if out.len() == text.len() {
        Ok(Cow::Borrowed(text))
    } else {
        Ok(Cow::Owned(String::from_utf8_lossy(&out).into_owned()))
    }
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).and_then(|digit| u8::try_from(digit).ok())
}

/// Splits a URL into scheme and rest; `None` if there is a colon with nothing before it.
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
            ("https://[fe80::1%25en0]", Ok(("https", "[fe80::1%25en0]", None, "", ""))),
            ("a b!", Ok(("", "", None, "", ""))),
            ("mailto:a@b%", Ok(("mailto", "", None, "", ""))),
            ("mongodb://a:1,b:2", Ok(("mongodb", "a:1,b:2", None, "", ""))),
            ("https://a/%41#%41", Ok(("https", "a", None, "", "A"))),
            ("https://a\"<>", Ok(("https", "a\"<>", None, "", ""))),
            ("", Ok(("", "", None, "", ""))),
            (":a", Err("parse \":a\": missing protocol scheme")),
            ("1a:b", Err("parse \"1a:b\": first path segment in URL cannot contain colon")),
            ("https://a:b", Err("parse \"https://a:b\": invalid port \":b\" after host")),
            ("https://a:1,b:2", Err("parse \"https://a:1,b:2\": invalid port \":1,b:2\" after host")),
            ("https://a b", Err("parse \"https://a b\": invalid character \" \" in host name")),
            ("a\u{7}", Err("parse \"a\\a\": net/url: invalid control character in URL")),
            ("101%", Err("parse \"101%\": invalid URL escape \"%\"")),
            ("https://a%zz/", Err("parse \"https://a%zz/\": invalid URL escape \"%zz\"")),
            ("https://%41", Err("parse \"https://%41\": invalid URL escape \"%41\"")),
            ("https://a/%zzé", Err("parse \"https://a/%zzé\": invalid URL escape \"%zz\"")),
            ("https://a#%é", Err("parse \"https://a#%é\": invalid URL escape \"%é\"")),
            ("https://[::1", Err("parse \"https://[::1\": missing ']' in host")),
            ("https://[::1]a", Err("parse \"https://[::1]a\": invalid port \"a\" after host")),
            ("https://a[::1]", Err("parse \"https://a[::1]\": invalid IP-literal")),
            ("https://[1.2.3.4]", Err("parse \"https://[1.2.3.4]\": invalid IP-literal")),
            ("https://[a]", Err("parse \"https://[a]\": invalid host: ParseAddr(\"a\"): unable to parse IP")),
            ("https://u^@a", Err("parse \"https://u^@a\": net/url: invalid userinfo")),
        ] {
            let url = parse(text);
            let found = url.as_ref().map(|url| (&*url.scheme, url.host, url.user, url.query, &*url.fragment));
            assert_eq!(found.map_err(String::as_str), expected, "{text}");
        }
    }
}
