//! Rules for names, labels and keys, with their errors (apimachinery `util/validation`).

use portolan_types::{labels::SUBDOMAIN_RULE, names::check_dns_label};

pub use portolan_types::labels::{key_faults as qualified_name, value_faults as label_value};

const LABEL_RULE: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start \
     and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is \
     '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";
const UNDERSCORE_RULE: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '_', '-' or \
     '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is \
     '_?[a-z0-9]([-_a-z0-9]*[a-z0-9])?(\\._?[a-z0-9]([-_a-z0-9]*[a-z0-9])?)*')";
const WILDCARD_RULE: &str = "a wildcard DNS-1123 subdomain must start with '*.', followed by a valid DNS subdomain, which must \
     consist of lower case alphanumeric characters, '-' or '.' and end with an alphanumeric character (e.g. \
     '*.example.com', regex used for validation is \
     '\\*\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
const HEADER_RULE: &str = "a valid HTTP header must consist of alphanumeric characters or '-' (e.g. 'X-Header-Name', regex used \
     for validation is '[-A-Za-z0-9]+')";
const CONFIG_KEY_RULE: &str = "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  \
     or 'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')";
const ENV_NAME_RULE: &str =
    "a valid environment variable name must consist only of printable ASCII characters other than '='";

/// Messages of a rule about a text; empty if the text follows it.
pub type Complaints = Vec<String>;

fn too_long(max: usize) -> String {
    format!("must be no more than {max} characters")
}

fn is_label(text: &str) -> bool {
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let bytes = text.as_bytes();
    match (bytes.first(), bytes.last()) {
        (Some(first), Some(last)) => {
            plain(*first) && plain(*last) && bytes.iter().all(|byte| plain(*byte) || *byte == b'-')
        }
        _ => false,
    }
}

/// Checks a DNS-1123 label.
pub fn dns_label(text: &str) -> Complaints {
    let mut all = Vec::new();
    if check_dns_label(text).is_ok() {
        return all;
    }
    if text.len() > 63 {
        all.push(too_long(63));
    }
    if !is_label(text) {
        // A valid subdomain is a valid label except for its dots.
        let dotted = text.len() <= 253 && text.split('.').all(is_label);
        all.push(if dotted { "must not contain dots".to_owned() } else { LABEL_RULE.to_owned() });
    }
    all
}

/// Checks a DNS-1123 subdomain.
pub fn dns_subdomain(text: &str) -> Complaints {
    let mut all = Vec::new();
    if text.len() > 253 {
        all.push(too_long(253));
    }
    if !text.split('.').all(is_label) {
        all.push(SUBDOMAIN_RULE.to_owned());
    }
    all
}

/// Checks a DNS-1123 subdomain, with the error of declarative validation.
pub(crate) fn long_name(text: &str) -> Complaints {
    let mut all = dns_subdomain(text);
    if text.len() > 253 {
        all[0] = "must be no more than 253 bytes".to_owned();
    }
    all
}

/// Checks a DNS-1123 subdomain that may have underscores, such as a search domain of resolvers.
pub(crate) fn dns_subdomain_with_underscore(text: &str) -> Complaints {
    let mut all = Vec::new();
    if text.len() > 253 {
        all.push(too_long(253));
    }
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let part = |label: &str| {
        let bytes = label.strip_prefix('_').unwrap_or(label).as_bytes();
        let ends = |byte: Option<&u8>| byte.is_some_and(|b| plain(*b));
        ends(bytes.first()) && ends(bytes.last()) && bytes.iter().all(|b| plain(*b) || b"-_".contains(b))
    };
    if !text.split('.').all(part) {
        all.push(UNDERSCORE_RULE.to_owned());
    }
    all
}

/// Checks `*.` with a DNS-1123 subdomain.
pub(crate) fn wildcard_subdomain(text: &str) -> Complaints {
    let mut all = Vec::new();
    if text.len() > 253 {
        all.push(too_long(253));
    }
    if !text.strip_prefix("*.").is_some_and(|rest| rest.split('.').all(is_label)) {
        all.push(WILDCARD_RULE.to_owned());
    }
    all
}

/// Checks a domain and a path, such as `example.com/what`. Returns each error with the part that it names; `None` if
/// the text is empty.
pub(crate) fn domain_prefixed_path(text: &str) -> Option<Vec<(&str, String)>> {
    if text.is_empty() {
        return None;
    }
    let Some((host, path)) = text.split_once('/').filter(|(host, path)| !host.is_empty() && !path.is_empty()) else {
        return Some(vec![(text, "must be a domain-prefixed path (such as \"acme.io/foo\")".to_owned())]);
    };
    let mut all: Vec<_> = dns_subdomain(host).into_iter().map(|why| (host, why)).collect();
    if !path.bytes().all(|b| b.is_ascii_alphanumeric() || b"/-._~%!$&'()*+,;=:".contains(&b)) {
        let why = "Invalid path (regex used for validation is '[A-Za-z0-9/\\-._~%!$&'()*+,;=:]+')";
        all.push((path, why.to_owned()));
    }
    Some(all)
}

/// Checks an address in its shortest form.
pub(crate) fn canonical_ip(text: &str) -> Complaints {
    if let Some(why) = super::selectors::ip_complaint(text) {
        return vec![why.to_owned()];
    }
    let canonical = text.parse::<std::net::IpAddr>().map(|ip| ip.to_string()).unwrap_or_default();
    if canonical == text { Vec::new() } else { vec![format!("must be in canonical form ({canonical:?})")] }
}

/// Checks the name of a bundle of certificates, which begins with its signer's name.
pub(crate) fn trust_bundle(signer: &str, text: &str) -> Complaints {
    if signer.is_empty() {
        return if text.contains(':') {
            vec!["ClusterTrustBundle without signer name must not have \":\" in its name".to_owned()]
        } else {
            dns_subdomain(text)
        };
    }
    let prefix = format!("{}:", signer.replace('/', ":"));
    match text.strip_prefix(&prefix) {
        Some(rest) => dns_subdomain(rest),
        None => vec![format!("ClusterTrustBundle for signerName {signer} must be named with prefix {prefix}")],
    }
}

/// Checks the name of an HTTP header.
pub(crate) fn http_header(text: &str) -> Complaints {
    if !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-') {
        Vec::new()
    } else {
        vec![HEADER_RULE.to_owned()]
    }
}

/// Returns a name prefix without its last dash, which more text will follow, so that it can be checked like a name.
pub fn masked(prefix: &str) -> String {
    match prefix.strip_suffix('-') {
        Some(start) if !start.is_empty() => {
            let mut start = start.to_owned();
            start.pop();
            start + "a"
        }
        _ => prefix.to_owned(),
    }
}

/// Checks a name that is a segment of a URL path, as for RBAC objects.
pub(crate) fn path_segment(text: &str) -> Complaints {
    if text == "." || text == ".." {
        return vec![format!("may not be '{text}'")];
    }
    path_segment_prefix(text)
}

/// Checks the prefix of a name that is a segment of a URL path.
pub(crate) fn path_segment_prefix(text: &str) -> Complaints {
    ["/", "%"].iter().filter(|part| text.contains(**part)).map(|part| format!("may not contain '{part}'")).collect()
}

/// Checks a key of a ConfigMap or Secret.
pub(crate) fn config_key(text: &str) -> Complaints {
    let mut all = Vec::new();
    if text.len() > 253 {
        all.push(too_long(253));
    }
    if text.is_empty() || !text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b)) {
        all.push(CONFIG_KEY_RULE.to_owned());
    }
    match text {
        "." => all.push("must not be '.'".to_owned()),
        ".." => all.push("must not be '..'".to_owned()),
        text if text.starts_with("..") => all.push("must not start with '..'".to_owned()),
        _ => {}
    }
    all
}

/// Checks the name of an environment variable.
pub(crate) fn env_name(text: &str) -> Complaints {
    let plain = text.bytes().all(|b| (b' '..=b'~').contains(&b) && b != b'=');
    match (text.is_empty(), plain) {
        (true, _) => vec!["environment variable name must be non-empty".to_owned()],
        (false, true) => Vec::new(),
        (false, false) => vec![ENV_NAME_RULE.to_owned()],
    }
}

/// Checks the name of a port (IANA service name).
pub(crate) fn port_name(text: &str) -> Complaints {
    let mut all = Vec::new();
    if text.len() > 15 {
        all.push("must be no more than 15 characters".to_owned());
    }
    if text.is_empty() || !text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-') {
        all.push("must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)".to_owned());
    }
    if !text.bytes().any(|b| b.is_ascii_lowercase()) {
        all.push("must contain at least one letter (a-z)".to_owned());
    }
    if text.contains("--") {
        all.push("must not contain consecutive hyphens".to_owned());
    }
    if text.starts_with('-') || text.ends_with('-') {
        all.push("must not begin or end with a hyphen".to_owned());
    }
    all
}

const LABEL_1035_RULE: &str = "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an \
     alphabetic character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation \
     is '[a-z]([-a-z0-9]*[a-z0-9])?')";
const C_IDENTIFIER_RULE: &str = "a valid C identifier must start with alphabetic character or '_', followed by a string of \
     alphanumeric characters or '_' (e.g. 'my_name',  or 'MY_NAME',  or 'MyName', regex used for validation is \
     '[A-Za-z_][A-Za-z0-9_]*')";

/// Checks a DNS-1035 label, which begins with a letter.
pub(crate) fn dns_1035_label(text: &str) -> Complaints {
    let mut all = Vec::new();
    if text.len() > 63 {
        all.push(too_long(63));
    }
    if !is_label(text) || !text.starts_with(|c: char| c.is_ascii_lowercase()) {
        all.push(LABEL_1035_RULE.to_owned());
    }
    all
}

/// Checks a C identifier.
pub(crate) fn c_identifier(text: &str) -> Complaints {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    let begins = text.bytes().next().is_some_and(|b| plain(b) && !b.is_ascii_digit());
    if begins && text.bytes().all(plain) { Vec::new() } else { vec![C_IDENTIFIER_RULE.to_owned()] }
}
