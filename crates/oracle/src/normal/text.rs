//! Strings without their variable parts.

use jiff::{SignedDuration, Timestamp};

/// `123e4567-e89b-12d3-a456-426614174000`.
pub(crate) fn is_uid(text: &str) -> bool {
    text.len() == UID
        && text.bytes().enumerate().all(|(index, byte)| match index {
            8 | 13 | 18 | 23 => byte == b'-',
            _ => byte.is_ascii_hexdigit(),
        })
}

const UID: usize = 36;
/// Distance from now up to which a time counts as now: tokens and the like end within hours.
const NEAR: SignedDuration = SignedDuration::from_hours(3);
/// Texts before a number that each server chooses.
const BEFORE_NUMBERS: [&str; 8] = [
    ", current: ",
    "ResourceVersion in object meta: ",
    "ResourceVersion in the precondition (",
    "ResourceVersion in record (",
    "too old resource version: 1 (",
    "oldest: ",
    "resourceVersion\":\"",
    "resourceVersion\\\":\\\"",
];

/// Replaces a time near now by `<time>` or `<microtime>`.
pub(super) fn time(text: &str) -> Option<&'static str> {
    let time: Timestamp = text.parse().ok()?;
    let distance = Timestamp::now().duration_since(time).abs();
    (distance < NEAR).then_some(if text.contains('.') { "<microtime>" } else { "<time>" })
}

/// Replaces seconds since 1970 near now.
pub(super) fn is_now(seconds: i64) -> bool {
    Timestamp::from_second(seconds).is_ok_and(|time| Timestamp::now().duration_since(time).abs() < NEAR)
}

/// Replaces uids, times near now, ports and revisions in a text; a text that is a uid stays.
pub(super) fn without_varying(text: &str) -> String {
    if is_uid(text) {
        return text.to_owned();
    }
    if !text.bytes().any(|byte| byte.is_ascii_digit()) {
        return without_builds(text);
    }
    let mut clean = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let (length, replacement) = varying(rest).unwrap_or((first.len_utf8(), ""));
        clean.push_str(if replacement.is_empty() { &rest[..length] } else { replacement });
        rest = &rest[length..];
        if BEFORE_NUMBERS.iter().any(|before| clean.ends_with(before)) {
            let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
            if digits > 0 {
                clean.push_str("<rv>");
                rest = &rest[digits..];
            }
        }
    }
    without_builds(&clean.replace("/clusters/root:oracle", ""))
}

/// Texts before a generated value, or before a value that depends on the build, such as the source path of a scheme.
const BEFORE_WORDS: [(&str, &str, usize); 4] = [
    ("in scheme \"", "<scheme>", 200),
    ("X509SHA256=", "<print>", 64),
    ("kube-api-access-", "<5>", 5),
    // The storage path of an object is internal to a server.
    ("invalid object, Code: 4, Key: ", "<key>", 600),
];

fn without_builds(text: &str) -> String {
    let mut clean = text.to_owned();
    for (before, name, longest) in BEFORE_WORDS {
        let mut from = 0;
        while let Some(at) = clean[from..].find(before).map(|at| from + at + before.len()) {
            let rest = clean[at..].bytes().take(longest);
            let length = rest.take_while(|byte| byte.is_ascii_graphic() && *byte != b'"').count();
            clean.replace_range(at..at + length, name);
            from = at + name.len();
        }
    }
    clean
}

/// Returns the length of the variable part at the start of `text`, and its replacement.
fn varying(text: &str) -> Option<(usize, &'static str)> {
    if text.get(..UID).is_some_and(is_uid) {
        return Some((UID, "<uid>"));
    }
    if let Some(port) = text.strip_prefix("127.0.0.1:") {
        let digits = port.bytes().take_while(u8::is_ascii_digit).count();
        return (digits > 0).then_some((text.len() - port.len() + digits, "<host>"));
    }
    if !text.as_bytes().first().is_some_and(u8::is_ascii_digit) {
        return None;
    }
    let length = text.bytes().take(31).position(|byte| byte == b'Z').filter(|end| *end >= 19)? + 1;
    text.get(..length).and_then(time).map(|name| (length, name))
}

/// Returns true for an address of the Service range (`10.96.0.0/12`).
fn is_of_services(text: &str) -> bool {
    text.parse::<std::net::Ipv4Addr>().is_ok_and(|address| matches!(address.octets(), [10, 96..=111, ..]))
}

/// Removes the service IPs that a server chooses.
pub(crate) fn without_drawn(text: &str) -> String {
    let is_part = |character: char| character.is_ascii_digit() || character == '.';
    let mut clean = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find(is_part) {
        clean.push_str(&rest[..start]);
        let length = rest[start..].find(|character| !is_part(character)).unwrap_or(rest.len() - start);
        let word = &rest[start..start + length];
        clean.push_str(if is_of_services(word) { "<address>" } else { word });
        rest = &rest[start + length..];
    }
    clean + rest
}

/// Returns the number of days from now to an HTTP date, or the text itself if it is not a date.
pub(super) fn days_ahead(text: &str) -> String {
    // Go prints the local time zone.
    let date = jiff::fmt::rfc2822::parse(&text.replace("UTC", "GMT"))
        .map(|date| date.timestamp().duration_since(Timestamp::now()));
    date.map_or_else(|_| text.to_owned(), |ahead| format!("in {:.0} days", ahead.as_secs_f64() / 86_400.0))
}

/// Matches an age in a table, such as `3s` or `2m10s`.
pub(super) fn is_age(text: &str) -> bool {
    !text.is_empty()
        && text.ends_with(['s', 'm', 'h'])
        && text.starts_with(|first: char| first.is_ascii_digit())
        && text.bytes().all(|byte| byte.is_ascii_digit() || b"smh".contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn varying_values_are_replaced() {
        let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let uid = "123e4567-e89b-12d3-a456-426614174000";
        for (text, expected) in [
            ("plain".to_owned(), "plain"),
            (uid.to_owned(), uid),
            (format!("uid {uid}, other"), "uid <uid>, other"),
            (format!("using v1 at {now}: .spec"), "using v1 at <time>: .spec"),
            (now, "<time>"),
            ("2001-02-03T04:05:06Z".to_owned(), "2001-02-03T04:05:06Z"),
            ("https://127.0.0.1:12345/x".to_owned(), "https://<host>/x"),
            (
                "no kind \"A1\" in scheme \"pkg/runtime/scheme.go:111\"".to_owned(),
                "no kind \"A1\" in scheme \"<scheme>\"",
            ),
            ("kube-api-access-x2b4z".to_owned(), "kube-api-access-<5>"),
            ("\"kube-api-access-x2b4z\", kube-api-access-ab2de".into(), "\"kube-api-access-<5>\", kube-api-access-<5>"),
            ("Too large resource version: 9, current: 345".to_owned(), "Too large resource version: 9, current: <rv>"),
        ] {
            assert_eq!(without_varying(&text), expected, "{text}");
        }
    }

    #[test]
    fn addresses_of_services_are_drawn() {
        for (text, expected) in [
            ("10.96.0.10", "<address>"),
            ("ip \"10.111.255.1\", 1.5", "ip \"<address>\", 1.5"),
            ("10.112.0.1 10.1.2.3 110.96.0.1 10.96.0.1.", "10.112.0.1 10.1.2.3 110.96.0.1 10.96.0.1."),
        ] {
            assert_eq!(without_drawn(text), expected);
        }
    }

    #[test]
    fn a_date_is_some_days_ahead() {
        let later = Timestamp::now() + SignedDuration::from_hours(365 * 24);
        let date = later.strftime("%a, %d %b %Y %H:%M:%S GMT").to_string();
        assert_eq!(days_ahead(&date), "in 365 days");
        assert_eq!(days_ahead("never"), "never");
    }

    #[test]
    fn ages_are_known() {
        for (text, expected) in
            [("3s", true), ("2m10s", true), ("s", false), ("12", false), ("3d", false), ("<none>", false)]
        {
            assert_eq!(is_age(text), expected, "{text}");
        }
    }
}
