//! Very many definitions in one logical cluster.

use anyhow::Result;
use bytes::Bytes;
use http::Method;

use super::super::custom::{SchemaSize, object, objects};
use super::super::figures::{Figure, Unit};
use super::super::load::{LoadOutcome, LoadTarget, Until};
use super::super::objects::Size;
use super::super::proc::ProcessMemory;
use super::super::subject::BenchSubject;
use super::{MeasureLimits, start};

const READS: usize = 500;
/// Measures requests for the discovery and OpenAPI documents, one after the other.
const DOCUMENTS: usize = 10;
const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

pub(super) fn measure(subject: &mut BenchSubject, limits: &MeasureLimits) -> Result<Vec<Figure>> {
    let count = limits.definitions;
    let name = |what: &str| format!("{count} definitions: {what}");
    let bench = subject.bench();
    let runtime = super::runtime()?;
    let mut figures = Vec::new();
    runtime.block_on(async {
        bench.warm_up().await?;
        bench.make_namespace("beside").await?;
        bench.create("beside", 16, Size::SMALL, Until::Count(READS)).await?;
        let before = bench.get("beside", READS, limits.time).await?;
        figures.push(Figure::new("get with no definitions: server", before.cpu_micros(), Unit::MicrosOfCpu));
        let made = bench.define(1, count, SchemaSize::Small, true, |_| String::new()).await?;
        figures.push(Figure::new(name("made and served"), made.rate(), Unit::PerSecond));
        figures.push(made.cpu_millis(&name("made and served, each")));
        anyhow::Ok(())
    })?;
    figures.extend(ProcessMemory::of(&subject.pids())?.figures(&name("resident memory")));
    runtime.block_on(async {
        let beside = bench.get("beside", READS, limits.time).await?;
        figures.push(Figure::new(name("get of another kind: server"), beside.cpu_micros(), Unit::MicrosOfCpu));
        figures.extend(
            create(&bench, count, limits).await?.figures(&name("create of objects of all of them, 64 clients")),
        );
        let discovery = read(&bench, "/apis", AGGREGATED).await?;
        figures.push(discovery.cpu_millis(&name("discovery, aggregated")));
        let openapi = read(&bench, "/openapi/v2", "application/json").await?;
        figures.push(openapi.cpu_millis(&name("OpenAPI v2, made once, read ten times, each")));
        anyhow::Ok(())
    })?;
    figures.push(Figure::millis(name("start to ready"), start::to_ready(subject)?));
    Ok(figures)
}

async fn create(bench: &LoadTarget, count: usize, limits: &MeasureLimits) -> Result<LoadOutcome> {
    bench
        .load(64, Until::Time(limits.time), move |client, number| async move {
            let (url, body) =
                (objects("", number % count, "default"), object(number % count, SchemaSize::Small, "default", number));
            client.send(Method::POST, &url, body).await?.success().map(drop)
        })
        .await
}

async fn read(bench: &LoadTarget, url: &'static str, accept: &'static str) -> Result<LoadOutcome> {
    bench
        .load(1, Until::Count(DOCUMENTS), move |client, _| async move {
            client.send_with(Method::GET, url, &[("accept", accept)], Bytes::new()).await?.success().map(drop)
        })
        .await
}
