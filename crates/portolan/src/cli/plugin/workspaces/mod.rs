//! `kubectl ws` and `kubectl create workspace`: the commands of kcp's plugin, with its names, messages and requests.

mod contexts;
mod create;
mod current;
mod enter;
mod target;
mod tree;

use clap::{Args, Subcommand};
use portolan_types::LogicalClusterPath;

pub(crate) use self::create::CreateWorkspaceArgs;
pub(crate) use self::tree::WorkspaceTreeArgs;

use self::current::CurrentWorkspace;
use super::{context::PluginContext, formats, output_format::OutputFormat};

/// Path of the workspaces of a workspace.
pub(super) const WORKSPACES: &str = "/apis/tenancy.kcp.io/v1alpha1/workspaces";

/// Change the workspace, or show it. Without a name: go to the home workspace.
#[derive(Args)]
#[command(subcommand_precedence_over_arg = true)]
pub(crate) struct WsArgs {
    #[command(subcommand)]
    command: Option<WsCommand>,
    #[command(flatten)]
    destination: DestinationArgs,
}

#[derive(Subcommand)]
enum WsCommand {
    /// Change the workspace.
    #[command(visible_alias = "cd")]
    Use(DestinationArgs),
    /// Print the workspaces below the current one.
    Tree(WorkspaceTreeArgs),
    /// Create a workspace in the current one.
    Create(CreateWorkspaceArgs),
    /// Print the current workspace.
    Current(CurrentArgs),
    /// Create a context of the current workspace under a name of its own.
    CreateContext(contexts::CreateContextArgs),
}

#[derive(Args)]
struct DestinationArgs {
    /// Name of a child, a path relative to the current workspace (`..:other`), an absolute one (`:root:shop`), `..` for
    /// the parent, `-` for the one of before, `~` for the home workspace, `:` for root, or `.` for the current one.
    #[arg(value_name = "WORKSPACE")]
    workspace: Option<String>,
    #[command(flatten)]
    shown: CurrentArgs,
}

#[derive(Args, Clone, Default)]
struct CurrentArgs {
    /// Print only the path of the workspace.
    #[arg(long)]
    short: bool,
    /// Output format: json, yaml, name, wide, jsonpath=TEMPLATE, jsonpath-as-json=TEMPLATE, jsonpath-file=FILE,
    /// custom-columns=HEADER:PATH,… or custom-columns-file=FILE.
    #[arg(short, long, value_name = "FORMAT", hide_possible_values = true)]
    output: Option<OutputFormat>,
}

impl WsArgs {
    /// Makes the command that creates a workspace.
    pub(crate) fn creating(create: CreateWorkspaceArgs) -> Self {
        let destination = DestinationArgs { workspace: None, shown: CurrentArgs::default() };
        Self { command: Some(WsCommand::Create(create)), destination }
    }

    /// Runs the command.
    ///
    /// # Errors
    /// A refusal of the server, or a kubeconfig that cannot be used or changed.
    pub(crate) async fn run(self, ctx: &mut PluginContext) -> anyhow::Result<()> {
        match self.command {
            None => self.destination.run(ctx).await,
            Some(_) if self.destination.workspace.is_some() => {
                anyhow::bail!("a workspace and a command cannot both be named")
            }
            Some(WsCommand::Use(destination)) => destination.run(ctx).await,
            Some(WsCommand::Tree(tree)) => tree.run(ctx).await,
            Some(WsCommand::Create(create)) => create.run(ctx).await,
            Some(WsCommand::Current(current)) => current.run(ctx).await,
            Some(WsCommand::CreateContext(create)) => create.run(ctx),
        }
    }
}

impl DestinationArgs {
    async fn run(self, ctx: &mut PluginContext) -> anyhow::Result<()> {
        let entered = enter::enter(ctx, self.workspace.as_deref().unwrap_or_default()).await?;
        self.shown.print(ctx, &entered)
    }
}

impl CurrentArgs {
    async fn run(self, ctx: &mut PluginContext) -> anyhow::Result<()> {
        let current = enter::enter(ctx, ".").await?;
        self.print(ctx, &current)
    }

    fn print(self, ctx: &mut PluginContext, workspace: &CurrentWorkspace) -> anyhow::Result<()> {
        match self.output {
            None | Some(OutputFormat::Table | OutputFormat::Wide) => ctx.terminal.line(&workspace.line(self.short)),
            Some(OutputFormat::Name) => ctx.terminal.line(&workspace.line(true)),
            Some(format) => formats::print_object(&mut ctx.terminal, &format, &workspace.value()),
        }
    }
}

/// Returns the path of a workspace as an object of its parent.
fn object_path(name: &str) -> String {
    format!("{WORKSPACES}/{name}")
}

/// Returns the last part of a path, which is the name of the workspace in its parent.
fn name_in_parent(path: &LogicalClusterPath) -> &str {
    path.as_str().rsplit(':').next().unwrap_or_default()
}
