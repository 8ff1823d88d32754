//! Very many workspaces with a few objects each, most of which get no requests.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use http::{Method, StatusCode};
use serde_json::{Value, json};

use super::super::figures::{Figure, Unit};
use super::super::load::{LoadOutcome, LoadTarget, Until};
use super::super::objects::{Size, config_map, scattered};
use super::super::proc::{self, ProcessMemory};
use super::super::subject::BenchSubject;
use super::MeasureLimits;
use harness::client::HttpClient;
use harness::kubeconfig::UserKubeconfig;

const SIZE: Size = Size(1024);
const CLIENTS: usize = 16;
/// Workspaces that are made before the measurement.
const FEW: usize = 100;
const TASKS: &str = "portolan_tasks ";
/// Time in which a workspace must be ready.
const READY: Duration = Duration::from_secs(120);
/// Time that a server idles before its memory is read.
pub(super) const QUIET: Duration = Duration::from_secs(10);
/// Requests for one object each, one after the other.
const GETS: usize = 20_000;
/// Workspaces that are deleted, at most.
const DELETED: usize = 10_000;
/// Time limit of their deletion.
const GONE: Duration = Duration::from_secs(600);
const LOOK: Duration = Duration::from_millis(100);
const WORKSPACES: &str = "/clusters/root/apis/tenancy.kcp.io/v1alpha1/workspaces";

pub(super) fn measure(subject: &mut BenchSubject, limits: &MeasureLimits) -> Result<Vec<Figure>> {
    let (count, each) = (limits.workspaces, limits.workspace_objects);
    let empty = ProcessMemory::of(&subject.pids())?;
    let bench = everywhere(subject.bench());
    let runtime = super::runtime()?;
    // The first workspaces also load shared state.
    let few = runtime.block_on(async {
        make(&bench, 0, FEW).await?;
        ServerParts::of(&bench).await
    })?;
    let made = runtime.block_on(make(&bench, FEW, count))?;
    let filled = runtime.block_on(fill(&bench, count, each))?;
    std::thread::sleep(QUIET);
    let written = ProcessMemory::of(&subject.pids())?;
    subject.stop()?;
    let begun = Instant::now();
    subject.start_again()?;
    let start = begun.elapsed();
    std::thread::sleep(QUIET);
    let idle = ProcessMemory::of(&subject.pids())?;

    let name = |what: &str| format!("{count} workspaces of {each} objects: {what}");
    let mut figures = vec![
        Figure::new(name("made ready"), made.rate(), Unit::PerSecond),
        made.cpu_millis(&name("made ready, per workspace")),
    ];
    if each > 0 {
        figures.push(Figure::new(name("create of their objects"), filled.rate(), Unit::PerSecond));
        figures.push(Figure::new(name("create of their objects: server"), filled.cpu_micros(), Unit::MicrosOfCpu));
    }
    figures.extend(written.figures(&name("resident memory when written")));
    figures.push(Figure::millis(name("start to ready"), start));
    figures.extend(idle.figures(&name("resident memory after the start, all idle")));
    let more = (idle.anonymous - empty.anonymous).max(0.0);
    figures.extend([
        Figure::new(name("memory more than of an empty server"), more, Unit::MiB),
        Figure::new(
            name("memory more than of an empty server, per workspace"),
            more * f64::from(1 << 20) / count as f64,
            Unit::Bytes,
        ),
        Figure::new(name("disk"), subject.disk_mib()?, Unit::MiB),
    ]);
    let bench = everywhere(subject.bench());
    figures.extend(runtime.block_on(async {
        let mut figures = few.beside(&ServerParts::of(&bench).await?, name);
        figures.extend(get(&bench, count).await?.figures(&name("get of an object in any of them, 1 client")));
        figures.extend(delete(&bench, count).await?);
        anyhow::Ok(figures)
    })?);
    Ok(figures)
}

/// Numbers that must not grow with the workspaces.
struct ServerParts {
    /// Threads of the processes.
    threads: usize,
    /// Asynchronous tasks; `None` if the server does not report them.
    tasks: Option<usize>,
    /// Series of metrics.
    series: usize,
}

impl ServerParts {
    async fn of(bench: &LoadTarget) -> Result<Self> {
        let metrics = bench.clients(1).await?.remove(0).get("/metrics").await?;
        let (series, tasks) = series_and_tasks(std::str::from_utf8(&metrics)?)?;
        Ok(Self { threads: proc::threads(&bench.pids)?, tasks, series })
    }

    /// Returns the figures of `self`, with a few workspaces, and of `many`, with all of them.
    fn beside(&self, many: &Self, name: impl Fn(&str) -> String) -> Vec<Figure> {
        let mut figures = Vec::new();
        for (how, parts) in [(format!("with {FEW} of them"), self), ("with all of them".to_owned(), many)] {
            let figure =
                |what: &str, value: usize| Figure::new(name(&format!("{what} {how}")), value as f64, Unit::Count);
            figures.push(figure("threads", parts.threads));
            figures.extend(parts.tasks.map(|tasks| figure("tasks", tasks)));
            figures.push(figure("series of metrics", parts.series));
        }
        figures
    }
}

/// Counts the series in the text of metrics, and finds the number of tasks in it.
fn series_and_tasks(metrics: &str) -> Result<(usize, Option<usize>)> {
    let series = metrics.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).count();
    let tasks = metrics.lines().find_map(|line| line.strip_prefix(TASKS)).map(|value| value.trim().parse());
    Ok((series, tasks.transpose().context("the number of tasks is no number")?))
}

/// Returns the same server with request paths from its root, instead of from one logical cluster.
pub(super) fn everywhere(bench: LoadTarget) -> LoadTarget {
    LoadTarget { config: bench.config.with_server(origin(&bench.config)), ..bench }
}

/// Returns the URL of the server without the path of a logical cluster.
pub(super) fn origin(config: &UserKubeconfig) -> &str {
    config.server().split("/clusters/").next().unwrap_or_default()
}

/// Returns the path prefix of a workspace.
pub(super) fn root(workspace: usize) -> String {
    format!("/clusters/root:many-{workspace}")
}

fn namespace(workspace: usize) -> String {
    format!("{}/api/v1/namespaces/default", root(workspace))
}

/// Creates the workspaces from number `first` to `count`, and waits for each until its namespace has a ServiceAccount,
/// which a pod needs.
pub(super) async fn make(bench: &LoadTarget, first: usize, count: usize) -> Result<LoadOutcome> {
    bench
        .load(CLIENTS, Until::Count(count.saturating_sub(first)), move |client, number| async move {
            let number = first + number;
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
async fn fill(bench: &LoadTarget, count: usize, each: usize) -> Result<LoadOutcome> {
    bench
        .load(CLIENTS, Until::Count(count * each), move |client: Arc<HttpClient>, number| async move {
            let maps = format!("{}/configmaps", namespace(number / each));
            let body = config_map("default", number % each, SIZE);
            client.send(Method::POST, &maps, body).await?.success().map(drop)
        })
        .await
}

/// Gets an object of one workspace after the other, in no order.
async fn get(bench: &LoadTarget, count: usize) -> Result<LoadOutcome> {
    bench
        .load(1, Until::Count(GETS), move |client: Arc<HttpClient>, number| async move {
            let account = format!("{}/serviceaccounts/default", namespace(scattered(number, count)));
            client.get(&account).await.map(drop)
        })
        .await
}

/// Deletes workspaces, and waits until none of them is left.
async fn delete(bench: &LoadTarget, count: usize) -> Result<[Figure; 2]> {
    let (deleted, begun) = (count.min(DELETED), Instant::now());
    let cpu = proc::cpu_time(&bench.pids)?;
    bench
        .load(CLIENTS, Until::Count(deleted), |client: Arc<HttpClient>, number| async move {
            let path = format!("{WORKSPACES}/many-{number}");
            client.send(Method::DELETE, &path, Bytes::new()).await?.success().map(drop)
        })
        .await?;
    let client = bench.clients(1).await?.remove(0);
    loop {
        let list: Value = serde_json::from_slice(&client.get(&format!("{WORKSPACES}?limit=1")).await?)?;
        let shown = list["items"].as_array().map_or(0, Vec::len);
        let rest = list.pointer("/metadata/remainingItemCount").and_then(Value::as_u64).unwrap_or_default();
        let left = shown + usize::try_from(rest)?;
        if left <= count - deleted {
            break;
        }
        ensure!(begun.elapsed() < GONE, "{left} workspaces are left");
        tokio::time::sleep(LOOK).await;
    }
    let name = format!("deletion of {deleted} workspaces");
    let each = (proc::cpu_time(&bench.pids)? - cpu).as_secs_f64() * 1e3 / deleted as f64;
    Ok([
        Figure::millis(name.clone(), begun.elapsed()),
        Figure::new(format!("{name}: server, per workspace"), each, Unit::MillisOfCpu),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_are_counted_without_their_help() {
        let text = "# HELP a A.\n# TYPE a gauge\na 1\nb{c=\"d\"} 2\n\nportolan_tasks 41\n";
        assert_eq!(series_and_tasks(text).unwrap(), (3, Some(41)));
        assert_eq!(series_and_tasks("a 1\n").unwrap(), (1, None));
        assert!(series_and_tasks("portolan_tasks many\n").is_err());
    }
}
