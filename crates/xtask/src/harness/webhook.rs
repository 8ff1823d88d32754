//! A validating webhook over HTTPS, as a pod would run one.

use std::convert::Infallible;
use std::net::TcpListener;
use std::sync::Arc;
use std::thread;

use anyhow::{Context, Result};
use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
use serde_json::{Value, json};
use tokio_rustls::TlsAcceptor;

use super::pki::Authority;

/// Serves at `listener` for the rest of the process, as the host `name`; refuses what has a label `refuse` with that label's value
/// as the message. Returns the `caBundle` that vouches for it.
pub(crate) fn serve(listener: TcpListener, name: &str) -> Result<String> {
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
    thread::spawn(move || runtime.block_on(accept(listener, TlsAcceptor::from(Arc::new(config)))));
    Ok(STANDARD.encode(authority.certificate()))
}

async fn accept(listener: TcpListener, tls: TlsAcceptor) -> Result<()> {
    let listener = tokio::net::TcpListener::from_std(listener)?;
    loop {
        let (connection, _) = listener.accept().await?;
        let tls = tls.clone();
        tokio::spawn(async move {
            let Ok(connection) = tls.accept(connection).await else { return };
            let server = hyper::server::conn::http1::Builder::new();
            // Whoever asked sees what became of it.
            let _ = server.serve_connection(TokioIo::new(connection), service_fn(answer)).await;
        });
    }
}

async fn answer(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let body = request.into_body().collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    let review: Value = serde_json::from_slice(&body).unwrap_or_default();
    let refused = &review["request"]["object"]["metadata"]["labels"]["refuse"];
    let response =
        json!({"uid": review["request"]["uid"], "allowed": refused.is_null(), "status": {"message": refused}});
    let answer = json!({"apiVersion": review["apiVersion"], "kind": "AdmissionReview", "response": response});
    Ok(Response::new(Full::from(answer.to_string())))
}
