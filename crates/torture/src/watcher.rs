//! Watchers: they follow all changes across every lost connection, and record what they receive.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use http::{Method, StatusCode};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde_json::Value as Json;

use super::history::{WatchEventKind, WatchItem};
use super::linear::Value;
use super::watched::WatchSelection;
use super::work::{END, PATIENCE, version};
use harness::client::HttpClient;
use harness::kubeconfig::UserKubeconfig;

/// Revision up to which watchers follow, once it is known.
pub(crate) type Upto = tokio::sync::watch::Receiver<Option<u64>>;

/// Silence after which a watch counts as lost.
const SILENCE: Duration = Duration::from_secs(20);

/// Lines of a watch.
pub(super) struct Lines {
    body: Incoming,
    buffer: Vec<u8>,
}

impl Lines {
    pub(super) fn of(answer: http::Response<Incoming>) -> Self {
        Self { body: answer.into_body(), buffer: Vec::new() }
    }

    /// Returns the next line; `None` at the end. Cancellation loses nothing.
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

/// Line of a watch, classified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WatchLine {
    Event,
    /// The watch's start revision is compacted.
    Gone,
}

/// Watcher that follows from the start of the run.
pub(crate) struct TortureWatcher {
    pub(crate) watched: WatchSelection,
    configs: Vec<UserKubeconfig>,
    /// Revision at which the run began.
    pub(crate) start: u64,
    /// Revision from which the watch resumes.
    version: u64,
    pub(crate) seen: Vec<WatchItem>,
    pub(crate) resumed: usize,
    /// True if history may be compacted, so that the watcher must list again.
    may_forget: bool,
}

impl TortureWatcher {
    /// Starts at the present revision, before any watched object exists.
    pub(crate) async fn new(watched: WatchSelection, configs: Vec<UserKubeconfig>, may_forget: bool) -> Result<Self> {
        let client = HttpClient::connect(&configs[0], 1).await?;
        let (version, objects) = list(&client, watched, "").await?;
        ensure!(objects.is_empty(), "there are objects before the run: {objects:?}");
        Ok(Self { watched, configs, start: version, version, seen: Vec::new(), resumed: 0, may_forget })
    }

    /// Follows until `stop` names the last revision.
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

    async fn follow(&mut self, config: &UserKubeconfig, upto: &mut Upto) -> Result<()> {
        let client = tokio::time::timeout(PATIENCE, HttpClient::connect(config, 1)).await??;
        let query =
            self.watched.query(&format!("watch=true&allowWatchBookmarks=true&resourceVersion={}", self.version));
        let opened = tokio::time::timeout(PATIENCE, client.open(Method::GET, &query, &[], Bytes::new())).await??;
        if opened.status() == StatusCode::GONE {
            self.history_gone("the watch was answered 410")?;
            return self.list_again(&client).await;
        }
        ensure!(opened.status().is_success(), "the watch was answered {}", opened.status());
        let mut lines = Lines::of(opened);
        loop {
            let line = tokio::select! {
                line = lines.next() => line?,
                // The caller checks whether that is far enough.
                _ = upto.changed() => return Ok(()),
            };
            let Some(line) = line else { return Ok(()) };
            if self.take(&line)? == WatchLine::Gone {
                return self.list_again(&client).await;
            }
            if upto.borrow().is_some_and(|upto| self.version >= upto) {
                return Ok(());
            }
        }
    }

    /// History of the whole run is retained, unless a fault compacts it: then a watch may be answered with 410.
    fn history_gone(&self, said: impl std::fmt::Display) -> Result<WatchLine> {
        ensure!(self.may_forget, "violation: resumable: after {}: {said}", self.version);
        Ok(WatchLine::Gone)
    }

    /// History was compacted: the listed state replaces the events between.
    async fn list_again(&mut self, client: &HttpClient) -> Result<()> {
        let (version, objects) = list(client, self.watched, "").await?;
        self.seen.push(WatchItem::List { version, objects });
        self.version = version;
        Ok(())
    }

    fn take(&mut self, line: &[u8]) -> Result<WatchLine> {
        let event: Json = serde_json::from_slice(line).context("violation: an event is no JSON")?;
        let object = &event["object"];
        let kind = match WatchEventKind::of(&event) {
            Some(kind) => kind,
            None if event["type"] == "BOOKMARK" => {
                self.version = version(object)?;
                self.seen.push(WatchItem::Bookmark(self.version));
                return Ok(WatchLine::Event);
            }
            None if object["code"] == 410 => return self.history_gone(object),
            None => bail!("the watch ended: {event}"),
        };
        self.version = version(object)?;
        if let Some((key, value)) = self.watched.look(object)? {
            self.seen.push(WatchItem::Change { key, value, version: self.version, kind });
        }
        Ok(WatchLine::Event)
    }
}

/// Returns true if an error violates a guarantee. After any other error the watch is opened again.
fn is_violation(error: &anyhow::Error) -> bool {
    error.to_string().contains("violation")
}

/// Version of the list, and the value of each selected object.
pub(crate) async fn list(
    client: &HttpClient,
    watched: WatchSelection,
    options: &str,
) -> Result<(u64, Vec<(String, Value)>)> {
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
        let watcher = |may_forget| TortureWatcher {
            watched: WatchSelection::All,
            configs: Vec::new(),
            start: 7,
            version: 7,
            seen: Vec::new(),
            resumed: 0,
            may_forget,
        };
        for (case, code, may_forget, expected) in [
            ("410, and nothing was forgotten", 410, false, Err(true)),
            ("410, and history may be forgotten", 410, true, Ok(WatchLine::Gone)),
            ("another end, after which it is opened again", 500, false, Err(false)),
        ] {
            let taken = watcher(may_forget).take(said(code).as_bytes());
            assert_eq!(taken.map_err(|error| is_violation(&error)), expected, "{case}");
        }
        assert!(watcher(false).history_gone("at once").is_err_and(|error| is_violation(&error)));
        assert!(watcher(false).take(b"{").is_err_and(|error| is_violation(&error)), "half an event");
    }
}
