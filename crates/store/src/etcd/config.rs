//! Connection settings for etcd.

use std::{fmt, time::Duration};

use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity};

/// Secret text, such as a password, that is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretString(pub String);

impl fmt::Debug for SecretString {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("<hidden>")
    }
}

/// Configuration of the connection to etcd.
#[derive(Clone, Debug)]
pub struct EtcdConfig {
    /// URLs of the members, `http` or `https`. One is used at a time; the next one after a failure.
    pub endpoints: Vec<String>,
    /// Prefix of all keys, so that several stores and other users can share one etcd.
    pub prefix: String,
    /// PEM of the CA certificates that are trusted for members. Without it `https` trusts none.
    pub ca: Option<String>,
    /// PEM of the client's certificate and of its key.
    pub identity: Option<(String, SecretString)>,
    /// User name and password, if etcd requires them.
    pub user: Option<(String, SecretString)>,
}

impl EtcdConfig {
    /// Configures these endpoints with the prefix `/portolan/`.
    pub fn new(endpoints: Vec<String>) -> Self {
        Self { endpoints, prefix: "/portolan/".into(), ca: None, identity: None, user: None }
    }

    /// Returns the endpoints to connect to.
    ///
    /// # Errors
    /// Describes an invalid URL or certificate.
    pub(super) fn channels(&self) -> Result<Vec<Endpoint>, String> {
        if self.endpoints.is_empty() {
            return Err("no endpoint of etcd is given".into());
        }
        self.endpoints.iter().map(|url| self.endpoint(url)).collect()
    }

    fn endpoint(&self, url: &str) -> Result<Endpoint, String> {
        let failed = |error: tonic::transport::Error| format!("endpoint {url}: {}", causes(&error));
        let endpoint = Endpoint::from_shared(url.to_owned()).map_err(failed)?;
        let endpoint = endpoint
            .connect_timeout(Duration::from_secs(3))
            .tcp_nodelay(true)
            .http2_keep_alive_interval(Duration::from_secs(2))
            .keep_alive_timeout(Duration::from_secs(3))
            .keep_alive_while_idle(true)
            .initial_stream_window_size(4 << 20)
            .initial_connection_window_size(16 << 20);
        if !url.starts_with("https://") {
            return Ok(endpoint);
        }
        let mut tls = ClientTlsConfig::new();
        if let Some(ca) = &self.ca {
            tls = tls.ca_certificate(Certificate::from_pem(ca));
        }
        if let Some((certificate, key)) = &self.identity {
            tls = tls.identity(Identity::from_pem(certificate, &key.0));
        }
        endpoint.tls_config(tls).map_err(failed)
    }
}

/// Formats an error with its sources, each once.
pub(super) fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.ends_with(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_urls_and_secrets_stay_hidden() {
        let mut config = EtcdConfig::new(vec!["http://127.0.0.1:2379".into(), "not a url".into()]);
        assert!(config.channels().unwrap_err().starts_with("endpoint not a url"));
        config.endpoints.pop();
        assert_eq!(config.channels().unwrap().len(), 1);
        config.user = Some(("root".into(), SecretString("s3cret".into())));
        assert!(!format!("{config:?}").contains("s3cret"));
        assert!(EtcdConfig::new(Vec::new()).channels().is_err());
    }
}
