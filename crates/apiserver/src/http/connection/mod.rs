//! One connection: handshake, then requests until its end.

#[cfg(test)]
mod tests;

use std::{
    convert::Infallible,
    net::SocketAddr,
    pin::{Pin, pin},
    sync::{Arc, OnceLock},
    time::Duration,
};

use futures::future::BoxFuture;
use http::{HeaderValue, Request, StatusCode, header::CONNECTION};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    server::conn::auto::Builder,
};
use jiff::Timestamp;
use rustls_pki_types::CertificateDer;
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, server::TlsStream};
use tokio_util::sync::CancellationToken;

use crate::{
    ApiServer,
    audit::ClientAddress,
    authn::{CertifiedClient, Peer, end_of_certificate},
    pipeline::boxed_body,
    pki::revoked::CertificateId,
};

use super::{
    connection_limiter::EvictableConnection,
    plain,
    socket::{CuttableSocket, SocketHandle},
};

/// Time for a TLS handshake.
const HANDSHAKE: Duration = Duration::from_secs(3);
/// Time for the headers of a request.
const HEADERS: Duration = Duration::from_secs(32);
/// Time after a [`PING`] in which a peer must answer.
const PING_ANSWER: Duration = Duration::from_secs(15);
const PING: Duration = Duration::from_secs(30);
/// Limit of streams per HTTP/2 connection. Go clients put all their watches on one.
const STREAMS: u32 = 250;
/// Limit of streams that a peer has opened and reset before the server saw them.
const PENDING_RESETS: usize = 50;
/// Size limit of all headers of a request, in bytes.
const HEADER_BYTES: u32 = 64 * 1024;
const HTTP1_BUFFER: usize = HEADER_BYTES as usize;
/// Time for a connection to end gracefully.
const LAST: Duration = Duration::from_secs(5);
/// Time for an evicted connection to send its goodbye.
const EVICTED_LAST: Duration = Duration::from_millis(50);
const HTTP1_HEADERS: usize = 128;

/// Client certificate of a connection, in the extensions of its requests.
#[derive(Clone)]
pub(super) struct ConnectionCertificate {
    pub(super) id: CertificateId,
    pub(super) end: Timestamp,
}

/// Runs the TLS handshake within [`HANDSHAKE`], until the connection is evicted. A plain HTTP request gets Go's
/// response.
pub(super) async fn shake(
    acceptor: &TlsAcceptor,
    socket: TcpStream,
    connection: &EvictableConnection,
) -> std::io::Result<TlsStream<TcpStream>> {
    socket.set_nodelay(true)?;
    let shaken = async {
        let is_plain = plain::is_spoken(&socket).await?;
        let _running = connection.activity.begin();
        if is_plain {
            return plain::refuse(socket).await.and(Err(std::io::Error::other("it begins with a plain request")));
        }
        acceptor.accept(socket).await
    };
    tokio::select! {
        done = tokio::time::timeout(HANDSHAKE, shaken) => done.unwrap_or_else(|_| {
            Err(std::io::Error::new(std::io::ErrorKind::TimedOut, "the handshake took too long"))
        }),
        () = connection.evicted.cancelled() => Err(std::io::Error::other("it was closed for a newer connection")),
    }
}

/// Serves the requests of a connection.
pub(super) async fn run(
    server: Arc<ApiServer>,
    (stream, address): (TlsStream<TcpStream>, SocketAddr),
    opened: EvictableConnection,
    closing: CancellationToken,
) {
    let address = ClientAddress(address.ip());
    let chain = stream.get_ref().1.peer_certificates().unwrap_or_default();
    let certificate = chain.first();
    let client = server.client_trust.client(chain);
    let end = certificate.and_then(|certificate| end_of_certificate(certificate));
    if certificate.is_some() && client.is_none() {
        tracing::debug!("client certificate without a user name");
        return;
    }
    let CertifiedClient { user, proxy } = client.unwrap_or_default();
    let proxy = proxy.filter(|_| !id_is_revoked(&server, certificate));
    let id = certificate.and_then(|certificate| CertificateId::of(certificate));
    let certified = id.clone().zip(end).map(|(id, end)| ConnectionCertificate { id, end });
    let is_revoked = id.as_ref().is_some_and(|id| server.pki.revoked.contains(id));
    let peer = if is_revoked { Peer::Revoked } else { Peer::Connection(user) };
    // A certificate that is revoked already gets a 401 instead.
    let (revoked_later, watched) = (id.filter(|_| !is_revoked), server.clone());
    let task_flow = server.limiter.task_flow();
    // An upgraded connection stays in use until its socket closes.
    let upgraded = Arc::new(OnceLock::new());
    let keeps_busy = upgraded.clone();
    // It takes no further requests when the server closes, or after the server has sent the client away.
    let leaving = closing.child_token();
    let (stopping, sent_away) = (closing.clone(), leaving.clone());
    let (begun, authenticated) = (opened.activity.clone(), opened.authenticated.clone());
    let service = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(authenticated.clone());
        request.extensions_mut().insert(address);
        let running = begun.begin();
        let server = server.clone();
        // Only a front proxy's own connection makes its headers count; the pipeline removes them from every request.
        let stated = proxy.as_ref().and_then(|proxy| proxy.user(request.headers()));
        let peer = stated.map_or_else(|| peer.clone(), |user| Peer::Connection(Some(Arc::new(user))));
        let (stopping, sent_away, keeps_busy) = (stopping.clone(), sent_away.clone(), keeps_busy.clone());
        let (begun, certified) = (begun.clone(), certified.clone());
        // Boxed, because it is moved several times before it runs.
        Box::pin(async move {
            let mut request = request;
            let http1 = request.version() < http::Version::HTTP_2;
            let goes_away = !http1 && sends_away(&server);
            if let Some(certified) = certified {
                let remaining = certified.end.duration_since(server.seams().clock.now());
                request.extensions_mut().insert(certified);
                server.metrics.connections.certified(remaining.as_secs_f64());
            }
            let mut response = super::answer(server, peer, request.map(boxed_body)).await;
            if response.status() == StatusCode::SWITCHING_PROTOCOLS {
                keeps_busy.get_or_init(|| begun.begin());
            }
            if goes_away {
                sent_away.cancel();
            }
            if http1 && stopping.is_cancelled() {
                response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
            Ok::<_, Infallible>(running.track(response))
        })
    });
    // The protocol negotiated by ALPN need not be detected, which has no time-out.
    let builder = match stream.get_ref().1.alpn_protocol() {
        Some(b"h2") => builder(task_flow.clone()).http2_only(),
        Some(_) => builder(task_flow.clone()).http1_only(),
        None => builder(task_flow.clone()),
    };
    let (socket, handle) = CuttableSocket::new(stream);
    let ended = task_flow.work(async {
        let connection = pin!(builder.serve_connection_with_upgrades(TokioIo::new(socket), service));
        let leaving = leaving.cancelled();
        // Boxed, since the compiler cannot prove `Send` through so many layers.
        let ended: BoxFuture<'_, _> =
            Box::pin(until_over(connection, &opened, leaving, |connection| connection.graceful_shutdown()));
        tokio::select! {
            ended = ended => ended.unwrap_or(Ok(())),
            () = until_revoked(&watched, revoked_later.as_ref()) => Ok(()),
        }
    });
    // Dropping the future closes the socket, unless a request has upgraded it.
    if let Err(error) = ended.await {
        tracing::debug!(%error, "connection ended with an error");
    }
    let must_end = async {
        tokio::select! {
            () = opened.evicted.cancelled() => {}
            () = until_revoked(&watched, revoked_later.as_ref()) => {}
        }
    };
    tokio::select! {
        () = closing.cancelled() => {}
        () = until_closed(&handle, must_end) => {}
    }
    drop(upgraded);
}

fn id_is_revoked(server: &ApiServer, certificate: Option<&CertificateDer<'_>>) -> bool {
    let id = certificate.and_then(|certificate| CertificateId::of(certificate));
    id.is_some_and(|id| server.pki.revoked.contains(&id))
}

/// Waits until the socket of an upgraded connection is closed, and cuts it when the connection has to end.
async fn until_closed(socket: &SocketHandle, must_end: impl Future<Output = ()>) {
    tokio::select! {
        () = socket.closed() => {}
        () = must_end => {
            socket.cut();
            // Its task notices the shutdown at once.
            let _ = tokio::time::timeout(EVICTED_LAST, socket.closed()).await;
        }
    }
}

/// Waits until the client's certificate is revoked; then all requests on its connection end, including watches.
async fn until_revoked(server: &ApiServer, certificate: Option<&CertificateId>) {
    match certificate {
        Some(id) => server.pki.revoked.until_revoked(id).await,
        None => std::future::pending().await,
    }
}

/// Drives a connection until it ends or has to end, then gives it a moment to end gracefully; `None` in the latter
/// case. A `leaving` connection takes no further requests. An evicted one ends almost at once.
async fn until_over<C: Future>(
    mut connection: Pin<&mut C>,
    opened: &EvictableConnection,
    leaving: impl Future<Output = ()>,
    shut_down: impl Fn(Pin<&mut C>),
) -> Option<C::Output> {
    let mut last = pin!(async {
        tokio::select! {
            () = opened.activity.until_over() => LAST,
            () = opened.evicted.cancelled() => EVICTED_LAST,
        }
    });
    let last = tokio::select! {
        ended = connection.as_mut() => return Some(ended),
        last = last.as_mut() => last,
        () = leaving => {
            shut_down(connection.as_mut());
            tokio::select! {
                ended = connection.as_mut() => return Some(ended),
                last = last => last,
            }
        }
    };
    shut_down(connection.as_mut());
    tokio::time::timeout(last, connection).await.ok()
}

/// Decides randomly whether a client should open a new connection, which may reach another server. Requests on the
/// old one, including watches, continue (GOAWAY, RFC 9113, section 6.8).
fn sends_away(server: &ApiServer) -> bool {
    let chance = server.config.goaway_chance;
    chance > 0.0 && server.seams().comes_true(chance)
}

pub(super) fn builder<E>(executor: E) -> Builder<E> {
    let mut builder = Builder::new(executor);
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADERS)
        .max_headers(HTTP1_HEADERS)
        .max_buf_size(HTTP1_BUFFER);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS)
        .max_pending_accept_reset_streams(PENDING_RESETS)
        .max_header_list_size(HEADER_BYTES)
        .initial_stream_window_size(256 * 1024)
        .initial_connection_window_size(1024 * 1024)
        .max_send_buf_size(256 * 1024)
        .keep_alive_interval(PING)
        .keep_alive_timeout(PING_ANSWER);
    builder
}
