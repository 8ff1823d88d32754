//! Watch of a resource, read event by event.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use http::Method;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde_json::Value;

use harness::client::HttpClient;

/// Events of an open watch, in the order in which they arrive.
pub(super) struct EventStream {
    body: Incoming,
    buffer: Vec<u8>,
}

impl EventStream {
    /// Opens a watch of the list `path` from its present state.
    pub(super) async fn open(client: &HttpClient, path: &str) -> Result<Self> {
        let list: Value = serde_json::from_slice(&client.get(&format!("{path}?limit=1")).await?)?;
        let version = list.pointer("/metadata/resourceVersion").and_then(Value::as_str);
        let version = version.context("a list without resourceVersion")?;
        let url = format!("{path}?watch=1&timeoutSeconds=3600&resourceVersion={version}");
        let response = client.open(Method::GET, &url, &[], Bytes::new()).await?;
        ensure!(response.status().is_success(), "a watch was answered {}", response.status());
        Ok(Self { body: response.into_body(), buffer: Vec::new() })
    }

    /// Reads on until `is_met` holds for the object of an event. Returns the time at which that event arrived.
    pub(super) async fn until(&mut self, limit: Duration, is_met: impl Fn(&Value) -> bool) -> Result<(Instant, Value)> {
        let reading = async {
            loop {
                let mut event = self.next().await?;
                let arrived = Instant::now();
                ensure!(event["type"] != "ERROR", "the watch ended with {event}");
                if is_met(&event["object"]) {
                    return Ok((arrived, event["object"].take()));
                }
            }
        };
        tokio::time::timeout(limit, reading).await.context("the event did not come in time")?
    }

    async fn next(&mut self) -> Result<Value> {
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                return serde_json::from_slice(&line).context("an event is no JSON");
            }
            let frame = self.body.frame().await.context("the watch ended")??;
            self.buffer.extend(frame.data_ref().into_iter().flatten());
        }
    }
}
