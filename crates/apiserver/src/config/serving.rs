//! Configuration of the TLS floor, and of the URL that clients use.

use std::{fmt, path::PathBuf, str::FromStr};

use http::{Uri, uri::Authority};

/// Certificate of the administrator, and the TLS versions and cipher suites that are served.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServingConfig {
    /// Certificate chain and key, PEM. It is presented for the names that it has, except those of `tls_sans`.
    pub files: Option<CertificateFiles>,
    /// True to refuse TLS 1.2.
    pub only_tls13: bool,
    /// Names of the cipher suites of TLS 1.2 that are served; all safe ones if empty.
    pub cipher_suites: Vec<String>,
    /// URL at which clients reach the server, perhaps through a load balancer; its own address if unset.
    pub external_url: Option<ExternalUrl>,
}

/// URL at which clients reach the server, such as `https://portolan.example.com:6443`: `https`, a host, and a port
/// unless it is 443.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExternalUrl(Authority);

impl ExternalUrl {
    /// Returns the host and the port, if it has one.
    pub fn authority(&self) -> &str {
        self.0.as_str()
    }

    /// Returns the DNS name or address, without the brackets of an IPv6 address.
    pub fn host(&self) -> &str {
        self.0.host().trim_start_matches('[').trim_end_matches(']')
    }
}

impl FromStr for ExternalUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let uri: Uri = text.parse().map_err(|error| format!("it is no URL: {error}"))?;
        if uri.scheme_str() != Some("https") {
            return Err("it must begin with https://".into());
        }
        // Clients of kcp replace the path, so the server has to be at the root of the host.
        if !matches!(uri.path_and_query().map_or("/", |rest| rest.as_str()), "" | "/") {
            return Err("it must have no path and no query".into());
        }
        let authority = uri.into_parts().authority.ok_or("it has no host")?;
        if authority.as_str().contains('@') || authority.host().is_empty() {
            return Err("it must have a host, and no user".into());
        }
        Ok(Self(authority))
    }
}

impl fmt::Display for ExternalUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "https://{}", self.0)
    }
}

/// Files of a certificate chain and its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateFiles {
    /// Certificate chain.
    pub certificate: PathBuf,
    /// Private key.
    pub key: PathBuf,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_external_url_is_https_and_a_host() {
        for (text, expected) in [
            ("https://a.example.com", Ok(("https://a.example.com", "a.example.com"))),
            ("https://a.example.com:8443/", Ok(("https://a.example.com:8443", "a.example.com"))),
            ("https://[fd00::1]:6443", Ok(("https://[fd00::1]:6443", "fd00::1"))),
            ("http://a.example.com", Err("it must begin with https://")),
            ("a.example.com", Err("it must begin with https://")),
            ("https://a.example.com/kcp", Err("it must have no path and no query")),
            ("https://a.example.com?x=1", Err("it must have no path and no query")),
            ("https://ann@a.example.com", Err("it must have a host, and no user")),
        ] {
            let parsed = text.parse::<ExternalUrl>();
            let found = parsed.as_ref().map(|url| (url.to_string(), url.host().to_owned()));
            let expected = expected.map(|(url, host)| (url.to_owned(), host.to_owned()));
            assert_eq!(found.map_err(String::as_str), expected, "{text}");
        }
    }
}
