//! Garbage collection: dependents of a deleted owner, and the content of a deleted namespace.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use http::Method;
use serde_json::{Value, json};

use super::super::figures::{Figure, Unit};
use super::super::load::{LoadTarget, Until};
use super::super::objects::{Size, maps};
use super::super::proc;
use super::super::subject::BenchSubject;
use super::MeasureLimits;
use harness::client::HttpClient;

const LIMIT: Duration = Duration::from_secs(900);
/// Interval between requests for the objects that are left.
const LOOK: Duration = Duration::from_millis(100);
const CREATORS: usize = 64;

pub(super) fn measure(subject: &BenchSubject, limits: &MeasureLimits) -> Result<Vec<Figure>> {
    let (bench, count) = (subject.bench(), limits.objects);
    super::runtime()?.block_on(async {
        bench.warm_up().await?;
        let mut figures = Vec::new();
        for how in ["Background", "Foreground", "Orphan"] {
            let taken = collect(&bench, how, count).await?;
            figures.extend(sweep_figures(&format!("{how} deletion of the owner of {count} objects"), &taken));
        }
        let taken = empty(&bench, count).await?;
        figures.extend(sweep_figures(&format!("deletion of a namespace of {count} objects"), &taken));
        Ok(figures)
    })
}

/// Duration and CPU time of a deletion.
struct SweepCost {
    wall: Duration,
    cpu: Duration,
    objects: usize,
}

fn sweep_figures(name: &str, gone: &SweepCost) -> [Figure; 2] {
    let each = gone.cpu.as_secs_f64() * 1e6 / gone.objects as f64;
    [Figure::millis(name, gone.wall), Figure::new(format!("{name}: server, per object"), each, Unit::MicrosOfCpu)]
}

/// Deletes an owner and waits until it is gone, and its dependents are gone or have no owner any more.
async fn collect(bench: &LoadTarget, how: &'static str, count: usize) -> Result<SweepCost> {
    let namespace = how.to_lowercase();
    bench.make_namespace(&namespace).await?;
    let client = bench.clients(1).await?.remove(0);
    let meta = json!({"name": "owner"});
    let owner = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta}).to_string();
    let made = client.send(Method::POST, &maps(&namespace), owner.into()).await?.success()?;
    let uid = serde_json::from_slice::<Value>(&made)?["metadata"]["uid"].clone();
    let (path, reference) = (
        maps(&namespace),
        json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "owner",
        "uid": uid, "blockOwnerDeletion": true}]),
    );
    let to = path.clone();
    bench
        .load(CREATORS, Until::Count(count), move |client, number| {
            let meta = json!({"name": format!("object-{number}"), "ownerReferences": reference});
            let data = json!({"payload": "p".repeat(Size::SMALL.0)});
            let body = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": data}).to_string();
            let path = to.clone();
            async move { client.send(Method::POST, &path, body.into()).await?.success().map(drop) }
        })
        .await?;
    // The collector has seen all of them.
    tokio::time::sleep(Duration::from_secs(3)).await;
    let (begun, cpu) = (Instant::now(), proc::cpu_time(&bench.pids)?);
    let options = json!({"propagationPolicy": how}).to_string();
    client.send(Method::DELETE, &format!("{path}/owner"), options.into()).await?.success()?;
    match how {
        "Orphan" => until(begun, || is_absent(&client, format!("{path}/owner"))).await?,
        _ => until(begun, || is_empty(&client, &namespace)).await?,
    }
    Ok(SweepCost { wall: begun.elapsed(), cpu: proc::cpu_time(&bench.pids)? - cpu, objects: count })
}

/// Deletes a namespace full of objects and waits until it has gone.
async fn empty(bench: &LoadTarget, count: usize) -> Result<SweepCost> {
    bench.make_namespace("emptied").await?;
    bench.create("emptied", CREATORS, Size::SMALL, Until::Count(count)).await?;
    tokio::time::sleep(Duration::from_secs(3)).await;
    let client = bench.clients(1).await?.remove(0);
    let (begun, cpu) = (Instant::now(), proc::cpu_time(&bench.pids)?);
    client.send(Method::DELETE, "/api/v1/namespaces/emptied", "{}".into()).await?.success()?;
    until(begun, || is_absent(&client, "/api/v1/namespaces/emptied".to_owned())).await?;
    Ok(SweepCost { wall: begun.elapsed(), cpu: proc::cpu_time(&bench.pids)? - cpu, objects: count })
}

async fn until<F: Future<Output = Result<bool>>>(begun: Instant, is_so: impl Fn() -> F) -> Result<()> {
    while !is_so().await? {
        ensure!(begun.elapsed() < LIMIT, "not within {} s", LIMIT.as_secs());
        tokio::time::sleep(LOOK).await;
    }
    Ok(())
}

/// Returns true if the namespace has no ConfigMap except the one that every namespace has.
async fn is_empty(client: &HttpClient, namespace: &str) -> Result<bool> {
    let left = client.get(&format!("{}?limit=2", maps(namespace))).await?;
    let left: Value = serde_json::from_slice(&left)?;
    let names = left["items"].as_array().into_iter().flatten().map(|item| &item["metadata"]["name"]);
    Ok(names.filter(|name| *name != "kube-root-ca.crt").count() == 0)
}

async fn is_absent(client: &HttpClient, url: String) -> Result<bool> {
    Ok(client.send(Method::GET, &url, bytes::Bytes::new()).await?.status == http::StatusCode::NOT_FOUND)
}
