//! A thousand applies at once, as `kubectl apply` makes them: get, create if absent, then an update by merge patch.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use http::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::task::JoinSet;

use super::NAMESPACES;
use harness::client::{HttpAnswer, HttpClient};
use harness::kubeconfig::UserKubeconfig;

/// One of this many objects is a Deployment; the others are ConfigMaps.
const DEPLOYMENT_EVERY: usize = 20;
const CONNECTIONS: usize = 16;

/// One round of load.
pub(super) struct Load {
    pub(super) config: UserKubeconfig,
    pub(super) round: usize,
    pub(super) applies: usize,
    pub(super) kill_after: usize,
}

/// Writes of one apply, and those of them that were acknowledged. Values are at `/metadata/annotations/value`.
#[derive(Clone, Debug)]
pub(super) struct Applied {
    /// Kind in kubectl's notation: `configmap` or `deployment`.
    pub(super) kind: &'static str,
    pub(super) namespace: &'static str,
    pub(super) name: String,
    /// Value and resourceVersion of the last acknowledged write.
    pub(super) acknowledged: Option<(u64, u64)>,
    /// Number of acknowledged writes.
    pub(super) writes: usize,
    /// The value of the last write that was sent.
    pub(super) sent: Option<u64>,
}

impl Applied {
    pub(super) fn acknowledged(&self) -> usize {
        self.writes
    }

    fn path(&self) -> String {
        let collection = if self.kind == "deployment" {
            format!("/apis/apps/v1/namespaces/{}/deployments", self.namespace)
        } else {
            format!("/api/v1/namespaces/{}/configmaps", self.namespace)
        };
        format!("{collection}/{}", self.name)
    }

    fn manifest(&self, value: u64) -> Value {
        let metadata = json!({"name": self.name, "annotations": {"value": value.to_string()}});
        if self.kind == "configmap" {
            let text = "x".repeat(900);
            return json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"text": text}});
        }
        let container = json!({"name": "app", "image": "load:1", "envFrom": [{"configMapRef": {"name": "shared"}}]});
        json!({
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": metadata,
            "spec": {
                "replicas": 1,
                "selector": {"matchLabels": {"app": self.name}},
                "template": {"metadata": {"labels": {"app": self.name}}, "spec": {"containers": [container]}},
            },
        })
    }
}

impl Load {
    /// Starts all applies concurrently and calls `kill` after a number of acknowledged writes. Returns when every apply
    /// has ended or failed.
    pub(super) fn run(self, kill: impl FnOnce() -> Result<()>) -> Result<Vec<Applied>> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        runtime.block_on(self.run_async(kill))
    }

    async fn run_async(self, kill: impl FnOnce() -> Result<()>) -> Result<Vec<Applied>> {
        let client = Arc::new(HttpClient::connect(&self.config, CONNECTIONS).await?);
        let acknowledged = Arc::new(AtomicUsize::new(0));
        let enough = Arc::new(Notify::new());
        let mut tasks = JoinSet::new();
        for number in 0..self.applies {
            let (client, acknowledged, enough) = (client.clone(), acknowledged.clone(), enough.clone());
            let mut object = self.object(number);
            let kill_after = self.kill_after;
            tasks.spawn(async move {
                let mut told = || {
                    if acknowledged.fetch_add(1, Ordering::SeqCst) + 1 == kill_after {
                        enough.notify_one();
                    }
                };
                // The server is about to be killed: the errors do not matter, only the acknowledged writes.
                let apply = apply(&client, &mut object, &mut told);
                let failure = match tokio::time::timeout(Duration::from_secs(60), apply).await {
                    Ok(outcome) => outcome.err(),
                    Err(elapsed) => Some(elapsed.into()),
                };
                (object, failure)
            });
        }
        let deadline = tokio::time::timeout(Duration::from_secs(90), enough.notified()).await;
        let killed = kill();
        let mut outcome = Vec::new();
        let mut failure = None;
        while let Some(ended) = tasks.join_next().await {
            let (object, error) = ended.context("an apply panicked")?;
            failure = error.or(failure);
            outcome.push(object);
        }
        killed?;
        if deadline.is_err() {
            let seen = acknowledged.load(Ordering::SeqCst);
            let last = failure.map_or("none failed".to_owned(), |error| format!("{error:#}"));
            bail!(
                "only {seen} writes were acknowledged within 90 s, expected {}; last failure: {last}",
                self.kill_after
            );
        }
        Ok(outcome)
    }

    fn object(&self, number: usize) -> Applied {
        let deployment = number.is_multiple_of(DEPLOYMENT_EVERY);
        let kind = if deployment { "deployment" } else { "configmap" };
        let (namespace, _) = NAMESPACES[number / DEPLOYMENT_EVERY % NAMESPACES.len()];
        let name = format!("load-{}-{number}", self.round);
        Applied { kind, namespace, name, acknowledged: None, writes: 0, sent: None }
    }
}

/// Create with value 1, then patch to 2.
async fn apply(client: &HttpClient, object: &mut Applied, told: &mut impl FnMut()) -> Result<()> {
    let path = object.path();
    let (collection, _) = path.rsplit_once('/').context("a path has a slash")?;
    let seen = patient(|| client.send(Method::GET, &path, Bytes::new())).await?;
    ensure!(seen.status == StatusCode::NOT_FOUND, "{path} is there before it was made: {}", seen.status);

    object.sent = Some(1);
    let body = Bytes::from(object.manifest(1).to_string());
    let url = format!("{collection}?fieldManager=kubectl-client-side-apply");
    let created = patient(|| client.send(Method::POST, &url, body.clone())).await?.success()?;
    object.acknowledged = Some((1, version(&created)?));
    object.writes = 1;
    told();

    object.sent = Some(2);
    let body = Bytes::from(json!({"metadata": {"annotations": {"value": "2"}}}).to_string());
    let merge = [("content-type", "application/merge-patch+json")];
    let patched = patient(|| client.send_with(Method::PATCH, &path, &merge, body.clone())).await?.success()?;
    object.acknowledged = Some((2, version(&patched)?));
    object.writes = 2;
    told();
    Ok(())
}

/// As in client-go, a request with the answer 429 had no effect, and is retried.
async fn patient<F: Future<Output = Result<HttpAnswer>>>(send: impl Fn() -> F) -> Result<HttpAnswer> {
    for _ in 0..30 {
        let answer = send().await?;
        if answer.status != StatusCode::TOO_MANY_REQUESTS {
            return Ok(answer);
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    bail!("30 times Too Many Requests");
}

fn version(body: &[u8]) -> Result<u64> {
    let object: Value = serde_json::from_slice(body).context("the answer is no JSON")?;
    let version = object.pointer("/metadata/resourceVersion").and_then(Value::as_str);
    version.context("no resourceVersion")?.parse().context("resourceVersion is no number")
}
