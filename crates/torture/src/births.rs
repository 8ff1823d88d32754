//! Logical clusters that are created during faults: one transaction creates their first namespaces, and no read or
//! watch shows a part of it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use http::{Method, StatusCode};
use serde_json::{Value as Json, json};

use super::guarantees::{ListedState, check_atomic};
use super::history::{WatchEventKind, WatchItem};
use super::watcher::Lines;
use super::work::{PATIENCE, SharedWork, version};
use harness::client::{HttpAnswer, HttpClient};
use harness::kubeconfig::UserKubeconfig;

/// Namespaces that a logical cluster has from its creation.
pub(super) const BORN: [&str; 4] = ["default", "kube-node-lease", "kube-public", "kube-system"];
/// Maximum number of creations in a run, with pauses between.
const MOST: usize = 60;
const PAUSE: Duration = Duration::from_millis(400);
/// Attempts of the final reads that a server does not answer.
const TRIES: usize = 60;
const WORKSPACES: &str = "/apis/tenancy.kcp.io/v1alpha1/workspaces";

/// Creator of logical clusters, which reads them immediately.
pub(crate) struct Founder {
    configs: Vec<UserKubeconfig>,
    /// True when the fault may compact history.
    may_forget: bool,
    /// Requested logical clusters, each with its lists.
    asked: Vec<(String, Vec<ListedState>)>,
}

impl Founder {
    pub(crate) fn new(configs: Vec<UserKubeconfig>, may_forget: bool) -> Self {
        Self { configs, may_forget, asked: Vec::new() }
    }

    /// Creates one after another until the end, regardless of the answers.
    pub(crate) async fn run(mut self, work: Arc<SharedWork>) -> Self {
        while !work.stop.load(Ordering::Acquire) && self.asked.len() < MOST {
            let (number, name) = (self.asked.len(), format!("founded{}", self.asked.len()));
            let (here, there) = (number % self.configs.len(), (number + 1) % self.configs.len());
            let body =
                json!({"apiVersion": "tenancy.kcp.io/v1alpha1", "kind": "Workspace", "metadata": {"name": name}});
            // Without an answer it may exist, and is checked at the end.
            let _ = ask(&self.configs[here], Method::POST, WORKSPACES, Bytes::from(body.to_string())).await;
            let list = self.list(there, &name, "").await.ok().flatten();
            self.asked.push((name, list.into_iter().collect()));
            tokio::time::sleep(PAUSE).await;
        }
        self
    }

    fn config(&self, server: usize, name: &str) -> UserKubeconfig {
        let config = &self.configs[server];
        config.with_server(&format!("{}:{name}", config.server().trim_end_matches('/')))
    }

    /// Returns the first namespaces of a logical cluster and the version of the list; `None` if it does not exist.
    async fn list(&self, server: usize, name: &str, options: &str) -> Result<Option<ListedState>> {
        let path = format!("/api/v1/namespaces?{options}");
        let answer = ask(&self.config(server, name), Method::GET, &path, Bytes::new()).await?;
        match answer.status {
            StatusCode::NOT_FOUND | StatusCode::FORBIDDEN => return Ok(None),
            // Compacted.
            StatusCode::GONE if self.may_forget => return Ok(None),
            _ => {}
        }
        let list: Json = serde_json::from_slice(&answer.success()?)?;
        let names = list["items"].as_array().context("no items")?.iter();
        let names = names.filter_map(|item| item["metadata"]["name"].as_str()).filter(|name| BORN.contains(name));
        Ok(Some((version(&list)?, names.map(|born| format!("{name}/{born}")).collect())))
    }

    /// Checks all existing ones and their creation at the end; returns their number.
    ///
    /// # Errors
    /// Fails if one was visible in part.
    pub(crate) async fn judge(mut self) -> Result<usize> {
        let mut births = 0;
        for (number, (name, mut lists)) in std::mem::take(&mut self.asked).into_iter().enumerate() {
            let server = number % self.configs.len();
            let Some(last) = self.patiently(server, &name, "").await? else {
                ensure!(lists.is_empty(), "{name} was there, and is not");
                continue;
            };
            lists.push(last);
            let seen = self.watch(server, &name).await.with_context(|| format!("a watch of {name}"))?;
            for version in versions(&seen) {
                let at = format!("resourceVersion={version}&resourceVersionMatch=Exact");
                lists.extend(self.patiently(server, &name, &at).await?);
            }
            births += check_atomic(&seen, &lists).with_context(|| name.clone())?;
        }
        Ok(births)
    }

    async fn patiently(&self, server: usize, name: &str, options: &str) -> Result<Option<ListedState>> {
        for _ in 1..TRIES {
            if let Ok(found) = self.list(server, name, options).await {
                return Ok(found);
            }
            tokio::time::sleep(PAUSE).await;
        }
        self.list(server, name, options).await
    }

    /// Returns the events of a watch from the Workspace, which its transaction writes first, until the namespaces have
    /// arrived; empty if that history is compacted.
    async fn watch(&self, server: usize, name: &str) -> Result<Vec<WatchItem>> {
        let workspace = ask(&self.configs[server], Method::GET, &format!("{WORKSPACES}/{name}"), Bytes::new()).await?;
        let start = version(&serde_json::from_slice(&workspace.success()?)?)?;
        let client = HttpClient::connect(&self.config(server, name), 1).await?;
        let path = format!("/api/v1/namespaces?watch=true&allowWatchBookmarks=true&resourceVersion={start}");
        let opened = client.open(Method::GET, &path, &[], Bytes::new()).await?;
        if opened.status() == StatusCode::GONE && self.may_forget {
            return Ok(Vec::new());
        }
        ensure!(opened.status().is_success(), "it was answered {}", opened.status());
        let (mut lines, mut seen) = (Lines::of(opened), Vec::new());
        while seen.iter().filter(|seen| matches!(seen, WatchItem::Change { kind: WatchEventKind::Added, .. })).count()
            < BORN.len()
        {
            let line = lines.next().await?.with_context(|| format!("it ended after {seen:?}"))?;
            let event: Json = serde_json::from_slice(&line)?;
            let object = &event["object"];
            let kind = match WatchEventKind::of(&event) {
                Some(kind) => kind,
                None if event["type"] == "BOOKMARK" => {
                    seen.push(WatchItem::Bookmark(version(object)?));
                    continue;
                }
                None if object["code"] == 410 && self.may_forget => return Ok(Vec::new()),
                None => bail!("it brought {event}"),
            };
            let key = format!("{name}/{}", object["metadata"]["name"].as_str().unwrap_or_default());
            seen.push(WatchItem::Change { key, value: 0, version: version(object)?, kind });
        }
        Ok(seen)
    }
}

/// Versions of the changes.
fn versions(seen: &[WatchItem]) -> Vec<u64> {
    let version = |seen: &WatchItem| match seen {
        WatchItem::Change { version, .. } => Some(*version),
        WatchItem::Bookmark(_) | WatchItem::List { .. } => None,
    };
    seen.iter().filter_map(version).collect()
}

async fn ask(config: &UserKubeconfig, method: Method, path: &str, body: Bytes) -> Result<HttpAnswer> {
    let asked = async { HttpClient::connect(config, 1).await?.send(method, path, body).await };
    tokio::time::timeout(PATIENCE, asked).await.context("no answer in time")?
}
