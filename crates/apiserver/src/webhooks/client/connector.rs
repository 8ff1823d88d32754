//! Connections to webhooks: dialing of allowed addresses and of the pods of Services, and TLS.

use std::{
    error::Error,
    fmt, io,
    net::SocketAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use futures::future::BoxFuture;
use http::Uri;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::{
    client::legacy::connect::{Connected, Connection},
    rt::TokioIo,
};
use portolan_types::LogicalClusterId;
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    sync::Semaphore,
};
use tokio_rustls::{TlsConnector, client::TlsStream};

use super::{
    super::{resolver::TenantResolver, service::WebhookService, trust},
    WebhookAddresses,
};

const HTTPS: u16 = 443;
/// Time limits of connecting and of the TLS handshake, as in Go's client. A call may end earlier.
const DIAL: Duration = Duration::from_secs(30);
const HANDSHAKE: Duration = Duration::from_secs(10);

/// Reason why a connection failed.
#[derive(Debug)]
pub(super) struct ConnectError(String);

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for ConnectError {}

/// Connector that accepts only servers which the CA bundle vouches for.
#[derive(Clone)]
pub(in super::super) struct WebhookConnector {
    pub(in super::super) target: DialTarget,
    pub(in super::super) tls: Arc<ClientConfig>,
    /// Permits of concurrent attempts.
    pub(in super::super) dials: Arc<Semaphore>,
}

/// Target of a URL's host.
#[derive(Clone)]
pub(in super::super) enum DialTarget {
    /// Checked addresses. A name is resolved once, so a later resolution to another address has no effect.
    Addresses(CheckedAddresses),
    /// Pods of a Service.
    Service(WebhookService),
}

/// Byte stream in both directions.
trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for T {}

impl tower::Service<Uri> for WebhookConnector {
    type Response = WebhookStream;
    type Error = Box<dyn Error + Send + Sync>;
    type Future = BoxFuture<'static, Result<WebhookStream, Self::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let connector = self.clone();
        Box::pin(async move { connector.connect(&uri).await.map_err(|why| ConnectError(why).into()) })
    }
}

impl WebhookConnector {
    async fn connect(&self, uri: &Uri) -> Result<WebhookStream, String> {
        if uri.scheme_str() != Some("https") {
            return Err(format!("unsupported protocol scheme {:?}", uri.scheme_str().unwrap_or_default()));
        }
        let host = uri.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']').to_owned();
        let name = ServerName::try_from(host.clone()).map_err(|_| format!("invalid host {host:?}"))?;
        let port = uri.port_u16().unwrap_or(HTTPS);
        let _dialing = self.dials.acquire().await.map_err(|e| e.to_string())?;
        let stream = tokio::time::timeout(DIAL, self.target.dial(&host, port)).await;
        let stream = stream.map_err(|_| "dial tcp: i/o timeout")??;
        let handshake = TlsConnector::from(self.tls.clone()).connect(name, stream);
        let stream = tokio::time::timeout(HANDSHAKE, handshake).await.map_err(|_| "net/http: TLS handshake timeout")?;
        Ok(WebhookStream(TokioIo::new(stream.map_err(|e| trust::handshake_error(&e))?)))
    }
}

impl DialTarget {
    async fn dial(&self, host: &str, port: u16) -> Result<Box<dyn ByteStream>, String> {
        Ok(match self {
            Self::Addresses(outside) => Box::new(outside.dial(host, port).await?),
            Self::Service(service) => Box::new(service.connect(port).await?),
        })
    }
}

/// Addresses of a name that a tenant chose.
#[derive(Clone)]
pub(crate) struct CheckedAddresses {
    pub(in super::super) allowed: WebhookAddresses,
    pub(in super::super) resolver: TenantResolver,
    pub(in super::super) tenant: LogicalClusterId,
}

impl CheckedAddresses {
    /// Connects to an allowed address of a name.
    ///
    /// # Errors
    /// A name without an allowed address, or a failed connection.
    pub(crate) async fn dial(&self, host: &str, port: u16) -> Result<TcpStream, String> {
        let found = self.resolver.addresses(self.tenant, host).await;
        let found = found.ok_or_else(|| format!("dial tcp: lookup {host}: no such host"))?;
        let mut why = "dial tcp: no such host".to_owned();
        for address in found.iter().map(|address| SocketAddr::new(*address, port)) {
            let dialed = match self.allowed.check(address) {
                Err(refused) => Err(refused),
                Ok(()) => TcpStream::connect(address).await.map_err(|e| dial_error(&e)),
            };
            match dialed {
                Ok(stream) => {
                    // Messages are small: delaying them to fill packets only costs time.
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

/// Connection, as hyper's pool needs it.
pub(in super::super) struct WebhookStream(TokioIo<TlsStream<Box<dyn ByteStream>>>);

impl Connection for WebhookStream {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl Read for WebhookStream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: ReadBufCursor<'_>) -> Poll<io::Result<()>> {
        match Pin::new(&mut self.get_mut().0).poll_read(cx, buffer) {
            // Many servers close without a TLS close_notify. As in Go that ends the stream; a truncated response with
            // a length is still noticed.
            Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::UnexpectedEof => Poll::Ready(Ok(())),
            read => read,
        }
    }
}

impl Write for WebhookStream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().0).poll_write(cx, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().0).poll_flush(cx)
    }

    /// Shuts down without waiting for the peer: unsent bytes would be kept until then.
    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let _ = Pin::new(&mut self.get_mut().0).poll_shutdown(cx);
        Poll::Ready(Ok(()))
    }
}
