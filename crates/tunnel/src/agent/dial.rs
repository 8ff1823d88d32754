//! Connection to the server: TCP, TLS, HTTP/2.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use futures::StreamExt as _;
use http::{HeaderValue, Method, Request, StatusCode, header};
use http_body_util::{BodyExt as _, Full, Limited, combinators::UnsyncBoxBody};
use hyper::client::conn::http2::SendRequest;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use portolan_types::agent::{CERTIFICATE_PATH, TUNNEL_PATH};
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use serde::{Deserialize, Serialize};
use tokio::{net::TcpStream, task::JoinHandle, time::timeout};
use tokio_rustls::TlsConnector;
use tonic::{
    Streaming,
    codec::{Codec as _, EncodeBody},
};

use crate::{
    gateway::BodyError,
    session::OutgoingFrames,
    wire::{self, Frame, printable},
};

use super::{AgentCredential, AgentError, ServerUrl};

/// Time for a connection, and for the head of a response.
const PATIENCE: Duration = Duration::from_secs(10);
/// Largest response that is not a tunnel, in bytes.
const MAX_RESPONSE: usize = 64 * 1024;
/// HTTP/2 window of the connection and of its one long stream, in bytes.
const WINDOW: u32 = 1024 * 1024;

type RequestBody = UnsyncBoxBody<Bytes, BodyError>;

/// Connection to the server. Dropping it closes the socket.
pub(super) struct ServerConnection {
    sender: SendRequest<RequestBody>,
    driver: JoinHandle<()>,
    url: ServerUrl,
}

impl Drop for ServerConnection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

/// Request for a certificate.
#[derive(Serialize)]
struct CertificateRequest<'a> {
    /// Certificate signing request, PEM.
    request: &'a str,
}

/// Issued certificate.
#[derive(Deserialize)]
struct IssuedCertificate {
    certificate: String,
    authority: String,
}

/// Part of a `Status` that tells the reason.
#[derive(Deserialize)]
struct FailureStatus {
    #[serde(default)]
    message: String,
}

impl ServerConnection {
    /// Connects to the server within 10 s.
    ///
    /// # Errors
    /// [`AgentError::Unreachable`], with the step that failed.
    pub(super) async fn open(url: &ServerUrl, tls: ClientConfig) -> Result<Self, AgentError> {
        let opened = timeout(PATIENCE, Self::connect(url, tls)).await;
        opened.unwrap_or_else(|_| Err(AgentError::Unreachable("it does not answer in time".into())))
    }

    async fn connect(url: &ServerUrl, tls: ClientConfig) -> Result<Self, AgentError> {
        let unreachable = |what: &str, error: &dyn std::fmt::Display| {
            AgentError::Unreachable(format!("{what}: {}", printable(&error.to_string())))
        };
        let tcp = TcpStream::connect((url.host.as_str(), url.port)).await;
        let tcp = tcp.map_err(|error| unreachable("no connection", &error))?;
        tcp.set_nodelay(true).map_err(|error| unreachable("no connection", &error))?;
        let name = ServerName::try_from(url.host.clone()).map_err(|error| unreachable("its name", &error))?;
        let stream = TlsConnector::from(Arc::new(tls)).connect(name, tcp).await;
        let stream = stream.map_err(|error| unreachable("TLS", &error))?;
        let mut builder = hyper::client::conn::http2::Builder::new(TokioExecutor::new());
        builder
            .timer(TokioTimer::new())
            .initial_stream_window_size(WINDOW)
            .initial_connection_window_size(WINDOW)
            .max_header_list_size(16 * 1024)
            .max_send_buf_size(256 * 1024);
        let (sender, connection) =
            builder.handshake(TokioIo::new(stream)).await.map_err(|error| unreachable("HTTP/2", &error))?;
        let driver = tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "the connection to the server ended");
            }
        });
        Ok(Self { sender, driver, url: url.clone() })
    }

    /// Asks for a certificate, by a bootstrap token or by the certificate of the connection.
    ///
    /// # Errors
    /// The server refuses it, or does not answer.
    pub(super) async fn certificate(
        &mut self,
        new: AgentCredential,
        current: Option<&AgentCredential>,
        bearer: Option<&str>,
    ) -> Result<AgentCredential, AgentError> {
        let request = new.request(current)?;
        let body = serde_json::to_vec(&CertificateRequest { request: &request }).map_err(AgentError::credential)?;
        let body = Full::new(Bytes::from(body)).map_err(|never| match never {}).boxed_unsync();
        let mut request = self.request(CERTIFICATE_PATH, "application/json", body)?;
        if let Some(bearer) = bearer {
            let mut value = HeaderValue::try_from(format!("Bearer {bearer}")).map_err(AgentError::credential)?;
            value.set_sensitive(true);
            request.headers_mut().insert(header::AUTHORIZATION, value);
        }
        let issued: IssuedCertificate = timeout(PATIENCE, self.answer(request)).await.map_err(|_| late())??;
        Ok(AgentCredential { certificate: issued.certificate, authority: issued.authority, ..new })
    }

    async fn answer<T: for<'de> Deserialize<'de>>(&mut self, request: Request<RequestBody>) -> Result<T, AgentError> {
        let response = self.sender.send_request(request).await;
        let response = response.map_err(|error| AgentError::Unreachable(error.to_string()))?;
        let code = response.status();
        if !code.is_success() {
            return Err(refusal(code, response.into_body()).await);
        }
        let body = Limited::new(response.into_body(), MAX_RESPONSE).collect().await;
        let body = body.map_err(|error| AgentError::Unreachable(error.to_string()))?.to_bytes();
        serde_json::from_slice(&body).map_err(|error| AgentError::Unreachable(format!("its answer: {error}")))
    }

    /// Opens the tunnel.
    ///
    /// # Errors
    /// The server refuses it, or does not answer.
    pub(super) async fn tunnel(&mut self, outgoing: OutgoingFrames) -> Result<Streaming<Frame>, AgentError> {
        let frames = outgoing.map(Ok::<_, tonic::Status>);
        let body = EncodeBody::new_client(wire::codec().encoder(), frames, None, None);
        let body = body.map_err(BodyError::from).boxed_unsync();
        let mut request = self.request(TUNNEL_PATH, "application/grpc", body)?;
        request.headers_mut().insert(header::TE, HeaderValue::from_static("trailers"));
        let response = timeout(PATIENCE, self.sender.send_request(request)).await.map_err(|_| late())?;
        let response = response.map_err(|error| AgentError::Unreachable(error.to_string()))?;
        let code = response.status();
        if code != StatusCode::OK {
            return Err(refusal(code, response.into_body()).await);
        }
        Ok(wire::decode_response(response.into_body(), code))
    }

    fn request(
        &self,
        path: &'static str,
        content_type: &'static str,
        body: RequestBody,
    ) -> Result<Request<RequestBody>, AgentError> {
        let uri = self.url.at(path).map_err(AgentError::credential)?;
        let request = Request::builder().method(Method::POST).uri(uri).header(header::CONTENT_TYPE, content_type);
        request.header(header::USER_AGENT, "portolan-agent").body(body).map_err(AgentError::credential)
    }
}

fn late() -> AgentError {
    AgentError::Unreachable("it does not answer in time".into())
}

/// Returns the refusal with the message of its `Status`.
async fn refusal(code: StatusCode, body: hyper::body::Incoming) -> AgentError {
    let body = timeout(PATIENCE, Limited::new(body, MAX_RESPONSE).collect()).await;
    let body = body.ok().and_then(Result::ok).map(http_body_util::Collected::to_bytes).unwrap_or_default();
    let status: Option<FailureStatus> = serde_json::from_slice(&body).ok();
    let message = status.map(|status| printable(&status.message)).unwrap_or_default();
    AgentError::Refused { code: code.as_u16(), message }
}
