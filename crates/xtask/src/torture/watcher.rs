//! Watchers: they follow what is done across every loss of their connection, and note what they are sent.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use http::{Method, StatusCode};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde_json::Value as Json;

use super::history::{Kind, Seen};
use super::linear::Value;
use super::watched::Watched;
use super::work::{END, PATIENCE, version};
use crate::client::Client;
use crate::harness::kubeconfig::Kubeconfig;

/// How far watchers are to follow, once that is known.
pub(crate) type Upto = tokio::sync::watch::Receiver<Option<u64>>;

/// How long a watch may say nothing before it is taken for lost.
const SILENCE: Duration = Duration::from_secs(20);

/// The lines of a watch.
pub(super) struct Lines {
    body: Incoming,
    buffer: Vec<u8>,
}

impl Lines {
    pub(super) fn of(answer: http::Response<Incoming>) -> Self {
        Self { body: answer.into_body(), buffer: Vec::new() }
    }

    /// The next one; `None` at the end. One that is dropped while it waits loses nothing.
    pub(super) async fn next(&mut self) -> Result<Option<Vec<u8>>> {
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                return Ok(Some(self.buffer.drain(..=end).collect()));
            }
            let Some(frame) = tokio::time::timeout(SILENCE, self.body.frame()).await? else { return Ok(None) };
            self.buffer.extend_from_slice(frame?.data_ref().map_or(&[], |data| data));
        }
    }
}

/// What a line of a watch was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Taken {
    Event,
    /// What it would go on from is forgotten.
    Gone,
}

/// Follows from the beginning of the run.
pub(crate) struct Watcher {
    pub(crate) watched: Watched,
    configs: Vec<Kubeconfig>,
    /// Where the run began.
    pub(crate) start: u64,
    /// Where it goes on.
    version: u64,
    pub(crate) seen: Vec<Seen>,
    pub(crate) resumed: usize,
    /// Whether history may be forgotten, so that it has to list again.
    may_forget: bool,
}

impl Watcher {
    /// Begins where the store stands now; there is nothing yet that is watched.
    pub(crate) async fn new(watched: Watched, configs: Vec<Kubeconfig>, may_forget: bool) -> Result<Self> {
        let client = Client::connect(&configs[0], 1).await?;
        let (version, objects) = list(&client, watched, "").await?;
        ensure!(objects.is_empty(), "there are objects before the run: {objects:?}");
        Ok(Self { watched, configs, start: version, version, seen: Vec::new(), resumed: 0, may_forget })
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
                && is_violation(&error)
            {
                return Err(error);
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    async fn follow(&mut self, config: &Kubeconfig, upto: &mut Upto) -> Result<()> {
        let client = tokio::time::timeout(PATIENCE, Client::connect(config, 1)).await??;
        let query =
            self.watched.query(&format!("watch=true&allowWatchBookmarks=true&resourceVersion={}", self.version));
        let opened = tokio::time::timeout(PATIENCE, client.open(Method::GET, &query, &[], Bytes::new())).await??;
        if opened.status() == StatusCode::GONE {
            self.gone("the watch was answered 410")?;
            return self.list_again(&client).await;
        }
        ensure!(opened.status().is_success(), "the watch was answered {}", opened.status());
        let mut lines = Lines::of(opened);
        loop {
            let line = tokio::select! {
                line = lines.next() => line?,
                // Whether that is far enough is seen above.
                _ = upto.changed() => return Ok(()),
            };
            let Some(line) = line else { return Ok(()) };
            if self.take(&line)? == Taken::Gone {
                return self.list_again(&client).await;
            }
            if upto.borrow().is_some_and(|upto| self.version >= upto) {
                return Ok(());
            }
        }
    }

    /// The history of the whole run is kept, unless something took it: then a watch may be told that its place is gone.
    fn gone(&self, said: impl std::fmt::Display) -> Result<Taken> {
        ensure!(self.may_forget, "violation: resumable: after {}: {said}", self.version);
        Ok(Taken::Gone)
    }

    /// History was forgotten: what is there now takes the place of the events between.
    async fn list_again(&mut self, client: &Client) -> Result<()> {
        let (version, objects) = list(client, self.watched, "").await?;
        self.seen.push(Seen::List { version, objects });
        self.version = version;
        Ok(())
    }

    fn take(&mut self, line: &[u8]) -> Result<Taken> {
        let event: Json = serde_json::from_slice(line).context("violation: an event is no JSON")?;
        let object = &event["object"];
        let kind = match Kind::of(&event) {
            Some(kind) => kind,
            None if event["type"] == "BOOKMARK" => {
                self.version = version(object)?;
                self.seen.push(Seen::Bookmark(self.version));
                return Ok(Taken::Event);
            }
            None if object["code"] == 410 => return self.gone(object),
            None => bail!("the watch ended: {event}"),
        };
        self.version = version(object)?;
        if let Some((key, value)) = self.watched.look(object)? {
            self.seen.push(Seen::Change { key, value, version: self.version, kind });
        }
        Ok(Taken::Event)
    }
}

/// Whether a watch ended with something that must never be; else it is only opened again.
fn is_violation(error: &anyhow::Error) -> bool {
    error.to_string().contains("violation")
}

/// The list's version, and the value of each object that counts.
pub(crate) async fn list(client: &Client, watched: Watched, options: &str) -> Result<(u64, Vec<(String, Value)>)> {
    let body = tokio::time::timeout(END, client.get(&watched.query(options))).await??;
    let list: Json = serde_json::from_slice(&body)?;
    let items = list["items"].as_array().context("no items")?.iter();
    let objects = items.filter_map(|item| watched.look(item).transpose()).collect::<Result<_>>()?;
    Ok((version(&list)?, objects))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watch_that_cannot_be_resumed_is_found_unless_history_may_be_forgotten() {
        let said = |code: u16| format!(r#"{{"type": "ERROR", "object": {{"kind": "Status", "code": {code}}}}}"#);
        let watcher = |may_forget| Watcher {
            watched: Watched::All,
            configs: Vec::new(),
            start: 7,
            version: 7,
            seen: Vec::new(),
            resumed: 0,
            may_forget,
        };
        for (case, code, may_forget, expected) in [
            ("410, and nothing was forgotten", 410, false, Err(true)),
            ("410, and history may be forgotten", 410, true, Ok(Taken::Gone)),
            ("another end, after which it is opened again", 500, false, Err(false)),
        ] {
            let taken = watcher(may_forget).take(said(code).as_bytes());
            assert_eq!(taken.map_err(|error| is_violation(&error)), expected, "{case}");
        }
        assert!(watcher(false).gone("at once").is_err_and(|error| is_violation(&error)));
        assert!(watcher(false).take(b"{").is_err_and(|error| is_violation(&error)), "half an event");
    }
}
