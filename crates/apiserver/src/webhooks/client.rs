//! Calls webhooks: HTTPS only, to addresses they may have, no redirects, answers within bounds.

use std::{
    collections::{HashMap, VecDeque},
    convert::Infallible,
    error::Error,
    fmt, io,
    net::SocketAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use futures::future::BoxFuture;
use http::{Request, StatusCode, Uri, header};
use http_body::{Body, Frame, SizeHint};
use http_body_util::{BodyExt as _, Limited};
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::{
    client::legacy::{
        Client,
        connect::{Connected, Connection},
    },
    rt::{TokioExecutor, TokioIo, TokioTimer},
};
use parking_lot::Mutex;
use portolan_types::{LogicalClusterId, ObjectKey, addresses::Locality};
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use sha2::{Digest as _, Sha256};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    sync::Semaphore,
};
use tokio_rustls::{TlsConnector, client::TlsStream};

use super::{names::Names, service::Service, trust};

/// Largest answer, in bytes.
const MAX_ANSWER: usize = 3 * 1024 * 1024;
/// Clients that are kept, each with its idle connections.
const MAX_CLIENTS: usize = 256;
const MAX_IDLE: usize = 4;
const IDLE: Duration = Duration::from_secs(30);
const HTTPS: u16 = 443;
/// How long a connection and its handshake may take, as Go's client has it. The call may be over before.
const DIAL: Duration = Duration::from_secs(30);
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Connections that one client opens at the same time: what one call began to open is opened to its end, also when it went on with
/// another one.
const MAX_DIALS: usize = 32;

/// Where webhooks may be, besides on the Internet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WebhookAddresses {
    /// In private networks and on this machine. What is on the same link, as metadata services are, is never allowed.
    pub allow_local: bool,
}

impl WebhookAddresses {
    /// # Errors
    /// Why not.
    fn check(self, address: SocketAddr) -> Result<(), String> {
        let locality = Locality::of(address.ip());
        match locality {
            Locality::Public => Ok(()),
            Locality::Private | Locality::Loopback if self.allow_local => Ok(()),
            Locality::Private | Locality::Loopback => Err(format!(
                "{} is {}, which has to be allowed by `portolan server --allow-local-webhooks`",
                address.ip(),
                locality.text()
            )),
            Locality::Metadata | Locality::Nothing | Locality::Multicast | Locality::LinkLocal => {
                Err(format!("{} is {}", address.ip(), locality.text()))
            }
        }
    }
}

/// So much of a body is handed to a connection at once: it copies what it is handed.
const MAX_FRAME: usize = 64 * 1024;

/// A body in parts, which calls at the same moment may share.
struct Parts(VecDeque<Bytes>);

impl Body for Parts {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let Some(part) = self.0.front_mut() else { return Poll::Ready(None) };
        let frame = part.split_to(part.len().min(MAX_FRAME));
        if part.is_empty() {
            self.0.pop_front();
        }
        Poll::Ready(Some(Ok(Frame::data(frame))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.0.iter().map(|part| part.len() as u64).sum())
    }
}

/// What a webhook has answered.
pub(crate) struct Answered {
    pub(crate) status: StatusCode,
    /// It says that it is JSON, and no more, or nothing.
    pub(crate) is_json: bool,
    pub(crate) body: Bytes,
}

type Https = Client<Connector, Parts>;
/// No logical cluster shares connections with another, nor does a Service with an address of its name.
type ClientKey = (LogicalClusterId, [u8; 32], Option<ObjectKey>);

/// The clients of all webhooks.
pub(crate) struct Clients {
    addresses: WebhookAddresses,
    names: Names,
    kept: Mutex<HashMap<ClientKey, Https>>,
}

impl Clients {
    pub(crate) fn new(addresses: WebhookAddresses) -> Self {
        Self { addresses, names: Names::of_system(), kept: Mutex::default() }
    }

    /// How many clients are kept.
    pub(crate) fn kept(&self) -> usize {
        self.kept.lock().len()
    }

    /// Posts a review and gives back the answer. `service` is where the URL leads, if that is a Service.
    ///
    /// # Errors
    /// What went wrong, in the words of Go's client; nothing of what the other side said.
    pub(super) async fn post(
        &self,
        cluster: LogicalClusterId,
        ca_bundle: &[u8],
        (url, service): (&str, Option<Service>),
        timeout: Duration,
        review: Vec<Bytes>,
    ) -> Result<Answered, String> {
        let url = with_timeout(url, timeout);
        let failed = |why: String| format!("Post {url:?}: {why}");
        let exchange = async {
            let client = self.client(cluster, ca_bundle, service)?;
            let uri: Uri = url.parse().map_err(|e: http::uri::InvalidUri| e.to_string())?;
            let request = Request::post(uri)
                .header(header::CONTENT_TYPE, "application/json")
                .header(header::ACCEPT, "application/json, */*")
                .header(header::USER_AGENT, "kube-apiserver-admission")
                .body(Parts(review.into()))
                .map_err(|e| e.to_string())?;
            let response = client.request(request).await.map_err(|e| told(&e))?;
            let status = response.status();
            let is_json = response.headers().get(header::CONTENT_TYPE).is_none_or(|said| said == "application/json");
            let body = Limited::new(response.into_body(), MAX_ANSWER).collect().await;
            let body = body.map_err(|e| match e.is::<http_body_util::LengthLimitError>() {
                true => format!("http: response body too large: limit is {MAX_ANSWER}"),
                false => told(&*e),
            })?;
            Ok::<_, String>(Answered { status, is_json, body: body.to_bytes() })
        };
        let exchanged = tokio::time::timeout(timeout, exchange).await;
        let answered = exchanged.map_err(|_| failed("context deadline exceeded".into()))?.map_err(failed)?;
        match answered.status.is_success() {
            true => Ok(answered),
            false => Err(unsuccessful(answered.status)),
        }
    }

    fn client(&self, cluster: LogicalClusterId, ca_bundle: &[u8], service: Option<Service>) -> Result<Https, String> {
        let key = (cluster, Sha256::digest(ca_bundle).into(), service.as_ref().map(|service| service.key().clone()));
        if let Some(client) = self.kept.lock().get(&key) {
            return Ok(client.clone());
        }
        let outside = || Outside { allowed: self.addresses, names: self.names.clone(), tenant: cluster };
        let way = service.map_or_else(|| Way::Addresses(outside()), Way::Service);
        let dials = Arc::new(Semaphore::new(MAX_DIALS));
        let connector = Connector { way, tls: Arc::new(trust::config(ca_bundle)?), dials };
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE)
            .pool_max_idle_per_host(MAX_IDLE)
            .build(connector);
        let mut kept = self.kept.lock();
        if kept.len() >= MAX_CLIENTS {
            let own = kept.keys().find(|(kept, ..)| *kept == cluster).or_else(|| kept.keys().next()).cloned();
            own.and_then(|own| kept.remove(&own));
        }
        kept.insert(key, client.clone());
        Ok(client)
    }
}

/// The webhook is told how long it has, as upstream tells it.
pub(super) fn with_timeout(url: &str, timeout: Duration) -> String {
    let (url, slash) = match url.splitn(4, '/').nth(3) {
        Some(_) => (url, ""),
        None => (url, "/"),
    };
    format!("{url}{slash}?timeout={}s", timeout.as_secs())
}

/// Go's words for answers that are none.
fn unsuccessful(status: StatusCode) -> String {
    match status.as_u16() {
        400 => "the server rejected our request for an unknown reason".into(),
        401 => "the server has asked for the client to provide credentials".into(),
        403 => "forbidden".into(),
        404 => "the server could not find the requested resource".into(),
        405 => "the server does not allow this method on the requested resource".into(),
        409 => "the server reported a conflict".into(),
        422 => "the server rejected our request due to an error in our request".into(),
        429 => "the server has received too many requests and has asked us to try again later".into(),
        503 => "the server is currently unable to handle the request".into(),
        504 => {
            "the server was unable to return a response in the time allotted, but may still be processing the request"
                .into()
        }
        500.. => "an error on the server (\"unknown\") has prevented the request from succeeding".into(),
        code => format!("the server responded with the status code {code} but did not return more information"),
    }
}

/// What a connector says of itself, else the innermost cause.
fn told(error: &(dyn Error + 'static)) -> String {
    let mut cause = error;
    while let Some(next) = cause.source() {
        cause = next;
        if cause.is::<Refused>() {
            break;
        }
    }
    match cause.to_string() {
        text if text.contains("connection closed before message completed") => "EOF".into(),
        text => text,
    }
}

/// Why there is no connection.
#[derive(Debug)]
struct Refused(String);

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for Refused {}

/// Connects, and lets only whoever the bundle vouches for answer.
#[derive(Clone)]
struct Connector {
    way: Way,
    tls: Arc<ClientConfig>,
    dials: Arc<Semaphore>,
}

/// What the host of a URL means.
#[derive(Clone)]
enum Way {
    /// An address that has been checked: a name is resolved once, so one that resolves to another address the next time gains
    /// nothing.
    Addresses(Outside),
    /// A pod of a Service.
    Service(Service),
}

/// Bytes both ways.
trait Wire: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Wire for T {}

impl tower::Service<Uri> for Connector {
    type Response = Stream;
    type Error = Box<dyn Error + Send + Sync>;
    type Future = BoxFuture<'static, Result<Stream, Self::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let connector = self.clone();
        Box::pin(async move { connector.connect(&uri).await.map_err(|why| Refused(why).into()) })
    }
}

impl Connector {
    async fn connect(&self, uri: &Uri) -> Result<Stream, String> {
        if uri.scheme_str() != Some("https") {
            return Err(format!("unsupported protocol scheme {:?}", uri.scheme_str().unwrap_or_default()));
        }
        let host = uri.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']').to_owned();
        let name = ServerName::try_from(host.clone()).map_err(|_| format!("invalid host {host:?}"))?;
        let port = uri.port_u16().unwrap_or(HTTPS);
        let _dialing = self.dials.acquire().await.map_err(|e| e.to_string())?;
        let stream = tokio::time::timeout(DIAL, self.way.dial(&host, port)).await;
        let stream = stream.map_err(|_| "dial tcp: i/o timeout")??;
        let handshake = TlsConnector::from(self.tls.clone()).connect(name, stream);
        let stream = tokio::time::timeout(HANDSHAKE, handshake).await.map_err(|_| "net/http: TLS handshake timeout")?;
        Ok(Stream(TokioIo::new(stream.map_err(|e| trust::told(&e))?)))
    }
}

impl Way {
    async fn dial(&self, host: &str, port: u16) -> Result<Box<dyn Wire>, String> {
        Ok(match self {
            Self::Addresses(outside) => Box::new(outside.dial(host, port).await?),
            Self::Service(service) => Box::new(service.connect(port).await?),
        })
    }
}

/// Addresses that a tenant's names lead to.
#[derive(Clone)]
struct Outside {
    allowed: WebhookAddresses,
    names: Names,
    tenant: LogicalClusterId,
}

impl Outside {
    async fn dial(&self, host: &str, port: u16) -> Result<TcpStream, String> {
        let found = self.names.addresses(self.tenant, host).await;
        let found = found.ok_or_else(|| format!("dial tcp: lookup {host}: no such host"))?;
        let mut why = "dial tcp: no such host".to_owned();
        for address in found.iter().map(|address| SocketAddr::new(*address, port)) {
            let dialed = match self.allowed.check(address) {
                Err(refused) => Err(refused),
                Ok(()) => TcpStream::connect(address).await.map_err(|e| dial_error(&e)),
            };
            match dialed {
                Ok(stream) => {
                    // Small messages back and forth: waiting to fill packets only costs time.
                    let _ = stream.set_nodelay(true);
                    return Ok(stream);
                }
                Err(refused) => why = format!("dial tcp {address}: {refused}"),
            }
        }
        Err(why)
    }
}

fn dial_error(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => "connect: connection refused".into(),
        io::ErrorKind::TimedOut => "i/o timeout".into(),
        io::ErrorKind::HostUnreachable => "connect: no route to host".into(),
        _ => error.to_string(),
    }
}

/// A connection, as the pool of connections wants to see it.
struct Stream(TokioIo<TlsStream<Box<dyn Wire>>>);

impl Connection for Stream {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl Read for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: ReadBufCursor<'_>) -> Poll<io::Result<()>> {
        match Pin::new(&mut self.get_mut().0).poll_read(cx, buffer) {
            // Many servers just close a connection. As in Go that is its end; where an answer tells its length, too early an end is
            // seen by that.
            Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::UnexpectedEof => Poll::Ready(Ok(())),
            read => read,
        }
    }
}

impl Write for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().0).poll_write(cx, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().0).poll_flush(cx)
    }

    /// Says that it ends, and waits for nobody to hear that: until then it would keep what was not sent.
    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let _ = Pin::new(&mut self.get_mut().0).poll_shutdown(cx);
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use rustls_pki_types::{PrivateKeyDer, pem::PemObject as _};
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::TcpListener,
    };
    use tokio_rustls::TlsAcceptor;

    use super::*;

    #[test]
    fn where_webhooks_may_be() {
        for (address, strict, local) in [
            ("203.0.113.7:443", true, true),
            ("10.0.0.1:443", false, true),
            ("127.0.0.1:443", false, true),
            ("[::1]:443", false, true),
            ("169.254.169.254:80", false, false),
            ("[::ffff:169.254.169.254]:80", false, false),
            ("[fd00:ec2::254]:80", false, false),
            ("0.0.0.0:443", false, false),
        ] {
            let address = address.parse().unwrap();
            let may = |allow_local| WebhookAddresses { allow_local }.check(address).is_ok();
            assert_eq!((may(false), may(true)), (strict, local), "{address}");
        }
    }

    #[test]
    fn webhooks_are_told_their_time() {
        for (url, expected) in [
            ("https://a:8443", "https://a:8443/?timeout=5s"),
            ("https://a/", "https://a/?timeout=5s"),
            ("https://a/b/c", "https://a/b/c?timeout=5s"),
        ] {
            assert_eq!(with_timeout(url, Duration::from_secs(5)), expected);
        }
    }

    /// A server that answers one request without telling the length, and closes the connection without a word.
    async fn abrupt(answer: &'static [u8]) -> (SocketAddr, String) {
        let own = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
        let key = PrivateKeyDer::from_pem_slice(own.signing_key.serialize_pem().as_bytes()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = rustls::ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let tls = tls.with_no_client_auth().with_single_cert(vec![own.cert.der().clone()], key).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            let (stream, _) = listener.accept().await.unwrap();
            let mut stream = TlsAcceptor::from(Arc::new(tls)).accept(stream).await.unwrap();
            let mut request = [0; 4096];
            assert!(stream.read(&mut request).await.unwrap() > 0);
            stream.write_all(answer).await.unwrap();
            stream.flush().await.unwrap();
            stream.into_inner().0.shutdown().await.unwrap();
        });
        (address, own.cert.pem())
    }

    #[tokio::test]
    async fn a_connection_that_is_just_closed_ends_an_answer_that_tells_no_length() {
        let posted = async |answer| {
            let (address, bundle) = abrupt(answer).await;
            let clients = Clients::new(WebhookAddresses { allow_local: true });
            let url = format!("https://{address}/");
            let review = vec![Bytes::from_static(b"{}")];
            let answered =
                clients.post(LogicalClusterId::ROOT, bundle.as_bytes(), (&url, None), Duration::from_secs(10), review);
            answered.await.map(|answered| answered.body)
        };
        assert_eq!(posted(b"HTTP/1.1 200 OK\r\n\r\n{\"a\": 1}").await.as_deref(), Ok(&b"{\"a\": 1}"[..]));
        let cut = posted(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{\"a\": 1}").await;
        assert!(cut.is_err(), "{cut:?}");
    }
}
