//! Creates that a quota counts, and creates that it refuses.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use http::{Method, StatusCode};
use serde_json::{Value, json};

use super::super::figures::{Figure, Unit};
use super::super::load::{LoadTarget, Until};
use super::super::objects::{Size, config_map, maps};
use super::super::subject::BenchSubject;
use super::MeasureLimits;

const CLIENTS: usize = 64;
/// ConfigMaps that the tight quota allows, beside the one that every namespace has.
const ALLOWED: usize = 500;
/// Creates that are tried under the tight quota.
const TRIED: usize = 1000;
/// Time limit for the controllers.
const PATIENCE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(50);

pub(super) fn measure(subject: &BenchSubject, limits: &MeasureLimits) -> Result<Vec<Figure>> {
    let bench = subject.bench();
    super::runtime()?.block_on(async {
        bench.warm_up().await?;
        let mut figures = Vec::new();
        bench.make_namespace("free").await?;
        let free = bench.create("free", CLIENTS, Size::SMALL, Until::Time(limits.time)).await?;
        figures.extend(free.figures("create with no quota, 64 clients"));
        bench.make_namespace("counted").await?;
        limit(&bench, "counted", 100_000_000).await?;
        let counted = bench.create("counted", CLIENTS, Size::SMALL, Until::Time(limits.time)).await?;
        figures.extend(counted.figures("create that a quota counts, 64 clients"));
        bench.make_namespace("tight").await?;
        let before = limit(&bench, "tight", ALLOWED).await?;
        figures.extend(race(&bench, before).await?);
        Ok(figures)
    })
}

/// Sets a quota that allows `more` further ConfigMaps. Returns the present number of ConfigMaps.
async fn limit(bench: &LoadTarget, namespace: &str, more: usize) -> Result<usize> {
    let client = bench.clients(1).await?.remove(0);
    let before = published(bench, namespace).await?;
    let spec = json!({"hard": {"count/configmaps": (before + more).to_string()}});
    let body = json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "bench"}, "spec": spec});
    let path = format!("/api/v1/namespaces/{namespace}/resourcequotas");
    client.send(Method::POST, &path, body.to_string().into()).await?.success()?;
    // The quota allows no create until the present objects are counted.
    let used = before.to_string();
    let begun = Instant::now();
    loop {
        let quota: Value = serde_json::from_slice(&client.get(&format!("{path}/bench")).await?)?;
        if quota["status"]["used"]["count/configmaps"].as_str() == Some(&used) {
            return Ok(before);
        }
        ensure!(begun.elapsed() < PATIENCE, "the quota does not count {used}: {quota}");
        tokio::time::sleep(PAUSE).await;
    }
}

/// Waits until the controllers have created their ConfigMap (`kube-root-ca.crt`), which a quota counts too. Returns the
/// number of ConfigMaps.
async fn published(bench: &LoadTarget, namespace: &str) -> Result<usize> {
    let begun = Instant::now();
    loop {
        let maps = count(bench, namespace).await?;
        if maps > 0 {
            return Ok(maps);
        }
        ensure!(begun.elapsed() < PATIENCE, "{namespace} has no kube-root-ca.crt");
        tokio::time::sleep(PAUSE).await;
    }
}

async fn count(bench: &LoadTarget, namespace: &str) -> Result<usize> {
    let client = bench.clients(1).await?.remove(0);
    let list: Value = serde_json::from_slice(&client.get(&maps(namespace)).await?)?;
    Ok(list["items"].as_array().map_or(0, Vec::len))
}

/// Sends twice as many concurrent creates as the quota allows.
async fn race(bench: &LoadTarget, before: usize) -> Result<[Figure; 2]> {
    let taken = bench
        .load(CLIENTS, Until::Count(TRIED), |client, number| async move {
            let body = config_map("tight", number, Size::SMALL);
            let answer = client.send(Method::POST, &maps("tight"), body).await?;
            ensure!(
                matches!(answer.status, StatusCode::CREATED | StatusCode::FORBIDDEN),
                "{}: {}",
                answer.status,
                String::from_utf8_lossy(&answer.body)
            );
            Ok(())
        })
        .await?;
    let made = count(bench, "tight").await? - before;
    ensure!(made <= ALLOWED, "{made} objects are more than {ALLOWED}");
    let name = format!("{TRIED} creates at once where a quota allows {ALLOWED}");
    Ok([
        Figure::new(format!("{name}: server"), taken.cpu_micros(), Unit::MicrosOfCpu),
        Figure::new(format!("{name}: made"), made as f64, Unit::Count),
    ])
}
