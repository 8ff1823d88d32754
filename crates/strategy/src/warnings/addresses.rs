//! Addresses and networks that old rules let pass (apimachinery `util/validation` `GetWarningsForIP`).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use serde_json::Value;

use super::{Warnings, items, text};
use portolan_validation::{cidr, sloppy_ip};

/// Returns the form in which Go shows an address: one of version 4 within version 6 as itself.
fn plain(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V6(v6) => v6.to_ipv4_mapped().map_or(ip, IpAddr::V4),
        IpAddr::V4(_) => ip,
    }
}

fn is_standard(text: &str) -> bool {
    text.parse::<IpAddr>().is_ok_and(|ip| plain(ip) == ip)
}

/// Warns of an address in a form that is not canonical. Validation reports invalid ones.
pub(super) fn ip(path: &str, text: &str, warnings: &mut Warnings) {
    let Some(ip) = sloppy_ip(text) else { return };
    if !is_standard(text) {
        let shown = plain(ip);
        warnings.add(format!("{path}: non-standard IP address {text:?} is invalid: use \"{shown}\""));
    } else if ip.is_ipv6() && ip.to_string() != text {
        warnings.add(format!("{path}: IPv6 address {text:?} should be in RFC 5952 canonical format (\"{ip}\")"));
    }
}

/// Warns of a network that is not written as it should be.
pub(super) fn network(path: &str, text: &str, warnings: &mut Warnings) {
    let Some((ip, length)) = cidr(text) else { return };
    let start = masked(ip, length);
    let shown = match (plain(start), plain(ip) == ip) {
        (start, false) => format!("{start}/{}", length.saturating_sub(96)),
        (start, true) => format!("{start}/{length}"),
    };
    let ambiguous = start != ip;
    if ambiguous {
        let bits = if ip.is_ipv4() { 32 } else { 128 };
        let single = format!("{}/{bits}", plain(ip));
        let should = format!("should be {shown:?} or {single:?}?");
        warnings.add(format!("{path}: CIDR value {text:?} is ambiguous in this context ({should})"));
    }
    let (host, prefix) = text.split_once('/').unwrap_or_default();
    let is_standard = is_standard(host) && (prefix.len() == 1 || !prefix.starts_with('0'));
    if !is_standard {
        warnings.add(format!("{path}: non-standard CIDR value {text:?} is invalid: use {shown:?}"));
    } else if !ambiguous && ip.is_ipv6() && format!("{ip}/{length}") != text {
        let should = format!("should be in RFC 5952 canonical format (\"{ip}/{length}\")");
        warnings.add(format!("{path}: IPv6 CIDR value {text:?} {should}"));
    }
}

/// Returns the first address of a network.
fn masked(ip: IpAddr, length: u32) -> IpAddr {
    match ip {
        IpAddr::V4(v4) => Ipv4Addr::from(u32::from(v4) & u32::MAX.checked_shl(32 - length).unwrap_or(0)).into(),
        IpAddr::V6(v6) => Ipv6Addr::from(u128::from(v6) & u128::MAX.checked_shl(128 - length).unwrap_or(0)).into(),
    }
}

/// Warns of each text of a list that holds addresses.
pub(super) fn ips(object: &Value, list: &str, path: &str, warnings: &mut Warnings) {
    for (index, address) in items(object, list).enumerate() {
        ip(&format!("{path}[{index}]"), address.as_str().unwrap_or_default(), warnings);
    }
}

/// Warns of each text of a list that holds networks.
pub(super) fn networks(object: &Value, list: &str, path: &str, warnings: &mut Warnings) {
    for (index, value) in items(object, list).enumerate() {
        network(&format!("{path}[{index}]"), value.as_str().unwrap_or_default(), warnings);
    }
}

/// Warns of the addresses of objects in a list under `key`, at `path[n]` and the suffix `behind`.
pub(super) fn ips_of(object: &Value, list: &str, (key, behind): (&str, &str), path: &str, warnings: &mut Warnings) {
    for (index, item) in items(object, list).enumerate() {
        let address = text(item, &format!("/{key}"));
        ip(&format!("{path}[{index}]{behind}"), address, warnings);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn noncanonical_forms_are_warned_of() {
        for (text, expected) in [
            ("10.0.0.1", None),
            ("nothing", None),
            ("010.0.0.1", Some("p: non-standard IP address \"010.0.0.1\" is invalid: use \"10.0.0.1\"")),
            ("::ffff:1.2.3.4", Some("p: non-standard IP address \"::ffff:1.2.3.4\" is invalid: use \"1.2.3.4\"")),
            (
                "2001:DB8::1",
                Some("p: IPv6 address \"2001:DB8::1\" should be in RFC 5952 canonical format (\"2001:db8::1\")"),
            ),
            ("2001:db8::1", None),
        ] {
            let mut warnings = Warnings::default();
            ip("p", text, &mut warnings);
            assert_eq!(warnings.0, expected.into_iter().collect::<Vec<_>>(), "{text}");
        }
    }

    #[test]
    fn networks_have_one_form() {
        for (text, expected) in [
            ("10.0.0.0/8", &[][..]),
            ("nothing", &[]),
            (
                "10.0.0.1/8",
                &[
                    "p: CIDR value \"10.0.0.1/8\" is ambiguous in this context (should be \"10.0.0.0/8\" or \"10.0.0.1/32\"?)",
                ],
            ),
            ("010.0.0.0/8", &["p: non-standard CIDR value \"010.0.0.0/8\" is invalid: use \"10.0.0.0/8\""]),
            ("10.0.0.0/08", &["p: non-standard CIDR value \"10.0.0.0/08\" is invalid: use \"10.0.0.0/8\""]),
            ("0.0.0.0/0", &[]),
            (
                "2001:DB8::/32",
                &["p: IPv6 CIDR value \"2001:DB8::/32\" should be in RFC 5952 canonical format (\"2001:db8::/32\")"],
            ),
        ] {
            let mut warnings = Warnings::default();
            network("p", text, &mut warnings);
            assert_eq!(warnings.0, expected, "{text}");
        }
    }
}
