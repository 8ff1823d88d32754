//! Watchers of one namespace that behave like client-go: when the server ends a watch, the watcher continues from the
//! last resourceVersion that it has seen.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use http::Method;
use http_body_util::BodyExt;
use tokio::task::JoinSet;

use super::objects::maps;
use harness::client::HttpClient;

/// Running watchers. Dropping the value ends them.
#[derive(Default)]
pub(super) struct Crowd {
    seen: Arc<AtomicUsize>,
    resumed: Arc<AtomicUsize>,
    failed: Arc<AtomicUsize>,
    tasks: JoinSet<()>,
}

impl Crowd {
    /// Opens `watchers` watches from the current resourceVersion over shared clients. Returns when all are open.
    pub(super) async fn start(clients: Vec<HttpClient>, watchers: usize, namespace: &str) -> Result<Self> {
        let version = Self::version(clients.first().context("no client")?, namespace).await?;
        let mut crowd = Self::default();
        for watcher in crowd.watchers(clients, watchers, namespace, &version) {
            let first = watcher.open().await?;
            crowd.spawn(watcher, Some(first));
        }
        Ok(crowd)
    }

    /// Opens `watchers` watches concurrently, all from the same resourceVersion.
    pub(super) fn resume(clients: Vec<HttpClient>, watchers: usize, namespace: &str, version: &str) -> Self {
        let mut crowd = Self::default();
        for watcher in crowd.watchers(clients, watchers, namespace, version) {
            crowd.spawn(watcher, None);
        }
        crowd
    }

    /// Returns the current resourceVersion of a namespace.
    pub(super) async fn version(client: &HttpClient, namespace: &str) -> Result<String> {
        let list = client.get(&format!("{}?limit=1", maps(namespace))).await?;
        version_in(&list).context("a list without resourceVersion")
    }

    fn watchers(&self, clients: Vec<HttpClient>, count: usize, namespace: &str, version: &str) -> Vec<CountingWatcher> {
        let clients: Vec<Arc<HttpClient>> = clients.into_iter().map(Arc::new).collect();
        let watcher = |client: &Arc<HttpClient>| CountingWatcher {
            client: client.clone(),
            path: maps(namespace).to_string(),
            version: version.to_owned(),
            seen: Arc::clone(&self.seen),
            resumed: Arc::clone(&self.resumed),
        };
        clients.iter().cycle().take(count).map(watcher).collect()
    }

    fn spawn(&mut self, mut watcher: CountingWatcher, open: Option<hyper::body::Incoming>) {
        let failed = self.failed.clone();
        self.tasks.spawn(async move {
            if let Err(error) = watcher.run(open).await {
                failed.fetch_add(1, Ordering::Relaxed);
                eprintln!("a watcher failed: {error:#}");
            }
        });
    }

    /// Returns the number of watches that the server ended and clients resumed.
    pub(super) fn resumed(&self) -> usize {
        self.resumed.load(Ordering::Relaxed)
    }

    /// Waits until the watchers together have seen `events` events, for at most `limit`.
    pub(super) async fn wait_for(&self, events: usize, limit: Duration) -> Result<()> {
        let start = Instant::now();
        loop {
            let seen = self.seen.load(Ordering::Relaxed);
            ensure!(seen <= events, "{seen} events arrived, only {events} were made");
            if seen == events {
                return Ok(());
            }
            ensure!(self.failed.load(Ordering::Relaxed) == 0, "a watcher could not go on");
            ensure!(start.elapsed() < limit, "{seen} of {events} events arrived");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}

struct CountingWatcher {
    client: Arc<HttpClient>,
    path: String,
    /// The last resourceVersion seen.
    version: String,
    seen: Arc<AtomicUsize>,
    resumed: Arc<AtomicUsize>,
}

impl CountingWatcher {
    async fn open(&self) -> Result<hyper::body::Incoming> {
        let query = format!("watch=1&timeoutSeconds=600&resourceVersion={}", self.version);
        let url = format!("{}?{query}", self.path);
        let response = self.client.open(Method::GET, &url, &[], Bytes::new()).await?;
        ensure!(response.status().is_success(), "a watch was answered {}", response.status());
        Ok(response.into_body())
    }

    async fn run(&mut self, open: Option<hyper::body::Incoming>) -> Result<()> {
        let mut body = match open {
            Some(open) => open,
            None => self.open().await?,
        };
        loop {
            // The last complete line, which is kept until the next one is complete.
            let mut buffer = Vec::new();
            while let Some(Ok(frame)) = body.frame().await {
                if let Some(data) = frame.data_ref() {
                    self.take(data, &mut buffer)?;
                }
            }
            if let Some(version) = last_line(&buffer).and_then(version_in) {
                self.version = version;
            }
            self.resumed.fetch_add(1, Ordering::Relaxed);
            body = self.open().await?;
        }
    }

    /// Counts the complete lines in `data`, and keeps the last of them and the incomplete rest.
    fn take(&self, data: &[u8], buffer: &mut Vec<u8>) -> Result<()> {
        if data.starts_with(br#"{"type":"ERROR""#) {
            bail!("{}", String::from_utf8_lossy(data).chars().take(300).collect::<String>());
        }
        let lines = data.iter().filter(|byte| **byte == b'\n').count();
        self.seen.fetch_add(lines, Ordering::Relaxed);
        buffer.extend_from_slice(data);
        if lines > 0 {
            let end = buffer.iter().rposition(|byte| *byte == b'\n').unwrap_or_default();
            let start = buffer[..end].iter().rposition(|byte| *byte == b'\n').map_or(0, |newline| newline + 1);
            buffer.drain(..start);
        }
        Ok(())
    }
}

/// Returns the last complete line.
fn last_line(buffer: &[u8]) -> Option<&[u8]> {
    let end = buffer.iter().rposition(|byte| *byte == b'\n')?;
    let start = buffer[..end].iter().rposition(|byte| *byte == b'\n').map_or(0, |newline| newline + 1);
    Some(&buffer[start..end])
}

/// Returns the first `resourceVersion` in a piece of JSON: of a list that of the list, of an event that of the object.
fn version_in(json: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(json).ok()?;
    let (_, rest) = text.split_once(r#""resourceVersion":""#)?;
    rest.split_once('"').map(|(version, _)| version.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_whole_line_is_where_a_watch_goes_on() {
        let event = |version: u8| format!("{{\"object\":{{\"metadata\":{{\"resourceVersion\":\"{version}\"}}}}}}\n");
        let cut = format!("{}{}{{\"object\":{{\"meta", event(7), event(8));
        let line = last_line(cut.as_bytes()).unwrap();
        assert_eq!(version_in(line).as_deref(), Some("8"));
        assert_eq!(last_line(b"no end"), None);
    }
}
