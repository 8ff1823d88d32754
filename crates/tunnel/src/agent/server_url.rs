//! Address of the server.

use std::{fmt, str::FromStr};

use http::Uri;

/// Port, if the URL names none.
const HTTPS: u16 = 443;

/// Address of the server: `https://host[:port]`. A path, such as that of a workspace, is ignored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerUrl {
    /// Name or address, without brackets.
    pub host: String,
    /// Port.
    pub port: u16,
}

/// Text that is not a URL of a server.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the address of a server is https://<host>[:<port>]")]
pub struct InvalidServerUrl;

impl FromStr for ServerUrl {
    type Err = InvalidServerUrl;

    fn from_str(text: &str) -> Result<Self, InvalidServerUrl> {
        let uri: Uri = text.parse().map_err(|_| InvalidServerUrl)?;
        let host = uri.host().filter(|host| !host.is_empty() && uri.scheme_str() == Some("https"));
        let host = host.ok_or(InvalidServerUrl)?.trim_start_matches('[').trim_end_matches(']').to_owned();
        if uri.authority().is_some_and(|authority| authority.as_str().contains('@')) {
            return Err(InvalidServerUrl);
        }
        Ok(Self { host, port: uri.port_u16().unwrap_or(HTTPS) })
    }
}

impl ServerUrl {
    /// Returns the URL of a path on the server.
    pub(super) fn at(&self, path: &'static str) -> Result<Uri, http::Error> {
        let host = if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() };
        Uri::builder().scheme("https").authority(format!("{host}:{}", self.port)).path_and_query(path).build()
    }
}

impl fmt::Display for ServerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "https://[{}]:{}", self.host, self.port)
        } else {
            write!(f, "https://{}:{}", self.host, self.port)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_servers() {
        for (text, expected) in [
            ("https://portolan.example.com", Some("https://portolan.example.com:443")),
            ("https://10.0.0.1:6443/clusters/root", Some("https://10.0.0.1:6443")),
            ("https://[::1]:6443", Some("https://[::1]:6443")),
            ("http://portolan.example.com", None),
            ("https://user@portolan.example.com", None),
            ("portolan.example.com:6443", None),
            ("https://", None),
            ("", None),
        ] {
            let parsed = text.parse::<ServerUrl>().ok();
            assert_eq!(parsed.as_ref().map(ToString::to_string).as_deref(), expected, "{text}");
            if let Some(url) = parsed {
                assert_eq!(url.at("/x").unwrap().to_string(), format!("{url}/x"));
            }
        }
    }
}
