//! Responder over UDP and TCP: it answers names of logical clusters, and forwards all others.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::{Arc, RwLock},
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
/// Time that a query about what is not known waits for the names to be read.
const PATIENCE: Duration = Duration::from_secs(2);

/// Age from which names are no longer answered: an address may be that of another tenant's pod by then.
const MAX_AGE: Duration = Duration::from_secs(600);

/// Names, and the time at which they were read.
type ReadTable = (Arc<NameTable>, Instant);

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
    /// Number of times that the names were read.
    reads: watch::Sender<u64>,
    /// Wakes the next read.
    wanted: Notify,
    /// Queries that wait for the next read.
    waiting: ClientCounts,
}

impl Responder {
    /// Makes a responder that knows no names yet.
    pub(super) fn new(socket: UdpSocket, resolver: SocketAddr, domains: ClusterDomains) -> Self {
        let table = RwLock::new((Arc::default(), Instant::now()));
        let waiting = ClientCounts::new(MAX_WAITING_OF_CLIENT);
        Self { socket, domains, resolver, table, reads: watch::Sender::default(), wanted: Notify::new(), waiting }
    }

    fn table(&self) -> ReadTable {
        self.table.read().expect("no code panics under this lock").clone()
    }

    /// Replaces the names.
    pub(super) fn learn(&self, table: NameTable) {
        *self.table.write().expect("no code panics under this lock") = (Arc::new(table), Instant::now());
        self.reads.send_modify(|reads| *reads += 1);
    }

    /// Reads the names at an interval. While they cannot be read, the known ones are answered for [`MAX_AGE`].
    pub(super) async fn follow(&self, api: &ClusterApi) {
        loop {
            match sources::read(api).await {
                Ok(table) => self.learn(table),
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
                // An answer to a client that has gone.
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
            let is_known = self.table().0.knows(address);
            let Some(counted) = clients.admit(address).filter(|_| is_known) else {
                tracing::debug!(%client, is_known, "a connection is refused");
                continue;
            };
            let this = self.clone();
            connections.spawn(async move {
                let _guards = (permit, counted);
                let talked = timeout(CONNECTION, this.talk(stream, address)).await;
                if let Ok(Err(error)) = talked {
                    tracing::debug!(%error, %client, "a connection ended");
                }
            });
        }
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
            Some(NameAnswer::Elsewhere) => self.forwarded(by, query).await,
            Some(NameAnswer::Alias(target)) => match question.about(&target) {
                Some(asked) => {
                    let found = self.forwarded(by, &asked).await;
                    found.and_then(|found| question.alias(limit, &target, &found))
                }
                None => None,
            },
        };
        answer.unwrap_or_else(|| question.answer(ResultCode::ServerFailure, &[]))
    }

    /// Returns the answer of the other resolver, if it comes in time.
    async fn forwarded(&self, by: Transport, query: &[u8]) -> Option<Vec<u8>> {
        let answered = match by {
            Transport::Udp => timeout(FORWARD, self.forward(query)).await,
            Transport::Tcp => timeout(FORWARD, self.forward_over_tcp(query)).await,
        };
        answered.ok()?.ok()
    }

    /// Resolves a name; `None` while the known names are too old.
    async fn found(&self, question: &Question<'_>, client: IpAddr) -> Option<NameAnswer> {
        let mut reads = self.reads.subscribe();
        let (mut table, read_at) = self.table();
        if read_at.elapsed() > MAX_AGE {
            return None;
        }
        let mut found = table.resolve(client, &question.name, &self.domains);
        let may_come = matches!(found, NameAnswer::UnknownClient | NameAnswer::Missing);
        if let Some(_waits) = may_come.then(|| self.waiting.admit(client)).flatten() {
            // The pod or the Service may have been made a moment ago.
            reads.mark_unchanged();
            self.wanted.notify_one();
            let _ = timeout(PATIENCE, reads.changed()).await;
            (table, _) = self.table();
            found = table.resolve(client, &question.name, &self.domains);
        }
        Some(found)
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
mod tests {
    use portolan_types::annotations;
    use serde_json::json;

    use super::{super::names::NameSources, *};

    const LOOPBACK: &str = "127.0.0.1:0";

    fn table(client: &str) -> NameTable {
        let identity = json!({"cluster": "a", "namespace": "shop", "physical": "east"}).to_string();
        let service =
            |name: &str| json!({"metadata": {"name": name, "namespace": "shop-a"}, "spec": {"clusterIP": "10.96.0.1"}});
        NameTable::new(&NameSources {
            namespaces: vec![json!({"metadata": {"name": "shop-a", "labels": {annotations::DOWN_TENANT: "one"},
                "annotations": {annotations::DOWN_IDENTITY: identity}}})],
            pods: vec![json!({"metadata": {"namespace": "shop-a"}, "status": {"podIP": client}})],
            services: vec![
                service("web"),
                json!({"metadata": {"name": "mail", "namespace": "shop-a"},
                    "spec": {"type": "ExternalName", "externalName": "mail.example.com"}}),
            ],
            slices: Vec::new(),
        })
    }

    async fn ask(client: &UdpSocket, name: &str) -> Vec<u8> {
        client.send(&message::query(name, 1)).await.unwrap();
        let mut buffer = vec![0; 512];
        let length = client.recv(&mut buffer).await.unwrap();
        buffer.truncate(length);
        buffer
    }

    #[tokio::test]
    async fn connections_of_a_client_have_a_bound_and_strangers_have_none() {
        let (socket, listener) = (UdpSocket::bind(LOOPBACK).await.unwrap(), TcpListener::bind(LOOPBACK).await.unwrap());
        let (resolver, address) = (socket.local_addr().unwrap(), listener.local_addr().unwrap());
        let responder = Arc::new(Responder::new(socket, resolver, ClusterDomains::with([])));
        let serving = tokio::spawn(responder.clone().serve_connections(listener));
        let at_once = FIRST_QUERY / 2;
        let mut stranger = TcpStream::connect(address).await.unwrap();
        assert!(timeout(at_once, stranger.read_u16()).await.expect("closed at once").is_err());
        responder.learn(table("127.0.0.1"));
        let mut held = Vec::new();
        for _ in 0..MAX_CONNECTIONS_OF_CLIENT {
            held.push(TcpStream::connect(address).await.unwrap());
        }
        let mut extra = TcpStream::connect(address).await.unwrap();
        assert!(timeout(at_once, extra.read_u16()).await.expect("closed at once").is_err());
        let idle = timeout(FIRST_QUERY * 2, held[0].read_u16()).await;
        assert!(idle.expect("an idle connection ends after the time for its first query").is_err());
        serving.abort();
    }

    #[tokio::test]
    async fn a_client_with_many_waiting_queries_is_answered_at_once() {
        let socket = UdpSocket::bind(LOOPBACK).await.unwrap();
        let resolver = socket.local_addr().unwrap();
        let responder = Responder::new(socket, resolver, ClusterDomains::with([]));
        responder.learn(table("127.0.0.1"));
        let client = IpAddr::from([127, 0, 0, 1]);
        let _waiting: Vec<_> = (0..MAX_WAITING_OF_CLIENT).map(|_| responder.waiting.admit(client).unwrap()).collect();
        let query = message::query("missing.shop.svc.cluster.local", 1);
        let question = message::parse(&query).unwrap();
        let answer = timeout(PATIENCE / 2, responder.answer(&question, &query, client)).await.expect("at once");
        assert_eq!(answer, question.answer(ResultCode::NameError, &[]));
    }

    #[tokio::test]
    async fn names_of_the_logical_cluster_are_answered_and_others_forwarded() {
        let resolver = UdpSocket::bind(LOOPBACK).await.unwrap();
        let socket = UdpSocket::bind(LOOPBACK).await.unwrap();
        let address = socket.local_addr().unwrap();
        let responder = Arc::new(Responder::new(socket, resolver.local_addr().unwrap(), ClusterDomains::with([])));
        responder.learn(table("127.0.0.1"));
        let serving = tokio::spawn(responder.clone().serve());
        let client = UdpSocket::bind(LOOPBACK).await.unwrap();
        client.connect(address).await.unwrap();
        let found = ask(&client, "web.shop.svc.cluster.local").await;
        assert!(found.ends_with(&[10, 96, 0, 1]), "{found:?}");
        let forwarding = tokio::spawn(async move {
            let mut buffer = [0; 512];
            let (length, from) = resolver.recv_from(&mut buffer).await.unwrap();
            let wrong = [buffer[0] ^ 1, buffer[1], 0x81];
            resolver.send_to(&wrong, from).await.unwrap();
            let question = message::parse(&buffer[..length]).unwrap();
            let answer = question.answer(ResultCode::NoError, &["192.0.2.1".parse().unwrap()]);
            resolver.send_to(&answer, from).await.unwrap();
        });
        let forwarded = ask(&client, "example.com").await;
        assert!(forwarded.ends_with(&[192, 0, 2, 1]), "{forwarded:?}");
        forwarding.await.unwrap();
        serving.abort();
    }

    #[tokio::test]
    async fn many_addresses_are_answered_over_tcp_and_other_names_forwarded() {
        let resolver = TcpListener::bind(LOOPBACK).await.unwrap();
        let (socket, listener) = (UdpSocket::bind(LOOPBACK).await.unwrap(), TcpListener::bind(LOOPBACK).await.unwrap());
        let address = listener.local_addr().unwrap();
        let responder = Arc::new(Responder::new(socket, resolver.local_addr().unwrap(), ClusterDomains::with([])));
        responder.learn(table("127.0.0.1"));
        let serving = tokio::spawn(responder.serve_connections(listener));
        let mut client = TcpStream::connect(address).await.unwrap();
        write_message(&mut client, &message::query("web.shop.svc", 1)).await.unwrap();
        let found = read_message(&mut client, MAX_MESSAGE).await.unwrap();
        assert!(found.ends_with(&[10, 96, 0, 1]), "{found:?}");
        write_message(&mut client, &message::query("example.com", 1)).await.unwrap();
        let (mut forwarded, _) = resolver.accept().await.unwrap();
        let asked = read_message(&mut forwarded, MAX_QUERY).await.unwrap();
        let addresses: Vec<IpAddr> = (0..200).map(|last| IpAddr::from([192, 0, 2, last])).collect();
        let answer = message::parse(&asked).unwrap().answer_within(MAX_MESSAGE, ResultCode::NoError, &addresses);
        write_message(&mut forwarded, &answer).await.unwrap();
        assert_eq!(read_message(&mut client, MAX_MESSAGE).await.unwrap(), answer);
        write_message(&mut client, &message::query("mail.shop.svc", 1)).await.unwrap();
        let (mut forwarded, _) = resolver.accept().await.unwrap();
        let asked = read_message(&mut forwarded, MAX_QUERY).await.unwrap();
        let outside = message::parse(&asked).unwrap();
        assert_eq!(outside.name, "mail.example.com", "the name that an ExternalName stands for");
        let answer = outside.answer(ResultCode::NoError, &["192.0.2.9".parse().unwrap()]);
        write_message(&mut forwarded, &answer).await.unwrap();
        let alias = read_message(&mut client, MAX_MESSAGE).await.unwrap();
        assert!(alias[3] & 15 == 0 && alias.ends_with(&[192, 0, 2, 9]), "{alias:?}");
        client.write_all(&[0xff, 0xff]).await.unwrap();
        assert!(read_message(&mut client, MAX_MESSAGE).await.is_err(), "a longer query than any ends the connection");
        serving.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn clients_that_are_no_pods_of_portolan_are_refused() {
        let socket = UdpSocket::bind(LOOPBACK).await.unwrap();
        let address = socket.local_addr().unwrap();
        let responder = Arc::new(Responder::new(socket, address, ClusterDomains::with([])));
        responder.learn(table("10.0.0.9"));
        let bytes = message::query("web.shop.svc", 1);
        let question = message::parse(&bytes).unwrap();
        let refused = responder.answer(&question, &bytes, "127.0.0.1".parse().unwrap()).await;
        assert_eq!(refused[3] & 15, 5);
        let learning = async {
            responder.wanted.notified().await;
            responder.learn(table("127.0.0.1"));
        };
        responder.wanted.notified().await;
        let asking = responder.answer(&question, &bytes, "127.0.0.1".parse().unwrap());
        let ((), found) = tokio::join!(learning, asking);
        assert!(found.ends_with(&[10, 96, 0, 1]), "a pod that was made a moment ago is found");
    }

    #[tokio::test(start_paused = true)]
    async fn only_names_that_may_come_wait_for_a_read_and_old_names_are_not_answered() {
        let socket = UdpSocket::bind(LOOPBACK).await.unwrap();
        let address = socket.local_addr().unwrap();
        let responder = Arc::new(Responder::new(socket, address, ClusterDomains::with([])));
        responder.learn(table("127.0.0.1"));
        let ask = |name: &'static str| {
            let responder = responder.clone();
            async move {
                let (bytes, began) = (message::query(name, 1), Instant::now());
                let question = message::parse(&bytes).unwrap();
                let answer = responder.answer(&question, &bytes, "127.0.0.1".parse().unwrap()).await;
                (answer[3] & 15, began.elapsed())
            }
        };
        assert_eq!(ask("example.com.shop.svc.cluster.local").await, (3, Duration::ZERO));
        assert_eq!(ask("1.0.0.127.in-addr.arpa").await, (3, Duration::ZERO));
        assert_eq!(ask("later.shop.svc.cluster.local").await, (3, PATIENCE));
        tokio::time::advance(MAX_AGE).await;
        assert_eq!(ask("web.shop.svc").await.0, 2, "the address may be another's");
    }
}
