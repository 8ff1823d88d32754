//! Listener of an agent for pods: it forwards their connections to the server as they are. TLS ends at the server, so
//! that the agent sees no token.

use std::{
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use portolan_types::client_counts::ClientCounts;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf, copy_bidirectional},
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    task::JoinSet,
    time::timeout,
};
use tokio_util::sync::CancellationToken;

use super::ServerUrl;

/// Most connections of pods at a time. One more waits until another ends.
const MAX_CONNECTIONS: usize = 1024;
/// Maximum concurrent connections of one address. Further ones are closed, so that one pod cannot use up the
/// connections of all.
const MAX_OF_ADDRESS: usize = 128;
/// Time after which a connection without a byte in either direction ends. A watch has a bookmark each minute.
const MAX_IDLE: Duration = Duration::from_secs(900);
/// Time for a connection to the server.
const CONNECT: Duration = Duration::from_secs(10);
/// Pause after a connection could not be accepted: file descriptors are short.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Listener for pods, bound to its address.
pub struct PodListener {
    listener: TcpListener,
    server: ServerUrl,
    permits: Arc<Semaphore>,
    addresses: ClientCounts,
}

impl PodListener {
    /// Binds the listener.
    ///
    /// # Errors
    /// An address that cannot be listened on.
    pub async fn bind(address: SocketAddr, server: ServerUrl) -> std::io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        let permits = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        Ok(Self { listener, server, permits, addresses: ClientCounts::new(MAX_OF_ADDRESS) })
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
                    Ok((pod, from)) => {
                        let Some(counted) = self.addresses.admit(from.ip()) else {
                            tracing::debug!(%from, "an address has too many connections");
                            continue;
                        };
                        let server = self.server.clone();
                        connections.spawn(async move {
                            let _guards = (permit, counted);
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

/// Forwards one connection until both sides have closed it, or it is idle.
async fn forward(pod: TcpStream, server: &ServerUrl) {
    let address = (server.host.as_str(), server.port);
    let connected = timeout(CONNECT, TcpStream::connect(address)).await;
    let mut upstream = match connected {
        Ok(Ok(upstream)) => upstream,
        Ok(Err(error)) => return tracing::debug!(%error, "the server cannot be reached for a pod"),
        Err(_) => return tracing::debug!("the server does not answer a pod in time"),
    };
    let are_set = pod.set_nodelay(true).and_then(|()| upstream.set_nodelay(true));
    let operations = Arc::new(AtomicU64::new(0));
    let mut pod = CountingStream { stream: pod, operations: operations.clone() };
    let ended = match are_set {
        Ok(()) => tokio::select! {
            copied = copy_bidirectional(&mut pod, &mut upstream) => copied.map(drop),
            () = idle(&operations) => return tracing::debug!("an idle connection of a pod is closed"),
        },
        Err(error) => Err(error),
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection of a pod ended");
    }
}

/// Waits until no byte has passed for [`MAX_IDLE`], and for at most twice as long.
async fn idle(operations: &AtomicU64) {
    let mut before = operations.load(Ordering::Relaxed);
    loop {
        tokio::time::sleep(MAX_IDLE).await;
        let now = operations.load(Ordering::Relaxed);
        if now == before {
            return;
        }
        before = now;
    }
}

/// Connection that counts its reads and writes.
struct CountingStream {
    stream: TcpStream,
    operations: Arc<AtomicU64>,
}

impl CountingStream {
    fn count<T>(&self, polled: Poll<T>) -> Poll<T> {
        if polled.is_ready() {
            self.operations.fetch_add(1, Ordering::Relaxed);
        }
        polled
    }
}

impl AsyncRead for CountingStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_read(cx, buffer);
        self.count(polled)
    }
}

impl AsyncWrite for CountingStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<std::io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.count(polled)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

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

    #[test]
    fn an_address_has_a_bound_of_its_own() {
        let (counts, pod) = (ClientCounts::new(MAX_OF_ADDRESS), |last: u8| IpAddr::from([10, 1, 0, last]));
        let mut held: Vec<_> = (0..MAX_OF_ADDRESS).map(|_| counts.admit(pod(1)).unwrap()).collect();
        assert!(counts.admit(pod(1)).is_none(), "one too many");
        let other = counts.admit(pod(2)).expect("another pod has its own");
        held.pop();
        held.push(counts.admit(pod(1)).expect("one has ended"));
        drop((held, other));
    }

    #[tokio::test(start_paused = true)]
    async fn an_idle_connection_ends() {
        let operations = Arc::new(AtomicU64::new(0));
        let began = tokio::time::Instant::now();
        let using = async {
            for _ in 0..3 {
                tokio::time::sleep(MAX_IDLE / 2).await;
                operations.fetch_add(1, Ordering::Relaxed);
            }
        };
        tokio::join!(using, idle(&operations));
        assert_eq!(began.elapsed(), MAX_IDLE * 3, "the last byte passed after one and a half");
    }
}
