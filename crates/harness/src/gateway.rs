//! etcd's JSON gateway, its API without gRPC.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::{Value, json};

/// Timeout of an answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(60);

/// Gateway of one member, without certificates.
pub struct Gateway {
    address: String,
}

impl Gateway {
    /// Creates the gateway at a host and port.
    pub fn new(address: String) -> Self {
        Self { address }
    }

    /// Returns host and port of the gateway.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Posts `body` as JSON and returns the answer.
    pub fn call(&self, path: &str, body: &Value) -> Result<Value> {
        let said = self.ask("POST", path, &body.to_string())?;
        serde_json::from_str(&said).with_context(|| format!("{path} was answered {said:?}"))
    }

    /// Sends any request and returns the body of the answer.
    pub fn ask(&self, method: &str, path: &str, body: &str) -> Result<String> {
        let address = self.address.parse().context("no address")?;
        let mut stream = TcpStream::connect_timeout(&address, ANSWER_LIMIT)?;
        stream.set_read_timeout(Some(ANSWER_LIMIT))?;
        let head = format!("{method} {path} HTTP/1.0\r\nHost: {}\r\nContent-Length: {}\r\n\r\n", address, body.len());
        stream.write_all((head + body).as_bytes())?;
        let mut said = Vec::new();
        stream.read_to_end(&mut said)?;
        let said = String::from_utf8_lossy(&said).into_owned();
        let (head, content) = said.split_once("\r\n\r\n").context("no answer")?;
        let status = head.split(' ').nth(1).unwrap_or_default();
        ensure!(status == "200", "{path} was answered {status}: {content}");
        Ok(content.to_owned())
    }

    /// Returns the value of a key.
    pub fn get(&self, key: &str) -> Result<Vec<u8>> {
        let found = self.call("/v3/kv/range", &json!({"key": base64(key)}))?;
        let value = found["kvs"][0]["value"].as_str().with_context(|| format!("etcd has no {key}"))?;
        STANDARD.decode(value).context("etcd answered no base64")
    }

    /// Compacts all history, and waits until its space is free.
    pub fn compact(&self) -> Result<()> {
        let found = self.call("/v3/kv/range", &json!({"key": base64("none")}))?;
        let revision = found["header"]["revision"].as_str().context("etcd tells no revision")?;
        self.call("/v3/kv/compaction", &json!({"revision": revision, "physical": true})).map(drop)
    }

    /// Defragments the file.
    pub fn defragment(&self) -> Result<()> {
        self.call("/v3/maintenance/defragment", &json!({})).map(drop)
    }
}

/// Encodes bytes as base64 with padding.
pub fn base64(bytes: impl AsRef<[u8]>) -> String {
    STANDARD.encode(bytes)
}
