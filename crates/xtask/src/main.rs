//! Developer tasks of the repository: end-to-end tests, benchmarks, and the tools they need. `cargo xtask --help` lists
//! them.

mod docs;
mod fuzz;
mod isolation;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

use harness::workdir::{self, WorkDir};
use harness::{cluster, process, tools::Tools};
use oracle::record;

/// Chores of the Portolan repository.
#[derive(Parser)]
#[command(name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    command: Chore,
}

#[derive(Subcommand)]
enum Chore {
    /// Run the end-to-end suites with unmodified kubectl against real API servers.
    E2e(suites::Options),
    /// Replay a corpus of requests against a real kube-apiserver and Portolan, and compare the answers.
    Oracle(oracle::Options),
    /// Run a client and record its requests as a file of the corpus.
    Record(record::Options),
    /// Measure Portolan beside kube-apiserver + etcd; prints a Markdown table.
    Bench(bench::Options),
    /// Send the API server generated inputs, and keep those that do harm.
    Fuzz(fuzz::Options),
    /// Send the API server the requests of one tenant with and without other tenants, and compare the answers.
    Isolation(isolation::Options),
    /// Kill, pause and starve real servers while clients write, and check all answers.
    Torture(torture::Options),
    /// Build kube-apiserver, kubectl, etcd, kwok and the clients that a run of the suites needs into the cache, and
    /// print their folders. Takes the options of `e2e`.
    Tools(suites::Options),
    /// Make the documentation site with mdBook, which this command installs.
    Docs(docs::Options),
    /// Start physical clusters, print their kubeconfigs and keep them until Ctrl-C.
    Up {
        /// Number of clusters.
        #[arg(long, default_value_t = 1)]
        clusters: usize,
    },
}

fn main() -> ExitCode {
    process::kill_children_on_signals(workdir::remove_all);
    match run(Cli::parse().command) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Runs one chore; `false` means that it ran and its checks failed.
fn run(chore: Chore) -> Result<bool> {
    match chore {
        Chore::E2e(options) => suites::run(&options),
        Chore::Oracle(options) => oracle::run(&options),
        Chore::Record(options) => record::run(&options),
        Chore::Bench(options) => bench::run(&options).map(|()| true),
        Chore::Fuzz(options) => fuzz::run(&options),
        Chore::Isolation(options) => isolation::run(&options),
        Chore::Torture(options) => torture::run(&options),
        Chore::Tools(options) => {
            suites::prepare(&options)?.iter().for_each(|folder| println!("{}", folder.display()));
            Ok(true)
        }
        Chore::Docs(options) => docs::run(&options).map(|()| true),
        Chore::Up { clusters } => match up(clusters)? {},
    }
}

fn up(count: usize) -> Result<std::convert::Infallible> {
    let tools = Tools::build()?;
    let work = WorkDir::new("up")?;
    let names: Vec<String> = (1..=count).map(|number| format!("physical-{number}")).collect();
    let clusters = cluster::start_all(&tools, work.path(), &names)?;
    for cluster in &clusters {
        println!("{}: export KUBECONFIG={}", cluster.name(), cluster.kubeconfig_file().display());
    }
    println!("kubectl: {}", tools.kubectl().display());
    // The signal handler ends the process.
    loop {
        std::thread::park();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_options_of_all_chores_go_together() {
        Cli::command().debug_assert();
    }
}
