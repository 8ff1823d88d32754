//! The server's own accept loop: TLS, HTTP/1.1 and HTTP/2, time-outs, bounds, an orderly end.

mod activity;
mod connection;
mod connection_limiter;
mod plain;
mod socket;
mod starting;
mod tls;

use std::{net::SocketAddr, sync::Arc, time::Duration};

use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinSet,
};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use crate::{ApiServer, ConfigError};

pub(crate) use connection_limiter::AuthenticatedMark;
use connection_limiter::{ConnectionLimiter, ConnectionSlot, EvictableConnection};
pub use starting::serve_starting;
use tls::{Shown, server_config};

/// Time that requests under way have after the end was asked for.
const DRAIN: Duration = Duration::from_secs(8);
/// Pause after the system refused a connection, so that a lack of descriptors does not spin.
const REFUSED_PAUSE: Duration = Duration::from_millis(50);
/// Time between two looks at the denylist of client certificates.
const REVOCATIONS: Duration = Duration::from_secs(2);
/// How often is looked whether a certificate will soon end.
const RENEWAL: Duration = Duration::from_secs(3600);

impl ApiServer {
    /// Serves until `shutdown`: then `/readyz` says no, watches end, requests under way finish, connections close.
    ///
    /// # Errors
    /// When the certificates cannot be used.
    pub async fn serve(self: Arc<Self>, listener: TcpListener, shutdown: CancellationToken) -> Result<(), ConfigError> {
        let (tls, shown) = server_config(&self.pki)?;
        let acceptor = TlsAcceptor::from(Arc::new(tls));
        let mut renewal = tokio::time::interval_at(tokio::time::Instant::now() + RENEWAL, RENEWAL);
        let mut revocations = tokio::time::interval(REVOCATIONS);
        let limits = &self.config.limits;
        let slots = ConnectionLimiter::new(limits.connections);
        let handshakes = ConnectionLimiter::new(limits.handshakes);
        let mut connections = JoinSet::new();
        let closing = CancellationToken::new();
        loop {
            let accepted = tokio::select! {
                () = shutdown.cancelled() => break,
                accepted = listener.accept() => accepted,
                Some(_) = connections.join_next(), if !connections.is_empty() => continue,
                _ = renewal.tick() => {
                    self.renew(&shown);
                    continue;
                }
                _ = revocations.tick() => {
                    self.reread_revocations(&shown);
                    continue;
                }
            };
            let (socket, peer) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(REFUSED_PAUSE).await;
                    continue;
                }
            };
            let opened = EvictableConnection::new();
            let Some((slot, handshake)) = take_slots((&slots, &handshakes), peer, &opened).await else {
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
            tracing::warn!(connections = connections.len(), "connections are cut at the end");
            connections.shutdown().await;
        }
        Ok(())
    }

    /// Reads the denylist of client certificates again. The administrator's certificate is made anew when it is on it.
    fn reread_revocations(&self, shown: &Shown) {
        match self.pki.revoked.reread() {
            Ok(false) => {}
            Ok(true) => {
                tracing::info!("the denylist of client certificates was read again");
                self.renew(shown);
            }
            Err(error) => {
                tracing::warn!(%error, "the denylist of client certificates cannot be used, the one before stays")
            }
        }
    }

    /// Shows another certificate before the one that is shown ends.
    fn renew(&self, shown: &Shown) {
        let renewed = self.pki.renewed(&shown.pair(), &self.config);
        match renewed.and_then(|pair| pair.map(|pair| shown.replace(pair)).transpose()) {
            Ok(None) => {}
            Ok(Some(())) => tracing::info!("the server's certificate was renewed"),
            Err(error) => tracing::warn!(%error, "certificates cannot be renewed, this is tried again in an hour"),
        }
    }
}

/// Connection as it was accepted, with its slots.
struct AcceptedConnection {
    socket: TcpStream,
    peer: SocketAddr,
    opened: EvictableConnection,
    slot: ConnectionSlot,
    handshake: ConnectionSlot,
}

/// Takes the slots of a new connection. It evicts no handshake if there is no slot for the connection.
async fn take_slots(
    (slots, handshakes): (&Arc<ConnectionLimiter>, &Arc<ConnectionLimiter>),
    peer: SocketAddr,
    opened: &EvictableConnection,
) -> Option<(ConnectionSlot, ConnectionSlot)> {
    let slot = slots.take(peer.ip(), opened).await?;
    Some((slot, handshakes.take(peer.ip(), opened).await?))
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
            connection::run(server, stream, opened, closing).await;
        }
        Err(error) => {
            server.metrics.connections.failed();
            tracing::debug!(%peer, %error, "no TLS connection came about");
        }
    }
}

/// Answers one request as if it had come over a connection whose client showed a certificate of `user`, or none: for front
/// ends that end TLS themselves, and for tests.
pub async fn answer_connection<B>(
    server: Arc<ApiServer>,
    user: Option<Arc<crate::User>>,
    request: http::Request<B>,
) -> http::Response<crate::Body>
where
    B: http_body::Body<Data = bytes::Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    crate::pipeline::answer(server, crate::authn::Peer::Connection(user), request).await
}
