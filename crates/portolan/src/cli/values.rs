//! Parsers of flag values, with their error messages.

use std::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use clap::{
    ValueEnum as _,
    builder::{PossibleValuesParser, TypedValueParser},
};

use portolan_types::quantity::Quantity;

use super::server::ServerStore;

/// Longest DNS name, and longest label of one, in bytes (RFC 1035).
const DNS_NAME: usize = 253;
const DNS_LABEL: usize = 63;

/// Parses an engine that keeps its data.
pub(super) fn lasting_store() -> impl TypedValueParser<Value = ServerStore> {
    PossibleValuesParser::new(["redb", "sled", "etcd"]).try_map(|name| ServerStore::from_str(&name, false))
}

/// Parses an address with a port.
pub(super) fn address(text: &str) -> Result<SocketAddr, String> {
    match text.parse::<IpAddr>() {
        Ok(IpAddr::V4(ip)) => Err(format!("it has no port: {ip}:6443")),
        Ok(IpAddr::V6(ip)) => Err(format!("it has no port: [{ip}]:6443")),
        Err(_) => text.parse().map_err(|_| {
            "it is no address with a port, such as 127.0.0.1:6443, [::1]:6443, or 0.0.0.0:6443 for all".to_owned()
        }),
    }
}

/// Parses a number of bytes, or a quantity.
pub(super) fn bytes(text: &str) -> Result<u64, String> {
    let quantity = text.parse::<Quantity>().ok().and_then(|quantity| u64::try_from(quantity.units()).ok());
    quantity.ok_or_else(|| "it is no quantity of bytes, such as 1073741824, 512Mi or 4Gi".to_owned())
}

/// Parses a time of at least a second: in seconds, in whole days, or with units as in Kubernetes' flags.
pub(super) fn time(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().map(Duration::from_secs);
    let days = || text.strip_suffix('d')?.parse().ok().and_then(|days: u64| days.checked_mul(24 * 3600));
    let units = || text.parse::<jiff::SignedDuration>().ok().and_then(|time| Duration::try_from(time).ok());
    match seconds.or_else(|| days().map(Duration::from_secs)).or_else(units) {
        Some(time) if time >= Duration::from_secs(1) => Ok(time),
        Some(_) => Err("it is less than a second".into()),
        None => Err("it is no time, such as 300 (seconds), 5m, 1h30m or 7d".into()),
    }
}

/// Parses the longest life of a token, within the bounds of kube-apiserver's flag; zero for no bound.
pub(super) fn token_max(text: &str) -> Result<Duration, String> {
    const HOUR: Duration = Duration::from_secs(3600);
    if text.trim_end_matches(['s', 'm', 'h']) == "0" {
        return Ok(Duration::ZERO);
    }
    match time(text)? {
        time if (HOUR..=Duration::from_secs(1 << 32)).contains(&time) => Ok(time),
        _ => Err("it must be between 1 hour and 2^32 seconds".into()),
    }
}

/// Parses a fraction of requests, up to kube-apiserver's maximum: more would cost more connections than it spreads.
pub(super) fn goaway_chance(text: &str) -> Result<f64, String> {
    let chance: f64 = text.parse().map_err(|_| "it is no number from 0 to 0.02".to_owned())?;
    if (0.0..=0.02).contains(&chance) {
        Ok(chance)
    } else if chance.is_nan() {
        Err("it is no number from 0 to 0.02".into())
    } else {
        Err("it can not be less than 0 or greater than 0.02".into())
    }
}

/// Parses a name of a server in kubeconfigs: letters, digits and `.`, `-`, `_`, `:`.
pub(super) fn server_name(text: &str) -> Result<String, String> {
    let is_fine = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_' | b':');
    if (1..=DNS_NAME).contains(&text.len()) && text.bytes().all(is_fine) {
        return Ok(text.to_owned());
    }
    Err(format!("it is no name of at most {DNS_NAME} letters, digits, '.', '-', '_' and ':', such as prod-eu"))
}

/// Parses a name in a certificate: a DNS name, also with `*` as its first label, or an address.
pub(super) fn certificate_name(text: &str) -> Result<String, String> {
    if text.parse::<IpAddr>().is_ok() {
        return Ok(text.to_owned());
    }
    let name = text.strip_prefix("*.").unwrap_or(text);
    let has_wildcard = name.len() < text.len();
    let is_name = name.len() <= DNS_NAME && name.split('.').all(is_dns_label);
    let is_address_of_sorts = name.split('.').all(|label| label.bytes().all(|byte| byte.is_ascii_digit()));
    if is_name && !is_address_of_sorts && (!has_wildcard || name.contains('.')) {
        Ok(text.to_owned())
    } else {
        Err(format!(
            "it is no DNS name, such as plane.example.com or *.example.com, and no IP address{}",
            part_of_url(text)
        ))
    }
}

fn is_dns_label(label: &str) -> bool {
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    (1..=DNS_LABEL).contains(&label.len())
        && label.bytes().all(is_letter)
        && !label.starts_with('-')
        && !label.ends_with('-')
}

/// Returns a hint if the value has more than a name, such as a scheme.
fn part_of_url(text: &str) -> &'static str {
    if text.contains("://") || text.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok()) {
        "; without https:// and port"
    } else {
        ""
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use portolan_control_plane::HISTORY;

    #[test]
    fn times_are_seconds_or_have_units() {
        for (text, seconds) in [
            ("300", Some(300)),
            ("5m", Some(300)),
            ("300s", Some(300)),
            ("1h30m", Some(5400)),
            ("7d", Some(604_800)),
            ("99999999999999999999d", None),
            ("0", None),
            ("500ms", None),
        ] {
            assert_eq!(time(text).ok().map(|time| time.as_secs()), seconds, "{text}");
        }
        for wrong in ["", "five", "5 minutes ago", "-5m", "5x"] {
            assert!(time(wrong).is_err(), "{wrong}");
        }
        assert!(time("soon").unwrap_err().contains("1h30m or 7d") && time("0").unwrap_err().contains("a second"));
        assert_eq!(time(super::super::server::HISTORY_TIME), Ok(HISTORY.time), "what is told is the default");
    }

    #[test]
    fn names_of_servers_can_stand_in_names_of_contexts() {
        for fine in ["prod", "prod-eu.example.com", "127.0.0.1:6443", "a_b"] {
            assert_eq!(server_name(fine).as_deref(), Ok(fine));
        }
        for wrong in ["", "a b", "a@b", "a/b", "é", &"a".repeat(254)] {
            assert!(server_name(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn tokens_live_for_an_hour_at_least() {
        for (text, seconds) in
            [("24h", Some(86_400)), ("3600", Some(3600)), ("0", Some(0)), ("0s", Some(0)), ("59m", None), ("x", None)]
        {
            assert_eq!(token_max(text).ok().map(|time| time.as_secs()), seconds, "{text}");
        }
        let default = token_max(super::super::server::TOKEN_MAX_TIME);
        assert_eq!(default, Ok(portolan_apiserver::config::TOKEN_MAX), "what is told is the default");
    }

    #[test]
    fn addresses_have_a_port() {
        assert_eq!(address("[::1]:6443").unwrap().port(), 6443);
        for (wrong, words) in [
            ("nonsense", "such as 127.0.0.1:6443"),
            ("localhost:6443", "such as 127.0.0.1:6443"),
            ("10.0.0.1", "it has no port: 10.0.0.1:6443"),
            ("::1", "it has no port: [::1]:6443"),
            ("127.0.0.1:99999", "such as 127.0.0.1:6443"),
        ] {
            let told = address(wrong).unwrap_err();
            assert!(told.contains(words), "{wrong}: {told}");
        }
    }

    #[test]
    fn clients_are_sent_away_behind_one_of_fifty_requests_at_most() {
        for (text, words) in [
            ("0", None),
            ("0.001", None),
            ("0.02", None),
            ("0.021", Some("greater than 0.02")),
            ("-0.01", Some("less than 0")),
            ("NaN", Some("it is no number")),
            ("x", Some("it is no number")),
        ] {
            let told = goaway_chance(text).err();
            assert_eq!(told.is_some(), words.is_some(), "{text}: {told:?}");
            assert!(words.is_none_or(|words| told.is_some_and(|told| told.contains(words))), "{text}");
        }
    }

    #[test]
    fn names_in_certificates_are_dns_names_and_addresses() {
        for fine in
            ["plane.example.com", "localhost", "*.example.com", "10.0.0.1", "::1", "A-1.Example.COM", "1and1.com"]
        {
            assert_eq!(certificate_name(fine).as_deref(), Ok(fine));
        }
        let long = "a".repeat(64);
        for wrong in [
            "",
            "*",
            "*.",
            "*.com",
            "a.*.com",
            "a_b.com",
            "-a.com",
            "a..b",
            "a.com.",
            "hello world",
            "10.0.0.999",
            &long,
            "1.2.3",
        ] {
            assert!(certificate_name(wrong).is_err(), "{wrong}");
        }
        for more in ["https://plane.example.com", "plane.example.com:6443"] {
            assert!(certificate_name(more).unwrap_err().contains("without https:// and port"), "{more}");
        }
    }

    #[test]
    fn a_memory_store_is_not_offered_for_a_restore() {
        #[derive(clap::Parser)]
        struct Line {
            #[arg(long, value_parser = lasting_store())]
            store: ServerStore,
        }
        let parsed =
            |name: &str| <Line as clap::Parser>::try_parse_from(["restore", "--store", name]).map(|line| line.store);
        assert_eq!(parsed("sled").ok(), Some(ServerStore::Sled));
        let refused = parsed("memory").unwrap_err().to_string();
        assert!(refused.contains("[possible values: redb, sled, etcd]"), "{refused}");
    }
}
