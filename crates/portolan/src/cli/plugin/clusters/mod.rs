//! `kubectl portolan cluster`: physical clusters.

mod adopt;
mod change;
mod describe;
mod drain;
mod follow;

use anyhow::bail;
use clap::{Args, Subcommand};
use http::Method;
use portolan_types::{
    LogicalClusterPath, object,
    placement::{GROUP, VERSION},
};
use serde_json::Value;

pub(crate) use self::adopt::AdoptArgs;
pub(crate) use self::drain::DrainArgs;

use super::{
    context::PluginContext,
    flags::OutputFlags,
    formats,
    kubeconfig_files::KubeconfigFiles,
    nearest_name::nearest,
    session::{ApiRequest, ApiSession, TABLE, config_of},
    text_table::TextTable,
};
use crate::cli::{cluster_api::ClusterApi, join::MembershipCommand, progress::StepBar};

/// Annotation with the workspace in which a physical cluster is registered, on those of an ancestor.
pub(super) const HOME: &str = "portolan.dev/workspace";

/// List, change and drain physical clusters.
#[derive(Args)]
pub(crate) struct ClusterArgs {
    #[command(subcommand)]
    command: ClusterCommand,
}

#[derive(Subcommand)]
enum ClusterCommand {
    /// List the physical clusters within reach of the workspace.
    #[command(visible_alias = "ls")]
    List(ClusterListArgs),
    /// Describe a physical cluster: its state, its capacity, its taints and its drains.
    Describe(describe::DescribeArgs),
    /// Change labels of a physical cluster, as `kubectl label` does.
    Label(change::LabelArgs),
    /// Keep new objects off physical clusters; objects stay.
    Cordon(change::CordonArgs),
    /// Place objects on physical clusters again, also after a drain that has completed.
    Uncordon(change::UncordonArgs),
    /// Move everything that can move off physical clusters.
    Drain(DrainArgs),
    /// Joins, checks and leaves. Their `--kubeconfig` is that of the physical cluster.
    #[command(flatten)]
    Membership(MembershipCommand),
}

#[derive(Args)]
struct ClusterListArgs {
    /// Label selector.
    #[arg(short = 'l', long)]
    selector: Option<String>,
    #[command(flatten)]
    format: OutputFlags,
}

impl ClusterArgs {
    /// Runs the command, and returns its exit code.
    ///
    /// # Errors
    /// A refusal; a physical cluster that does not exist.
    pub(crate) async fn run(self, ctx: &mut PluginContext) -> anyhow::Result<u8> {
        if let ClusterCommand::Membership(command) = &self.command {
            return change_membership(ctx, command).await.map(|()| 0);
        }
        ctx.connect().await?;
        match self.command {
            ClusterCommand::Membership(_) => {}
            ClusterCommand::List(list) => list.run(ctx).await?,
            ClusterCommand::Describe(describe) => describe.run(ctx).await?,
            ClusterCommand::Label(label) => label.run(ctx).await?,
            ClusterCommand::Cordon(cordon) => cordon.run(ctx).await?,
            ClusterCommand::Uncordon(uncordon) => uncordon.run(ctx).await?,
            ClusterCommand::Drain(drain) => return drain.run(ctx).await,
        }
        Ok(0)
    }
}

impl ClusterListArgs {
    async fn run(self, ctx: &mut PluginContext) -> anyhow::Result<()> {
        let selector = self.selector.map(|text| format!("?labelSelector={}", super::placements::encoded(&text)));
        let path = format!("{}{}", collection(), selector.unwrap_or_default());
        let is_table = self.format.object_format().is_none();
        let request = ApiRequest {
            accept: if is_table { TABLE } else { "application/json" },
            ..ApiRequest::new(Method::GET, &path)
        };
        let list = ctx.session().send(request).await?;
        ctx.print_warnings();
        if !is_table {
            return formats::print(&mut ctx.terminal, &self.format, &list, TextTable::default);
        }
        let table = TextTable::from_server(&list, self.format.is_wide());
        if table.is_empty() {
            ctx.terminal.note("No physical clusters are within reach of this workspace.");
            return Ok(());
        }
        ctx.terminal.print(&table.text(!self.format.no_headers))
    }
}

/// Registers, checks or removes a physical cluster in the workspace of the user's kubeconfig.
async fn change_membership(ctx: &mut PluginContext, command: &MembershipCommand) -> anyhow::Result<()> {
    let files = KubeconfigFiles::load(None, &ctx.environment)?;
    let upstream = ClusterApi::new(config_of(&files, &ctx.flags).await?)?;
    let terminal = &mut ctx.terminal;
    let bar = StepBar::start(command.steps(), terminal.has_bars());
    let answered = command.run(&upstream, &mut |step| bar.step(step, |text| terminal.note(text))).await;
    bar.finish();
    answered?.print(command.format(), |text| terminal.print(text))
}

/// Returns the path of the physical clusters of a workspace.
fn collection() -> String {
    format!("/apis/{GROUP}/{VERSION}/physicalclusters")
}

fn path_of(name: &str) -> String {
    format!("{}/{name}", collection())
}

/// Returns `physicalcluster.portolan.dev/eu-1`.
fn title(name: &str) -> String {
    format!("physicalcluster.{GROUP}/{name}")
}

/// Physical cluster as its workspace has it.
struct RegisteredCluster {
    object: Value,
    /// Workspace that it is registered in; `None` for that of the session.
    home: Option<LogicalClusterPath>,
}

impl RegisteredCluster {
    /// Reads a physical cluster, where it is registered if the user may read it there.
    ///
    /// # Errors
    /// A refusal; a physical cluster that is not within reach.
    async fn read(session: &ApiSession, name: &str) -> anyhow::Result<Self> {
        let seen = match session.get(&path_of(name)).await {
            Err(error) if error.is_not_found() => match guess(session, name).await {
                Some(guess) => bail!("physical cluster \"{name}\" not found; did you mean \"{guess}\"?"),
                None => return Err(error.into()),
            },
            other => other?,
        };
        let home: Option<LogicalClusterPath> = object::annotation(&seen, HOME).and_then(|path| path.parse().ok());
        let Some(home) = home.filter(|home| session.url().workspace.as_ref() != Some(home)) else {
            return Ok(Self { object: seen, home: None });
        };
        let registered = session.send(ApiRequest::new(Method::GET, &path_of(name)).to(Some(&home))).await;
        Ok(Self { object: registered.unwrap_or(seen), home: Some(home) })
    }
}

/// Returns the most similar name of a physical cluster within reach.
async fn guess(session: &ApiSession, name: &str) -> Option<String> {
    let list = session.get(&collection()).await.ok()?;
    let names = list["items"].as_array().into_iter().flatten().map(object::name);
    nearest(name, names).map(str::to_owned)
}
