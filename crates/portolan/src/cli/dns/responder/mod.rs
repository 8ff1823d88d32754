//! Responder over UDP and TCP: it answers names of logical clusters, and forwards all others.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::{
        Arc, RwLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use portolan_types::client_counts::ClientCounts;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream, UdpSocket},
    sync::{Notify, Semaphore, watch},
    task::JoinSet,
    time::{Instant, timeout},
};

use super::{
    super::cluster_api::ClusterApi,
    message::{self, MAX_ANSWER, MAX_MESSAGE, MAX_QUERY, Question, ResultCode},
    names::{ClusterDomains, NameAnswer, NameTable},
    sources,
};

/// Most queries at a time. One more gets no answer, and the client asks again.
const MAX_QUERIES: usize = 256;
/// Most connections at a time. One more waits until another ends.
const MAX_CONNECTIONS: usize = 64;
/// Most connections of a client at a time. One more is closed.
const MAX_CONNECTIONS_OF_CLIENT: usize = 8;
/// Most connections at a time of clients that are not known yet. One more is closed.
const MAX_STRANGERS: usize = 16;
/// Most queries of a client at a time that the other resolver answers. One more fails.
const MAX_FORWARDING_OF_CLIENT: usize = 32;
/// Most queries of a client that wait for the names to be read. One more is answered from those that are known.
const MAX_WAITING_OF_CLIENT: usize = 16;
/// Time for the first query of a connection.
const FIRST_QUERY: Duration = Duration::from_secs(2);
/// Longest life of a connection. Clients open another one.
const CONNECTION: Duration = Duration::from_secs(10);
/// Pause after a connection could not be accepted: file descriptors are short.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Largest answer of the other resolver, in bytes.
const MAX_FORWARDED: usize = 4096;
/// Time for an answer of the other resolver.
const FORWARD: Duration = Duration::from_secs(3);
/// Interval at which the names are read.
const REFRESH: Duration = Duration::from_secs(5);
/// Shortest interval, for a name or a pod that is not known yet.
const EARLIEST_REFRESH: Duration = Duration::from_millis(500);
/// Time that a query for an unknown name waits until the names are read again.
const PATIENCE: Duration = Duration::from_secs(2);

/// Age from which names are no longer answered: an address may be that of another tenant's pod by then.
const MAX_AGE: Duration = Duration::from_secs(600);

/// Names, and the time at which they were read.
type ReadTable = (Arc<NameTable>, Instant);

/// Read of the names: its number, and the time at which it began.
struct NameRead {
    number: u64,
    began: Instant,
}

/// Transport of a query.
#[derive(Clone, Copy)]
enum Transport {
    Udp,
    Tcp,
}

/// Responder on one socket.
pub(super) struct Responder {
    socket: UdpSocket,
    domains: ClusterDomains,
    /// Resolver of all other names.
    resolver: SocketAddr,
    table: RwLock<ReadTable>,
    /// Number of reads of the names that have started.
    begun: AtomicU64,
    /// Number of the last read that has ended.
    reads: watch::Sender<u64>,
    /// Wakes the next read.
    wanted: Notify,
    /// Queries that wait for the next read.
    waiting: ClientCounts,
    /// Queries that the other resolver answers.
    forwarding: ClientCounts,
}

impl Responder {
    /// Makes a responder that knows no names yet.
    pub(super) fn new(socket: UdpSocket, resolver: SocketAddr, domains: ClusterDomains) -> Self {
        let table = RwLock::new((Arc::default(), Instant::now()));
        Self {
            socket,
            domains,
            resolver,
            table,
            begun: AtomicU64::new(0),
            reads: watch::Sender::default(),
            wanted: Notify::new(),
            waiting: ClientCounts::new(MAX_WAITING_OF_CLIENT),
            forwarding: ClientCounts::new(MAX_FORWARDING_OF_CLIENT),
        }
    }

    fn table(&self) -> ReadTable {
        self.table.read().expect("no code panics under this lock").clone()
    }

    /// Begins a read of the names.
    fn begin_read(&self) -> NameRead {
        NameRead { number: self.begun.fetch_add(1, Ordering::Relaxed) + 1, began: Instant::now() }
    }

    /// Replaces the names by those of a read.
    fn learn(&self, table: NameTable, read: NameRead) {
        *self.table.write().expect("no code panics under this lock") = (Arc::new(table), read.began);
        self.reads.send_replace(read.number);
    }

    /// Reads the names at an interval. While they cannot be read, the known ones are answered for [`MAX_AGE`].
    pub(super) async fn follow(&self, api: &ClusterApi) {
        loop {
            let read = self.begin_read();
            match sources::read(api).await {
                Ok(table) => self.learn(table, read),
                Err(error) => tracing::warn!(%error, "the names cannot be read"),
            }
            tokio::time::sleep(EARLIEST_REFRESH).await;
            let _ = timeout(REFRESH, self.wanted.notified()).await;
        }
    }

    /// Answers queries until the socket fails.
    ///
    /// # Errors
    /// The failure of the socket.
    pub(super) async fn serve(self: Arc<Self>) -> std::io::Result<()> {
        let (permits, mut queries) = (Arc::new(Semaphore::new(MAX_QUERIES)), JoinSet::new());
        let mut buffer = [0; MAX_QUERY + 1];
        loop {
            let (length, client) = match self.socket.recv_from(&mut buffer).await {
                Ok(received) => received,
                // The client may have disconnected.
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionRefused => continue,
                Err(error) => return Err(error),
            };
            while queries.try_join_next().is_some() {}
            let Ok(permit) = permits.clone().try_acquire_owned() else { continue };
            let (this, query) = (self.clone(), buffer[..length].to_vec());
            queries.spawn(async move {
                let _permit = permit;
                this.handle(&query, client).await;
            });
        }
    }

    /// Answers queries over TCP, forever.
    pub(super) async fn serve_connections(self: Arc<Self>, listener: TcpListener) {
        let (permits, mut connections) = (Arc::new(Semaphore::new(MAX_CONNECTIONS)), JoinSet::new());
        let clients = ClientCounts::new(MAX_CONNECTIONS_OF_CLIENT);
        let strangers = Arc::new(Semaphore::new(MAX_STRANGERS));
        loop {
            let permit = permits.clone().acquire_owned().await.expect("the semaphore is never closed");
            while connections.try_join_next().is_some() {}
            let (stream, client) = match listener.accept().await {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, "a connection cannot be accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let address = client.ip().to_canonical();
            let strangers = strangers.clone();
            let waits = if self.knows(address) { Ok(None) } else { strangers.try_acquire_owned().map(Some) };
            let (Some(counted), Ok(stranger)) = (clients.admit(address), waits) else {
                tracing::debug!(%client, "a connection is refused");
                continue;
            };
            let this = self.clone();
            connections.spawn(async move {
                let _guards = (permit, counted);
                if let Some(_waits) = stranger
                    && !this.comes_to_know(address).await
                {
                    tracing::debug!(%client, "the connection of an unknown client is closed");
                    return;
                }
                let talked = timeout(CONNECTION, this.talk(stream, address)).await;
                if let Ok(Err(error)) = talked {
                    tracing::debug!(%error, %client, "a connection ended");
                }
            });
        }
    }

    fn knows(&self, client: IpAddr) -> bool {
        self.table().0.knows(client)
    }

    /// Returns true if a client is known after the next read: the pod may have been made a moment ago.
    async fn comes_to_know(&self, client: IpAddr) -> bool {
        self.read_again(client).await;
        self.knows(client)
    }

    /// Waits until the names are known as of now, for at most [`PATIENCE`]. A client that has many queries waiting does
    /// not wait.
    async fn read_again(&self, client: IpAddr) {
        let Some(_waits) = self.waiting.admit(client) else { return };
        let (begun, mut reads) = (self.begun.load(Ordering::Relaxed), self.reads.subscribe());
        self.wanted.notify_one();
        // A read in progress may have missed newer objects.
        let _ = timeout(PATIENCE, reads.wait_for(|read| *read > begun)).await;
    }

    /// Answers the queries of a connection until the client closes it, or sends one that cannot be answered.
    async fn talk(&self, mut stream: TcpStream, client: IpAddr) -> std::io::Result<()> {
        let mut query = timeout(FIRST_QUERY, read_message(&mut stream, MAX_QUERY)).await??;
        loop {
            let Some(question) = message::parse(&query) else { return Ok(()) };
            let answer = self.answer_by(Transport::Tcp, &question, &query, client).await;
            write_message(&mut stream, &answer).await?;
            query = read_message(&mut stream, MAX_QUERY).await?;
        }
    }

    /// Asks the other resolver over TCP.
    async fn forward_over_tcp(&self, query: &[u8]) -> std::io::Result<Vec<u8>> {
        let mut stream = TcpStream::connect(self.resolver).await?;
        write_message(&mut stream, query).await?;
        let answer = read_message(&mut stream, MAX_MESSAGE).await?;
        let is_answer = message::is_answer_to(query, &answer);
        is_answer.then_some(answer).ok_or_else(|| std::io::Error::other("the answer is to another question"))
    }

    async fn handle(&self, query: &[u8], client: SocketAddr) {
        let Some(question) = message::parse(query) else { return };
        let answer = self.answer(&question, query, client.ip().to_canonical()).await;
        if let Err(error) = self.socket.send_to(&answer, client).await {
            tracing::debug!(%error, %client, "an answer cannot be sent");
        }
    }

    async fn answer(&self, question: &Question<'_>, query: &[u8], client: IpAddr) -> Vec<u8> {
        self.answer_by(Transport::Udp, question, query, client).await
    }

    async fn answer_by(&self, by: Transport, question: &Question<'_>, query: &[u8], client: IpAddr) -> Vec<u8> {
        let limit = match by {
            Transport::Udp => MAX_ANSWER,
            Transport::Tcp => MAX_MESSAGE,
        };
        let answer = match self.found(question, client).await {
            None => None,
            Some(NameAnswer::Addresses(addresses)) => {
                Some(question.answer_within(limit, ResultCode::NoError, &addresses))
            }
            Some(NameAnswer::Missing | NameAnswer::Absent) => Some(question.answer(ResultCode::NameError, &[])),
            Some(NameAnswer::UnknownClient) => Some(question.answer(ResultCode::Refused, &[])),
            Some(NameAnswer::Elsewhere) => self.forwarded(by, query, client).await,
            Some(NameAnswer::Alias(target)) => match question.about(&target) {
                Some(asked) => {
                    let found = self.forwarded(by, &asked, client).await;
                    found.and_then(|found| question.alias(limit, &target, &found))
                }
                None => None,
            },
        };
        answer.unwrap_or_else(|| question.answer(ResultCode::ServerFailure, &[]))
    }

    /// Returns the answer of the other resolver, if it comes in time and the client asks for few names at a time.
    async fn forwarded(&self, by: Transport, query: &[u8], client: IpAddr) -> Option<Vec<u8>> {
        let _counted = self.forwarding.admit(client)?;
        let answered = match by {
            Transport::Udp => timeout(FORWARD, self.forward(query)).await,
            Transport::Tcp => timeout(FORWARD, self.forward_over_tcp(query)).await,
        };
        answered.ok()?.ok()
    }

    /// Resolves a name; `None` while the known names are too old.
    async fn found(&self, question: &Question<'_>, client: IpAddr) -> Option<NameAnswer> {
        let (table, read_at) = self.table();
        if read_at.elapsed() > MAX_AGE {
            return None;
        }
        let found = table.resolve(client, &question.name, &self.domains);
        if !matches!(found, NameAnswer::UnknownClient | NameAnswer::Missing) {
            return Some(found);
        }
        // The pod or the Service may have been made a moment ago.
        self.read_again(client).await;
        Some(self.table().0.resolve(client, &question.name, &self.domains))
    }

    /// Asks the other resolver, by a socket of its own: only that resolver can answer there.
    async fn forward(&self, query: &[u8]) -> std::io::Result<Vec<u8>> {
        let any: IpAddr = match self.resolver {
            SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let socket = UdpSocket::bind((any, 0)).await?;
        socket.connect(self.resolver).await?;
        socket.send(query).await?;
        let mut buffer = vec![0; MAX_FORWARDED];
        loop {
            let length = socket.recv(&mut buffer).await?;
            if message::is_answer_to(query, &buffer[..length]) {
                buffer.truncate(length);
                return Ok(buffer);
            }
        }
    }
}

/// Reads a message, which over TCP has its length before it.
async fn read_message(stream: &mut TcpStream, limit: usize) -> std::io::Result<Vec<u8>> {
    let length = usize::from(stream.read_u16().await?);
    if length > limit {
        return Err(std::io::Error::other("the message is too long"));
    }
    let mut message = vec![0; length];
    stream.read_exact(&mut message).await?;
    Ok(message)
}

async fn write_message(stream: &mut TcpStream, message: &[u8]) -> std::io::Result<()> {
    let length = u16::try_from(message.len()).map_err(std::io::Error::other)?;
    stream.write_all(&[&length.to_be_bytes(), message].concat()).await
}

#[cfg(test)]
mod tests;
