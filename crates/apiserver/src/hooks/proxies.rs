//! Requests that are proxied into physical clusters.

use std::sync::Arc;

use bytes::Bytes;
use portolan_strategy::rbac::User;
use serde_json::Value;

use crate::{directory::LogicalCluster, requester::UserToken};

use super::StreamPermit;

/// Authorized request for the `proxy` subresource.
pub struct ProxyRequest {
    /// Logical cluster of the target.
    pub cluster: Arc<LogicalCluster>,
    /// Target.
    pub target: ProxyTarget,
    /// Requesting user.
    pub user: User,
    /// Own token of the user, which may be forwarded with consent.
    pub token: Option<UserToken>,
    /// HTTP request. Its URI is the path on the target; its extensions hold the connection's upgrade. Credentials are
    /// removed.
    pub request: http::Request<Bytes>,
    /// Permit to hold while bytes flow.
    pub permit: StreamPermit,
}

/// Target of a proxied request.
pub enum ProxyTarget {
    /// API server of a `PhysicalCluster`, as stored.
    PhysicalCluster(Value),
    /// Port of a Pod or Service, as stored.
    Workload {
        /// Pod or Service.
        object: Value,
        /// Port on it.
        endpoint: ProxyEndpoint,
    },
}

/// Port of a pod or service, as `[<scheme>:]<name>[:<port>]` in a URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProxyEndpoint {
    /// `http`, `https` or empty for the default.
    pub scheme: &'static str,
    /// Name of the object.
    pub name: String,
    /// Number or name of the port; empty for the first.
    pub port: String,
}

impl ProxyEndpoint {
    /// Parses the name in a URL; `None` if it is malformed.
    pub fn parse(text: &str) -> Option<Self> {
        let parts: Vec<&str> = text.split(':').collect();
        let (scheme, name, port) = match *parts {
            [name] => ("", name, ""),
            [name, port] => ("", name, port),
            ["", name, port] => ("", name, port),
            ["http", name, port] => ("http", name, port),
            ["https", name, port] => ("https", name, port),
            _ => return None,
        };
        let is_port = |c: char| c.is_ascii_alphanumeric() || c == '-';
        let is_valid = !name.is_empty() && port.len() <= 63 && port.chars().all(is_port);
        is_valid.then(|| Self { scheme, name: name.to_owned(), port: port.to_owned() })
    }

    /// Returns the endpoint of another name, as a segment of a URL.
    pub fn segment_of(&self, name: &str) -> String {
        match (self.scheme, self.port.as_str()) {
            ("", "") => name.to_owned(),
            ("", port) => format!("{name}:{port}"),
            (scheme, port) => format!("{scheme}:{name}:{port}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_in_urls() {
        for (text, expected) in [
            ("web", Some("web")),
            ("web:80", Some("web:80")),
            ("web:http", Some("web:http")),
            ("https:web:443", Some("https:web:443")),
            ("https:web:", Some("https:web:")),
            (":web:80", Some("web:80")),
            ("ftp:web:21", None),
            ("a:b:c:d", None),
            (":80", None),
            ("web:80/..", None),
            ("", None),
        ] {
            let parsed = ProxyEndpoint::parse(text).map(|endpoint| endpoint.segment_of("web"));
            assert_eq!(parsed.as_deref(), expected, "{text}");
        }
    }
}
