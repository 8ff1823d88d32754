//! Rules of label keys and values, and the messages about violations (apimachinery `util/validation`).

/// Rule of a DNS-1123 subdomain.
pub const SUBDOMAIN_RULE: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', \
     and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is \
     '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
const QUALIFIED_RULE: &str = "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an \
     alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is \
     '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";
const VALUE_RULE: &str = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', \
     and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for \
     validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')";

/// Longest name part of a key, and longest value.
const MAX_NAME: usize = 63;
const MAX_PREFIX: usize = 253;

/// Returns the faults of a label key, annotation key or finalizer: a name, optionally after a DNS subdomain and a
/// slash.
pub fn key_faults(text: &str) -> Vec<String> {
    let mut all = Vec::new();
    let name = match text.split_once('/') {
        None => text,
        Some((_, rest)) if rest.contains('/') => {
            return vec![format!(
                "a valid label key {QUALIFIED_RULE} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
            )];
        }
        Some((prefix, name)) => {
            all.extend(prefix_faults(prefix).into_iter().map(|text| format!("prefix part {text}")));
            name
        }
    };
    if name.is_empty() {
        all.push("name part must be non-empty".to_owned());
    } else if name.len() > MAX_NAME {
        all.push(format!("name part {}", too_long(MAX_NAME)));
    }
    if !is_qualified(name) {
        all.push(format!("name part {QUALIFIED_RULE}"));
    }
    all
}

fn prefix_faults(prefix: &str) -> Vec<String> {
    if prefix.is_empty() {
        return vec!["must be non-empty".to_owned()];
    }
    let long = (prefix.len() > MAX_PREFIX).then(|| too_long(MAX_PREFIX));
    let odd = !prefix.split('.').all(is_label);
    long.into_iter().chain(odd.then(|| SUBDOMAIN_RULE.to_owned())).collect()
}

/// Returns the faults of a label value.
pub fn value_faults(text: &str) -> Vec<String> {
    let long = (text.len() > MAX_NAME).then(|| too_long(MAX_NAME));
    let odd = !text.is_empty() && !is_qualified(text);
    long.into_iter().chain(odd.then(|| VALUE_RULE.to_owned())).collect()
}

/// Returns true for a DNS-1123 subdomain of 1 to 253 bytes: labels joined by dots (RFC 1123).
pub fn is_subdomain(text: &str) -> bool {
    text.len() <= MAX_PREFIX && text.split('.').all(|label| crate::names::check_dns_label(label).is_ok())
}

fn too_long(max: usize) -> String {
    format!("must be no more than {max} bytes")
}

/// Returns true for `[A-Za-z0-9._-]` with alphanumeric ends.
fn is_qualified(text: &str) -> bool {
    let bytes = text.as_bytes();
    let ends = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    ends(bytes.first()) && ends(bytes.last()) && bytes.iter().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(b))
}

/// Returns true for a label of a subdomain, of any length.
fn is_label(text: &str) -> bool {
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let bytes = text.as_bytes();
    let ends = |byte: Option<&u8>| byte.is_some_and(|b| plain(*b));
    ends(bytes.first()) && ends(bytes.last()) && bytes.iter().all(|byte| plain(*byte) || *byte == b'-')
}
