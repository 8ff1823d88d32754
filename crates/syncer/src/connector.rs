//! Connector to a physical cluster. Only this module knows the kind of the connection.

use std::time::Duration;

use hyper::body::Incoming;
use hyper_util::{
    client::legacy::{Client as HttpClient, connect::HttpConnector},
    rt::TokioExecutor,
};
use kube::{
    Client, Config,
    client::{Body, ConfigExt as _},
    config::{AuthInfo, Cluster, KubeConfigOptions, Kubeconfig},
};
use portolan_types::BoxFuture;
use tower::{BoxError, ServiceBuilder, util::BoxCloneSyncService};

use crate::{
    access::{AccessError, AccessService, AccessTokens},
    addresses::{Addresses, Resolver},
};

/// Largest kubeconfig, in bytes.
const MAX_KUBECONFIG: usize = 256 * 1024;
/// Deadline of making a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Interval of keepalive probes on a silent connection.
const KEEPALIVE: Duration = Duration::from_secs(30);
const KEEPALIVE_RETRIES: u32 = 3;
/// Maximum number of idle connections.
const MAX_IDLE: usize = 32;

/// Service that sends requests over connections of [`DirectConnector`].
type DirectService = BoxCloneSyncService<http::Request<Body>, http::Response<Incoming>, BoxError>;

/// Reason that there is no client.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The configuration of the connection cannot be used. A retry does not help.
    #[error("the connection cannot be used: {0}")]
    Refused(String),
    /// The connection failed this time.
    #[error("cannot connect: {0}")]
    Failed(String),
}

/// Maker of clients of one physical cluster.
pub trait Connector: Send + Sync {
    /// Makes a client. It is called again after the last one stopped answering.
    ///
    /// # Errors
    /// [`ConnectError`]; it proves nothing about what is on the physical cluster.
    fn connect(&self) -> BoxFuture<'_, Result<Client, ConnectError>>;

    /// Makes a client of the account that users' requests are proxied by. It may impersonate mapped users and groups
    /// only, and is another than the syncer's.
    ///
    /// # Errors
    /// [`ConnectError`], also when the physical cluster was joined without such an account.
    fn connect_for_users(&self) -> BoxFuture<'_, Result<Client, ConnectError>> {
        Box::pin(std::future::ready(Err(refused(AccessError::Missing.to_string()))))
    }

    /// Makes a client without an account, for requests that have the own token of a user.
    ///
    /// # Errors
    /// [`ConnectError`], also for a connection that always has an account.
    fn connect_without_account(&self) -> BoxFuture<'_, Result<Client, ConnectError>> {
        let why = "its connection cannot carry the token of a user";
        Box::pin(std::future::ready(Err(ConnectError::Refused(why.into()))))
    }

    /// Returns the host, and the port if one is named, by which the API server is reached; `None` without an address.
    fn host(&self) -> Option<String> {
        None
    }
}

/// Reaches an API server by a kubeconfig that says everything itself: nothing is read from files or the environment,
/// nothing is run, the server must show a certificate of the named authority and have an address that is allowed, and
/// redirects are not followed.
pub struct DirectConnector {
    kubeconfig: Kubeconfig,
    addresses: Addresses,
}

impl DirectConnector {
    /// Checks the text of a kubeconfig. It comes from a Secret that users write, so it must not make the server read
    /// its files or run programs.
    ///
    /// # Errors
    /// `Refused`, with the field that is in the way.
    pub fn from_kubeconfig(text: &str, addresses: Addresses) -> Result<Self, ConnectError> {
        if text.len() > MAX_KUBECONFIG {
            return Err(refused(format!("it is longer than {MAX_KUBECONFIG} bytes")));
        }
        let kubeconfig = Kubeconfig::from_yaml(text).map_err(|_| refused("it is no kubeconfig in YAML or JSON"))?;
        check(&kubeconfig, addresses)?;
        Ok(Self { kubeconfig, addresses })
    }

    async fn config(&self) -> Result<Config, ConnectError> {
        let options = KubeConfigOptions::default();
        let config = Config::from_custom_kubeconfig(self.kubeconfig.clone(), &options).await;
        let mut config = config.map_err(|error| refused(error.to_string()))?;
        config.proxy_url = None; // the environment may name one
        Ok(config)
    }

    async fn client(&self) -> Result<Client, ConnectError> {
        let config = self.config().await?;
        let service = self.service_of(&config).map_err(|error| refused(error.to_string()))?;
        Ok(Client::new(service, config.default_namespace))
    }

    async fn client_without_account(&self) -> Result<Client, ConnectError> {
        let mut config = self.config().await?;
        config.auth_info = AuthInfo::default();
        let service = self.service_of(&config).map_err(|error| refused(error.to_string()))?;
        Ok(Client::new(service, config.default_namespace))
    }

    async fn client_for_users(&self) -> Result<Client, ConnectError> {
        let tokens = AccessTokens::new(self.client().await?);
        tokens.bearer().await.map_err(|error| match error {
            AccessError::Missing => refused(error.to_string()),
            AccessError::Failed(why) => ConnectError::Failed(why),
        })?;
        let mut config = self.config().await?;
        // A client certificate would win over the token.
        config.auth_info = AuthInfo::default();
        let service = self.service_of(&config).map_err(|error| refused(error.to_string()))?;
        Ok(Client::new(AccessService::new(service, tokens), config.default_namespace))
    }

    /// Builds the service as kube does, with two differences: addresses are checked, and a failed request logs no line.
    /// The worker logs each change of the connection once.
    fn service_of(&self, config: &Config) -> kube::Result<DirectService> {
        let mut tcp = HttpConnector::new_with_resolver(Resolver(self.addresses));
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(CONNECT_TIMEOUT));
        // If a machine disappears silently, its requests end: a stream may be idle for hours.
        tcp.set_keepalive(Some(KEEPALIVE));
        tcp.set_keepalive_interval(Some(KEEPALIVE));
        tcp.set_keepalive_retries(Some(KEEPALIVE_RETRIES));
        let tls = config.rustls_https_connector_with_connector(tcp)?;
        let http: HttpClient<_, Body> =
            HttpClient::builder(TokioExecutor::new()).pool_max_idle_per_host(MAX_IDLE).build(tls);
        let service = ServiceBuilder::new()
            .layer(config.base_uri_layer())
            .option_layer(config.auth_layer()?)
            .layer(config.extra_headers_layer()?)
            .map_err(BoxError::from)
            .service(http);
        Ok(BoxCloneSyncService::new(service))
    }
}

impl Connector for DirectConnector {
    fn connect(&self) -> BoxFuture<'_, Result<Client, ConnectError>> {
        Box::pin(self.client())
    }

    fn connect_for_users(&self) -> BoxFuture<'_, Result<Client, ConnectError>> {
        Box::pin(self.client_for_users())
    }

    fn connect_without_account(&self) -> BoxFuture<'_, Result<Client, ConnectError>> {
        Box::pin(self.client_without_account())
    }

    fn host(&self) -> Option<String> {
        let current = self.kubeconfig.current_context.as_deref().unwrap_or_default();
        let context = self.kubeconfig.contexts.iter().find(|c| c.name == current).and_then(|c| c.context.as_ref())?;
        let cluster = self.kubeconfig.clusters.iter().find(|c| c.name == context.cluster)?.cluster.as_ref()?;
        let server = cluster.server.as_deref()?.parse::<http::Uri>().ok()?;
        server.authority().map(|authority| authority.as_str().rsplit('@').next().unwrap_or_default().to_owned())
    }
}

fn refused(why: impl Into<String>) -> ConnectError {
    ConnectError::Refused(why.into())
}

fn check(kubeconfig: &Kubeconfig, addresses: Addresses) -> Result<(), ConnectError> {
    let current = kubeconfig.current_context.as_deref().unwrap_or_default();
    let context = kubeconfig.contexts.iter().find(|c| c.name == current).and_then(|c| c.context.as_ref());
    let Some(context) = context else { return Err(refused("current-context names none of its contexts")) };
    let cluster = kubeconfig.clusters.iter().find(|c| c.name == context.cluster).and_then(|c| c.cluster.as_ref());
    if cluster.is_none() {
        return Err(refused("the current context names none of its clusters"));
    }
    kubeconfig.clusters.iter().filter_map(|c| c.cluster.as_ref()).try_for_each(|c| check_cluster(c, addresses))?;
    kubeconfig.auth_infos.iter().filter_map(|u| u.auth_info.as_ref()).try_for_each(check_user)
}

fn check_cluster(cluster: &Cluster, addresses: Addresses) -> Result<(), ConnectError> {
    let present = [
        (
            cluster.insecure_skip_tls_verify == Some(true),
            "insecure-skip-tls-verify: the server's certificate is always checked",
        ),
        (
            cluster.certificate_authority.is_some(),
            "certificate-authority is a file path; use certificate-authority-data",
        ),
        (cluster.proxy_url.is_some(), "proxy-url is not supported"),
    ];
    first_present(&present)?;
    let server = cluster.server.as_deref().and_then(|server| server.parse::<http::Uri>().ok());
    let server = server.filter(|server| server.scheme_str() == Some("https"));
    let Some(host) = server.as_ref().and_then(http::Uri::host) else {
        return Err(refused("server must be an https:// URL"));
    };
    addresses.check_host(host).map_err(|why| refused(format!("server: {why}")))?;
    match cluster.certificate_authority_data.as_deref() {
        None | Some("") => {
            Err(refused("certificate-authority-data is missing: the server's certificate is checked against it"))
        }
        Some(_) => Ok(()),
    }
}

fn check_user(user: &AuthInfo) -> Result<(), ConnectError> {
    first_present(&[
        (user.exec.is_some(), "exec would run a program here; use a token or a client certificate"),
        (user.auth_provider.is_some(), "auth-provider is not supported; use a token or a client certificate"),
        (user.token_file.is_some(), "tokenFile is a file path; use token"),
        (user.client_certificate.is_some(), "client-certificate is a file path; use client-certificate-data"),
        (user.client_key.is_some(), "client-key is a file path; use client-key-data"),
    ])
}

fn first_present(fields: &[(bool, &str)]) -> Result<(), ConnectError> {
    match fields.iter().find(|(present, _)| *present) {
        Some((_, why)) => Err(refused(*why)),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kubeconfig(cluster: &str, user: &str) -> String {
        format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{{name: c, context: {{cluster: k, user: u}}}}]\n\
             clusters: [{{name: k, cluster: {{{cluster}}}}}]\nusers: [{{name: u, user: {{{user}}}}}]\n"
        )
    }

    #[test]
    fn only_inline_credentials_are_accepted() {
        const GOOD: &str = "server: 'https://10.0.0.1:6443', certificate-authority-data: QUJD";
        for (cluster, user, expected) in [
            (GOOD, "token: secret", ""),
            (GOOD, "client-certificate-data: QUJD, client-key-data: QUJD", ""),
            (GOOD, "exec: {command: /bin/sh, apiVersion: client.authentication.k8s.io/v1}", "exec would run"),
            (GOOD, "auth-provider: {name: gcp}", "auth-provider"),
            (GOOD, "tokenFile: /etc/shadow", "tokenFile"),
            (GOOD, "client-certificate: /a, client-key: /b", "client-certificate is a file"),
            (GOOD, "client-key: /b", "client-key is a file"),
            ("server: 'https://a', certificate-authority: /ca.crt", "token: x", "certificate-authority is a file"),
            ("server: 'https://a', insecure-skip-tls-verify: true", "token: x", "insecure-skip-tls-verify"),
            ("server: 'https://a', certificate-authority-data: QUJD, proxy-url: 'http://p'", "token: x", "proxy-url"),
            ("server: 'https://a'", "token: x", "certificate-authority-data is missing"),
            ("server: 'http://a', certificate-authority-data: QUJD", "token: x", "https://"),
        ] {
            let addresses = Addresses { allow_private: true, allow_loopback: false };
            let answer = DirectConnector::from_kubeconfig(&kubeconfig(cluster, user), addresses);
            match (expected, answer) {
                ("", answer) => assert!(answer.is_ok(), "{cluster} {user}"),
                (_, Ok(_)) => panic!("{cluster} {user} was taken"),
                (text, Err(error)) => assert!(error.to_string().contains(text), "{error}"),
            }
        }
    }

    #[test]
    fn a_kubeconfig_that_is_none_is_refused() {
        let text = kubeconfig("server: 'https://a', certificate-authority-data: QUJD", "token: x");
        for text in [
            "",
            "[",
            "just text",
            &text.replace("current-context: c", ""),
            &text.replace("name: k", "name: l"),
            &" ".repeat(300_000),
        ] {
            assert!(matches!(
                DirectConnector::from_kubeconfig(text, Addresses::default()),
                Err(ConnectError::Refused(_))
            ));
        }
    }

    #[test]
    fn a_server_at_an_address_that_is_not_allowed_is_refused() {
        for (server, allow_loopback, expected) in [
            ("127.0.0.1:6443", false, "this machine itself"),
            ("127.0.0.1:6443", true, ""),
            ("[::1]:6443", false, "this machine itself"),
            ("169.254.169.254", true, "link-local"),
            ("user@169.254.169.254", true, "link-local"),
            ("10.0.0.1:6443", false, ""),
        ] {
            let cluster = format!("server: 'https://{server}', certificate-authority-data: QUJD");
            let text = kubeconfig(&cluster, "token: x");
            let why = DirectConnector::from_kubeconfig(&text, Addresses { allow_private: true, allow_loopback }).err();
            let why = why.map(|error| error.to_string()).unwrap_or_default();
            assert!(why.contains(expected) && why.is_empty() == expected.is_empty(), "{server}: {why}");
        }
    }
}
