//! Command line, with a file per command.

mod access;
mod admin;
mod agent;
mod audit;
mod check;
mod cluster_api;
mod completion;
mod console;
mod data_dir;
mod demo;
mod dns;
mod encryption;
mod etcd;
mod interrupt;
mod join;
mod kubeconfig;
mod oidc;
mod output;
mod plugin;
mod progress;
mod security;
mod server;
mod snapshot;
mod status;
#[cfg(test)]
mod tests;
mod tour;
mod values;
mod verify;
mod version;
mod workspaces;

use std::{ffi::OsString, process::ExitCode};

use clap::{Args, Parser, Subcommand};

/// Logical-cluster control plane: thousands of isolated Kubernetes APIs, placed on physical clusters.
#[derive(Parser)]
#[command(name = "portolan", version = version::PORTOLAN, propagate_version = true)]
struct PortolanCli {
    #[command(subcommand)]
    command: CliCommand,
}

#[derive(Subcommand)]
enum CliCommand {
    /// Run everything in one process, with simulated physical clusters and a sample app.
    Demo(demo::DemoArgs),
    /// Run the control plane.
    Server(Box<server::ServerArgs>),
    /// Run the agent of a physical cluster that the server cannot reach.
    Agent(agent::AgentArgs),
    /// Run the DNS responder of a physical cluster.
    Dns(dns::DnsArgs),
    /// Register physical clusters, check them, and remove them.
    Cluster(Box<join::ClusterCommandArgs>),
    /// Create bootstrap tokens for agents.
    Token(join::TokenArgs),
    /// Check whether a server can run on this machine, and examine its store, beside a running server or before a
    /// start.
    Check(check::CheckArgs),
    /// Ask a running server whether it is ready, and print its contents.
    Status(status::StatusArgs),
    /// Back up the store of a server, restore it, or inspect a backup.
    Snapshot(snapshot::SnapshotArgs),
    /// Read and check all data of a stopped server's store.
    Verify(verify::VerifyArgs),
    /// Encrypt the objects of a store, and verify that nothing in it is stored plain.
    Encryption(encryption::EncryptionArgs),
    /// Print the administrator's kubeconfig for a workspace, or create one for a user.
    Kubeconfig(kubeconfig::KubeconfigArgs),
    /// Run the kubectl plugin: `portolan kubectl where …` is `kubectl portolan where …`.
    #[command(disable_help_flag = true, disable_version_flag = true)]
    Kubectl(KubectlArgs),
    /// Install the kubectl plugin.
    Plugin(PluginArgs),
    /// Print the completion script of a shell for this program.
    Completion(completion::CompletionArgs),
    /// Print the version.
    Version(version::VersionArgs),
}

#[derive(Args)]
struct KubectlArgs {
    /// Command of the plugin, and its arguments.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGS")]
    args: Vec<OsString>,
}

#[derive(Args)]
struct PluginArgs {
    #[command(subcommand)]
    command: PluginInstallCommand,
}

#[derive(Subcommand)]
enum PluginInstallCommand {
    /// Link this program under the names by which kubectl finds its plugins.
    Install(plugin::applets::PluginInstallArgs),
}

/// Exit code of a failure; 2 is clap's, for usage.
const FAILED: u8 = 1;
/// Exit code of a check that was not possible.
const COULD_NOT_LOOK: u8 = 2;

/// Runs the program that the name of the executable chooses, or the command that the arguments name.
pub(crate) fn run() -> ExitCode {
    let applet = std::env::args_os().next().and_then(|name| plugin::applets::Applet::of(&name));
    if let Some(applet) = applet {
        return plugin::run_applet(applet);
    }
    let command = PortolanCli::parse().command;
    let code: fn(&anyhow::Error) -> u8 = match &command {
        CliCommand::Verify(_) => verify::code,
        CliCommand::Encryption(_) => encryption::code,
        _ => |_| FAILED,
    };
    let result = match command {
        CliCommand::Demo(command) => command.run(),
        CliCommand::Server(command) => command.run(),
        CliCommand::Agent(command) => command.run(),
        CliCommand::Dns(command) => command.run(),
        CliCommand::Cluster(command) => command.run(),
        CliCommand::Token(command) => command.run(),
        CliCommand::Check(command) => command.run(),
        CliCommand::Status(command) => command.run(),
        CliCommand::Snapshot(command) => command.run(),
        CliCommand::Verify(command) => command.run(),
        CliCommand::Encryption(command) => command.run(),
        CliCommand::Kubeconfig(command) => command.run(),
        CliCommand::Kubectl(command) => return plugin::run_portolan(command.args),
        CliCommand::Plugin(PluginArgs { command: PluginInstallCommand::Install(install) }) => install.run(),
        CliCommand::Completion(command) => command.run(),
        CliCommand::Version(command) => command.run(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.is::<output::OutputClosed>() => ExitCode::SUCCESS,
        Err(error) => {
            output::note(&format!("error: {}", explain(&error)));
            ExitCode::from(code(&error))
        }
    }
}

/// Formats an error: the failure, then a line per cause.
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

/// Runtime threads beyond one per processor, which requests can occupy. They keep short work prompt, such as reading
/// from connections.
const SPARE_THREADS: usize = 2;

/// Returns the runtime of long-running commands.
fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    use anyhow::Context as _;
    let threads = std::thread::available_parallelism().map_or(1, usize::from) + SPARE_THREADS;
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(threads).enable_all().build().context("the asynchronous runtime does not start")
}
