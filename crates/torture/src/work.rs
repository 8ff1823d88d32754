//! Clients that create, change, delete and read a few ConfigMaps at random.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use http::{Method, StatusCode};
use serde_json::{Value as Json, json};

use super::history::History;
use super::linear::{CallOutcome, RegisterCall, Value};
use super::watched::{COLLECTION, PARITY, parity};
use harness::client::{HttpAnswer, HttpClient};
use harness::kubeconfig::UserKubeconfig;

/// Namespace of the objects.
pub(crate) const NAMESPACE: &str = "torture";
/// Timeout of a client's call.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);
/// Time in which a server that works sends all data of a watch.
pub(super) const END: Duration = Duration::from_secs(90);

/// Pseudo-random numbers from a seed.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % bound
    }
}

/// State that all clients share.
pub(crate) struct SharedWork {
    pub(crate) history: History,
    pub(crate) stop: AtomicBool,
    /// Number of the present part of the run, in the keys that the part writes. Each part has its own keys, so that a
    /// write with an unknown outcome cannot change what a later part expects.
    pub(crate) part: AtomicU64,
    next: AtomicU64,
    /// Prefix of all keys: several runs on one server do not share keys.
    pub(crate) keys: u64,
}

impl SharedWork {
    pub(crate) fn new(keys: u64) -> Self {
        let (part, next) = (AtomicU64::new(0), AtomicU64::new(1));
        Self { history: History::new(), stop: AtomicBool::new(false), part, next, keys }
    }

    fn is_over(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    /// Makes calls until the end, on a new connection after each failed one.
    pub(crate) async fn client(self: Arc<Self>, configs: Vec<UserKubeconfig>, seed: u64) {
        let mut random = Random::new(seed);
        while !self.is_over() {
            let config = &configs[random.below(configs.len() as u64) as usize];
            let connected = tokio::time::timeout(PATIENCE, HttpClient::connect(config, 1)).await;
            let Ok(Ok(client)) = connected else {
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            };
            while !self.is_over() {
                let key = format!("p{}-k{}", self.part.load(Ordering::Acquire), random.below(self.keys));
                if self.calls(&client, &key, &mut random).await.is_err() {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(1 + random.below(8))).await;
            }
        }
    }

    /// Reads every key that was ever used, so that the history of each key ends with its final state.
    pub(crate) async fn read_all(&self, client: &HttpClient) -> Result<()> {
        for key in self.history.keys() {
            self.read(client, &key).await.with_context(|| key.clone())?;
        }
        Ok(())
    }

    async fn read(&self, client: &HttpClient, key: &str) -> Result<Option<(Value, u64)>> {
        let begun = self.history.now();
        let answer = ask(client, Method::GET, &format!("{COLLECTION}/{key}"), Bytes::new()).await?;
        let seen = match answer.status {
            StatusCode::OK => Some(object(&answer)?),
            StatusCode::NOT_FOUND => None,
            other => bail!("a read was answered {other}"),
        };
        self.history.note(key, begun, RegisterCall::Read(seen.map(|(value, _)| value)), None);
        Ok(seen)
    }

    /// Reads a key and, in most calls, writes the next value to it.
    async fn calls(&self, client: &HttpClient, key: &str, random: &mut Random) -> Result<()> {
        let (seen, path) = (self.read(client, key).await?, format!("{COLLECTION}/{key}"));
        let value = self.next.fetch_add(1, Ordering::Relaxed);
        let body = |version: Option<u64>| {
            let mut metadata = json!({"name": key, "namespace": NAMESPACE, "labels": {PARITY: parity(value)}});
            version.iter().for_each(|version| metadata["resourceVersion"] = version.to_string().into());
            let data = json!({"value": value.to_string(), "ballast": "x".repeat(value as usize % 900)});
            Bytes::from(
                json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}).to_string(),
            )
        };
        let (method, url, content, to) = match (seen, random.below(8)) {
            (_, 0) => return Ok(()),
            (None, _) => (Method::POST, COLLECTION, body(None), Some(value)),
            (Some((_, version)), 1 | 2) => {
                let options = json!({"preconditions": {"resourceVersion": version.to_string()}});
                (Method::DELETE, path.as_str(), Bytes::from(options.to_string()), None)
            }
            (Some((_, version)), _) => (Method::PUT, path.as_str(), body(Some(version)), Some(value)),
        };
        let (begun, from) = (self.history.now(), seen.map(|(value, _)| value));
        let answer = ask(client, method, url, content).await;
        let outcome = match answer.as_ref().map(|answer| answer.status) {
            Ok(status) if status.is_success() => CallOutcome::Done,
            Ok(StatusCode::CONFLICT | StatusCode::NOT_FOUND) => CallOutcome::Refused,
            // The server rejected the call; another server, or the same one later, may accept it.
            Ok(StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE) => {
                tokio::time::sleep(Duration::from_millis(100)).await;
                return Ok(());
            }
            // The server refuses writes, as after a failed sync. An immediate retry would fail in the same way.
            Ok(_) => {
                tokio::time::sleep(Duration::from_millis(100)).await;
                CallOutcome::Unknown
            }
            Err(_) => CallOutcome::Unknown,
        };
        let version = answer.as_ref().ok().filter(|_| outcome == CallOutcome::Done).and_then(|a| object(a).ok());
        self.history.note(key, begun, RegisterCall::Swap { from, to, outcome }, version.map(|(_, version)| version));
        answer.map(drop)
    }
}

async fn ask(client: &HttpClient, method: Method, path: &str, body: Bytes) -> Result<HttpAnswer> {
    tokio::time::timeout(PATIENCE, client.send(method, path, body)).await.context("no answer in time")?
}

/// Returns the value and the resourceVersion of an object.
fn object(answer: &HttpAnswer) -> Result<(Value, u64)> {
    let object: Json = serde_json::from_slice(&answer.body)?;
    Ok((value(&object)?, version(&object)?))
}

pub(super) fn value(object: &Json) -> Result<Value> {
    object["data"]["value"].as_str().context("no value")?.parse().context("the value is no number")
}

pub(super) fn version(object: &Json) -> Result<u64> {
    let text = object["metadata"]["resourceVersion"].as_str().context("no resourceVersion")?;
    text.parse().context("the resourceVersion is no number")
}

/// Value of the last write: odd, so that watches of odd values receive it too.
pub(crate) const LAST: Value = 1;

/// Makes the last write of the run, which every watch waits for as its last event. Returns its resourceVersion.
pub(crate) async fn last_write(client: &HttpClient) -> Result<u64> {
    let metadata = json!({"name": "end", "namespace": NAMESPACE, "labels": {PARITY: parity(LAST)}});
    let data = json!({"value": LAST.to_string()});
    let body = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}).to_string();
    let answer = tokio::time::timeout(END, client.send(Method::POST, COLLECTION, body.into())).await??;
    version(&serde_json::from_slice(&answer.success()?)?)
}
