//! Small Kubernetes client on hyper: HTTP/2 over TLS, a given number of connections, no hidden behavior. kubectl is too
//! slow to load a server and too coarse to measure readiness.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use http::{Method, Request, StatusCode, header};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject};
use tokio::net::TcpStream;
use tokio_rustls::{TlsConnector, client::TlsStream};

use crate::kubeconfig::{UserCredential, UserKubeconfig};

/// Window size that spares lists from waiting for updates on loopback.
const WINDOW: u32 = 16 << 20;

/// Pool of HTTP/2 connections to one server, used round robin.
pub struct HttpClient {
    connections: Vec<SendRequest<Full<Bytes>>>,
    next: AtomicUsize,
    /// Scheme, host, port and path prefix of every request.
    base: String,
    token: Option<String>,
}

/// Answer with its whole body.
pub struct HttpAnswer {
    /// Status code of the answer.
    pub status: StatusCode,
    /// Whole body of the answer.
    pub body: Bytes,
}

impl HttpAnswer {
    /// Returns the body, if the status is 2xx.
    pub fn success(self) -> Result<Bytes> {
        let shown = || String::from_utf8_lossy(&self.body).chars().take(300).collect::<String>();
        ensure!(self.status.is_success(), "{}: {}", self.status, shown());
        Ok(self.body)
    }
}

impl HttpClient {
    /// Opens `connections` connections. Must run inside a tokio runtime, which then drives them.
    pub async fn connect(config: &UserKubeconfig, connections: usize) -> Result<Self> {
        let base = config.server().trim_end_matches('/').to_owned();
        let mut pool = Vec::with_capacity(connections);
        for _ in 0..connections {
            let tls = dial(config, "h2").await?;
            let (sender, connection) = Builder::new(TokioExecutor::new())
                .initial_stream_window_size(WINDOW)
                .initial_connection_window_size(WINDOW)
                .max_concurrent_reset_streams(1024)
                .handshake(TokioIo::new(tls))
                .await
                .context("HTTP/2 handshake")?;
            // It ends with an error when the server closes it; its pending requests then fail too.
            tokio::spawn(connection);
            pool.push(sender);
        }
        let token = match config.credential() {
            UserCredential::Token(token) => Some(token.clone()),
            UserCredential::Certificate { .. } => None,
        };
        Ok(Self { connections: pool, next: AtomicUsize::new(0), base, token })
    }

    /// Sends one request and returns when the headers of the answer have arrived; the body is a stream.
    pub async fn open(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: Bytes,
    ) -> Result<http::Response<Incoming>> {
        let mut request = Request::builder().method(method).uri(format!("{}{path}", self.base));
        if !headers.iter().any(|(name, _)| *name == "accept") {
            request = request.header(header::ACCEPT, "application/json");
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        if let Some(token) = &self.token {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        let index = self.next.fetch_add(1, Ordering::Relaxed) % self.connections.len();
        let mut connection = self.connections[index].clone();
        connection.ready().await.context("the connection is closed")?;
        let request = request.body(Full::new(body)).context("cannot build the request")?;
        connection.send_request(request).await.context("the request got no answer")
    }

    /// Sends one request and returns the whole answer. A body is sent as JSON.
    pub async fn send(&self, method: Method, path: &str, body: Bytes) -> Result<HttpAnswer> {
        let json = [("content-type", "application/json")];
        let headers = if body.is_empty() { &[][..] } else { &json[..] };
        self.send_with(method, path, headers, body).await
    }

    /// Sends as [`HttpClient::send`], with exactly these headers.
    pub async fn send_with(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: Bytes,
    ) -> Result<HttpAnswer> {
        let response = self.open(method, path, headers, body).await?;
        let status = response.status();
        let body = response.into_body().collect().await.context("the answer was cut off")?.to_bytes();
        Ok(HttpAnswer { status, body })
    }

    /// Gets `path` and returns the body of a successful answer.
    pub async fn get(&self, path: &str) -> Result<Bytes> {
        self.send(Method::GET, path, Bytes::new()).await?.success().with_context(|| format!("GET {path}"))
    }
}

/// Waits until `/readyz` answers 200, and polls every few milliseconds so that the time can be measured. An error of
/// `alive` ends the wait.
pub fn wait_ready(config: &UserKubeconfig, limit: Duration, alive: impl Fn() -> Result<()>) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let start = std::time::Instant::now();
        loop {
            let attempt = async { HttpClient::connect(config, 1).await?.get("/readyz").await };
            let bounded = tokio::time::timeout(Duration::from_secs(5), attempt).await;
            let error = match bounded.context("no answer within 5 s").flatten() {
                Ok(_) => return Ok(()),
                Err(error) => error,
            };
            alive()?;
            if start.elapsed() > limit {
                return Err(error).with_context(|| format!("not ready within {} s", limit.as_secs()));
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
}

/// Opens a connection with this protocol.
pub async fn dial(config: &UserKubeconfig, protocol: &str) -> Result<TlsStream<TcpStream>> {
    let url = config.server().strip_prefix("https://").context("the server is not https")?;
    let address = url.split('/').next().unwrap_or(url);
    let host = address.rsplit_once(':').context("the server URL has no port")?.0;
    let tcp = TcpStream::connect(address).await.with_context(|| format!("cannot reach {address}"))?;
    tcp.set_nodelay(true)?;
    let name = ServerName::try_from(host.to_owned())?;
    let connector = TlsConnector::from(Arc::new(tls(config, protocol)?));
    connector.connect(name, tcp).await.context("TLS handshake")
}

fn tls(config: &UserKubeconfig, protocol: &str) -> Result<ClientConfig> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(config.ca()) {
        roots.add(certificate?)?;
    }
    if roots.is_empty() {
        bail!("the kubeconfig has no CA certificate");
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots);
    let mut tls = match config.credential() {
        UserCredential::Token(_) => builder.with_no_client_auth(),
        UserCredential::Certificate { certificate, key } => {
            let chain = CertificateDer::pem_slice_iter(certificate).collect::<Result<Vec<_>, _>>()?;
            builder.with_client_auth_cert(chain, PrivateKeyDer::from_pem_slice(key)?)?
        }
    };
    tls.alpn_protocols = vec![protocol.as_bytes().to_vec()];
    Ok(tls)
}
