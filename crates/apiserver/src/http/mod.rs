//! HTTP floor: the accept loop with TLS, HTTP/1.1 and HTTP/2, time-outs, limits and graceful shutdown; and the service
//! without a socket.

mod activity;
mod agents;
mod connection;
mod connection_limiter;
mod console;
mod console_sign_in;
mod in_process;
mod openid;
mod plain;
mod probes;
mod routed;
mod router;
mod socket;
mod starting;
mod tls;

use std::{net::SocketAddr, sync::Arc, time::Duration};

use portolan_types::BoxFuture;
use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinSet,
};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use crate::{
    ApiServer, ConfigError,
    pipeline::{RequestBody, boxed_body},
};

use connection_limiter::{ConnectionLimiter, ConnectionSlot, EvictableConnection};
pub use in_process::InProcess;
pub(crate) use router::answer;
pub use starting::serve_starting;
use tls::{ServerCertificate, server_config};

/// Time for running requests after the shutdown began.
const DRAIN: Duration = Duration::from_secs(8);
/// Pause after a failed accept, so that a lack of file descriptors causes no busy loop.
const REFUSED_PAUSE: Duration = Duration::from_millis(50);
/// Interval at which the denylist of client certificates and the configuration of authentication are reread.
const REVOCATIONS: Duration = Duration::from_secs(2);
/// Interval at which the expiry of certificates is checked.
const RENEWAL: Duration = Duration::from_secs(3600);

impl ApiServer {
    /// Serves until `shutdown`; then `/readyz` fails, watches end, running requests finish, connections close.
    ///
    /// # Errors
    /// Unusable certificates.
    pub fn serve(
        self: Arc<Self>,
        listener: TcpListener,
        shutdown: CancellationToken,
    ) -> BoxFuture<'static, Result<(), ConfigError>> {
        // Boxed, so that the crates of the callers do not compile the pipeline again.
        Box::pin(self.accept(listener, shutdown))
    }

    async fn accept(self: Arc<Self>, listener: TcpListener, shutdown: CancellationToken) -> Result<(), ConfigError> {
        let (tls, certificate) = server_config(&self.pki, &self.config)?;
        let acceptor = TlsAcceptor::from(Arc::new(tls));
        let mut renewal = tokio::time::interval_at(tokio::time::Instant::now() + RENEWAL, RENEWAL);
        let mut revocations = tokio::time::interval(REVOCATIONS);
        let limits = &self.config.limits;
        let connection_limits = ConnectionLimits {
            slots: ConnectionLimiter::new(limits.connections),
            handshakes: ConnectionLimiter::new(limits.handshakes),
        };
        let mut connections = JoinSet::new();
        let closing = CancellationToken::new();
        loop {
            let accepted = tokio::select! {
                () = shutdown.cancelled() => break,
                accepted = listener.accept() => accepted,
                Some(_) = connections.join_next(), if !connections.is_empty() => continue,
                _ = renewal.tick() => {
                    self.renew(&certificate);
                    continue;
                }
                _ = revocations.tick() => {
                    self.reread_revocations(&certificate);
                    self.reread_authentication();
                    reread_certificate(&certificate);
                    continue;
                }
            };
            let (socket, peer) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, "connection not accepted");
                    tokio::time::sleep(REFUSED_PAUSE).await;
                    continue;
                }
            };
            let opened = EvictableConnection::new();
            let Some((slot, handshake)) = connection_limits.take(peer, &opened).await else {
                tracing::debug!(%peer, "too many connections");
                self.metrics.connections.refused();
                continue;
            };
            let accepted = AcceptedConnection { socket, peer, opened, slot, handshake };
            connections.spawn(serve_one(self.clone(), acceptor.clone(), accepted, closing.clone()));
        }
        drop(listener);
        self.stop().await;
        closing.cancel();
        let drained = tokio::time::timeout(DRAIN, async { while connections.join_next().await.is_some() {} }).await;
        if drained.is_err() {
            tracing::warn!(connections = connections.len(), "closing connections that did not end in time");
            connections.shutdown().await;
        }
        Ok(())
    }

    /// Rereads the denylist of client certificates, and renews the administrator's certificate if it is denied.
    fn reread_revocations(&self, certificate: &ServerCertificate) {
        match self.pki.revoked.reread() {
            Ok(false) => {}
            Ok(true) => {
                tracing::info!("reread the denylist of client certificates");
                self.renew(certificate);
            }
            Err(error) => {
                tracing::warn!(%error, "invalid denylist of client certificates, keeping the previous one")
            }
        }
    }

    /// Rereads the configuration of authentication.
    fn reread_authentication(&self) {
        match self.watches.access.authenticator.reread() {
            Ok(false) => {}
            Ok(true) => tracing::info!("reread the configuration of authentication"),
            Err(error) => tracing::warn!(%error, "invalid configuration of authentication, keeping the previous one"),
        }
    }

    /// Replaces certificates that expire soon.
    fn renew(&self, certificate: &ServerCertificate) {
        let renewed = self.pki.renewed(&certificate.pair(), &self.config);
        match renewed.and_then(|pair| pair.map(|pair| certificate.replace(pair)).transpose()) {
            Ok(None) => {}
            Ok(Some(())) => tracing::info!("renewed the server certificate"),
            Err(error) => tracing::warn!(%error, "certificates cannot be renewed, retrying in an hour"),
        }
    }
}

/// Rereads the administrator's certificate.
fn reread_certificate(certificate: &ServerCertificate) {
    match certificate.reread() {
        Ok(false) => {}
        Ok(true) => tracing::info!("reread the certificate of --tls-cert-file"),
        Err(error) => tracing::warn!(%error, "invalid certificate of --tls-cert-file, keeping the previous one"),
    }
}

/// Accepted connection with its slots.
struct AcceptedConnection {
    socket: TcpStream,
    peer: SocketAddr,
    opened: EvictableConnection,
    slot: ConnectionSlot,
    handshake: ConnectionSlot,
}

/// Limits on connections.
struct ConnectionLimits {
    slots: Arc<ConnectionLimiter>,
    handshakes: Arc<ConnectionLimiter>,
}

impl ConnectionLimits {
    /// Takes the slots of a new connection. Evicts no handshake if the connection gets no slot.
    async fn take(&self, peer: SocketAddr, opened: &EvictableConnection) -> Option<(ConnectionSlot, ConnectionSlot)> {
        let slot = self.slots.take(peer.ip(), opened).await?;
        Some((slot, self.handshakes.take(peer.ip(), opened).await?))
    }
}

async fn serve_one(
    server: Arc<ApiServer>,
    acceptor: TlsAcceptor,
    accepted: AcceptedConnection,
    closing: CancellationToken,
) {
    let AcceptedConnection { socket, peer, opened, slot: _slot, handshake } = accepted;
    match connection::shake(&acceptor, socket, &opened).await {
        Ok(stream) => {
            drop(handshake);
            connection::run(server, (stream, peer), opened, closing).await;
        }
        Err(error) => {
            server.metrics.connections.failed();
            tracing::debug!(%peer, %error, "TLS handshake failed");
        }
    }
}

/// Answers a request behind a box, so that other crates do not compile the pipeline again.
fn boxed_answer(
    server: Arc<ApiServer>,
    peer: crate::authn::Peer,
    request: http::Request<RequestBody>,
) -> BoxFuture<'static, http::Response<crate::Body>> {
    Box::pin(answer(server, peer, request))
}

/// Serves one request as if its connection had a client certificate of `user`, or none. For front ends that terminate
/// TLS themselves, and for tests.
pub async fn answer_connection<B>(
    server: Arc<ApiServer>,
    user: Option<Arc<crate::User>>,
    request: http::Request<B>,
) -> http::Response<crate::Body>
where
    B: http_body::Body<Data = bytes::Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    answer(server, crate::authn::Peer::Connection(user), request.map(boxed_body)).await
}
