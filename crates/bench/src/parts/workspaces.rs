//! Very many workspaces with a few objects each, most of which get no requests.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use http::{Method, StatusCode};
use serde_json::json;

use super::super::figures::{Figure, Unit};
use super::super::load::{LoadOutcome, LoadTarget, Until};
use super::super::objects::{Size, config_map};
use super::super::proc::ProcessMemory;
use super::super::subject::BenchSubject;
use super::MeasureLimits;
use harness::client::HttpClient;

/// Objects of each workspace, beside those that every workspace has.
const EACH: usize = 20;
const SIZE: Size = Size(1024);
const CLIENTS: usize = 16;
/// Time in which a workspace must be ready.
const READY: Duration = Duration::from_secs(120);
/// Time that a server idles before its memory is read.
pub(super) const QUIET: Duration = Duration::from_secs(10);
const WORKSPACES: &str = "/clusters/root/apis/tenancy.kcp.io/v1alpha1/workspaces";

pub(super) fn measure(subject: &mut BenchSubject, limits: &MeasureLimits) -> Result<Vec<Figure>> {
    let count = limits.workspaces;
    let empty = ProcessMemory::of(&subject.pids())?;
    let bench = everywhere(subject.bench());
    let (made, filled) = super::runtime()?.block_on(async {
        let made = make(&bench, count).await?;
        anyhow::Ok((made, fill(&bench, count).await?))
    })?;
    std::thread::sleep(QUIET);
    let written = ProcessMemory::of(&subject.pids())?;
    subject.stop()?;
    let begun = Instant::now();
    subject.start_again()?;
    let start = begun.elapsed();
    std::thread::sleep(QUIET);
    let idle = ProcessMemory::of(&subject.pids())?;

    let name = |what: &str| format!("{count} workspaces of {EACH} objects: {what}");
    let mut figures = vec![
        Figure::new(name("made ready"), made.rate(), Unit::PerSecond),
        made.cpu_millis(&name("made ready, per workspace")),
        Figure::new(name("create of their objects"), filled.rate(), Unit::PerSecond),
        Figure::new(name("create of their objects: server"), filled.cpu_micros(), Unit::MicrosOfCpu),
    ];
    figures.extend(written.figures(&name("resident memory when written")));
    figures.push(Figure::millis(name("start to ready"), start));
    figures.extend(idle.figures(&name("resident memory after the start, all idle")));
    let more = (idle.anonymous - empty.anonymous).max(0.0) * f64::from(1 << 20);
    figures.extend([
        Figure::new(name("memory more than of an empty server, per workspace"), more / count as f64, Unit::Bytes),
        Figure::new(name("disk"), subject.disk_mib()?, Unit::MiB),
    ]);
    Ok(figures)
}

/// Returns the same server with request paths from its root, instead of from one logical cluster.
pub(super) fn everywhere(bench: LoadTarget) -> LoadTarget {
    let origin = bench.config.server().split("/clusters/").next().unwrap_or_default().to_owned();
    LoadTarget { config: bench.config.with_server(&origin), ..bench }
}

/// Returns the path prefix of a workspace.
pub(super) fn root(workspace: usize) -> String {
    format!("/clusters/root:many-{workspace}")
}

fn namespace(workspace: usize) -> String {
    format!("{}/api/v1/namespaces/default", root(workspace))
}

/// Creates workspaces, and waits for each until its namespace has a ServiceAccount, which a pod needs.
pub(super) async fn make(bench: &LoadTarget, count: usize) -> Result<LoadOutcome> {
    bench
        .load(CLIENTS, Until::Count(count), |client, number| async move {
            let name = format!("many-{number}");
            let meta = json!({"name": name});
            let body = json!({"apiVersion": "tenancy.kcp.io/v1alpha1", "kind": "Workspace", "metadata": meta});
            client.send(Method::POST, WORKSPACES, body.to_string().into()).await?.success()?;
            ready(&client, number).await.with_context(|| format!("workspace {name}"))
        })
        .await
}

async fn ready(client: &HttpClient, workspace: usize) -> Result<()> {
    let (account, begun) = (format!("{}/serviceaccounts/default", namespace(workspace)), Instant::now());
    while client.send(Method::GET, &account, Bytes::new()).await?.status != StatusCode::OK {
        ensure!(begun.elapsed() < READY, "it is not ready");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Ok(())
}

/// Creates the objects of all workspaces, one workspace after the other.
async fn fill(bench: &LoadTarget, count: usize) -> Result<LoadOutcome> {
    bench
        .load(CLIENTS, Until::Count(count * EACH), |client: Arc<HttpClient>, number| async move {
            let maps = format!("{}/configmaps", namespace(number / EACH));
            let body = config_map("default", number % EACH, SIZE);
            client.send(Method::POST, &maps, body).await?.success().map(drop)
        })
        .await
}
