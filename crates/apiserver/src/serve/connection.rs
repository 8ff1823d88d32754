//! One connection: handshake, then requests until it ends.

use std::{
    convert::Infallible,
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
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, server::TlsStream};
use tokio_util::sync::CancellationToken;

use crate::{
    ApiServer,
    authn::{Peer, end_of_certificate, user_of_certificate},
    pipeline,
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
/// A peer that does not answer a ping within this and [`PING`] is gone.
const PING_ANSWER: Duration = Duration::from_secs(15);
const PING: Duration = Duration::from_secs(30);
/// Streams of one HTTP/2 connection. Go clients put all their watches on one.
const STREAMS: u32 = 250;
/// Streams that a peer may open and reset before we had a look.
const PENDING_RESETS: usize = 50;
/// Bytes of all headers of a request.
const HEADER_BYTES: u32 = 64 * 1024;
const HTTP1_BUFFER: usize = HEADER_BYTES as usize;
/// How long a connection that is over has to end in good order.
const LAST: Duration = Duration::from_secs(5);
/// Time that an evicted connection has to send its goodbye.
const EVICTED_LAST: Duration = Duration::from_millis(50);
const HTTP1_HEADERS: usize = 128;

/// Runs the TLS handshake, within [`HANDSHAKE`] and until the connection is evicted. A plain HTTP request gets Go's answer.
pub(super) async fn shake(
    acceptor: &TlsAcceptor,
    socket: TcpStream,
    connection: &EvictableConnection,
) -> std::io::Result<TlsStream<TcpStream>> {
    socket.set_nodelay(true)?;
    let shaken = async {
        let is_plain = plain::is_spoken(&socket).await?;
        let _under_way = connection.activity.begin();
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

/// Answers the requests of a connection.
pub(super) async fn run(
    server: Arc<ApiServer>,
    stream: TlsStream<TcpStream>,
    opened: EvictableConnection,
    closing: CancellationToken,
) {
    let certificate = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
    let user = certificate.and_then(|certificate| user_of_certificate(certificate)).map(Arc::new);
    let certified_until = certificate.and_then(|certificate| end_of_certificate(certificate));
    if certificate.is_some() && user.is_none() {
        tracing::debug!("a client certificate names nobody");
        return;
    }
    let id = certificate.and_then(|certificate| CertificateId::of(certificate));
    let is_revoked = id.as_ref().is_some_and(|id| server.pki.revoked.contains(id));
    let peer = if is_revoked { Peer::Revoked } else { Peer::Connection(user) };
    // Who shows one that is revoked already is answered.
    let (revoked_later, watched) = (id.filter(|_| !is_revoked), server.clone());
    let task_flow = server.admittance.task_flow();
    // A connection that has been upgraded is in use until it ends.
    let upgraded = Arc::new(OnceLock::new());
    let keeps_busy = upgraded.clone();
    // It takes no further requests when the server closes, and before that when it sends the client away.
    let leaving = closing.child_token();
    let (stopping, sent_away) = (closing.clone(), leaving.clone());
    let (begun, authenticated) = (opened.activity.clone(), opened.authenticated.clone());
    let service = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(authenticated.clone());
        let under_way = begun.begin();
        let (server, peer) = (server.clone(), peer.clone());
        let (stopping, sent_away, keeps_busy) = (stopping.clone(), sent_away.clone(), keeps_busy.clone());
        let begun = begun.clone();
        // On its way into a task it is moved several times.
        Box::pin(async move {
            let http1 = request.version() < http::Version::HTTP_2;
            let goes_away = !http1 && sends_away(&server);
            if let Some(end) = certified_until {
                let remaining = end.duration_since(server.seams.clock.now());
                server.metrics.connections.certified(remaining.as_secs_f64());
            }
            let mut response = pipeline::answer(server, peer, request).await;
            if response.status() == StatusCode::SWITCHING_PROTOCOLS {
                keeps_busy.get_or_init(|| begun.begin());
            }
            if goes_away {
                sent_away.cancel();
            }
            if http1 && stopping.is_cancelled() {
                response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
            Ok::<_, Infallible>(under_way.answer(response))
        })
    });
    // What was agreed upon needs not be guessed, for which there is no time-out.
    let builder = match stream.get_ref().1.alpn_protocol() {
        Some(b"h2") => builder(task_flow.clone()).http2_only(),
        Some(_) => builder(task_flow.clone()).http1_only(),
        None => builder(task_flow.clone()),
    };
    let (socket, handle) = CuttableSocket::new(stream);
    let ended = task_flow.work(async {
        let connection = pin!(builder.serve_connection_with_upgrades(TokioIo::new(socket), service));
        let leaving = leaving.cancelled();
        // Boxed, since the compiler does not see through so many layers that it may change threads.
        let ended: BoxFuture<'_, _> =
            Box::pin(until_over(connection, &opened, leaving, |connection| connection.graceful_shutdown()));
        tokio::select! {
            ended = ended => ended.unwrap_or(Ok(())),
            () = until_revoked(&watched, revoked_later.as_ref()) => Ok(()),
        }
    });
    // What is awaited is dropped, and with it the socket, unless a request has upgraded it.
    if let Err(error) = ended.await {
        tracing::debug!(%error, "a connection ended with an error");
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

/// Waits until the socket of an upgraded connection is closed, and cuts it when it must end.
async fn until_closed(socket: &SocketHandle, must_end: impl Future<Output = ()>) {
    tokio::select! {
        () = socket.closed() => {}
        () = must_end => {
            socket.cut();
            // Its task notices that at once.
            let _ = tokio::time::timeout(EVICTED_LAST, socket.closed()).await;
        }
    }
}

/// Waits until the certificate that a client showed is revoked: what is under way on its connection ends, watches too.
async fn until_revoked(server: &ApiServer, certificate: Option<&CertificateId>) {
    match certificate {
        Some(id) => server.pki.revoked.until_revoked(id).await,
        None => std::future::pending().await,
    }
}

/// Works on a connection until it ends, or is good for nothing more: then it has a moment to end in good order, and there is
/// nothing that it ended with. Once it is `leaving` it takes no further requests. One that is evicted ends almost at once.
async fn until_over<C: Future>(
    mut connection: Pin<&mut C>,
    opened: &EvictableConnection,
    leaving: impl Future<Output = ()>,
    shut_down: impl Fn(Pin<&mut C>),
) -> Option<C::Output> {
    let mut last = pin!(async {
        tokio::select! {
            () = opened.activity.is_over() => LAST,
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

/// Whether a client is to make a new connection after a request, which may lead it to another server. What is under way on the
/// old one goes on, watches too (GOAWAY, RFC 9113, section 6.8).
fn sends_away(server: &ApiServer) -> bool {
    let chance = server.config.goaway_chance;
    chance > 0.0 && server.seams.comes_true(chance)
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

#[cfg(test)]
mod tests {
    use hyper_util::rt::TokioExecutor;
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream},
        time::{Instant, timeout},
    };

    use super::{super::activity::IDLE, *};

    const SETTINGS: u8 = 4;
    const PING_FRAME: u8 = 6;
    const ACK: u8 = 1;

    /// A frame of the whole connection.
    fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        [&length[1..], &[kind, flags, 0, 0, 0, 0], payload].concat()
    }

    /// A client that has nothing to ask.
    struct Idle {
        socket: DuplexStream,
        answers: bool,
        pings: usize,
        acks: usize,
    }

    impl Idle {
        async fn connect(answers: bool) -> Self {
            let (mut socket, server) = tokio::io::duplex(64 * 1024);
            let service =
                service_fn(async |_: Request<Incoming>| Ok::<_, Infallible>(http::Response::new(String::new())));
            tokio::spawn(async move {
                let builder = builder(TokioExecutor::new());
                builder.serve_connection(TokioIo::new(server), service).await.map_err(|error| error.to_string())
            });
            socket.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
            socket.write_all(&frame(SETTINGS, 0, &[])).await.unwrap();
            Self { socket, answers, pings: 0, acks: 0 }
        }

        /// To a server that looks whether something goes on, before anything was said.
        fn say_nothing() -> Self {
            let (socket, server) = tokio::io::duplex(64 * 1024);
            let service =
                service_fn(async |_: Request<Incoming>| Ok::<_, Infallible>(http::Response::new(String::new())));
            tokio::spawn(async move {
                let builder = builder(TokioExecutor::new());
                let connection = pin!(builder.serve_connection(TokioIo::new(server), service));
                let (opened, never) = (EvictableConnection::new(), std::future::pending());
                until_over(connection, &opened, never, |connection| connection.graceful_shutdown()).await.is_some()
            });
            Self { socket, answers: true, pings: 0, acks: 0 }
        }

        /// Listens until the server ends the connection.
        async fn listen(&mut self) {
            let mut head = [0; 9];
            while self.socket.read_exact(&mut head).await.is_ok() {
                let mut payload = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
                self.socket.read_exact(&mut payload).await.unwrap();
                let answer = match (head[3], head[4] & ACK) {
                    (SETTINGS, 0) => frame(SETTINGS, ACK, &[]),
                    (PING_FRAME, ACK) => {
                        self.acks += 1;
                        continue;
                    }
                    (PING_FRAME, _) => {
                        self.pings += 1;
                        if !self.answers {
                            continue;
                        }
                        frame(PING_FRAME, ACK, &payload)
                    }
                    _ => continue,
                };
                // It may have ended the connection by then.
                if self.socket.write_all(&answer).await.is_err() {
                    return;
                }
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_answers_is_there() {
        let mut client = Idle::connect(true).await;
        let minutes = Duration::from_secs(90 * 60);
        assert!(timeout(minutes, client.listen()).await.is_err(), "it is not ended");
        let expected = (minutes.as_secs() / PING.as_secs()) as usize;
        assert!((expected - 2..=expected).contains(&client.pings), "{} pings", client.pings);
        // Go's clients look whether the server is there.
        client.socket.write_all(&frame(PING_FRAME, 0, b"whatever")).await.unwrap();
        assert!(timeout(Duration::from_secs(1), client.listen()).await.is_err());
        assert_eq!(client.acks, 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_without_requests_ends_whatever_its_peer_said() {
        for begun in [&b""[..], b"PRI * HTT", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0"] {
            let mut client = Idle::say_nothing();
            client.socket.write_all(begun).await.unwrap();
            let since = Instant::now();
            timeout(2 * IDLE, client.listen()).await.expect("it is ended");
            assert!((IDLE..IDLE + 2 * LAST).contains(&since.elapsed()), "{begun:?}: {:?}", since.elapsed());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_does_not_answer_is_gone() {
        let mut client = Idle::connect(false).await;
        let begun = Instant::now();
        timeout(Duration::from_secs(600), client.listen()).await.expect("it is ended");
        assert_eq!((client.pings, begun.elapsed().as_secs()), (1, (PING + PING_ANSWER).as_secs()));
    }
}
