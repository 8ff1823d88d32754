//! The command line: a file per command.

mod admin;
pub(crate) mod apply;
mod check;
mod data_dir;
mod demo;
mod etcd;
mod interrupt;
mod kubeconfig;
mod output;
mod progress;
mod server;
mod snapshot;
mod status;
#[cfg(test)]
mod tests;
mod values;
mod verify;
mod version;
mod workspaces;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// A logical-cluster control plane: thousands of isolated Kubernetes APIs, placed on physical clusters.
#[derive(Parser)]
#[command(name = "portolan", version = version::PORTOLAN, propagate_version = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run everything in one process, with simulated physical clusters and a sample app.
    Demo(demo::Demo),
    /// Run the control plane.
    Server(server::Server),
    /// Look whether this machine can run a server, and what is in its store, beside it or before it is started.
    Check(check::Check),
    /// Ask a running server whether it is ready, and what it holds.
    Status(status::Status),
    /// Back up the store of a server, restore it, or look at a backup.
    Snapshot(snapshot::Snapshot),
    /// Read all of a stopped server's store, and say whether it is as it was written.
    Verify(verify::Verify),
    /// Print the administrator's kubeconfig, for a workspace.
    Kubeconfig(kubeconfig::Command),
    /// Print the version.
    Version(version::Version),
}

/// Exit code of a failure; 2 is clap's, for usage.
const FAILED: u8 = 1;
/// Exit code of who was to look at something, and could not.
const COULD_NOT_LOOK: u8 = 2;

/// Runs the command that the arguments name.
pub(crate) fn run() -> ExitCode {
    let command = Cli::parse().command;
    let code: fn(&anyhow::Error) -> u8 = match &command {
        Command::Verify(_) => verify::code,
        _ => |_| FAILED,
    };
    let result = match command {
        Command::Demo(command) => command.run(),
        Command::Server(command) => command.run(),
        Command::Check(command) => command.run(),
        Command::Status(command) => command.run(),
        Command::Snapshot(command) => command.run(),
        Command::Verify(command) => command.run(),
        Command::Kubeconfig(command) => command.run(),
        Command::Version(command) => command.run(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.is::<output::ReaderLeft>() => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {}", explain(&error));
            ExitCode::from(code(&error))
        }
    }
}

/// What failed, then why, one line each.
fn explain(error: &anyhow::Error) -> String {
    let mut lines = vec![error.to_string()];
    let mut last = lines[0].clone();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !last.contains(&cause) {
            lines.push(format!("  why:  {cause}"));
        }
        last = cause;
    }
    lines.join("\n")
}

/// Threads beside those that requests are worked on by, of which there are as many as processors: what is short, as to look what has come
/// over a connection, is done at once, however long the work of a request takes.
const SPARE_THREADS: usize = 2;

/// The runtime of long-running commands.
fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    use anyhow::Context as _;
    let threads = std::thread::available_parallelism().map_or(1, usize::from) + SPARE_THREADS;
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(threads).enable_all().build().context("the asynchronous runtime does not start")
}
