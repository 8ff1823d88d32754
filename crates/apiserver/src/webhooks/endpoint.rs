//! Endpoint of a webhook, from its `clientConfig`.

use std::{borrow::Cow, sync::Arc};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use http::{Request, Response};
use hyper::body::Incoming;
use portolan_types::LogicalClusterId;
use serde_json::Value;

use super::{
    WebhookContext,
    client::{WebhookAddress, WebhookRequestBody, WebhookResponse, with_timeout},
    service::WebhookService,
};
use crate::front_proxy::ProxyIdentity;

const HTTPS: u16 = 443;

/// Endpoint of a webhook (`clientConfig`).
#[derive(Clone, Debug)]
pub(crate) struct WebhookEndpoint {
    target: EndpointTarget,
    /// Certificates in PEM that the server's must chain to; empty for the system's.
    ca_bundle: Arc<[u8]>,
}

/// Request for another API server.
pub(crate) struct ForwardedRequest<'a> {
    /// Logical cluster that names the server.
    pub(crate) cluster: LogicalClusterId,
    /// Path and query, which come after the path of the endpoint.
    pub(crate) path: &'a str,
    pub(crate) request: Request<Bytes>,
    /// Certificate of this server.
    pub(crate) identity: Option<&'a ProxyIdentity>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum EndpointTarget {
    Url(String),
    /// The path begins with a slash.
    Service {
        namespace: String,
        name: String,
        path: String,
        port: u16,
    },
}

impl WebhookEndpoint {
    /// Parses a `clientConfig`.
    pub(crate) fn of(client_config: &Value) -> Self {
        let bundle = STANDARD.decode(text(client_config, "caBundle")).unwrap_or_default();
        let is_blank = bundle.iter().all(u8::is_ascii_whitespace);
        Self {
            target: EndpointTarget::of(client_config),
            ca_bundle: if is_blank { Arc::default() } else { bundle.into() },
        }
    }

    /// Posts a review and parses the response, whose size is bounded; `name` is the kind of the review.
    ///
    /// # Errors
    /// The failure as Go's client words it, without any text from the server.
    pub(crate) async fn post_and_parse(
        &self,
        webhooks: &WebhookContext,
        cluster: LogicalClusterId,
        call: WebhookRequestBody,
        name: &str,
    ) -> Result<Value, String> {
        let answer = self.post(webhooks, cluster, call).await?;
        // The response is not quoted: the client may not be allowed to see it.
        serde_json::from_slice(&answer.body).map_err(|_| format!("the response is not an {name} in JSON"))
    }

    /// Posts a review as [`WebhookEndpoint::post_and_parse`] does, and returns the response unparsed.
    ///
    /// # Errors
    /// The errors of [`WebhookEndpoint::post_and_parse`].
    pub(crate) async fn post(
        &self,
        webhooks: &WebhookContext,
        cluster: LogicalClusterId,
        call: WebhookRequestBody,
    ) -> Result<WebhookResponse, String> {
        let EndpointAddress { url, service } = self.address(webhooks, cluster);
        let unfound = |name: &str| format!("Post {:?}: service {name:?} not found", with_timeout(&url, call.timeout));
        let service = service.map_err(unfound)?;
        let address = WebhookAddress { url: &url, service, ca_bundle: &self.ca_bundle, identity: None };
        webhooks.clients.post(cluster, address, call).await
    }

    /// Sends a request to another API server. The answer is returned as it arrives.
    ///
    /// # Errors
    /// The failure as Go's client words it, without any text from the server.
    pub(crate) async fn send(
        &self,
        webhooks: &WebhookContext,
        forwarded: ForwardedRequest<'_>,
    ) -> Result<Response<Incoming>, String> {
        let ForwardedRequest { cluster, path, request, identity } = forwarded;
        let EndpointAddress { url, service } = self.address(webhooks, cluster);
        let service = service.map_err(|name| format!("service {name:?} not found"))?;
        let url = format!("{}{path}", url.trim_end_matches('/'));
        let address = WebhookAddress { url: &url, service, ca_bundle: &self.ca_bundle, identity };
        webhooks.clients.send(cluster, address, request).await
    }

    /// Returns the URL, and the Service that it means.
    fn address(&self, webhooks: &WebhookContext, cluster: LogicalClusterId) -> EndpointAddress<'_> {
        match &self.target {
            EndpointTarget::Url(url) => EndpointAddress { url: Cow::Borrowed(url), service: Ok(None) },
            EndpointTarget::Service { namespace, name, path, port } => {
                let url = Cow::Owned(format!("https://{name}.{namespace}.svc:{port}{path}"));
                let service = webhooks.services.service(cluster, namespace, name);
                EndpointAddress { url, service: service.map(Some).ok_or(name) }
            }
        }
    }
}

/// Address of an endpoint.
struct EndpointAddress<'a> {
    url: Cow<'a, str>,
    /// Service that the URL means, if one; the error is the name of a Service that does not exist.
    service: Result<Option<WebhookService>, &'a str>,
}

impl EndpointTarget {
    fn of(client_config: &Value) -> Self {
        match client_config.get("service").filter(|service| !service.is_null()) {
            None => Self::Url(with_clean_path(text(client_config, "url"))),
            Some(service) => Self::Service {
                namespace: text(service, "namespace").to_owned(),
                name: text(service, "name").to_owned(),
                path: cleaned(text(service, "path")),
                port: service.get("port").and_then(Value::as_u64).and_then(|p| u16::try_from(p).ok()).unwrap_or(HTTPS),
            },
        }
    }
}

/// Normalizes a URL as kube-apiserver does. It has neither a query nor a fragment.
fn with_clean_path(url: &str) -> String {
    let Some(host) = url.find("://").map(|at| at + "://".len()) else { return url.to_owned() };
    let path = url[host..].find('/').map_or(url.len(), |at| host + at);
    format!("{}{}", &url[..path], cleaned(&url[path..]))
}

/// Cleans a path like Go's `path.Join("/", path)`, so that configurations written for kube-apiserver mean the same.
fn cleaned(path: &str) -> String {
    let mut parts = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    format!("/{}", parts.join("/"))
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value.get(key).and_then(Value::as_str).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_cleaned_as_go_cleans_them() {
        for (url, expected) in [
            ("https://127.0.0.1:9443//failing", "https://127.0.0.1:9443/failing"),
            ("https://hooks.example.com", "https://hooks.example.com/"),
            ("https://hooks.example.com/", "https://hooks.example.com/"),
            ("https://hooks.example.com/a/", "https://hooks.example.com/a"),
            ("https://[::1]/a/./b/../c//d", "https://[::1]/a/c/d"),
            ("https://hooks.example.com/../../a", "https://hooks.example.com/a"),
            ("https://hooks.example.com/a%2Fb", "https://hooks.example.com/a%2Fb"),
            ("no URL", "no URL"),
        ] {
            assert_eq!(with_clean_path(url), expected);
        }
        for (path, expected) in [("", "/"), ("a", "/a"), ("//a/", "/a")] {
            assert_eq!(cleaned(path), expected);
        }
    }
}
