//! Webhooks over HTTPS, served as a pod would.

use std::convert::Infallible;
use std::net::TcpListener;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
use serde_json::{Value, json};
use tokio_rustls::TlsAcceptor;

use super::pki::Authority;

/// Answer to an admission review.
#[derive(Debug)]
pub struct WebhookReply {
    /// Status code of the reply.
    pub status: u16,
    /// Body of the reply.
    pub body: String,
    /// Delay of the answer.
    pub after: Duration,
}

/// Handler of a review at a path; it may block.
type ReviewFunction = Arc<dyn Fn(&str, &Value) -> WebhookReply + Send + Sync>;

/// Validating webhook that refuses objects with a label `refuse`, whose value is the message. See [`serve_with`].
pub fn serve(listener: TcpListener, name: &str) -> Result<String> {
    serve_with(listener, name, refuse)
}

/// Serves at `listener` until the process ends, as the host `name`. Returns the `caBundle` of its certificate.
pub fn serve_with(
    listener: TcpListener,
    name: &str,
    answer: impl Fn(&str, &Value) -> WebhookReply + Send + Sync + 'static,
) -> Result<String> {
    let authority = Authority::new("webhook")?;
    let own = authority.named(name)?;
    let certificate = CertificateDer::from_pem_slice(own.certificate.as_bytes()).context("no certificate")?;
    let key = PrivateKeyDer::from_pem_slice(own.key.as_bytes()).context("no key")?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)?;
    listener.set_nonblocking(true)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    thread::spawn(move || runtime.block_on(accept(listener, TlsAcceptor::from(Arc::new(config)), Arc::new(answer))));
    Ok(STANDARD.encode(authority.certificate()))
}

async fn accept(listener: TcpListener, tls: TlsAcceptor, answer: ReviewFunction) -> Result<()> {
    let listener = tokio::net::TcpListener::from_std(listener)?;
    loop {
        let (connection, _) = listener.accept().await?;
        let (tls, answer) = (tls.clone(), answer.clone());
        tokio::spawn(async move {
            let Ok(connection) = tls.accept(connection).await else { return };
            let server = hyper::server::conn::http1::Builder::new();
            // The caller sees the outcome.
            let service = service_fn(|request| answered(request, answer.clone()));
            let _ = server.serve_connection(TokioIo::new(connection), service).await;
        });
    }
}

async fn answered(request: Request<Incoming>, answer: ReviewFunction) -> Result<Response<Full<Bytes>>, Infallible> {
    let path = request.uri().path().to_owned();
    let body = request.into_body().collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    let asked = serde_json::from_slice(&body).unwrap_or_default();
    let nothing = WebhookReply { status: 500, body: String::new(), after: Duration::ZERO };
    let reply = tokio::task::spawn_blocking(move || answer(&path, &asked)).await.unwrap_or(nothing);
    tokio::time::sleep(reply.after).await;
    let mut response = Response::new(Full::from(reply.body));
    *response.status_mut() = StatusCode::from_u16(reply.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    Ok(response)
}

fn refuse(_: &str, review: &Value) -> WebhookReply {
    let refused = &review["request"]["object"]["metadata"]["labels"]["refuse"];
    let response =
        json!({"uid": review["request"]["uid"], "allowed": refused.is_null(), "status": {"message": refused}});
    let answer = json!({"apiVersion": review["apiVersion"], "kind": "AdmissionReview", "response": response});
    WebhookReply { status: 200, body: answer.to_string(), after: Duration::ZERO }
}
