//! Label selectors, quantities, percentages, ports: parts that many kinds share.

use std::{
    collections::HashSet,
    net::{IpAddr, Ipv4Addr},
};

use portolan_types::{LabelSelector, labels::LabelSelectorSpec, quantity::Quantity};
use serde_json::Value;

use super::{Errors, FieldError, Path, metadata, names, view::At};

/// Checks a label selector.
pub(super) fn selector(at: &At<'_>, errors: &mut Errors) {
    selector_and(at, label_values, errors);
}

/// Checks a label selector whose values may be any text.
pub(super) fn selector_with_any_values(at: &At<'_>, errors: &mut Errors) {
    selector_and(at, |_, _| {}, errors);
}

fn label_values(expression: &At<'_>, errors: &mut Errors) {
    for value in expression.items("values") {
        errors.invalid_each(&value.path, value.value, names::label_value(value.as_text()));
    }
}

fn selector_and(at: &At<'_>, values_of: fn(&At<'_>, &mut Errors), errors: &mut Errors) {
    metadata::labels(&at.path("matchLabels"), at.value.get("matchLabels"), errors);
    for expression in at.items("matchExpressions") {
        let values = expression.count("values");
        match expression.text("operator") {
            "In" | "NotIn" if values == 0 => {
                errors.required(expression.path("values"), "must be specified when `operator` is 'In' or 'NotIn'");
            }
            "Exists" | "DoesNotExist" if values > 0 => {
                let detail = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'";
                errors.forbidden(expression.path("values"), detail);
            }
            "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
            other => errors.push(FieldError::invalid_named(
                expression.path("operator"),
                other,
                "not a valid selector operator",
            )),
        }
        label_name(&expression, "key", errors);
        values_of(&expression, errors);
    }
}

/// Checks a label selector; errors that the old object has too are tolerated.
pub(super) fn tolerated_selector(at: &At<'_>, errors: &mut Errors) {
    let from = errors.len();
    selector(at, errors);
    errors.mark_tolerated(from, "label selector");
}

/// Checks the key of a label at `name`.
pub(super) fn label_name(at: &At<'_>, name: &str, errors: &mut Errors) {
    at.follows(name, names::qualified_name, errors);
}

/// Returns true if a selector has no terms.
pub(super) fn is_empty(at: &At<'_>) -> bool {
    at.count("matchLabels") + at.count("matchExpressions") == 0
}

/// Returns true if a selector matches labels; `None` if the selector is invalid.
pub(super) fn matches(selector: &Value, labels: &Value) -> Option<bool> {
    let mut errors = Errors::default();
    self::selector(&At::root(selector), &mut errors);
    if !errors.is_empty() {
        return None;
    }
    let spec: LabelSelectorSpec = serde_json::from_value(selector.clone()).ok()?;
    let selector = LabelSelector::try_from(&spec).ok()?;
    Some(selector.matches(|key| labels.get(key).and_then(Value::as_str)))
}

/// Returns the quantity of a value, if it is one.
pub(super) fn quantity(value: &Value) -> Option<Quantity> {
    match value {
        Value::String(text) => text.parse().ok(),
        Value::Number(number) => number.to_string().parse().ok(),
        _ => None,
    }
}

const PERCENT_RULE: &str = "a valid percent string must be a numeric string followed by an ending '%' (e.g. '1%',  or '93%', \
     regex used for validation is '[0-9]+%')";

/// Checks a number or a percentage, not negative.
pub(super) fn int_or_percent(at: &At<'_>, errors: &mut Errors) {
    match at.value {
        Value::String(text) if percent(text).is_none() => errors.invalid(&at.path, at.value, PERCENT_RULE),
        Value::Number(number) if number.as_i64().is_some_and(|number| number < 0) => {
            errors.invalid(&at.path, at.value, super::view::NEGATIVE);
        }
        _ => {}
    }
}

/// Checks a percentage of at most 100.
pub(super) fn at_most_100_percent(at: &At<'_>, errors: &mut Errors) {
    if at.value.as_str().and_then(percent).is_some_and(|percent| percent > 100) {
        errors.invalid(&at.path, at.value, "must not be greater than 100%");
    }
}

/// Returns the number of a percentage.
fn percent(text: &str) -> Option<u64> {
    let digits = text.strip_suffix('%').filter(|digits| !digits.is_empty())?;
    digits.bytes().all(|b| b.is_ascii_digit()).then(|| digits.parse().unwrap_or(u64::MAX))
}

/// Returns true for a number or percentage of zero, and for text that is neither.
pub(super) fn is_zero(value: &Value) -> bool {
    match value {
        Value::String(text) => match percent(text) {
            Some(percent) => percent == 0,
            None => text.parse::<i64>().unwrap_or(0) == 0,
        },
        Value::Number(number) => number.as_i64() == Some(0),
        _ => true,
    }
}

/// Checks the number of a port at `name`.
pub(super) fn port_number(at: &At<'_>, name: &str, errors: &mut Errors) {
    at.in_range(name, (1, 65_535), errors);
}

/// Checks the number or name of a port at `name`.
pub(super) fn port(at: &At<'_>, name: &str, errors: &mut Errors) {
    match at.get(name) {
        Value::String(text) => errors.invalid_each(at.path(name), at.get(name), names::port_name(text)),
        _ => port_number(at, name, errors),
    }
}

pub(super) const PROTOCOLS: [&str; 3] = ["SCTP", "TCP", "UDP"];

const NO_IP: &str = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)";
const NO_CIDR: &str = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)";

/// Parses an address as old clients write it: numbers may have leading zeros.
pub fn sloppy_ip(text: &str) -> Option<IpAddr> {
    let plain = |part: &str| part.trim_start_matches('0').parse::<u8>().or_else(|_| part.parse()).ok();
    let v4 = || {
        let parts: Vec<u8> = text.split('.').map(plain).collect::<Option<_>>()?;
        <[u8; 4]>::try_from(parts).ok().map(Ipv4Addr::from)
    };
    text.parse().ok().or_else(|| v4().map(IpAddr::V4))
}

/// Returns the fault of an IP address.
pub(super) fn ip_complaint(text: &str) -> Option<&'static str> {
    match (sloppy_ip(text), text.parse::<IpAddr>()) {
        (None, _) => Some(NO_IP),
        (Some(_), Err(_)) => Some("must not have leading 0s"),
        (Some(_), Ok(IpAddr::V6(v6))) if v6.to_ipv4_mapped().is_some() => {
            Some("must not be an IPv4-mapped IPv6 address")
        }
        (Some(_), Ok(_)) => None,
    }
}

/// Checks an address; addresses in `existing` were accepted before the rules became stricter.
pub(super) fn legacy_ip(at: &At<'_>, existing: &HashSet<&str>, errors: &mut Errors) {
    if let Some(why) = ip_complaint(at.as_text()).filter(|_| !existing.contains(at.as_text())) {
        errors.invalid(&at.path, &at.as_text().into(), why);
    }
}

/// Address and length of a network, which may have bits beyond its length.
pub fn cidr(text: &str) -> Option<(IpAddr, u32)> {
    let (address, length) = text.split_once('/')?;
    let address = sloppy_ip(address)?;
    let digits = !length.is_empty() && length.bytes().all(|b| b.is_ascii_digit());
    let length: u32 = length.parse().ok().filter(|_| digits)?;
    let most = if address.is_ipv4() { 32 } else { 128 };
    (length <= most).then_some((address, length))
}

/// Returns the fault of a CIDR.
pub(super) fn cidr_complaint(text: &str) -> Option<&'static str> {
    let Some((address, length)) = cidr(text) else { return Some(NO_CIDR) };
    let (host, prefix) = text.split_once('/').unwrap_or_default();
    if host.parse::<IpAddr>().is_err() || (prefix.len() > 1 && prefix.starts_with('0')) {
        return Some("must not have leading 0s in IP or prefix length");
    }
    let beyond = match address {
        IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some() => return Some("must not have an IPv4-mapped IPv6 address"),
        IpAddr::V4(v4) => u32::from(v4).checked_shl(length).unwrap_or(0) != 0,
        IpAddr::V6(v6) => u128::from(v6).checked_shl(length).unwrap_or(0) != 0,
    };
    beyond.then_some("must not have bits set beyond the prefix length")
}

/// Checks a network; networks in `existing` were accepted before the rules became stricter.
pub(super) fn legacy_cidr(path: &Path, text: &str, existing: &HashSet<&str>, errors: &mut Errors) {
    if let Some(why) = cidr_complaint(text).filter(|_| !existing.contains(text)) {
        errors.invalid(path, &text.into(), why);
    }
}

/// Returns true if there are addresses of both families.
pub(super) fn is_dual_stack(addresses: &[&str]) -> bool {
    let is_v6: Vec<bool> =
        addresses.iter().filter_map(|text| sloppy_ip(text)).map(|ip| ip.to_canonical().is_ipv6()).collect();
    is_v6.contains(&true) && is_v6.contains(&false)
}

/// Checks the address of an endpoint: one that others can reach.
pub(super) fn endpoint_ip(at: &At<'_>, errors: &mut Errors) {
    let text = at.as_text();
    let Some(ip) = sloppy_ip(text) else {
        errors.invalid(&at.path, &text.into(), "must be a valid IP address");
        return;
    };
    let (local, local_multicast) = match ip {
        IpAddr::V4(v4) => (v4.is_link_local(), v4.octets()[..3] == [224, 0, 0]),
        IpAddr::V6(v6) => (v6.is_unicast_link_local(), v6.segments()[0] & 0xff0f == 0xff02),
    };
    if ip.is_unspecified() {
        errors.invalid(&at.path, &text.into(), &format!("may not be unspecified ({text})"));
    }
    for (is, why) in [
        (ip.is_loopback(), "may not be in the loopback range (127.0.0.0/8, ::1/128)"),
        (local, "may not be in the link-local range (169.254.0.0/16, fe80::/10)"),
        (local_multicast, "may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)"),
    ] {
        if is {
            errors.invalid(&at.path, &text.into(), why);
        }
    }
}

/// Longest name of a signer: a domain, a slash, and a path.
const MAX_SIGNER: usize = 253 + 253 + 63 + 1 + 1;

/// Checks the name of a signer at `name`, such as `example.com/signer`.
pub(super) fn signer_name(at: &At<'_>, name: &str, errors: &mut Errors) {
    if !at.needs(name, errors) {
        return;
    }
    let (text, path) = (at.text(name), at.path(name));
    let segments: Vec<&str> = text.split('/').collect();
    let [domain, rest] = segments.as_slice() else {
        let why = "must be a fully qualified domain and path of the form 'example.com/signer-name'";
        errors.invalid(path, &text.into(), why);
        return;
    };
    if domain.len() > 253 {
        errors.push(FieldError::too_long(&path, 253));
    }
    first_bad_label(&path, domain, names::dns_label, errors);
    if !domain.contains('.') {
        let why = "should be a domain with at least two segments separated by dots";
        errors.invalid(&path, &(*domain).into(), why);
    }
    first_bad_label(&path, rest, names::dns_subdomain, errors);
    if text.len() > MAX_SIGNER {
        errors.push(FieldError::too_long(&path, MAX_SIGNER));
    }
}

fn first_bad_label(path: &Path, text: &str, rule: fn(&str) -> names::Complaints, errors: &mut Errors) {
    let Some(label) = text.split('.').find(|label| !rule(label).is_empty()) else { return };
    for why in rule(label) {
        errors.invalid(path, &text.into(), &format!("validating label {label:?}: {why}"));
    }
}

/// Checks a key behind a domain, such as `example.com/key`.
pub(super) fn domain_prefixed_key(path: &Path, key: &str, errors: &mut Errors) {
    let details = names::qualified_name(key);
    if key.is_empty() {
        errors.required(path, "");
    } else if !details.is_empty() {
        errors.invalid_each(path, &key.into(), details);
    } else if !key.contains('/') {
        errors.invalid(path, &key.into(), "must be a domain-prefixed key (such as \"acme.io/foo\")");
    }
}

/// Returns true for an IP address.
pub(super) fn is_ip(text: &str) -> bool {
    sloppy_ip(text).is_some()
}

/// Returns true if `inner` is a smaller network within `outer`.
pub(super) fn is_within(outer: (IpAddr, u32), inner: (IpAddr, u32)) -> bool {
    // As in Go, an IPv4 address that is written as an IPv6 one is the IPv4 address; lengths are compared as they are
    // written.
    let (first, second) = (outer.0.to_canonical(), inner.0.to_canonical());
    let length = if first == outer.0 { outer.1 } else { outer.1.saturating_sub(96) };
    let start = |address: IpAddr| match address {
        IpAddr::V4(v4) => u128::from(u32::from(v4).checked_shr(32 - length.min(32)).unwrap_or(0)),
        IpAddr::V6(v6) => u128::from(v6).checked_shr(128 - length).unwrap_or(0),
    };
    first.is_ipv4() == second.is_ipv4() && outer.1 < inner.1 && start(first) == start(second)
}

/// Checks a domain and a path at `name`, such as `example.com/what`.
pub(super) fn domain_prefixed_path(at: &At<'_>, name: &str, errors: &mut Errors) {
    match names::domain_prefixed_path(at.text(name)) {
        None => errors.required(at.path(name), ""),
        Some(all) => all.iter().for_each(|(part, why)| errors.invalid(at.path(name), &(*part).into(), why)),
    }
}

/// Checks a domain of two or more parts.
pub(super) fn full_domain(at: &At<'_>, errors: &mut Errors) {
    let text = at.as_text();
    if text.is_empty() {
        return errors.required(&at.path, "");
    }
    let text = text.strip_suffix('.').unwrap_or(text);
    let (whole, bad) = (names::dns_subdomain(text), text.split('.').find(|part| !names::dns_label(part).is_empty()));
    match bad {
        _ if !whole.is_empty() => errors.invalid(&at.path, &text.into(), &whole.join(",")),
        _ if !text.contains('.') => {
            let why = "should be a domain with at least two segments separated by dots";
            errors.invalid(&at.path, &text.into(), why);
        }
        Some(part) => errors.invalid(&at.path, &part.into(), &names::dns_label(part).join(",")),
        None => {}
    }
}
