//! URLs as Go's `net/url` reads those of requests: absolute ones, and paths from the root.

use super::{Function, error, no_overload};
use crate::program::{Failure, Key, List, Map, Value};
use portolan_types::quoted::go_quoted;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A URL in its parts.
#[derive(Clone, Debug, Default)]
pub(crate) struct Url {
    pub(crate) text: String,
    scheme: String,
    host: String,
    path: String,
    query: String,
}

pub(super) fn function(name: &str) -> Option<Function> {
    Some(match name {
        "url" => |args, _| match args {
            [Value::String(text)] => match parse(text) {
                Ok(url) => Ok(Value::Url(Arc::new(url))),
                Err(message) => error(format!("URL parse error during conversion from string: {message}")),
            },
            _ => no_overload(),
        },
        "isURL" => |args, _| match args {
            [Value::String(text)] => Ok(Value::Bool(parse(text).is_ok())),
            _ => no_overload(),
        },
        "getScheme" => |args, _| part(args, |url| url.scheme.clone()),
        "getHost" => |args, _| part(args, |url| url.host.clone()),
        "getHostname" => |args, _| part(args, |url| split_host(&url.host).0.to_owned()),
        "getPort" => |args, _| part(args, |url| split_host(&url.host).1.to_owned()),
        "getEscapedPath" => |args, _| part(args, |url| escaped_path(&url.path)),
        "getQuery" => query,
        _ => return None,
    })
}

fn part<'a>(args: &[Value<'a>], part: fn(&Url) -> String) -> Result<Value<'a>, Failure> {
    match args {
        [Value::Url(url)] => Ok(part(url).into()),
        _ => no_overload(),
    }
}

/// Whether a text is what Go takes for the URI of a request.
#[must_use]
pub fn is_request_uri(text: &str) -> bool {
    parse(text).is_ok()
}

/// Reads a URL.
pub(super) fn parse(text: &str) -> Result<Url, String> {
    let wrong = |reason: String| format!("parse {}: {reason}", go_quoted(text));
    if text.bytes().any(|byte| byte < 0x20 || byte == 0x7f) {
        return Err(wrong("net/url: invalid control character in URL".to_owned()));
    }
    if text.is_empty() {
        return Err(wrong("empty url".to_owned()));
    }
    if text == "*" {
        return Ok(Url { text: text.to_owned(), path: "*".to_owned(), ..Url::default() });
    }
    let (scheme, rest) = scheme(text).map_err(&wrong)?;
    // What is behind a `#` counts for a request's path, and not for the URL.
    let shown = rest.split_once('#').map_or(rest, |(rest, _)| rest);
    let (shown, query) = shown.split_once('?').unwrap_or((shown, ""));
    if !shown.starts_with('/') {
        if scheme.is_empty() {
            return Err(wrong("invalid URI for request".to_owned()));
        }
        return Ok(Url { text: text.to_owned(), scheme, query: query.to_owned(), ..Url::default() });
    }
    let (host, path) = match shown.strip_prefix("//") {
        Some(rest) if !scheme.is_empty() || !shown.starts_with("///") => {
            let end = rest.find('/').unwrap_or(rest.len());
            (&rest[..end], &rest[end..])
        }
        _ => ("", shown),
    };
    let host = authority(host).map_err(&wrong)?;
    check_escapes(path).map_err(&wrong)?;
    Ok(Url { text: text.to_owned(), scheme, host, path: path.to_owned(), query: query.to_owned() })
}

fn scheme(text: &str) -> Result<(String, &str), String> {
    for (index, byte) in text.bytes().enumerate() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' => {}
            b'0'..=b'9' | b'+' | b'-' | b'.' if index > 0 => {}
            b':' if index == 0 => return Err("missing protocol scheme".to_owned()),
            b':' => return Ok((text[..index].to_lowercase(), &text[index + 1..])),
            _ => break,
        }
    }
    Ok((String::new(), text))
}

fn authority(text: &str) -> Result<String, String> {
    let host = match text.rsplit_once('@') {
        None => text,
        Some((user, host)) => {
            let valid = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:~!$&'()*+,;=%@".contains(&byte);
            if !user.bytes().all(valid) {
                return Err("net/url: invalid userinfo".to_owned());
            }
            host
        }
    };
    let port = match host.strip_prefix('[') {
        Some(rest) => rest.find(']').map(|end| &rest[end + 1..]).ok_or_else(|| "missing ']' in host".to_owned())?,
        None => host.rfind(':').map_or("", |colon| &host[colon..]),
    };
    let digits = port.strip_prefix(':');
    if !port.is_empty() && !digits.is_some_and(|digits| digits.bytes().all(|byte| byte.is_ascii_digit())) {
        return Err(format!("invalid port {} after host", go_quoted(port)));
    }
    if let Some(bad) = host.chars().find(|character| matches!(character, ' ' | '\\' | '^' | '`' | '{' | '|' | '}')) {
        return Err(format!("invalid character {} in host name", go_quoted(&bad.to_string())));
    }
    check_escapes(host)?;
    Ok(host.to_owned())
}

fn check_escapes(text: &str) -> Result<(), String> {
    let bytes = text.as_bytes();
    for (index, _) in bytes.iter().enumerate().filter(|(_, byte)| **byte == b'%') {
        let escape = &bytes[index..bytes.len().min(index + 3)];
        if escape.len() < 3 || !escape[1..].iter().all(u8::is_ascii_hexdigit) {
            return Err(format!("invalid URL escape {}", go_quoted(&String::from_utf8_lossy(escape))));
        }
    }
    Ok(())
}

/// The name without brackets, and the port.
fn split_host(host: &str) -> (&str, &str) {
    if let Some(rest) = host.strip_prefix('[') {
        let (name, port) = rest.split_once(']').unwrap_or((rest, ""));
        return (name, port.strip_prefix(':').unwrap_or_default());
    }
    host.rsplit_once(':').unwrap_or((host, ""))
}

fn escaped_path(path: &str) -> String {
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

fn unescape(text: &str) -> Option<String> {
    check_escapes(text).ok()?;
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        match first {
            b'+' => bytes.push(b' '),
            b'%' => {
                let digits = std::str::from_utf8(&after[..2]).ok()?;
                bytes.push(u8::from_str_radix(digits, 16).ok()?);
                rest = &after[2..];
            }
            other => bytes.push(*other),
        }
    }
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

fn query<'a>(args: &[Value<'a>], context: &super::Context<'_>) -> Result<Value<'a>, Failure> {
    let [Value::Url(url)] = args else { return no_overload() };
    let mut found: BTreeMap<Key, Vec<Value<'a>>> = BTreeMap::new();
    for pair in url.query.split('&').filter(|pair| !pair.is_empty() && !pair.contains(';')) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        if let (Some(name), Some(value)) = (unescape(name), unescape(value)) {
            context.meter.elements(1)?;
            found.entry(Key::String(name.into())).or_default().push(value.into());
        }
    }
    let entries = found.into_iter().map(|(name, values)| (name, Value::List(List::owned(values))));
    Ok(Value::Map(Map::owned(entries.collect())))
}
