//! The end-to-end suites and what they run against.

mod kill;
mod kubectl;
mod scene;
mod sync;

use std::path::PathBuf;

use anyhow::{Result, ensure};
use clap::ValueEnum;

use crate::harness::cluster::{self, PhysicalCluster};
use crate::harness::portolan::{self, Portolan};
use crate::harness::{tools::Tools, workdir::WorkDir};
use crate::report::Report;
use scene::Scene;

/// What `cargo xtask e2e` can be told.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Run only these suites.
    #[arg(long = "suite", value_enum, value_delimiter = ',')]
    suites: Vec<Suite>,
    /// The server under test. `kube` is the oracle: the kubectl suite has to pass there first.
    #[arg(long, value_enum, default_value_t = Target::Portolan)]
    against: Target,
    /// Run this binary instead of building one.
    #[arg(long)]
    portolan: Option<PathBuf>,
    /// Leave logs and data on disk also when all is well.
    #[arg(long)]
    keep: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Suite {
    /// Every kubectl verb, in one namespace of one logical cluster.
    Kubectl,
    /// The sample app: placed, running, scaled, moved, deleted.
    Sync,
    /// kill -9 under load: nothing acknowledged is lost.
    Kill,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Target {
    Portolan,
    Kube,
}

/// Runs the chosen suites; `false` when a check failed.
pub(crate) fn run(options: &Options) -> Result<bool> {
    let mut work = WorkDir::new("e2e")?;
    let outcome = match options.against {
        Target::Kube => run_against_kube(options, &work),
        Target::Portolan => run_against_portolan(options, &work),
    };
    if options.keep || !matches!(outcome, Ok(true)) {
        work.keep();
    }
    outcome
}

fn run_against_kube(options: &Options, work: &WorkDir) -> Result<bool> {
    let only_kubectl = options.suites.iter().all(|suite| *suite == Suite::Kubectl);
    ensure!(only_kubectl, "only the kubectl suite runs against kube");
    let tools = Tools::build()?;
    let cluster = PhysicalCluster::start(&tools, &work.path().join("kube"), "kube")?;
    let mut report = Report::default();
    kubectl::run(&mut report, cluster.kubectl());
    Ok(report.finish())
}

fn run_against_portolan(options: &Options, work: &WorkDir) -> Result<bool> {
    let tools = Tools::build()?;
    let program = options.portolan.clone().map_or_else(portolan::build, Ok)?;
    let names = [scene::EAST, scene::WEST].map(str::to_owned);
    println!("starting the physical clusters {} and {}", scene::EAST, scene::WEST);
    let clusters = cluster::start_all(&tools, work.path(), &names)?;
    let server = Portolan::start(&program, &tools, &work.path().join("portolan"))?;
    let mut scene = Scene::new(&tools, work.path(), clusters, server)?;

    let mut report = Report::default();
    if !report.check("scene: two physical clusters join and become Ready", || scene.join_clusters()) {
        return Ok(report.finish());
    }
    let wanted = |suite| options.suites.is_empty() || options.suites.contains(&suite);
    if wanted(Suite::Kubectl) {
        let made = scene.workspace("verbs");
        if report.check("kubectl: a workspace is made and Ready", || made.as_ref().map(drop).map_err(scene::copy)) {
            made.iter().for_each(|workspace| kubectl::run(&mut report, workspace));
        }
    }
    if wanted(Suite::Sync) {
        sync::run(&mut report, &scene);
    }
    if wanted(Suite::Kill) {
        kill::run(&mut report, &mut scene);
    }
    report.check("scene: the server is still the process that was started", || scene.server().check_alive());
    Ok(report.finish())
}
