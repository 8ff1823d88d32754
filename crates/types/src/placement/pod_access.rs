//! Access of placed pods to the control plane.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

/// Lifetime of a pod's token when the physical cluster sets none: an hour.
const TOKEN_SECONDS: i64 = 3600;

/// Access that the pods on a physical cluster have to the API of their logical cluster, and to its names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodAccess {
    /// True if pods keep the view of the physical cluster, without a token.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub disabled: bool,
    /// Address of Portolan's API server for pods, as `https://portolan.example:6443`. Empty: that of the agent, if it
    /// serves pods.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub server: String,
    /// IP address of the DNS responder. Empty: that of the Service `portolan/portolan-dns`, if there is one.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub dns: String,
    /// Lifetime of the tokens of pods, from 60 to 86400 seconds; an hour if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_seconds: Option<i64>,
}

impl PodAccess {
    /// Shortest and longest lifetime of a token, in seconds.
    pub const TOKEN_BOUNDS: std::ops::RangeInclusive<i64> = 60..=86_400;

    /// Returns host and port of [`Self::server`].
    ///
    /// # Errors
    /// The rule that the address breaks.
    pub fn server_address(&self) -> Result<(String, u16), &'static str> {
        let rest = self.server.strip_prefix("https://").ok_or("must start with https://")?;
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        let (host, port) = match rest.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((host, "")) => (host, None),
            Some((host, port)) => (host, Some(port.strip_prefix(':').ok_or("must be https://<host>:<port>")?)),
            None => rest.split_once(':').map_or((rest, None), |(host, port)| (host, Some(port))),
        };
        let is_name = |host: &str| {
            let is_allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte);
            !host.is_empty() && host.len() <= 253 && host.bytes().all(is_allowed)
        };
        if !is_name(host) && host.parse::<IpAddr>().is_err() {
            return Err("must name a host, without path and user");
        }
        let port = port.map_or(Ok(443), str::parse).map_err(|_| "must have a port from 1 to 65535")?;
        if port == 0 { Err("must have a port from 1 to 65535") } else { Ok((host.to_owned(), port)) }
    }

    /// Returns the lifetime of tokens in seconds, within bounds.
    pub fn token_lifetime(&self) -> i64 {
        let asked = self.token_seconds.unwrap_or(TOKEN_SECONDS);
        asked.clamp(*Self::TOKEN_BOUNDS.start(), *Self::TOKEN_BOUNDS.end())
    }
}

/// View that a policy chooses for pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PodView {
    /// API, token, names and namespace of the logical cluster.
    Logical,
    /// View of the physical cluster, without a token.
    Physical,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_the_server() {
        let parse = |text: &str| PodAccess { server: text.into(), ..PodAccess::default() }.server_address();
        for (case, text, expected) in [
            ("a name with a port", "https://portolan.example:6443", Some(("portolan.example", 6443))),
            ("443 without one", "https://portolan.example", Some(("portolan.example", 443))),
            ("an address, and a slash at the end", "https://10.0.0.1:6443/", Some(("10.0.0.1", 6443))),
            ("an IPv6 address", "https://[fd00::1]:6443", Some(("fd00::1", 6443))),
            ("no TLS", "http://portolan.example", None),
            ("a path", "https://portolan.example/clusters", None),
            ("a user", "https://me@portolan.example", None),
            ("no host", "https://:6443", None),
            ("an invalid port", "https://a:70000", None),
            ("port 0", "https://a:0", None),
            ("junk after the brackets", "https://[fd00::1]6443", None),
        ] {
            let expected = expected.map(|(host, port)| (host.to_owned(), port));
            assert_eq!(parse(text).ok(), expected, "{case}");
        }
    }

    #[test]
    fn lifetimes_are_within_bounds() {
        for (asked, expected) in [(None, 3600), (Some(120), 120), (Some(1), 60), (Some(i64::MAX), 86_400)] {
            assert_eq!(PodAccess { token_seconds: asked, ..PodAccess::default() }.token_lifetime(), expected);
        }
    }
}
