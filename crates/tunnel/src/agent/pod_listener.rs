//! Listener of an agent for pods: it forwards their connections to the server as they are. TLS ends at the server, so
//! that the agent sees no token.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    task::JoinSet,
    time::timeout,
};
use tokio_util::sync::CancellationToken;

use super::ServerUrl;

/// Most connections of pods at a time. One more waits until another ends.
const MAX_CONNECTIONS: usize = 1024;
/// Time for a connection to the server.
const CONNECT: Duration = Duration::from_secs(10);
/// Pause after a connection could not be accepted: file descriptors are short.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Listener for pods, bound to its address.
pub struct PodListener {
    listener: TcpListener,
    server: ServerUrl,
    permits: Arc<Semaphore>,
}

impl PodListener {
    /// Binds the listener.
    ///
    /// # Errors
    /// An address that cannot be listened on.
    pub async fn bind(address: SocketAddr, server: ServerUrl) -> std::io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        Ok(Self { listener, server, permits: Arc::new(Semaphore::new(MAX_CONNECTIONS)) })
    }

    /// Returns the address that it listens on.
    ///
    /// # Errors
    /// None that the operating system is known to give.
    pub fn address(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Forwards connections until `shutdown`.
    pub async fn run(self, shutdown: CancellationToken) {
        let mut connections = JoinSet::new();
        let accepting = async {
            loop {
                let permit = self.permits.clone().acquire_owned().await.expect("the semaphore is never closed");
                match self.listener.accept().await {
                    Ok((pod, _)) => {
                        let server = self.server.clone();
                        connections.spawn(async move {
                            let _permit = permit;
                            forward(pod, &server).await;
                        });
                    }
                    Err(error) => {
                        tracing::warn!(%error, "a connection of a pod cannot be accepted");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                }
                while connections.try_join_next().is_some() {}
            }
        };
        shutdown.run_until_cancelled(accepting).await;
        connections.shutdown().await;
    }
}

/// Forwards one connection until both sides have closed it.
async fn forward(mut pod: TcpStream, server: &ServerUrl) {
    let address = (server.host.as_str(), server.port);
    let connected = timeout(CONNECT, TcpStream::connect(address)).await;
    let mut upstream = match connected {
        Ok(Ok(upstream)) => upstream,
        Ok(Err(error)) => return tracing::debug!(%error, "the server cannot be reached for a pod"),
        Err(_) => return tracing::debug!("the server does not answer a pod in time"),
    };
    let are_set = pod.set_nodelay(true).and_then(|()| upstream.set_nodelay(true));
    let ended = match are_set {
        Ok(()) => copy_bidirectional(&mut pod, &mut upstream).await.map(drop),
        Err(error) => Err(error),
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection of a pod ended");
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    const LOOPBACK: &str = "127.0.0.1:0";

    async fn listener(server: SocketAddr) -> PodListener {
        let server = ServerUrl { host: server.ip().to_string(), port: server.port() };
        PodListener::bind(LOOPBACK.parse().unwrap(), server).await.unwrap()
    }

    #[tokio::test]
    async fn bytes_go_both_ways_and_the_end_ends_both() {
        let server = TcpListener::bind(LOOPBACK).await.unwrap();
        let listener = listener(server.local_addr().unwrap()).await;
        let (address, shutdown) = (listener.address().unwrap(), CancellationToken::new());
        let running = tokio::spawn(listener.run(shutdown.clone()));
        let mut pod = TcpStream::connect(address).await.unwrap();
        let (mut upstream, _) = server.accept().await.unwrap();
        pod.write_all(b"hello").await.unwrap();
        let mut read = [0; 5];
        upstream.read_exact(&mut read).await.unwrap();
        assert_eq!(&read, b"hello");
        upstream.write_all(b"answer").await.unwrap();
        drop(upstream);
        let mut text = String::new();
        pod.read_to_string(&mut text).await.unwrap();
        assert_eq!(text, "answer");
        shutdown.cancel();
        running.await.unwrap();
    }

    #[tokio::test]
    async fn a_server_out_of_reach_ends_the_connection_of_the_pod_alone() {
        let unbound = TcpListener::bind(LOOPBACK).await.unwrap().local_addr().unwrap();
        let listener = listener(unbound).await;
        let (address, shutdown) = (listener.address().unwrap(), CancellationToken::new());
        let running = tokio::spawn(listener.run(shutdown.clone()));
        for case in ["the first", "the next"] {
            let mut pod = TcpStream::connect(address).await.unwrap();
            let mut text = String::new();
            assert_eq!(pod.read_to_string(&mut text).await.unwrap_or_default(), 0, "{case}");
        }
        shutdown.cancel();
        running.await.unwrap();
    }
}
