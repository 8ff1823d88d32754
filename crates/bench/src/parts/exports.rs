//! One export that very many workspaces bind, and the view of its provider over all of them.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use http::{Method, StatusCode};
use serde_json::{Value, json};

use super::super::events::EventStream;
use super::super::figures::{Figure, Unit};
use super::super::load::{LoadOutcome, LoadTarget, Until};
use super::super::objects::post;
use super::super::proc::ProcessMemory;
use super::super::subject::BenchSubject;
use super::{MeasureLimits, workspaces};
use harness::client::HttpClient;

/// Workspaces that bind one after the other, beside all others.
const ALONE: usize = 100;
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
        workspaces::make(&bench, 0, count + ALONE + ENGAGED).await?;
        export(&bench).await
    })?;
    std::thread::sleep(workspaces::QUIET);
    let before = ProcessMemory::of(&subject.pids())?;
    let bound = runtime.block_on(bind_all(&bench, CLIENTS, 0..count))?;
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
        let alone = bind_all(&bench, 1, count..count + ALONE).await?;
        figures.push(Figure::millis(name("bind to served of another one: p50"), alone.percentile(50)));
        figures.push(Figure::millis(name("bind to served of another one: p99"), alone.percentile(99)));
        let engaged = engage(&bench, &view, count + ALONE).await?;
        for percent in [50, 99] {
            let wait = engaged[engaged.len() * percent / 100];
            figures.push(Figure::millis(name(&format!("another one reaches a watch of the view: p{percent}")), wait));
        }
        anyhow::Ok(())
    })?;
    Ok(figures)
}

/// Makes the provider, its schema and its export, and waits for the identity.
async fn export(bench: &LoadTarget) -> Result<()> {
    let client = bench.clients(1).await?.remove(0);
    let workspace =
        json!({"apiVersion": "tenancy.kcp.io/v1alpha1", "kind": "Workspace", "metadata": {"name": "provider"}});
    post(&client, "/clusters/root/apis/tenancy.kcp.io/v1alpha1/workspaces", &workspace).await?;
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
    post(&client, &format!("{PROVIDER}/v1alpha1/apiresourceschemas"), &schema).await?;
    let export = json!({
        "apiVersion": "apis.kcp.io/v1alpha2", "kind": "APIExport", "metadata": {"name": "widgets"},
        "spec": {"resources": [{"name": "widgets", "group": "example.dev", "schema": SCHEMA, "storage": {"crd": {}}}]},
    });
    post(&client, &format!("{PROVIDER}/v1alpha2/apiexports"), &export).await?;
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
    post(client, &path, &binding).await.map(drop)
}

fn widgets(workspace: usize) -> String {
    format!("{}/apis/example.dev/v1/namespaces/default/widgets", workspaces::root(workspace))
}

/// Creates a binding in each of the workspaces, and waits each time until objects can be listed.
async fn bind_all(bench: &LoadTarget, clients: usize, workspaces: Range<usize>) -> Result<LoadOutcome> {
    let first = workspaces.start;
    bench
        .load(clients, Until::Count(workspaces.len()), move |client: Arc<HttpClient>, number| async move {
            let number = first + number;
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
            post(&client, &widgets(number), &widget).await.map(drop)
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
    let mut events = EventStream::open(&watcher, &format!("{view}/apis/apis.kcp.io/v1alpha1/apibindings")).await?;
    let mut waits = Vec::with_capacity(ENGAGED);
    for workspace in count..count + ENGAGED {
        let (path, begun) = (format!("root:many-{workspace}"), Instant::now());
        bind(&client, workspace).await?;
        let arrival = events.until(SERVED, |binding| is_ready(binding, &path)).await;
        waits.push(arrival.with_context(|| format!("{path} never came"))?.0 - begun);
    }
    waits.sort_unstable();
    Ok(waits)
}

/// Returns true if an object is the binding of a workspace, and it is ready.
fn is_ready(binding: &Value, path: &str) -> bool {
    let conditions = binding.pointer("/status/conditions").and_then(Value::as_array).into_iter().flatten();
    let mut ready = conditions.filter(|own| own["type"] == "Ready" && own["status"] == "True");
    binding["metadata"]["annotations"]["kcp.io/path"] == path && ready.next().is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engaged_workspace_is_one_with_a_ready_binding() {
        let binding = |path: &str, status: &str| {
            json!({
                "metadata": {"annotations": {"kcp.io/path": path}},
                "status": {"conditions": [{"type": "Other", "status": "True"}, {"type": "Ready", "status": status}]},
            })
        };
        for (case, binding, expected) in [
            ("a ready binding", binding("root:many-1", "True"), true),
            ("one that is not ready", binding("root:many-1", "False"), false),
            ("one of another workspace", binding("root:many-2", "True"), false),
            ("a binding without a status", json!({"metadata": {"annotations": {"kcp.io/path": "root:many-1"}}}), false),
        ] {
            assert_eq!(is_ready(&binding, "root:many-1"), expected, "{case}");
        }
    }
}
