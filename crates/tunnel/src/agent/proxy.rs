//! Reverse proxy from a stream of the tunnel to the physical cluster's API server.
//!
//! Each stream is one HTTP/1.1 connection. The proxy keeps nothing: bodies and upgraded connections are passed on as
//! they come. Credentials in a request are removed; the service that reaches the API server adds the agent's own.

use std::{convert::Infallible, io, time::Duration};

use bytes::Bytes;
use futures::future::BoxFuture;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode, Uri, header};
use http_body_util::{BodyExt as _, Full, combinators::UnsyncBoxBody};
use hyper::{body::Incoming, service::service_fn, upgrade::OnUpgrade};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};
use tower::{ServiceExt as _, util::BoxCloneSyncService};

use portolan_types::agent::IDENTITY_HEADER;

use crate::{gateway::BodyError, session::TunnelStream, wire::printable};

/// Body of a request to the physical cluster, or of its response.
pub type MemberBody = UnsyncBoxBody<Bytes, BodyError>;

/// Service that reaches the API server of the physical cluster. It adds the agent's credential. URLs have no host.
pub type MemberService = BoxCloneSyncService<Request<MemberBody>, Response<MemberBody>, BodyError>;

/// Services that reach the API server of the physical cluster, by the account that they act as.
#[derive(Clone)]
pub struct MemberServices {
    /// The agent's own account.
    pub own: MemberService,
    /// Account for users' requests, which may impersonate mapped users only.
    pub access: MemberService,
}

impl MemberServices {
    /// Takes the identity that the server asks for off a request, and returns its service. An unknown one is the
    /// account for users, which may do less.
    fn select(self, headers: &mut HeaderMap) -> MemberService {
        if headers.remove(IDENTITY_HEADER).is_some() { self.access } else { self.own }
    }
}

/// Time for one direction of an upgraded connection after the other has ended.
const LINGER: Duration = Duration::from_secs(10);
/// Buffer of each direction of an upgraded connection, in bytes.
const COPY_BUFFER: usize = 16 * 1024;

/// Headers of one connection, not of the request (RFC 9110, section 7.6.1).
const HOP_BY_HOP: [HeaderName; 6] = [
    header::CONNECTION,
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
];

/// Serves the requests of a stream.
pub(super) async fn serve(stream: TunnelStream, members: MemberServices) {
    let service = service_fn(|mut request: Request<Incoming>| {
        let member = members.clone().select(request.headers_mut());
        async move { Ok::<_, Infallible>(forward(member, request.map(boxed)).await) }
    });
    let mut builder = hyper::server::conn::http1::Builder::new();
    let connection = builder.timer(TokioTimer::new()).serve_connection(TokioIo::new(stream), service).with_upgrades();
    if let Err(error) = connection.await {
        tracing::debug!(%error, "a stream ended with an error");
    }
}

/// Boxes a body.
pub fn boxed<B>(body: B) -> MemberBody
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BodyError>,
{
    body.map_err(Into::into).boxed_unsync()
}

/// Passes a request on and returns the response. A failure to reach the API server is a 502.
async fn forward(member: MemberService, mut request: Request<MemberBody>) -> Response<MemberBody> {
    let is_upgrade = request.headers().contains_key(header::UPGRADE);
    let upstream = is_upgrade.then(|| request.extensions_mut().remove::<OnUpgrade>()).flatten();
    clean_request(request.headers_mut(), is_upgrade);
    let path = request.uri().path_and_query().cloned().map_or_else(|| Uri::from_static("/"), Uri::from);
    *request.uri_mut() = path;
    let mut response = match call(member, request).await {
        Ok(response) => response,
        Err(error) => return unreachable_member(&*error),
    };
    let is_upgraded = response.status() == StatusCode::SWITCHING_PROTOCOLS;
    clean_response(response.headers_mut(), is_upgraded);
    if is_upgraded {
        let downstream = response.extensions_mut().remove::<OnUpgrade>();
        let (Some(upstream), Some(downstream)) = (upstream, downstream) else {
            return unreachable_member(&io::Error::other("it changed the protocol without being asked"));
        };
        tokio::spawn(async move {
            if let Err(error) = splice(upstream, downstream).await {
                tracing::debug!(%error, "an upgraded stream failed");
            }
        });
    }
    response
}

/// Calls the service. Boxed, since the compiler cannot prove `Send` through so many layers.
fn call(
    member: MemberService,
    request: Request<MemberBody>,
) -> BoxFuture<'static, Result<Response<MemberBody>, BodyError>> {
    Box::pin(member.oneshot(request))
}

fn clean_request(headers: &mut HeaderMap, is_upgrade: bool) {
    HOP_BY_HOP.iter().for_each(|name| drop(headers.remove(name)));
    for name in [header::AUTHORIZATION, header::COOKIE, header::HOST, HeaderName::from_static("keep-alive")] {
        headers.remove(name);
    }
    let forged: Vec<HeaderName> =
        headers.keys().filter(|name| name.as_str().starts_with("x-remote-")).cloned().collect();
    forged.iter().for_each(|name| drop(headers.remove(name)));
    if is_upgrade {
        headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
    } else {
        headers.remove(header::UPGRADE);
    }
}

fn clean_response(headers: &mut HeaderMap, is_upgraded: bool) {
    HOP_BY_HOP.iter().for_each(|name| drop(headers.remove(name)));
    headers.remove(HeaderName::from_static("keep-alive"));
    headers.remove(header::SET_COOKIE);
    if is_upgraded {
        headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
    }
}

/// Returns the 502 as a `Status`.
fn unreachable_member(error: &(dyn std::error::Error + 'static)) -> Response<MemberBody> {
    let mut cause = error;
    while let Some(next) = cause.source() {
        cause = next;
    }
    let message = format!("the agent does not reach the API server: {}", printable(&cause.to_string()));
    let status = serde_json::json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": message, "reason": "ServiceUnavailable", "code": 502,
    });
    let mut response = Response::new(boxed(Full::new(Bytes::from(status.to_string()))));
    *response.status_mut() = StatusCode::BAD_GATEWAY;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// Copies bytes in both directions until both have ended, or until one has ended and the other takes too long.
async fn splice(upstream: OnUpgrade, downstream: OnUpgrade) -> Result<(), BodyError> {
    let (upstream, downstream) = tokio::try_join!(upstream, downstream)?;
    let (from_upstream, to_upstream) = tokio::io::split(TokioIo::new(upstream));
    let (from_downstream, to_downstream) = tokio::io::split(TokioIo::new(downstream));
    let mut down = std::pin::pin!(carry(from_upstream, to_downstream));
    let mut up = std::pin::pin!(carry(from_downstream, to_upstream));
    let (first, rest) = tokio::select! {
        ended = &mut down => (ended, tokio::time::timeout(LINGER, up).await),
        ended = &mut up => (ended, tokio::time::timeout(LINGER, down).await),
    };
    first?;
    rest.unwrap_or(Ok(()))?;
    Ok(())
}

async fn carry(from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin) -> io::Result<()> {
    let mut from = tokio::io::BufReader::with_capacity(COPY_BUFFER, from);
    tokio::io::copy_buf(&mut from, &mut to).await?;
    to.shutdown().await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_of_a_request_are_removed() {
        let headers = [
            ("authorization", "Bearer stolen"),
            ("cookie", "a=b"),
            ("host", "east.tunnel"),
            ("x-remote-user", "admin"),
            ("x-remote-extra-a", "b"),
            ("connection", "keep-alive, upgrade"),
            ("transfer-encoding", "chunked"),
            ("accept", "application/json"),
            ("impersonate-user", "ann"),
            ("upgrade", "SPDY/3.1"),
        ];
        let headers = headers.map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)));
        for (is_upgrade, expected) in [
            (false, vec!["accept", "impersonate-user"]),
            (true, vec!["accept", "connection", "impersonate-user", "upgrade"]),
        ] {
            let mut cleaned = HeaderMap::from_iter(headers.clone());
            clean_request(&mut cleaned, is_upgrade);
            let mut names: Vec<&str> = cleaned.keys().map(HeaderName::as_str).collect();
            names.sort_unstable();
            assert_eq!(names, expected);
        }
    }

    #[tokio::test]
    async fn an_api_server_out_of_reach_is_a_status() {
        let member = tower::service_fn(async |_: Request<MemberBody>| {
            Err::<Response<MemberBody>, BodyError>(io::Error::other("no\nroute").into())
        });
        let request = Request::get("/api").body(boxed(Full::new(Bytes::new()))).unwrap();
        let answer = forward(BoxCloneSyncService::new(member), request).await;
        assert_eq!(answer.status(), StatusCode::BAD_GATEWAY);
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        let status: serde_json::Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(status["message"], "the agent does not reach the API server: no route");
    }
}
