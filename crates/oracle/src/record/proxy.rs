//! Proxy between a client and its server.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result};
use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use super::log::{Entry, Log};
use harness::client::HttpClient;

/// Headers of a connection, a user or a session, which are not recorded.
const OWN: [&str; 9] = [
    "host",
    "connection",
    "content-length",
    "authorization",
    "accept-encoding",
    "transfer-encoding",
    "upgrade",
    "kubectl-command",
    "kubectl-session",
];

type ProxyBody = BoxBody<Bytes, hyper::Error>;

/// Accepts connections until the recording ends.
pub(super) struct Proxy {
    address: SocketAddr,
    log: Arc<Mutex<Log>>,
    accepting: JoinHandle<()>,
}

impl Proxy {
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Ends the recording and returns the requests.
    pub(super) fn finish(self) -> Log {
        self.accepting.abort();
        std::mem::take(&mut *self.log.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Listens on a free port of loopback.
pub(super) async fn start(client: HttpClient) -> Result<Proxy> {
    let listener = TcpListener::bind("127.0.0.1:0").await.context("cannot listen")?;
    let address = listener.local_addr()?;
    let (client, log) = (Arc::new(client), Arc::new(Mutex::new(Log::default())));
    let shared = log.clone();
    let accepting = tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve(stream, client.clone(), shared.clone()));
        }
    });
    Ok(Proxy { address, log, accepting })
}

async fn serve(stream: TcpStream, client: Arc<HttpClient>, log: Arc<Mutex<Log>>) {
    let service = service_fn(move |request| {
        let (client, log) = (client.clone(), log.clone());
        async move { Ok::<_, Infallible>(answer(request, &client, &log).await) }
    });
    // Errors of a client that disconnects are ignored.
    let _ = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
}

async fn answer(request: Request<Incoming>, client: &HttpClient, log: &Mutex<Log>) -> Response<ProxyBody> {
    if request.headers().contains_key("upgrade") {
        return refusal(StatusCode::NOT_IMPLEMENTED, "streams are not recorded");
    }
    match forward(request, client, log).await {
        Ok(response) => response,
        Err(error) => refusal(StatusCode::BAD_GATEWAY, &format!("{error:#}")),
    }
}

fn refusal(status: StatusCode, message: &str) -> Response<ProxyBody> {
    let body = Full::new(Bytes::from(message.to_owned())).map_err(|never| match never {}).boxed();
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response
}

async fn forward(request: Request<Incoming>, client: &HttpClient, log: &Mutex<Log>) -> Result<Response<ProxyBody>> {
    let (head, body) = request.into_parts();
    let body = body.collect().await.context("the request was cut off")?.to_bytes();
    let path = head.uri.path_and_query().map_or("/", |path| path.as_str()).to_owned();
    let headers: Vec<(String, String)> = head
        .headers
        .iter()
        .filter(|(name, _)| !OWN.contains(&name.as_str()))
        .map(|(name, value)| (name.to_string(), String::from_utf8_lossy(value.as_bytes()).into_owned()))
        .collect();
    let entry =
        Entry { method: head.method.to_string(), path: path.clone(), headers: headers.clone(), body: body.clone() };
    let index = log.lock().unwrap_or_else(PoisonError::into_inner).begin(entry);

    let borrowed: Vec<(&str, &str)> = headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    let (mut head, body) = client.open(head.method, &path, &borrowed, body).await?.into_parts();
    head.version = http::Version::HTTP_11;
    if path.contains("watch=true") || path.contains("watch=1") {
        return Ok(Response::from_parts(head, body.boxed()));
    }
    let body = body.collect().await.context("the answer was cut off")?.to_bytes();
    log.lock().unwrap_or_else(PoisonError::into_inner).end(index, &body);
    Ok(Response::from_parts(head, Full::new(body).map_err(|never| match never {}).boxed()))
}
