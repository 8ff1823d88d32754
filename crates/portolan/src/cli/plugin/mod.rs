//! kubectl plugin: `kubectl portolan`, `kubectl ws` and `kubectl create workspace`.
//!
//! The plugin is a client of the API like any other, with the user's own rights. It reads the kubeconfig that kubectl
//! reads, and prints errors, tables and objects as kubectl does.

pub(crate) mod applets;
mod clusters;
mod completion;
mod console;
mod context;
mod custom_columns;
mod flags;
mod formats;
mod get;
mod kubeconfig_files;
mod login;
mod nearest_name;
mod output_format;
mod placements;
mod plans;
mod resources;
mod session;
mod terminal;
mod text_table;
mod waiting;
mod workspaces;

use std::{ffi::OsString, process::ExitCode};

use clap::{CommandFactory as _, Parser, Subcommand};

pub(crate) use self::formats::object_text;
pub(crate) use self::kubeconfig_files::UserEnvironment;
pub(crate) use self::output_format::OutputFormat;
#[cfg(test)]
pub(crate) use self::terminal::CapturedOutput;
pub(crate) use self::terminal::Terminal;

use self::{applets::Applet, context::PluginContext, flags::KubectlFlags, session::RequestError};

/// Exit code of a failure.
const FAILED: u8 = 1;
/// Exit code of a failed plan, where 1 means that something would change.
const PLAN_FAILED: u8 = 2;

/// Work with workspaces, placements and physical clusters of Portolan.
#[derive(Parser)]
#[command(name = "kubectl-portolan", bin_name = "kubectl portolan", version = super::version::PORTOLAN)]
struct PluginCli {
    #[command(flatten)]
    flags: KubectlFlags,
    #[command(subcommand)]
    command: PluginCommand,
}

#[derive(Subcommand)]
enum PluginCommand {
    /// Change the workspace, show it, or create one.
    #[command(visible_alias = "workspace")]
    Ws(workspaces::WsArgs),
    /// List, change and drain physical clusters.
    Cluster(clusters::ClusterArgs),
    /// Print the physical clusters of objects, with the state of each copy.
    Where(placements::WhereArgs),
    /// Explain why an object runs where it runs, or nowhere.
    Why(placements::WhyArgs),
    /// Get objects of the physical clusters themselves, with a column for the cluster.
    Get(get::GetArgs),
    /// Move an object to other physical clusters.
    Move(placements::MoveArgs),
    /// Move everything that can move off physical clusters.
    Drain(clusters::DrainArgs),
    /// Take over an object that runs on a physical cluster without Portolan.
    Adopt(clusters::AdoptArgs),
    /// Plan the effect of policies.
    Policy(plans::PolicyArgs),
    /// Print the workspaces below the current one, or an object with its copies and their pods.
    Tree(placements::TreeArgs),
    /// Sign in at an OpenID provider, and keep the user in the kubeconfig.
    Login(login::LoginArgs),
    /// Print a link that opens the web console and signs in once.
    Ui(console::UiArgs),
}

/// Change the workspace, show it, or create one.
#[derive(Parser)]
#[command(name = "kubectl-ws", bin_name = "kubectl ws", version = super::version::PORTOLAN)]
struct WsCli {
    #[command(flatten)]
    flags: KubectlFlags,
    #[command(flatten)]
    ws: workspaces::WsArgs,
}

/// Create a workspace in the current one, and wait until it is ready.
#[derive(Parser)]
#[command(name = "kubectl-create-workspace", bin_name = "kubectl create workspace", version = super::version::PORTOLAN)]
struct CreateWorkspaceCli {
    #[command(flatten)]
    flags: KubectlFlags,
    #[command(flatten)]
    create: workspaces::CreateWorkspaceArgs,
}

/// Returns the command line of `kubectl portolan`, for its reference.
#[cfg(test)]
pub(crate) fn command() -> clap::Command {
    PluginCli::command()
}

/// Runs the program of a link, with the arguments of the process.
pub(crate) fn run_applet(applet: Applet) -> ExitCode {
    run_with(applet, std::env::args_os().skip(1).collect())
}

/// Runs `portolan kubectl …`, which is `kubectl portolan …` without kubectl.
pub(crate) fn run_portolan(args: Vec<OsString>) -> ExitCode {
    run_with(Applet::Portolan, args)
}

fn run_with(applet: Applet, args: Vec<OsString>) -> ExitCode {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("error: the asynchronous runtime does not start: {error}");
            return ExitCode::from(FAILED);
        }
    };
    let code = runtime.block_on(execute(applet, args, UserEnvironment::system(), Terminal::system()));
    // A look-up of a name may still block a thread.
    runtime.shutdown_background();
    ExitCode::from(code)
}

/// Runs a program with its arguments, and returns its exit code.
pub(crate) async fn execute(
    applet: Applet,
    args: Vec<OsString>,
    environment: UserEnvironment,
    mut terminal: Terminal,
) -> u8 {
    let parsed = match applet {
        Applet::Portolan => parse(args).map(|cli: PluginCli| (cli.flags, cli.command)),
        Applet::Ws => parse(args).map(|cli: WsCli| (cli.flags, PluginCommand::Ws(cli.ws))),
        Applet::CreateWorkspace => parse(args)
            .map(|cli: CreateWorkspaceCli| (cli.flags, PluginCommand::Ws(workspaces::WsArgs::creating(cli.create)))),
        Applet::CompletePortolan => {
            return completion::complete(PluginCli::command(), &args, environment, terminal).await;
        }
        Applet::CompleteWs => return completion::complete(WsCli::command(), &args, environment, terminal).await,
    };
    let (flags, command) = match parsed {
        Ok(parsed) => parsed,
        Err(error) if !error.use_stderr() => {
            let printed = terminal.print(&error.render().to_string());
            return if printed.is_ok() { 0 } else { FAILED };
        }
        Err(error) => {
            terminal.note(error.render().to_string().trim_end());
            return u8::try_from(error.exit_code()).unwrap_or(FAILED);
        }
    };
    let failed = if matches!(command, PluginCommand::Policy(_)) { PLAN_FAILED } else { FAILED };
    let mut ctx = PluginContext::new(flags, environment, terminal);
    let result = command.run(&mut ctx).await;
    ctx.print_warnings();
    match result {
        Ok(code) => code,
        Err(error) if error.is::<super::output::OutputClosed>() => 0,
        Err(error) => {
            ctx.terminal.note(&error_text(&error));
            failed
        }
    }
}

/// Parses arguments behind the name of the program.
fn parse<P: Parser>(args: Vec<OsString>) -> Result<P, clap::Error> {
    let command = P::command();
    let name = command.get_name().to_owned();
    let matches = command.try_get_matches_from(std::iter::once(OsString::from(name)).chain(args))?;
    P::from_arg_matches(&matches)
}

/// Formats an error as kubectl does: failed requests have words of their own, all else follows `error:`.
fn error_text(error: &anyhow::Error) -> String {
    match error.downcast_ref::<RequestError>() {
        Some(failed) => failed.to_string(),
        None => format!("error: {}", super::explain(error)),
    }
}

impl PluginCommand {
    /// Runs the command, and returns its exit code.
    async fn run(self, ctx: &mut PluginContext) -> anyhow::Result<u8> {
        match self {
            Self::Ws(ws) => ws.run(ctx).await?,
            Self::Where(locate) => locate.run(ctx).await?,
            Self::Why(why) => why.run(ctx).await?,
            Self::Tree(tree) => tree.run(ctx).await?,
            Self::Login(login) => login.run(ctx).await?,
            Self::Ui(ui) => ui.run(ctx).await?,
            Self::Cluster(cluster) => return cluster.run(ctx).await,
            Self::Get(get) => return get.run(ctx).await,
            Self::Move(relocate) => return relocate.run(ctx).await,
            Self::Drain(drain) => return drain.run(ctx).await,
            Self::Adopt(adopt) => return adopt.run(ctx).await,
            Self::Policy(policy) => return policy.run(ctx).await,
        }
        Ok(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_arguments_of_every_command_fit_together() {
        for command in [PluginCli::command(), WsCli::command(), CreateWorkspaceCli::command()] {
            command.debug_assert();
        }
    }

    #[test]
    fn kubectls_flags_are_read_before_and_after_a_command() {
        for line in
            ["--context a -n b cluster list", "cluster --context=a list -n b", "cluster list --context a --namespace b"]
        {
            let parsed: PluginCli = parse(line.split(' ').map(OsString::from).collect()).unwrap();
            let flags = (parsed.flags.context.as_deref(), parsed.flags.namespace.as_deref());
            assert_eq!(flags, (Some("a"), Some("b")), "{line}");
        }
        let joined = "cluster join east --kubeconfig east.kubeconfig --agent --context mine";
        let parsed: PluginCli = parse(joined.split(' ').map(OsString::from).collect()).unwrap();
        assert_eq!(parsed.flags.context.as_deref(), Some("mine"), "the workspace's");
    }
}
