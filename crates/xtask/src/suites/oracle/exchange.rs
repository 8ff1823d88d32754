//! One request to one server, and its answer as it came.

use std::time::Duration;

use anyhow::{Context, Result};
use bytes::Bytes;
use http::{HeaderMap, Method};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout, timeout_at};

use super::websocket;
use crate::client::Client;
use crate::harness::kubeconfig::Kubeconfig;

/// No answer of a sound server takes longer.
const LIMIT: Duration = Duration::from_secs(20);
/// Streams are asked to end after one second; one that does not is cut.
pub(super) const STREAM_LIMIT: Duration = Duration::from_secs(15);
/// How often a server that is not ready for a request is asked again, and after which time.
const PATIENCE: usize = 8;
const AGAIN: Duration = Duration::from_millis(500);
const CONNECTIONS: usize = 4;
/// All requests come from one field manager.
const USER_AGENT: &str = "oracle/1";

/// A request with nothing left to fill in.
#[derive(Clone, Debug)]
pub(super) struct Request {
    pub(super) method: String,
    pub(super) path: String,
    pub(super) headers: Vec<(String, String)>,
    pub(super) body: Bytes,
    pub(super) watch: bool,
}

/// What came back.
#[derive(Debug)]
pub(super) enum Raw {
    Answer {
        status: u16,
        headers: HeaderMap,
        body: Bytes,
        cut: bool,
    },
    /// No answer, and why.
    Nothing(String),
}

/// A server that is asked; it is connected to again when it closes the connection.
pub(super) struct Server {
    config: Kubeconfig,
    client: Mutex<std::sync::Arc<Client>>,
}

impl Server {
    pub(super) async fn connect(config: Kubeconfig) -> Result<Self> {
        let client = Client::connect(&config, CONNECTIONS).await?;
        Ok(Self { config, client: Mutex::new(client.into()) })
    }

    pub(super) async fn client(&self) -> std::sync::Arc<Client> {
        self.client.lock().await.clone()
    }

    /// Sends it and reads the whole answer. A connection that breaks may have been broken by another request on it: a server
    /// that breaks it for this one does so again.
    pub(super) async fn ask(&self, request: &Request) -> Raw {
        match self.once(request).await {
            Ok(raw) => raw,
            Err(_) => self.once(request).await.unwrap_or_else(|error| Raw::Nothing(format!("{error:#}"))),
        }
    }

    async fn once(&self, request: &Request) -> Result<Raw> {
        match timeout(LIMIT, self.patiently(request)).await {
            Ok(Ok(raw)) => Ok(raw),
            Ok(Err(error)) => {
                self.connect_again().await;
                Err(error)
            }
            Err(_) => Ok(Raw::Nothing(format!("no answer within {} s", LIMIT.as_secs()))),
        }
    }

    /// A server that is not ready for a request yet, as for a resource that is new, says so and is asked again.
    async fn patiently(&self, request: &Request) -> Result<Raw> {
        for _ in 0..PATIENCE {
            match self.attempt(request).await? {
                Raw::Answer { status: 429, .. } => tokio::time::sleep(AGAIN).await,
                raw => return Ok(raw),
            }
        }
        self.attempt(request).await
    }

    async fn attempt(&self, request: &Request) -> Result<Raw> {
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
        Ok(Raw::Answer { status: head.status.as_u16(), headers: head.headers, body, cut })
    }

    async fn connect_again(&self) {
        if let Ok(client) = Client::connect(&self.config, CONNECTIONS).await {
            *self.client.lock().await = client.into();
        }
    }
}

/// All that a stream brings until it ends, and whether it had to be cut.
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

/// What may not stand in a request line, percent-encoded.
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
