//! One request to one server, with its unchanged answer.

use std::time::Duration;

use anyhow::{Context, Result};
use bytes::Bytes;
use http::{HeaderMap, Method};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout, timeout_at};

use super::websocket;
use harness::client::HttpClient;
use harness::kubeconfig::UserKubeconfig;

/// Timeout of an answer.
const LIMIT: Duration = Duration::from_secs(20);
/// Streams are requested with a timeout of one second. One that continues is cut.
pub(super) const STREAM_LIMIT: Duration = Duration::from_secs(15);
/// Attempts while a server is not ready for a request, and the delay between them.
const PATIENCE: usize = 8;
const AGAIN: Duration = Duration::from_millis(500);
const CONNECTIONS: usize = 4;
/// Field manager of all requests.
const USER_AGENT: &str = "oracle/1";

/// Request after substitution.
#[derive(Clone, Debug)]
pub(super) struct Request {
    pub(super) method: String,
    pub(super) path: String,
    pub(super) headers: Vec<(String, String)>,
    pub(super) body: Bytes,
    pub(super) watch: bool,
}

/// Unchanged answer.
#[derive(Debug)]
pub(super) enum RawAnswer {
    Answer {
        status: u16,
        headers: HeaderMap,
        body: Bytes,
        cut: bool,
    },
    /// Failed request with its reason.
    Nothing(String),
}

/// Client of one server, which reconnects after the server closes the connection.
pub(super) struct OracleServer {
    config: UserKubeconfig,
    client: Mutex<std::sync::Arc<HttpClient>>,
}

impl OracleServer {
    pub(super) async fn connect(config: UserKubeconfig) -> Result<Self> {
        let client = HttpClient::connect(&config, CONNECTIONS).await?;
        Ok(Self { config, client: Mutex::new(client.into()) })
    }

    pub(super) async fn client(&self) -> std::sync::Arc<HttpClient> {
        self.client.lock().await.clone()
    }

    /// Sends the request and reads the whole answer. Another request may have broken the shared connection, so a broken
    /// one is retried: a server that breaks it for this request does so again.
    pub(super) async fn ask(&self, request: &Request) -> RawAnswer {
        match self.once(request).await {
            Ok(raw) => raw,
            Err(_) => self.once(request).await.unwrap_or_else(|error| RawAnswer::Nothing(format!("{error:#}"))),
        }
    }

    async fn once(&self, request: &Request) -> Result<RawAnswer> {
        match timeout(LIMIT, self.patiently(request)).await {
            Ok(Ok(raw)) => Ok(raw),
            Ok(Err(error)) => {
                self.connect_again().await;
                Err(error)
            }
            Err(_) => Ok(RawAnswer::Nothing(format!("no answer within {} s", LIMIT.as_secs()))),
        }
    }

    /// A server that is not ready for a request yet, as for a new resource, says so and the request is retried.
    async fn patiently(&self, request: &Request) -> Result<RawAnswer> {
        for _ in 0..PATIENCE {
            match self.attempt(request).await? {
                RawAnswer::Answer { status: 429, .. } => tokio::time::sleep(AGAIN).await,
                raw => return Ok(raw),
            }
        }
        self.attempt(request).await
    }

    async fn attempt(&self, request: &Request) -> Result<RawAnswer> {
        if request.method == websocket::METHOD {
            return websocket::watch(&self.config, request).await;
        }
        let method = Method::from_bytes(request.method.as_bytes()).context("method")?;
        let mut headers: Vec<(&str, &str)> =
            request.headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        if !headers.iter().any(|(name, _)| *name == "user-agent") {
            headers.push(("user-agent", USER_AGENT));
        }
        let client = self.client().await;
        let response = client.open(method, &escaped(&request.path), &headers, request.body.clone()).await?;
        let (head, body) = response.into_parts();
        let (body, cut) = if request.watch && head.status.is_success() {
            stream(body).await
        } else {
            (body.collect().await.context("the answer was cut off")?.to_bytes(), false)
        };
        Ok(RawAnswer::Answer { status: head.status.as_u16(), headers: head.headers, body, cut })
    }

    async fn connect_again(&self) {
        if let Ok(client) = HttpClient::connect(&self.config, CONNECTIONS).await {
            *self.client.lock().await = client.into();
        }
    }
}

/// Returns the whole content of a stream, and whether it was cut.
async fn stream(mut body: Incoming) -> (Bytes, bool) {
    let end = Instant::now() + STREAM_LIMIT;
    let mut all = Vec::new();
    loop {
        match timeout_at(end, body.frame()).await {
            Ok(Some(Ok(frame))) => all.extend(frame.data_ref().into_iter().flatten()),
            Ok(Some(Err(_))) | Err(_) => return (all.into(), true),
            Ok(None) => return (all.into(), false),
        }
    }
}

/// Percent-encodes characters that a request line cannot have.
fn escaped(path: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_graphic() && !b"\"<>\\^`{|}".contains(&byte);
    let mut line = String::with_capacity(path.len());
    for byte in path.bytes() {
        if plain(byte) {
            line.push(char::from(byte));
        } else {
            line.push_str(&format!("%{byte:02X}"));
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_escaped_where_it_must() {
        assert_eq!(escaped("/a?x=b c,{d}%3D"), "/a?x=b%20c,%7Bd%7D%3D");
    }
}
