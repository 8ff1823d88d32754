//! Benchmarks of Portolan's engines beside kube-apiserver and etcd: the same client, machine and requests, in one run,
//! in one table.
//!
//! Client and server share the cores, so a rate depends on both. CPU time of the server's processes per operation is
//! the stable figure.
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "it measures real programs in real time")]

mod custom;
mod disk;
mod events;
mod figures;
mod lists;
mod load;
mod objects;
mod parts;
mod proc;
mod protobuf;
mod report;
mod subject;
mod watchers;

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;

use figures::{Figure, FigureTable};
use harness::{cargo::cargo, portolan, tools::Tools, workdir::WorkDir};
use parts::{BenchPart, MeasureLimits};
use proc::ProcessMemory;
use report::RunReport;
use subject::{BenchSubject, Lab, Which};

/// Options of `cargo xtask bench`.
#[derive(clap::Args)]
pub struct Options {
    /// Measure only these parts, separated by commas.
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<BenchPart>,
    /// Measure only these servers, separated by commas; the others are compared with the first.
    #[arg(long, value_enum, value_delimiter = ',')]
    on: Vec<Which>,
    /// Measure this binary instead of building one.
    #[arg(long)]
    portolan: Option<std::path::PathBuf>,
    /// Write the table into `docs/benchmarks/<date>.md` as well, under the day of the run.
    #[arg(long)]
    report: bool,
    /// Seconds per measurement under load.
    #[arg(long, default_value_t = 8)]
    seconds: u64,
    /// Objects in the measured lists, all of which are also overwritten.
    #[arg(long, default_value_t = 10_000)]
    objects: usize,
    /// Objects in the large store, 1 KiB each.
    #[arg(long, default_value_t = 1_000_000)]
    many: usize,
    /// Workspaces, and workspaces that bind one export.
    #[arg(long, default_value_t = 10_000)]
    workspaces: usize,
    /// Objects in each workspace, in addition to those that every workspace has.
    #[arg(long, default_value_t = 20)]
    workspace_objects: usize,
    /// Definitions in one logical cluster.
    #[arg(long, default_value_t = 1000)]
    definitions: usize,
    /// Logical clusters with the same fifty definitions.
    #[arg(long, default_value_t = 2000)]
    clusters: usize,
    /// Deployments that are placed, planned and moved.
    #[arg(long, default_value_t = 100_000)]
    placed: usize,
    /// Deployments that run on ten simulated and three real physical clusters.
    #[arg(long, default_value_t = 10_000)]
    deployments: usize,
    /// Agents with a session at one time.
    #[arg(long, default_value_t = 1000)]
    agents: usize,
    /// Measure with this build of the client, whether or not it is optimized.
    #[arg(long)]
    as_built: bool,
}

/// Measures and prints the table on stdout, row by row; progress goes to stderr.
///
/// # Errors
/// Fails if a measurement failed. The figures of the others are printed.
pub fn run(options: &Options) -> Result<()> {
    if cfg!(debug_assertions) && !options.as_built {
        return run_optimized();
    }
    let tools = Tools::build()?;
    let program = options.portolan.clone().map_or_else(portolan::build, Ok)?;
    let mut work = WorkDir::new("bench")?;
    let outcome = Lab::new(&tools, &program, work.path()).and_then(|lab| measure(options, &lab));
    if outcome.is_err() {
        parts::leave_nothing_stored(work.path());
        work.keep();
    }
    outcome
}

/// Runs the benchmark again from a release build, because an unoptimized client would distort the figures.
fn run_optimized() -> Result<()> {
    let status = cargo()
        .args(["run", "--release", "--quiet", "--package", "xtask", "--"])
        .args(std::env::args_os().skip(1))
        .status()
        .context("cannot run cargo")?;
    ensure!(status.success(), "the benchmark ended with {status}");
    Ok(())
}

/// Measures every part on every server. A failure is reported and leaves a gap; the other parts are still measured.
fn measure(options: &Options, lab: &Lab) -> Result<()> {
    let limits = MeasureLimits {
        time: Duration::from_secs(options.seconds),
        objects: options.objects,
        many: options.many,
        workspaces: options.workspaces,
        definitions: options.definitions,
        clusters: options.clusters,
        placed: options.placed,
        workspace_objects: options.workspace_objects,
        deployments: options.deployments,
        agents: options.agents,
    };
    let (servers, parts) = (chosen(&options.on), chosen(&options.only));

    let mut report = RunReport::new();
    report.print(&format!("{}\n\n{}\n\n", proc::machine(), disk::sync_latency(lab.dir())?));
    let table = FigureTable::new(servers.iter().map(|which| which.name()).collect());
    report.print(&table.head());
    let mut failed = 0;
    for &part in parts {
        let mut columns = Vec::new();
        for &which in servers {
            let measured = if part.fits(which) { measure_one(part, which, lab, &limits) } else { Ok(Vec::new()) };
            columns.push(measured.unwrap_or_else(|error| {
                eprintln!("{} of {}: {error:#}", part.name(), which.name());
                failed += 1;
                Vec::new()
            }));
        }
        report.print(&table.rows(&columns));
    }
    report.print(&format!("\nAfterwards: {}\n", disk::sync_latency(lab.dir())?));
    if options.report {
        eprintln!("written to {}", report.save()?.display());
    }
    ensure!(failed == 0, "{failed} measurements failed");
    Ok(())
}

/// Returns the requested values, or all when none is requested.
fn chosen<T: ValueEnum>(asked: &[T]) -> &[T] {
    if asked.is_empty() { T::value_variants() } else { asked }
}

/// Measures a part on a server that is started for it, and is removed afterwards with its data. If the part fails, the
/// logs are kept.
fn measure_one(part: BenchPart, which: Which, lab: &Lab, limits: &MeasureLimits) -> Result<Vec<Figure>> {
    eprintln!("{}: {}", which.name(), part.name());
    let dir = lab.dir().join(format!("{}-{}", part.name(), which.id()));
    let measured = measure_in(&dir, part, which, lab, limits);
    let left = if measured.is_ok() { vec![dir] } else { BenchSubject::stored_in(&dir).to_vec() };
    for folder in left.iter().filter(|folder| folder.exists()) {
        std::fs::remove_dir_all(folder).with_context(|| format!("cannot remove {}", folder.display()))?;
    }
    measured
}

fn measure_in(dir: &Path, part: BenchPart, which: Which, lab: &Lab, limits: &MeasureLimits) -> Result<Vec<Figure>> {
    let mut subject = lab.start(which, dir, &part.recipe())?;
    let mut figures = part.measure(&mut subject, lab, limits)?;
    let name = format!("{}: resident memory afterwards", part.name());
    figures.extend(ProcessMemory::of(&subject.pids())?.figures(&name));
    subject.stop()?;
    Ok(figures)
}
