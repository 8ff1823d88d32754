//! HTTPS client for webhooks: allowed addresses only, no redirects, bounded responses.

mod connector;
#[cfg(test)]
mod tests;

use std::{
    collections::{HashMap, VecDeque},
    convert::Infallible,
    error::Error,
    net::SocketAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response, StatusCode, Uri, header};
use http_body::{Body, Frame, SizeHint};
use http_body_util::{BodyExt as _, Limited};
use hyper::body::Incoming;
use hyper_util::{
    client::legacy::Client,
    rt::{TokioExecutor, TokioTimer},
};
use parking_lot::Mutex;
use portolan_types::{LogicalClusterId, ObjectKey, addresses::Locality};
use sha2::{Digest as _, Sha256};
use tokio::sync::Semaphore;

use super::{resolver::TenantResolver, service::WebhookService, trust};
use crate::front_proxy::ProxyIdentity;

pub(crate) use connector::CheckedAddresses;
use connector::ConnectError;
pub(super) use connector::{DialTarget, WebhookConnector};

/// Size limit of a response, in bytes.
const MAX_ANSWER: usize = 3 * 1024 * 1024;
/// Limit of cached clients, each with its idle connections.
const MAX_CLIENTS: usize = 256;
const MAX_IDLE: usize = 4;
const IDLE: Duration = Duration::from_secs(30);
/// Limit of connections that one client opens concurrently. An attempt runs to its end even if its call uses another
/// connection.
pub(super) const MAX_DIALS: usize = 32;

/// Addresses that webhooks may have in addition to public ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WebhookAddresses {
    /// Allows private networks and this machine. Link-local addresses, such as metadata services, are never allowed.
    pub allow_local: bool,
}

impl WebhookAddresses {
    /// # Errors
    /// The reason why the address is not allowed.
    fn check(self, address: SocketAddr) -> Result<(), String> {
        let locality = Locality::of(address.ip());
        match locality {
            Locality::Public => Ok(()),
            Locality::Private | Locality::Loopback if self.allow_local => Ok(()),
            Locality::Private | Locality::Loopback => Err(format!(
                "{} is {}, which has to be allowed by `portolan server --allow-local-webhooks`",
                address.ip(),
                locality.text()
            )),
            Locality::Metadata | Locality::Nothing | Locality::Multicast | Locality::LinkLocal => {
                Err(format!("{} is {}", address.ip(), locality.text()))
            }
        }
    }
}

/// Size limit of a body frame: a connection copies each frame.
const MAX_FRAME: usize = 64 * 1024;

/// Body in parts, which concurrent calls can share.
struct BodyParts(VecDeque<Bytes>);

impl Body for BodyParts {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let Some(part) = self.0.front_mut() else { return Poll::Ready(None) };
        let frame = part.split_to(part.len().min(MAX_FRAME));
        if part.is_empty() {
            self.0.pop_front();
        }
        Poll::Ready(Some(Ok(Frame::data(frame))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.0.iter().map(|part| part.len() as u64).sum())
    }
}

/// Response of a webhook.
pub(crate) struct WebhookResponse {
    pub(crate) status: StatusCode,
    /// True if the content type is absent or exactly JSON.
    pub(crate) is_json: bool,
    pub(crate) body: Bytes,
}

type HttpsClient = Client<WebhookConnector, BodyParts>;
/// Key of a client. Neither logical clusters nor a Service and an address of the same name share connections, nor do
/// calls with and without a certificate of this server.
type ClientKey = (LogicalClusterId, [u8; 32], Option<ObjectKey>, bool);

/// Clients of all webhooks.
pub(crate) struct WebhookClients {
    addresses: WebhookAddresses,
    resolver: TenantResolver,
    kept: Mutex<HashMap<ClientKey, HttpsClient>>,
}

/// Address of a webhook.
pub(super) struct WebhookAddress<'a> {
    pub(super) url: &'a str,
    /// Service that the URL means.
    pub(super) service: Option<WebhookService>,
    /// Certificates in PEM that the server's must chain to; empty for the system's.
    pub(super) ca_bundle: &'a [u8],
    /// Certificate of this server, if the other side is shown one.
    pub(super) identity: Option<&'a ProxyIdentity>,
}

/// Review in JSON, and the time for the answer.
pub(crate) struct WebhookRequestBody {
    pub(crate) timeout: Duration,
    /// Pieces of the text.
    pub(crate) review: Vec<Bytes>,
}

impl WebhookClients {
    pub(crate) fn new(addresses: WebhookAddresses) -> Self {
        Self { addresses, resolver: TenantResolver::with_system_resolver(), kept: Mutex::default() }
    }

    /// Returns the addresses that a tenant's names may have.
    pub(crate) fn addresses_of(&self, tenant: LogicalClusterId) -> CheckedAddresses {
        CheckedAddresses { allowed: self.addresses, resolver: self.resolver.clone(), tenant }
    }

    /// Returns the number of cached clients.
    pub(crate) fn cached(&self) -> usize {
        self.kept.lock().len()
    }

    /// Posts a review and returns the response.
    ///
    /// # Errors
    /// The failure as Go's client words it, without any text from the server.
    pub(super) async fn post(
        &self,
        cluster: LogicalClusterId,
        address: WebhookAddress<'_>,
        call: WebhookRequestBody,
    ) -> Result<WebhookResponse, String> {
        let WebhookRequestBody { timeout, review } = call;
        let url = with_timeout(address.url, timeout);
        let failed = |why: String| format!("Post {url:?}: {why}");
        let exchange = async {
            let client = self.client(cluster, address)?;
            let uri: Uri = url.parse().map_err(|e: http::uri::InvalidUri| e.to_string())?;
            let request = Request::post(uri)
                .header(header::CONTENT_TYPE, "application/json")
                .header(header::ACCEPT, "application/json, */*")
                .header(header::USER_AGENT, "kube-apiserver-admission")
                .body(BodyParts(review.into()))
                .map_err(|e| e.to_string())?;
            let response = client.request(request).await.map_err(|e| error_text(&e))?;
            let status = response.status();
            let is_json = response.headers().get(header::CONTENT_TYPE).is_none_or(|said| said == "application/json");
            let body = Limited::new(response.into_body(), MAX_ANSWER).collect().await;
            let body = body.map_err(|e| {
                if e.is::<http_body_util::LengthLimitError>() {
                    format!("http: response body too large: limit is {MAX_ANSWER}")
                } else {
                    error_text(&*e)
                }
            })?;
            Ok::<_, String>(WebhookResponse { status, is_json, body: body.to_bytes() })
        };
        let exchanged = tokio::time::timeout(timeout, exchange).await;
        let answered = exchanged.map_err(|_| failed("context deadline exceeded".into()))?.map_err(failed)?;
        if answered.status.is_success() { Ok(answered) } else { Err(unsuccessful(answered.status)) }
    }

    /// Sends a request to a server that a tenant chose, and returns the answer as it arrives. The URL of `address` is
    /// that of the request.
    ///
    /// # Errors
    /// The failure as Go's client words it, without any text from the server.
    pub(super) async fn send(
        &self,
        cluster: LogicalClusterId,
        address: WebhookAddress<'_>,
        request: Request<Bytes>,
    ) -> Result<Response<Incoming>, String> {
        let (mut parts, body) = request.into_parts();
        parts.uri = address.url.parse().map_err(|e: http::uri::InvalidUri| e.to_string())?;
        let client = self.client(cluster, address)?;
        let parted = if body.is_empty() { VecDeque::new() } else { VecDeque::from([body]) };
        client.request(Request::from_parts(parts, BodyParts(parted))).await.map_err(|e| error_text(&e))
    }

    fn client(&self, cluster: LogicalClusterId, address: WebhookAddress<'_>) -> Result<HttpsClient, String> {
        let WebhookAddress { service, ca_bundle, identity, .. } = address;
        let of_service = service.as_ref().map(|service| service.key().clone());
        let key = (cluster, Sha256::digest(ca_bundle).into(), of_service, identity.is_some());
        if let Some(client) = self.kept.lock().get(&key) {
            return Ok(client.clone());
        }
        let outside = || DialTarget::Addresses(self.addresses_of(cluster));
        let target = service.map_or_else(outside, DialTarget::Service);
        let dials = Arc::new(Semaphore::new(MAX_DIALS));
        let tls = match identity.map(ProxyIdentity::for_tls) {
            None => trust::config(ca_bundle)?,
            Some((chain, key)) => trust::config_with_identity(ca_bundle, chain, key)?,
        };
        let connector = WebhookConnector { target, tls: Arc::new(tls), dials };
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE)
            .pool_max_idle_per_host(MAX_IDLE)
            .build(connector);
        let mut kept = self.kept.lock();
        if kept.len() >= MAX_CLIENTS {
            let own = kept.keys().find(|(kept, ..)| *kept == cluster).or_else(|| kept.keys().next()).cloned();
            own.and_then(|own| kept.remove(&own));
        }
        kept.insert(key, client.clone());
        Ok(client)
    }
}

/// Adds the timeout to the URL, as kube-apiserver does.
pub(super) fn with_timeout(url: &str, timeout: Duration) -> String {
    let (url, slash) = match url.splitn(4, '/').nth(3) {
        Some(_) => (url, ""),
        None => (url, "/"),
    };
    format!("{url}{slash}?timeout={}s", timeout.as_secs())
}

/// Describes an unsuccessful response in Go's words.
fn unsuccessful(status: StatusCode) -> String {
    match status.as_u16() {
        400 => "the server rejected our request for an unknown reason".into(),
        401 => "the server has asked for the client to provide credentials".into(),
        403 => "forbidden".into(),
        404 => "the server could not find the requested resource".into(),
        405 => "the server does not allow this method on the requested resource".into(),
        409 => "the server reported a conflict".into(),
        422 => "the server rejected our request due to an error in our request".into(),
        429 => "the server has received too many requests and has asked us to try again later".into(),
        503 => "the server is currently unable to handle the request".into(),
        504 => {
            "the server was unable to return a response in the time allotted, but may still be processing the request"
                .into()
        }
        500.. => "an error on the server (\"unknown\") has prevented the request from succeeding".into(),
        code => format!("the server responded with the status code {code} but did not return more information"),
    }
}

/// Returns the connector's own error, or else the innermost cause.
pub(super) fn error_text(error: &(dyn Error + 'static)) -> String {
    let mut cause = error;
    while let Some(next) = cause.source() {
        cause = next;
        if cause.is::<ConnectError>() {
            break;
        }
    }
    match cause.to_string() {
        text if text.contains("connection closed before message completed") => "EOF".into(),
        text => text,
    }
}
