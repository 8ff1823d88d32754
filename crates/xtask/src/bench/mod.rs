//! Portolan beside kube-apiserver + etcd: the same client, the same machine, the same requests, one run, one table.
//!
//! Client and server share the cores, so a rate says as much about the client as about the server; the CPU time of
//! the server's processes per operation is the steady figure.

mod disk;
mod figures;
mod lists;
mod load;
mod objects;
mod proc;
mod protobuf;
mod subject;
mod watchers;
mod work;

use std::time::Duration;

use anyhow::{Context, Result};
use clap::ValueEnum;

use crate::harness::{cargo::cargo, portolan, tools::Tools, workdir::WorkDir};
use figures::Table;
use subject::Subject;

/// What `cargo xtask bench` can be told.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Measure only this one.
    #[arg(long, value_enum)]
    only: Option<Which>,
    /// Measure this binary instead of building one.
    #[arg(long)]
    portolan: Option<std::path::PathBuf>,
    /// Seconds per measurement under load.
    #[arg(long, default_value_t = 8)]
    seconds: u64,
    /// Objects in the list that is read.
    #[arg(long, default_value_t = 6000)]
    objects: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Which {
    Kube,
    Portolan,
}

/// Measures and prints the table on stdout; progress goes to stderr.
pub(crate) fn run(options: &Options) -> Result<()> {
    if cfg!(debug_assertions) {
        return run_optimized();
    }
    let tools = Tools::build()?;
    let mut work = WorkDir::new("bench")?;
    let outcome = measure(options, &tools, &work);
    if outcome.is_err() {
        work.keep();
    }
    outcome
}

/// An unoptimized client would measure itself: starts this same chore again from a release build.
fn run_optimized() -> Result<()> {
    let status = cargo()
        .args(["run", "--release", "--quiet", "--package", "xtask", "--"])
        .args(std::env::args_os().skip(1))
        .status()
        .context("cannot run cargo")?;
    anyhow::ensure!(status.success(), "the benchmark ended with {status}");
    Ok(())
}

fn measure(options: &Options, tools: &Tools, work: &WorkDir) -> Result<()> {
    let limits = work::Limits { time: Duration::from_secs(options.seconds), objects: options.objects };
    let mut table = Table::default();
    if options.only != Some(Which::Portolan) {
        let subject = Subject::kube(tools, &work.path().join("kube"))?;
        table.push("kube-apiserver + etcd", work::measure(subject, &limits)?);
    }
    if options.only != Some(Which::Kube) {
        let program = options.portolan.clone().map_or_else(portolan::build, Ok)?;
        let subject = Subject::portolan(&program, tools, &work.path().join("portolan"))?;
        table.push("Portolan", work::measure(subject, &limits)?);
    }
    println!("{}\n", proc::machine());
    println!("{}\n", disk::sync_latency(work.path())?);
    print!("{}", table.markdown());
    Ok(())
}
