//! One export that very many workspaces bind, and the view of its provider over all of them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use http::{Method, StatusCode};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde_json::{Value, json};

use super::super::figures::{Figure, Unit};
use super::super::load::{LoadOutcome, LoadTarget, Until};
use super::super::proc::ProcessMemory;
use super::super::subject::BenchSubject;
use super::{MeasureLimits, workspaces};
use harness::client::HttpClient;

/// Workspaces that bind while a provider watches its view.
const ENGAGED: usize = 100;
/// Lists of the view, one after the other.
const LISTS: usize = 10;
const CLIENTS: usize = 16;
/// Time in which a binding must be served, and an export must have an identity.
const SERVED: Duration = Duration::from_secs(120);
const PROVIDER: &str = "/clusters/root:provider/apis/apis.kcp.io";
const SCHEMA: &str = "v1.widgets.example.dev";

pub(super) fn measure(subject: &mut BenchSubject, limits: &MeasureLimits) -> Result<Vec<Figure>> {
    let count = limits.workspaces;
    let name = |what: &str| format!("{count} bindings to one export: {what}");
    let bench = workspaces::everywhere(subject.bench());
    let runtime = super::runtime()?;
    runtime.block_on(async {
        workspaces::make(&bench, count + ENGAGED).await?;
        export(&bench).await
    })?;
    std::thread::sleep(workspaces::QUIET);
    let before = ProcessMemory::of(&subject.pids())?;
    let bound = runtime.block_on(bind_all(&bench, count))?;
    std::thread::sleep(workspaces::QUIET);
    let after = ProcessMemory::of(&subject.pids())?;
    let mut figures = Vec::from(bound.figures(&name("bind to served, 16 clients")));
    let each = (after.anonymous - before.anonymous).max(0.0) * f64::from(1 << 20) / count as f64;
    figures.push(Figure::new(name("memory, each"), each, Unit::Bytes));
    runtime.block_on(async {
        fill(&bench, count).await?;
        let view = view(&bench).await?;
        for (what, path) in [
            ("list of their objects in the view", "example.dev/v1/widgets"),
            ("list of them in the view", "apis.kcp.io/v1alpha1/apibindings"),
        ] {
            let listed = list(&bench, format!("{view}/apis/{path}"), count).await?;
            figures.push(Figure::millis(name(&format!("{what}: p50")), listed.percentile(50)));
            figures.push(listed.cpu_millis(&name(what)));
        }
        let engaged = engage(&bench, &view, count).await?;
        for percent in [50, 99] {
            let wait = engaged[engaged.len() * percent / 100];
            figures.push(Figure::millis(name(&format!("another one reaches a watch of the view: p{percent}")), wait));
        }
        anyhow::Ok(())
    })?;
    Ok(figures)
}

async fn post(client: &HttpClient, path: &str, object: Value) -> Result<()> {
    client.send(Method::POST, path, object.to_string().into()).await?.success().map(drop)
}

/// Makes the provider, its schema and its export, and waits for the identity.
async fn export(bench: &LoadTarget) -> Result<()> {
    let client = bench.clients(1).await?.remove(0);
    let workspace =
        json!({"apiVersion": "tenancy.kcp.io/v1alpha1", "kind": "Workspace", "metadata": {"name": "provider"}});
    post(&client, "/clusters/root/apis/tenancy.kcp.io/v1alpha1/workspaces", workspace).await?;
    let fields = json!({"type": "object", "properties": {
        "spec": {"type": "object", "properties": {"size": {"type": "integer", "minimum": 1}}},
    }});
    let schema = json!({
        "apiVersion": "apis.kcp.io/v1alpha1", "kind": "APIResourceSchema", "metadata": {"name": SCHEMA},
        "spec": {
            "group": "example.dev", "scope": "Namespaced",
            "names": {"plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": fields}],
        },
    });
    post(&client, &format!("{PROVIDER}/v1alpha1/apiresourceschemas"), schema).await?;
    let export = json!({
        "apiVersion": "apis.kcp.io/v1alpha2", "kind": "APIExport", "metadata": {"name": "widgets"},
        "spec": {"resources": [{"name": "widgets", "group": "example.dev", "schema": SCHEMA, "storage": {"crd": {}}}]},
    });
    post(&client, &format!("{PROVIDER}/v1alpha2/apiexports"), export).await?;
    let begun = Instant::now();
    loop {
        let found = client.get(&format!("{PROVIDER}/v1alpha2/apiexports/widgets")).await?;
        if serde_json::from_slice::<Value>(&found)?.pointer("/status/identityHash").is_some() {
            return Ok(());
        }
        ensure!(begun.elapsed() < SERVED, "the export has no identity");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Creates the binding of a workspace.
async fn bind(client: &HttpClient, workspace: usize) -> Result<()> {
    let binding = json!({
        "apiVersion": "apis.kcp.io/v1alpha2", "kind": "APIBinding", "metadata": {"name": "widgets"},
        "spec": {"reference": {"export": {"path": "root:provider", "name": "widgets"}}},
    });
    let path = format!("{}/apis/apis.kcp.io/v1alpha2/apibindings", workspaces::root(workspace));
    post(client, &path, binding).await
}

fn widgets(workspace: usize) -> String {
    format!("{}/apis/example.dev/v1/namespaces/default/widgets", workspaces::root(workspace))
}

/// Binds in each workspace, and waits each time until objects can be asked for.
async fn bind_all(bench: &LoadTarget, count: usize) -> Result<LoadOutcome> {
    bench
        .load(CLIENTS, Until::Count(count), |client: Arc<HttpClient>, number| async move {
            bind(&client, number).await?;
            let (path, begun) = (widgets(number), Instant::now());
            while client.send(Method::GET, &path, Bytes::new()).await?.status != StatusCode::OK {
                ensure!(begun.elapsed() < SERVED, "{path} is not served");
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            Ok(())
        })
        .await
}

/// Creates an object in each workspace.
async fn fill(bench: &LoadTarget, count: usize) -> Result<LoadOutcome> {
    bench
        .load(CLIENTS, Until::Count(count), |client: Arc<HttpClient>, number| async move {
            let meta = json!({"name": "widget", "namespace": "default"});
            let widget =
                json!({"apiVersion": "example.dev/v1", "kind": "Widget", "metadata": meta, "spec": {"size": 1}});
            post(&client, &widgets(number), widget).await
        })
        .await
}

/// Returns the path of the provider's view over all workspaces.
async fn view(bench: &LoadTarget) -> Result<String> {
    let client = bench.clients(1).await?.remove(0);
    let found = client.get("/clusters/root/apis/tenancy.kcp.io/v1alpha1/workspaces/provider").await?;
    let found: Value = serde_json::from_slice(&found)?;
    let cluster = found.pointer("/spec/cluster").and_then(Value::as_str).context("a workspace without a cluster")?;
    Ok(format!("/services/apiexport/{cluster}/widgets/clusters/*"))
}

/// Lists a resource of the view, which has one object of each workspace.
async fn list(bench: &LoadTarget, path: String, count: usize) -> Result<LoadOutcome> {
    bench
        .load(1, Until::Count(LISTS), move |client: Arc<HttpClient>, _| {
            let path = path.clone();
            async move {
                let list: Value = serde_json::from_slice(&client.get(&path).await?)?;
                let items = list["items"].as_array().map_or(0, Vec::len);
                ensure!(items == count, "{path} has {items} objects instead of {count}");
                Ok(())
            }
        })
        .await
}

/// Binds in further workspaces, one after the other, and returns the time from each request until a watch of the
/// view's bindings shows that the binding is ready, from the shortest to the longest.
async fn engage(bench: &LoadTarget, view: &str, count: usize) -> Result<Vec<Duration>> {
    let mut clients = bench.clients(2).await?;
    let (client, watcher) = (clients.remove(0), clients.remove(0));
    let bindings = format!("{view}/apis/apis.kcp.io/v1alpha1/apibindings");
    let list: Value = serde_json::from_slice(&client.get(&format!("{bindings}?limit=1")).await?)?;
    let version = list.pointer("/metadata/resourceVersion").and_then(Value::as_str).context("no resourceVersion")?;
    let url = format!("{bindings}?watch=1&timeoutSeconds=600&resourceVersion={version}");
    let response = watcher.open(Method::GET, &url, &[], Bytes::new()).await?;
    ensure!(response.status().is_success(), "a watch was answered {}", response.status());
    let mut watch = BindingWatch { body: response.into_body(), buffer: Vec::new() };
    let mut waits = Vec::with_capacity(ENGAGED);
    for workspace in count..count + ENGAGED {
        let begun = Instant::now();
        bind(&client, workspace).await?;
        let path = format!("root:many-{workspace}");
        tokio::time::timeout(SERVED, watch.until_ready(&path))
            .await
            .with_context(|| format!("{path} never came"))??;
        waits.push(begun.elapsed());
    }
    waits.sort_unstable();
    Ok(waits)
}

/// Watch of bindings, line by line.
struct BindingWatch {
    body: Incoming,
    buffer: Vec<u8>,
}

impl BindingWatch {
    /// Reads on until the binding of a workspace is ready.
    async fn until_ready(&mut self, path: &str) -> Result<()> {
        loop {
            while let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                if is_ready(&serde_json::from_slice(&line)?, path)? {
                    return Ok(());
                }
            }
            let frame = self.body.frame().await.context("the watch ended")??;
            self.buffer.extend(frame.data_ref().into_iter().flatten());
        }
    }
}

/// Returns true if an event shows the binding of a workspace, and it is ready.
fn is_ready(event: &Value, path: &str) -> Result<bool> {
    ensure!(event["type"] != "ERROR", "the watch ended with {event}");
    let conditions = event.pointer("/object/status/conditions").and_then(Value::as_array).into_iter().flatten();
    let mut ready = conditions.filter(|own| own["type"] == "Ready" && own["status"] == "True");
    Ok(event["object"]["metadata"]["annotations"]["kcp.io/path"] == path && ready.next().is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engaged_workspace_is_one_with_a_ready_binding() {
        let event = |path: &str, status: &str| {
            json!({"type": "MODIFIED", "object": {
                "metadata": {"annotations": {"kcp.io/path": path}},
                "status": {"conditions": [{"type": "Other", "status": "True"}, {"type": "Ready", "status": status}]},
            }})
        };
        for (case, event, expected) in [
            ("a ready binding", event("root:many-1", "True"), true),
            ("one that is not ready", event("root:many-1", "False"), false),
            ("one of another workspace", event("root:many-2", "True"), false),
        ] {
            assert_eq!(is_ready(&event, "root:many-1").unwrap(), expected, "{case}");
        }
        assert!(is_ready(&json!({"type": "ERROR"}), "root:many-1").is_err());
    }
}
