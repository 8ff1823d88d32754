//! Responses while the store is being opened; nothing of the store is reachable.

use std::{convert::Infallible, pin::pin, sync::Arc, time::Duration};

use http::{Request, Response};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo};
use portolan_types::{Reason, Status};
use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinSet,
};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use super::{
    REFUSED_PAUSE, connection,
    connection_limiter::{ConnectionLimiter, EvictableConnection},
    server_config,
};
use crate::{ApiServerConfig, Body, ConfigError, encode, hooks::ReadyCheck, pki::Pki};

/// Limit of concurrent connections, of probes and of clients that wait for the server.
const CONNECTIONS: usize = 128;
/// Time for running responses at the end.
const DRAIN: Duration = Duration::from_secs(1);

/// Serves on `listener` until `done`: `/livez` is ok unless a vital check fails, `/readyz` and `/healthz` report the
/// reason, and every other path gets a 503 with it.
///
/// # Errors
/// Unusable keys or certificates.
pub async fn serve_starting(
    listener: &TcpListener,
    config: &ApiServerConfig,
    check: Arc<dyn ReadyCheck>,
    done: CancellationToken,
) -> Result<(), ConfigError> {
    let acceptor = TlsAcceptor::from(Arc::new(server_config(&Pki::open(config)?, config)?.0));
    let slots = ConnectionLimiter::new(CONNECTIONS);
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            () = done.cancelled() => break,
            accepted = listener.accept() => accepted,
            Some(_) = connections.join_next(), if !connections.is_empty() => continue,
        };
        let Ok((socket, peer)) = accepted else {
            tokio::time::sleep(REFUSED_PAUSE).await;
            continue;
        };
        let opened = EvictableConnection::new();
        let Some(slot) = slots.take(peer.ip(), &opened).await else { continue };
        let (acceptor, check, done) = (acceptor.clone(), check.clone(), done.clone());
        connections.spawn(async move {
            let evicted = opened.evicted.clone();
            tokio::select! {
                () = converse(&acceptor, socket, opened, (check, done)) => {}
                () = evicted.cancelled() => {}
            }
            drop(slot);
        });
    }
    // Connections that are still open are dropped.
    let _ = tokio::time::timeout(DRAIN, async { while connections.join_next().await.is_some() {} }).await;
    Ok(())
}

async fn converse(
    acceptor: &TlsAcceptor,
    socket: TcpStream,
    opened: EvictableConnection,
    (check, done): (Arc<dyn ReadyCheck>, CancellationToken),
) {
    let shaken = tokio::select! {
        shaken = connection::shake(acceptor, socket, &opened) => shaken,
        () = done.cancelled() => return,
    };
    let Ok(stream) = shaken else { return };
    let service = service_fn(move |request: Request<Incoming>| {
        let response = answer(request.uri().path(), &*check);
        async { Ok::<_, Infallible>(response) }
    });
    let builder = connection::builder(TokioExecutor::new());
    let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), service));
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = done.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "connection ended with an error");
    }
}

fn answer(path: &str, check: &dyn ReadyCheck) -> Response<Body> {
    let why = check.check().err().unwrap_or_else(|| "the server is about to start".into());
    match path {
        "/livez" if !check.is_vital() => encode::text(200, "ok"),
        "/livez/ping" => encode::text(200, "ok"),
        "/livez" | "/readyz" | "/healthz" => {
            let (name, what) = (check.name(), &path[1..]);
            encode::text(500, format!("[+]ping ok\n[-]{name} failed: {why}\n{what} check failed\n"))
        }
        _ => encode::status(&Status::new(Reason::ServiceUnavailable, why).retry_after(1), encode::StatusForm::PLAIN),
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;

    use super::*;

    struct Checking {
        is_vital: bool,
    }

    impl ReadyCheck for Checking {
        fn name(&self) -> &str {
            "store"
        }
        fn check(&self) -> Result<(), String> {
            Err("checking, 30 %".into())
        }
        fn is_vital(&self) -> bool {
            self.is_vital
        }
    }

    #[tokio::test]
    async fn only_liveness_is_served_before_the_start() {
        for (path, is_vital, code, text) in [
            ("/livez", false, 200, "ok"),
            ("/livez", true, 500, "[+]ping ok\n[-]store failed: checking, 30 %\nlivez check failed\n"),
            ("/livez/ping", true, 200, "ok"),
            ("/readyz", false, 500, "[-]store failed: checking, 30 %"),
            ("/healthz", false, 500, "healthz check failed"),
            ("/clusters/root/api/v1/secrets", false, 503, "\"reason\":\"ServiceUnavailable\""),
            ("/metrics", false, 503, "checking, 30 %"),
        ] {
            let response = answer(path, &Checking { is_vital });
            assert_eq!(response.status(), code, "{path}");
            let body = response.into_body().collect().await.unwrap().to_bytes();
            let body = String::from_utf8(body.to_vec()).unwrap();
            assert!(body.contains(text), "{path}: {body}");
        }
    }
}
