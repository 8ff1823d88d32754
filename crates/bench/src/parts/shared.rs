//! The same definitions in very many logical clusters, which should be compiled and stored once.

use anyhow::{Context as _, Result};

use super::super::custom::{SchemaSize, objects};
use super::super::figures::{Figure, Unit};
use super::super::load::{LoadOutcome, LoadTarget, Until};
use super::super::proc::ProcessMemory;
use super::super::subject::BenchSubject;
use super::{MeasureLimits, workspaces};

/// Definitions of each logical cluster.
const EACH: usize = 50;
/// Name of the metric that counts compiled definitions.
const COMPILED: &str = "portolan_definitions_compiled_total ";

pub(super) fn measure(subject: &mut BenchSubject, limits: &MeasureLimits) -> Result<Vec<Figure>> {
    let count = limits.clusters;
    let name = |what: &str| format!("{EACH} definitions in each of {count} logical clusters: {what}");
    let bench = workspaces::everywhere(subject.bench());
    let runtime = super::runtime()?;
    runtime.block_on(workspaces::make(&bench, 0, count))?;
    std::thread::sleep(workspaces::QUIET);
    let before = (ProcessMemory::of(&subject.pids())?, runtime.block_on(compiled(&bench))?);
    let made = runtime.block_on(bench.define(count, EACH, SchemaSize::Small, false, workspaces::root))?;
    let asked = runtime.block_on(ask(&bench, count))?;
    std::thread::sleep(workspaces::QUIET);
    let (used, compilations) = (ProcessMemory::of(&subject.pids())?, runtime.block_on(compiled(&bench))? - before.1);
    subject.stop()?;
    subject.start_again()?;
    std::thread::sleep(workspaces::QUIET);
    let idle = ProcessMemory::of(&subject.pids())?;
    let each = |memory: &ProcessMemory| (memory.anonymous - before.0.anonymous) * f64::from(1 << 20) / count as f64;
    Ok(vec![
        made.cpu_millis(&name("made, each definition")),
        asked.cpu_millis(&name("first list of objects in each logical cluster")),
        Figure::new(name("compilations"), compilations, Unit::Count),
        Figure::new(name("memory for them, all in use, per logical cluster"), each(&used), Unit::Bytes),
        Figure::new(name("memory for them, all idle after a start, per logical cluster"), each(&idle), Unit::Bytes),
        Figure::new(name("memory, all idle after a start"), idle.anonymous, Unit::MiB),
    ])
}

/// Lists objects of one custom kind in each logical cluster.
async fn ask(bench: &LoadTarget, count: usize) -> Result<LoadOutcome> {
    bench
        .load(16, Until::Count(count), |client, number| async move {
            client.get(&objects(&workspaces::root(number), number % EACH, "default")).await.map(drop)
        })
        .await
}

async fn compiled(bench: &LoadTarget) -> Result<f64> {
    let metrics = bench.clients(1).await?.remove(0).get("/metrics").await?;
    let text = std::str::from_utf8(&metrics)?;
    let value = text.lines().find_map(|line| line.strip_prefix(COMPILED)).with_context(|| format!("no {COMPILED}"))?;
    Ok(value.trim().parse()?)
}
