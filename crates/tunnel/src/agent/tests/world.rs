//! Server, proxy with faults, and physical cluster of the tests, over loopback sockets.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::{
    client::legacy::Client as HttpClient,
    rt::{TokioExecutor, TokioIo},
};
use parking_lot::Mutex;
use portolan_types::{LogicalClusterId, Seams, agent::AgentId};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose,
};
use rustls::{RootCertStore, ServerConfig, crypto::ring, server::WebPkiClientVerifier};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _};
use sha2::{Digest as _, Sha256};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tower::util::BoxCloneSyncService;

use crate::{
    agent::{Agent, AgentConfig, CredentialFile, MemberBody, MemberService, MemberServices, boxed},
    gateway::{TunnelConnector, TunnelGateway},
    session::Keepalive,
};

/// Keepalive that notices a loss soon.
pub(super) const FAST: Keepalive = Keepalive { ping: Duration::from_millis(50), silence: Duration::from_millis(250) };

/// Server with a gateway. It issues a certificate for any token.
pub(super) struct TestServer {
    pub(super) gateway: Arc<TunnelGateway>,
    /// Gateways behind the address, as those of several servers behind a load balancer.
    pub(super) gateways: Vec<Arc<TunnelGateway>>,
    next: AtomicUsize,
    pub(super) address: SocketAddr,
    pub(super) pin: [u8; 32],
    pub(super) issued: AtomicUsize,
    /// Seconds that certificates are valid.
    pub(super) life: AtomicU32,
    /// True to refuse tunnels and certificates.
    pub(super) refuses: AtomicBool,
    authority: String,
    issuer: Issuer<'static, KeyPair>,
}

impl TestServer {
    pub(super) async fn start(closing: CancellationToken) -> Arc<Self> {
        Self::start_several(1, closing).await
    }

    /// Starts `count` servers behind one address, which take turns.
    pub(super) async fn start_several(count: u32, closing: CancellationToken) -> Arc<Self> {
        let gateway = || TunnelGateway::new(Seams::system(), FAST, closing.clone());
        let gateways: Vec<_> = (0..count).map(|_| gateway()).collect();
        gateways.iter().for_each(|gateway| gateway.set_servers(count));
        let (authority, issuer) = authority();
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(["127.0.0.1".to_owned()]).unwrap();
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let leaf = params.signed_by(&key, &issuer).unwrap().pem();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let der = CertificateDer::from_pem_slice(authority.as_bytes()).unwrap();
        let server = Arc::new(Self {
            gateway: gateways[0].clone(),
            gateways,
            next: AtomicUsize::new(0),
            address: listener.local_addr().unwrap(),
            pin: Sha256::digest(&der).into(),
            issued: AtomicUsize::new(0),
            life: AtomicU32::new(3_600),
            refuses: AtomicBool::new(false),
            authority,
            issuer,
        });
        let acceptor = TlsAcceptor::from(Arc::new(tls(&der, &leaf, &key)));
        tokio::spawn(server.clone().serve(listener, acceptor, closing));
        server
    }

    async fn serve(self: Arc<Self>, listener: TcpListener, acceptor: TlsAcceptor, closing: CancellationToken) {
        while let Some(Ok((socket, _))) = closing.run_until_cancelled(listener.accept()).await {
            let (server, acceptor) = (self.clone(), acceptor.clone());
            tokio::spawn(async move {
                let Ok(stream) = acceptor.accept(socket).await else { return };
                let is_certified = stream.get_ref().1.peer_certificates().is_some();
                let service = service_fn(move |request| {
                    let server = server.clone();
                    async move { Ok::<_, std::convert::Infallible>(server.answer(request, is_certified).await) }
                });
                let connection = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                let _ = connection.serve_connection(TokioIo::new(stream), service).await;
            });
        }
    }

    async fn answer(&self, request: Request<Incoming>, is_certified: bool) -> Response<MemberBody> {
        let status = |code: u16, text: &str| {
            let body = boxed(Full::new(Bytes::from(text.to_owned())));
            Response::builder().status(code).body(body).unwrap()
        };
        if self.refuses.load(Ordering::SeqCst) {
            return status(403, "{\"message\": \"it is not registered\"}");
        }
        match request.uri().path() {
            portolan_types::agent::TUNNEL_PATH if is_certified => {
                let turn = self.next.fetch_add(1, Ordering::SeqCst);
                let gateway = &self.gateways[turn / 2 % self.gateways.len()];
                match gateway.accept(agent_id("east"), None, request.into_body()) {
                    Ok(response) => response,
                    Err(refused) => status(429, &refused.to_string()),
                }
            }
            portolan_types::agent::CERTIFICATE_PATH => {
                let token = request.headers().contains_key(header::AUTHORIZATION);
                if !is_certified && !token {
                    return status(401, "{\"message\": \"Unauthorized\"}");
                }
                let body = request.into_body().collect().await.unwrap().to_bytes();
                let asked: serde_json::Value = serde_json::from_slice(&body).unwrap();
                status(201, &self.certify(asked["request"].as_str().unwrap()))
            }
            _ => status(403, "{}"),
        }
    }

    fn certify(&self, request: &str) -> String {
        self.issued.fetch_add(1, Ordering::SeqCst);
        let mut request = CertificateSigningRequestParams::from_pem(request).unwrap();
        let now = u64::try_from(Seams::system().clock.now().as_second()).unwrap();
        let at = |second: u64| rcgen::date_time_ymd(1970, 1, 1) + Duration::from_secs(second);
        let life = u64::from(self.life.load(Ordering::SeqCst));
        (request.params.not_before, request.params.not_after) = (at(now - 1), at(now + life));
        request.params.distinguished_name.push(DnType::CommonName, agent_id("east").user_name());
        request.params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let certificate = request.signed_by(&self.issuer).unwrap().pem();
        serde_json::json!({"certificate": certificate, "authority": self.authority}).to_string()
    }

    /// Returns a client of the physical cluster.
    pub(super) fn client(&self) -> HttpClient<TunnelConnector, MemberBody> {
        let connector = TunnelConnector::new(self.gateway.clone(), agent_id("east"));
        HttpClient::builder(TokioExecutor::new()).build(connector)
    }

    /// Waits until the agent has a session.
    pub(super) async fn connected(&self) {
        let connected = async {
            while self.gateway.count().0 == 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), connected).await.expect("the agent connects");
    }
}

pub(super) fn agent_id(name: &str) -> AgentId {
    AgentId { workspace: LogicalClusterId::ROOT, name: name.parse().unwrap(), uid: "u-1".parse().unwrap() }
}

fn authority() -> (String, Issuer<'static, KeyPair>) {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, "test-ca");
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
    let pem = params.self_signed(&key).unwrap().pem();
    let issuer = Issuer::from_ca_cert_pem(&pem, key).unwrap();
    (pem, issuer)
}

fn tls(authority: &CertificateDer<'static>, leaf: &str, key: &KeyPair) -> ServerConfig {
    let provider = Arc::new(ring::default_provider());
    let mut roots = RootCertStore::empty();
    roots.add(authority.clone()).unwrap();
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone());
    let verifier = verifier.allow_unauthenticated().build().unwrap();
    let chain = vec![CertificateDer::from_pem_slice(leaf.as_bytes()).unwrap(), authority.clone()];
    let key = PrivateKeyDer::from_pem_slice(key.serialize_pem().as_bytes()).unwrap();
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain, key)
        .unwrap();
    config.alpn_protocols = vec![b"h2".to_vec()];
    config
}

/// Fault of a proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProxyFault {
    None,
    /// Bytes vanish in both directions, and the connection stays open.
    BlackHole,
    /// The server's direction ends, the other stays.
    HalfClose,
    /// Each piece waits.
    Delay,
    /// One byte of each piece is lost.
    DropBytes,
    /// The connection is reset.
    Reset,
}

/// TCP proxy on loopback.
pub(super) struct FaultyProxy {
    pub(super) address: SocketAddr,
    fault: Mutex<ProxyFault>,
    pub(super) accepted: AtomicUsize,
}

impl FaultyProxy {
    pub(super) async fn start(to: SocketAddr) -> Arc<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let proxy = Arc::new(Self { address, fault: Mutex::new(ProxyFault::None), accepted: AtomicUsize::new(0) });
        let own = proxy.clone();
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                own.accepted.fetch_add(1, Ordering::SeqCst);
                let own = own.clone();
                tokio::spawn(async move {
                    let Ok(server) = TcpStream::connect(to).await else { return };
                    let ((up_read, up_write), (down_read, down_write)) = (socket.into_split(), server.into_split());
                    let up = own.pass(up_read, down_write, false);
                    let down = own.pass(down_read, up_write, true);
                    tokio::select! { () = up => {} () = down => {} }
                });
            }
        });
        proxy
    }

    pub(super) fn set(&self, fault: ProxyFault) {
        *self.fault.lock() = fault;
    }

    async fn pass(
        &self,
        mut from: tokio::net::tcp::OwnedReadHalf,
        mut to: tokio::net::tcp::OwnedWriteHalf,
        is_servers: bool,
    ) {
        let mut buffer = vec![0; 16 * 1024];
        loop {
            let read = tokio::select! {
                read = from.read(&mut buffer) => read,
                // A fault also hits connections that say nothing.
                () = tokio::time::sleep(Duration::from_millis(10)) => {
                    if *self.fault.lock() == ProxyFault::Reset { return; }
                    continue;
                }
            };
            let Ok(bytes @ 1..) = read else { return };
            let fault = *self.fault.lock();
            let skipped = match fault {
                ProxyFault::None => 0,
                ProxyFault::BlackHole => bytes,
                ProxyFault::HalfClose if is_servers => {
                    let _ = to.shutdown().await;
                    return std::future::pending().await;
                }
                ProxyFault::HalfClose => 0,
                ProxyFault::Delay => {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                    0
                }
                ProxyFault::DropBytes => 1,
                ProxyFault::Reset => return,
            };
            if to.write_all(&buffer[skipped..bytes]).await.is_err() {
                return;
            }
        }
    }
}

/// API server of a physical cluster: `/echo` returns the body, `/watch` never ends, `/exec` upgrades to an echo.
pub(super) fn member() -> MemberService {
    let connector = tower::service_fn(|_: http::Uri| {
        let (client, server) = tokio::io::duplex(64 * 1024);
        tokio::spawn(async move {
            let service = service_fn(async |request| Ok::<_, std::convert::Infallible>(respond(request).await));
            let connection = hyper::server::conn::http1::Builder::new();
            let _ = connection.serve_connection(TokioIo::new(server), service).with_upgrades().await;
        });
        std::future::ready(Ok::<_, std::io::Error>(MemberSocket(TokioIo::new(client))))
    });
    let client: HttpClient<_, MemberBody> = HttpClient::builder(TokioExecutor::new()).build(connector);
    BoxCloneSyncService::new(tower::service_fn(move |mut request: Request<MemberBody>| {
        let client = client.clone();
        let path = request.uri().to_string();
        *request.uri_mut() = format!("http://member{path}").parse().unwrap();
        async move { Ok(client.request(request).await?.map(boxed)) }
    }))
}

async fn respond(mut request: Request<Incoming>) -> Response<MemberBody> {
    assert!(!request.headers().contains_key(header::AUTHORIZATION), "only the agent's own credential arrives");
    match (request.method(), request.uri().path()) {
        (&Method::GET, "/watch") => {
            let events = futures::stream::unfold(0_u64, async |count| {
                tokio::time::sleep(Duration::from_millis(5)).await;
                let frame = http_body::Frame::data(Bytes::from(format!("{count}\n")));
                Some((Ok::<_, std::io::Error>(frame), count + 1))
            });
            Response::new(boxed(StreamBody::new(events)))
        }
        (_, "/exec") => {
            let upgrade = hyper::upgrade::on(&mut request);
            tokio::spawn(async move {
                let (mut read, mut write) = tokio::io::split(TokioIo::new(upgrade.await.unwrap()));
                let _ = tokio::io::copy(&mut read, &mut write).await;
                let _ = write.shutdown().await;
            });
            let builder = Response::builder().status(StatusCode::SWITCHING_PROTOCOLS);
            let builder = builder.header(header::CONNECTION, "Upgrade").header(header::UPGRADE, "SPDY/3.1");
            builder.body(boxed(Full::new(Bytes::new()))).unwrap()
        }
        _ => Response::new(boxed(request.into_body())),
    }
}

/// Socket of a physical cluster in memory.
pub(super) struct MemberSocket(TokioIo<tokio::io::DuplexStream>);

impl hyper_util::client::legacy::connect::Connection for MemberSocket {
    fn connected(&self) -> hyper_util::client::legacy::connect::Connected {
        hyper_util::client::legacy::connect::Connected::new()
    }
}

impl hyper::rt::Read for MemberSocket {
    fn poll_read(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
        buffer: hyper::rt::ReadBufCursor<'_>,
    ) -> std::task::Poll<std::io::Result<()>> {
        std::pin::Pin::new(&mut self.0).poll_read(cx, buffer)
    }
}

impl hyper::rt::Write for MemberSocket {
    fn poll_write(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
        bytes: &[u8],
    ) -> std::task::Poll<std::io::Result<usize>> {
        std::pin::Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_flush(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<std::io::Result<()>> {
        std::pin::Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<std::io::Result<()>> {
        std::pin::Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

/// Agent with its files in a folder of its own.
pub(super) struct TestAgent {
    pub(super) folder: tempfile::TempDir,
    pub(super) stop: CancellationToken,
}

impl TestAgent {
    /// Starts an agent that dials `address`.
    pub(super) fn start(server: &TestServer, address: SocketAddr) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let pin: String = server.pin.iter().map(|byte| format!("{byte:02x}")).collect();
        std::fs::write(folder.path().join("token"), format!("portolan-agent_u-1_secret_{pin}\n")).unwrap();
        let agent = Self { folder, stop: CancellationToken::new() };
        agent.spawn(address);
        agent
    }

    /// Starts it again with the files of its folder.
    pub(super) fn spawn(&self, address: SocketAddr) {
        let config = AgentConfig {
            server: format!("https://{address}").parse().unwrap(),
            token_file: self.folder.path().join("token"),
            credentials: Arc::new(CredentialFile::new(self.folder.path().join("credential.json"))),
            member: MemberServices { own: member(), access: member() },
            keepalive: FAST,
            version: "v1".into(),
            seams: Seams::system(),
        };
        let stop = self.stop.clone();
        tokio::spawn(async move { Agent::new(config).run(stop).await });
    }
}

impl Drop for TestAgent {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}
