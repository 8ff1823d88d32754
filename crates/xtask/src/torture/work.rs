//! Clients that create, change, delete and read a few ConfigMaps at random, and watchers that follow all of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use http::{Method, StatusCode};
use http_body_util::BodyExt;
use serde_json::{Value as Json, json};

use super::history::{History, Kind, Seen};
use super::linear::{Call, Outcome, Value};
use crate::client::{Answer, Client};
use crate::harness::kubeconfig::Kubeconfig;

/// Where the objects are.
pub(crate) const NAMESPACE: &str = "torture";
const COLLECTION: &str = "/api/v1/namespaces/torture/configmaps";
/// How long a call may take before its client gives up on it.
const PATIENCE: Duration = Duration::from_secs(5);
/// Only one that is broken needs so long to say all it knows.
const END: Duration = Duration::from_secs(90);

/// Small numbers from a seed, the same in each run.
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

/// What all clients share.
pub(crate) struct Work {
    pub(crate) history: History,
    pub(crate) stop: AtomicBool,
    /// Keys of this part of the run begin with it, so that what is unknown of one part does not weigh on the next.
    pub(crate) part: AtomicU64,
    next: AtomicU64,
    /// Prefixed to all keys, so that runs on one server differ.
    pub(crate) keys: u64,
}

impl Work {
    pub(crate) fn new(keys: u64) -> Self {
        let (part, next) = (AtomicU64::new(0), AtomicU64::new(1));
        Self { history: History::new(), stop: AtomicBool::new(false), part, next, keys }
    }

    fn is_over(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    /// Does calls until the end, on a new connection after each that failed.
    pub(crate) async fn client(self: Arc<Self>, configs: Vec<Kubeconfig>, seed: u64) {
        let mut random = Random::new(seed);
        while !self.is_over() {
            let config = &configs[random.below(configs.len() as u64) as usize];
            let connected = tokio::time::timeout(PATIENCE, Client::connect(config, 1)).await;
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

    /// Reads, and mostly writes what follows from that.
    async fn calls(&self, client: &Client, key: &str, random: &mut Random) -> Result<()> {
        let (begun, path) = (self.history.now(), format!("{COLLECTION}/{key}"));
        let answer = ask(client, Method::GET, &path, Bytes::new()).await?;
        let seen = match answer.status {
            StatusCode::OK => Some(object(&answer)?),
            StatusCode::NOT_FOUND => None,
            other => bail!("a read was answered {other}"),
        };
        self.history.note(key, begun, Call::Read(seen.map(|(value, _)| value)), None);
        let value = self.next.fetch_add(1, Ordering::Relaxed);
        let body = |version: Option<u64>| {
            let mut metadata = json!({"name": key, "namespace": NAMESPACE});
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
            Ok(status) if status.is_success() => Outcome::Done,
            Ok(StatusCode::CONFLICT | StatusCode::NOT_FOUND) => Outcome::Refused,
            // Nothing was done; another server, or the same one later, may do it.
            Ok(StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE) => {
                tokio::time::sleep(Duration::from_millis(100)).await;
                return Ok(());
            }
            Ok(_) | Err(_) => Outcome::Unknown,
        };
        let version = answer.as_ref().ok().filter(|_| outcome == Outcome::Done).and_then(|a| object(a).ok());
        self.history.note(key, begun, Call::Swap { from, to, outcome }, version.map(|(_, version)| version));
        answer.map(drop)
    }
}

async fn ask(client: &Client, method: Method, path: &str, body: Bytes) -> Result<Answer> {
    tokio::time::timeout(PATIENCE, client.send(method, path, body)).await.context("no answer in time")?
}

/// Value and version of an object.
fn object(answer: &Answer) -> Result<(Value, u64)> {
    let object: Json = serde_json::from_slice(&answer.body)?;
    Ok((value(&object)?, version(&object)?))
}

fn value(object: &Json) -> Result<Value> {
    object["data"]["value"].as_str().context("no value")?.parse().context("the value is no number")
}

fn version(object: &Json) -> Result<u64> {
    let text = object["metadata"]["resourceVersion"].as_str().context("no resourceVersion")?;
    text.parse().context("the resourceVersion is no number")
}

/// How far watchers are to follow, once that is known.
pub(crate) type Upto = tokio::sync::watch::Receiver<Option<u64>>;

/// What a line of a watch was.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Taken {
    Event,
    /// What it would go on from is forgotten.
    Gone,
}

/// Follows all objects from the beginning of the run, across every loss of its connection.
pub(crate) struct Watcher {
    configs: Vec<Kubeconfig>,
    /// Where it goes on.
    version: u64,
    pub(crate) seen: Vec<Seen>,
    pub(crate) resumed: usize,
    /// Whether history may be forgotten, so that it has to list again.
    may_forget: bool,
}

impl Watcher {
    /// Begins where the store stands now; there is nothing yet.
    pub(crate) async fn new(configs: Vec<Kubeconfig>, may_forget: bool) -> Result<Self> {
        let client = Client::connect(&configs[0], 1).await?;
        let (version, objects) = list(&client).await?;
        ensure!(objects.is_empty(), "there are objects before the run");
        Ok(Self { configs, version, seen: Vec::new(), resumed: 0, may_forget })
    }

    /// Follows until `stop` says how far.
    pub(crate) async fn run(mut self, mut upto: Upto) -> Result<Self> {
        let mut turn = 0;
        loop {
            if upto.borrow().is_some_and(|upto| self.version >= upto) {
                return Ok(self);
            }
            let config = self.configs[turn % self.configs.len()].clone();
            turn += 1;
            self.resumed += 1;
            if let Err(error) = self.follow(&config, &mut upto).await
                && error.to_string().contains("violation")
            {
                return Err(error);
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    async fn follow(&mut self, config: &Kubeconfig, upto: &mut Upto) -> Result<()> {
        let client = tokio::time::timeout(PATIENCE, Client::connect(config, 1)).await??;
        let query = format!("{COLLECTION}?watch=true&allowWatchBookmarks=true&resourceVersion={}", self.version);
        let opened = tokio::time::timeout(PATIENCE, client.open(Method::GET, &query, &[], Bytes::new())).await??;
        if opened.status() == StatusCode::GONE {
            ensure!(self.may_forget, "violation: resumable: {} is gone", self.version);
            return self.list_again(&client).await;
        }
        ensure!(opened.status().is_success(), "the watch was answered {}", opened.status());
        let (mut body, mut buffer) = (opened.into_body(), Vec::new());
        loop {
            let frame = tokio::select! {
                frame = tokio::time::timeout(Duration::from_secs(20), body.frame()) => frame?,
                // Whether that is far enough is seen above.
                _ = upto.changed() => return Ok(()),
            };
            let Some(frame) = frame else { return Ok(()) };
            buffer.extend_from_slice(frame?.data_ref().map_or(&[], |data| data));
            while let Some(end) = buffer.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = buffer.drain(..=end).collect();
                if self.take(&line)? == Taken::Gone {
                    return self.list_again(&client).await;
                }
            }
            if upto.borrow().is_some_and(|upto| self.version >= upto) {
                return Ok(());
            }
        }
    }

    /// History was forgotten: what is there now takes the place of the events between.
    async fn list_again(&mut self, client: &Client) -> Result<()> {
        let (version, objects) = list(client).await?;
        self.seen.push(Seen::List { version, objects });
        self.version = version;
        Ok(())
    }

    fn take(&mut self, line: &[u8]) -> Result<Taken> {
        let event: Json = serde_json::from_slice(line).context("violation: an event is no JSON")?;
        let object = &event["object"];
        let kind = match event["type"].as_str() {
            Some("ADDED") => Kind::Added,
            Some("MODIFIED") => Kind::Modified,
            Some("DELETED") => Kind::Deleted,
            Some("BOOKMARK") => {
                self.version = version(object)?;
                self.seen.push(Seen::Bookmark(self.version));
                return Ok(Taken::Event);
            }
            _ if object["code"] == 410 && self.may_forget => return Ok(Taken::Gone),
            // The history of the whole run is kept: nothing may be forgotten.
            _ if object["code"] == 410 => bail!("violation: resumable: {object}"),
            _ => bail!("the watch ended: {event}"),
        };
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        // The namespace has an object of its own.
        if name == "kube-root-ca.crt" {
            self.version = version(object)?;
            return Ok(Taken::Event);
        }
        self.version = version(object)?;
        self.seen.push(Seen::Change { key: name.to_owned(), value: value(object)?, version: self.version, kind });
        Ok(Taken::Event)
    }
}

/// The list's version, and the value of each object.
pub(crate) async fn list(client: &Client) -> Result<(u64, Vec<(String, Value)>)> {
    let body = tokio::time::timeout(END, client.get(COLLECTION)).await??;
    let list: Json = serde_json::from_slice(&body)?;
    let items = list["items"].as_array().context("no items")?.iter();
    let named = items.filter(|item| item["metadata"]["name"] != "kube-root-ca.crt");
    let objects =
        named.map(|item| Ok((item["metadata"]["name"].as_str().unwrap_or_default().to_owned(), value(item)?)));
    Ok((version(&list)?, objects.collect::<Result<_>>()?))
}

/// A write after all others, so that every watch has something to end with: its version.
pub(crate) async fn last_write(client: &Client) -> Result<u64> {
    let metadata = json!({"name": "end", "namespace": NAMESPACE});
    let body =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"value": "0"}}).to_string();
    let answer = tokio::time::timeout(END, client.send(Method::POST, COLLECTION, body.into())).await??;
    version(&serde_json::from_slice(&answer.success()?)?)
}
