//! `portolan cluster`: physical clusters join a workspace, are checked, and leave it.
//!
//! Every step can be repeated: objects are applied, and one that is there already is taken over.

mod access;
mod addresses;
mod answer;
mod downstream;
mod leave;
mod manifests;
mod upstream;

use std::path::PathBuf;

use anyhow::Context as _;
use clap::{Args, Subcommand, ValueEnum};
use kube::config::{KubeConfigOptions, Kubeconfig};
use portolan_types::placement::NamespaceMapping;
use serde_json::{Value, json};

use super::{cluster_api::ClusterApi, output, plugin::OutputFormat};
use answer::{AnswerFlags, MembershipAnswer};
use upstream::Registration;

pub(crate) use leave::{MemberCheckArgs, UnjoinArgs};

/// Register physical clusters, check them, and remove them.
#[derive(Args)]
pub(crate) struct ClusterCommandArgs {
    /// Kubeconfig of the workspace; by default KUBECONFIG or ~/.kube/config.
    #[arg(long, global = true, value_name = "FILE")]
    upstream: Option<PathBuf>,
    /// Context in the kubeconfig of the workspace.
    #[arg(long, global = true, value_name = "NAME")]
    context: Option<String>,
    #[command(subcommand)]
    command: MembershipCommand,
}

/// Commands about the membership of physical clusters.
#[derive(Subcommand)]
pub(crate) enum MembershipCommand {
    /// Register a physical cluster in the workspace.
    Join(JoinArgs),
    /// Check a registered physical cluster.
    Check(MemberCheckArgs),
    /// Drain a physical cluster, and remove it.
    Unjoin(UnjoinArgs),
}

/// Register a physical cluster in the workspace: directly, if the server can reach it, or by an agent that connects to
/// the server.
#[derive(Args)]
pub(crate) struct JoinArgs {
    /// Name of the physical cluster.
    name: String,
    /// Kubeconfig of an administrator of the physical cluster. Only this command uses it.
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Connect by an agent in the physical cluster.
    #[arg(long)]
    agent: bool,
    /// Print the command that installs the agent, to be run with kubectl in the physical cluster.
    #[arg(long, conflicts_with = "kubeconfig")]
    print_command: bool,
    /// Address of the server for the agent: https://HOST[:PORT]; by default that of the workspace's kubeconfig.
    #[arg(long, value_name = "URL")]
    agent_server: Option<String>,
    /// Replace the connection of a name that is registered with another kind of connection or for another cluster.
    #[arg(long)]
    replace_connection: bool,
    /// Names of namespaces on the physical cluster: hashed, or identity for those of the workspace, which is for a
    /// physical cluster of one workspace. It cannot be changed later; by default hashed.
    #[arg(long, value_enum, value_name = "MAPPING")]
    namespace_mapping: Option<NamespaceNames>,
    /// Deploy the DNS responder as well, by which pods resolve the names of their workspace.
    #[arg(long)]
    dns: bool,
    /// Image of the agent and of the DNS responder.
    #[arg(long, default_value = manifests::IMAGE)]
    image: String,
    /// Namespace in the workspace for the Secret with the kubeconfig.
    #[arg(long, default_value = "default")]
    namespace: String,
    #[command(flatten)]
    access: access::UserAccessArgs,
    #[command(flatten)]
    format: AnswerFlags,
}

/// Names of namespaces on a physical cluster, on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum NamespaceNames {
    Hashed,
    Identity,
}

impl From<NamespaceNames> for NamespaceMapping {
    fn from(of: NamespaceNames) -> Self {
        match of {
            NamespaceNames::Hashed => Self::Hashed,
            NamespaceNames::Identity => Self::Identity,
        }
    }
}

impl ClusterCommandArgs {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let (bar, format) = (answer::system_bar(self.command.steps()), self.command.format());
        let answered = super::runtime()?.block_on(self.execute(&mut |step| bar.step(step, output::note)));
        bar.finish();
        answer::print(answered?, format)
    }

    /// Runs the command; `report` gets a line per step.
    ///
    /// # Errors
    /// The step that failed, with its reason.
    pub(crate) async fn execute(self, report: &mut (dyn FnMut(&str) + Send)) -> anyhow::Result<MembershipAnswer> {
        let upstream = api_of(self.upstream.as_deref(), self.context).await?;
        self.command.run(&upstream, report).await
    }
}

impl MembershipCommand {
    /// Runs the command in the workspace of `upstream`; `report` gets a line per step.
    ///
    /// # Errors
    /// The step that failed, with its reason.
    pub(crate) async fn run(
        &self,
        upstream: &ClusterApi,
        report: &mut (dyn FnMut(&str) + Send),
    ) -> anyhow::Result<MembershipAnswer> {
        match self {
            Self::Join(join) => join.run(upstream, report).await,
            Self::Check(check) => check.run(upstream).await,
            Self::Unjoin(unjoin) => unjoin.run(upstream, report).await,
        }
    }

    /// Returns the format of the result.
    pub(crate) fn format(&self) -> Option<OutputFormat> {
        match self {
            Self::Join(JoinArgs { format, .. })
            | Self::Check(MemberCheckArgs { format, .. })
            | Self::Unjoin(UnjoinArgs { format, .. }) => format.output.clone(),
        }
    }

    /// Returns the number of steps that the command reports if all goes well.
    pub(crate) fn steps(&self) -> u64 {
        match self {
            Self::Join(join) => join.steps(),
            Self::Check(_) => 0,
            Self::Unjoin(unjoin) => unjoin.steps(),
        }
    }
}

impl JoinArgs {
    fn steps(&self) -> u64 {
        if self.print_command {
            return 1;
        }
        let optional = [!self.agent, self.access.is_allowed(), self.agent, self.dns];
        // It is reached, has the account, is registered, and is ready.
        4 + optional.into_iter().filter(|is_taken| *is_taken).count() as u64
    }

    async fn run(
        &self,
        upstream: &ClusterApi,
        report: &mut (dyn FnMut(&str) + Send),
    ) -> anyhow::Result<MembershipAnswer> {
        self.access.check()?;
        if self.print_command {
            return self.print(upstream, report).await;
        }
        let path = self.kubeconfig.as_deref().context(
            "name the kubeconfig of the physical cluster with --kubeconfig, or install an agent by hand with --print-command",
        )?;
        let kubeconfig = Kubeconfig::read_from(path).with_context(|| format!("{} cannot be used", path.display()))?;
        let member = api_of(Some(path), None).await?;
        let found = downstream::preflight(&member).await?;
        report(&format!("✓ reached {} ({}), with the rights of an administrator", member.server(), found.version));
        // Refused before anything is written.
        self.check_registered(upstream, &found.uid).await?;
        if self.agent {
            self.server(upstream)?;
        }
        let connection = if self.agent {
            downstream::apply_rights(&member, false).await?;
            report("✓ applied the ServiceAccount portolan/syncer and its roles");
            upstream::tunnel()
        } else {
            addresses::check_direct(member.server(), report);
            downstream::apply_rights(&member, true).await?;
            report("✓ applied the ServiceAccount portolan/syncer, its roles and its token");
            let text = downstream::syncer_kubeconfig(&member, &kubeconfig).await?;
            let reference = upstream::apply_secret(upstream, &self.namespace, &self.name, &text).await?;
            report(&format!("✓ stored its kubeconfig in the Secret {}/{}", reference.0, reference.1));
            upstream::direct(&reference)
        };
        upstream::register(upstream, self.registration(&found.uid, connection)).await?;
        report(&format!("✓ registered the physical cluster {}", self.name));
        if let Some(manifest) = self.access.manifest()? {
            downstream::apply_manifest(&member, &manifest).await?;
            self.access.register(upstream, &upstream::path_of(&self.name)).await?;
            report("✓ applied the ServiceAccount portolan/access, which acts as the mapped users");
        }
        if self.agent {
            let manifest = self.agent_manifest(upstream).await?;
            downstream::apply_manifest(&member, &manifest).await?;
            report("✓ applied the agent, with a new bootstrap token");
        }
        if self.dns {
            downstream::apply_manifest(&member, &manifests::dns(&self.image)).await?;
            report("✓ applied the DNS responder portolan/portolan-dns");
        }
        let ready = upstream::wait_ready(upstream, &self.name).await?;
        report(&format!("✓ {} is ready", self.name));
        Ok(MembershipAnswer::of(ready))
    }

    /// Registers the physical cluster, and prints the command that installs its agent.
    async fn print(
        &self,
        upstream: &ClusterApi,
        report: &mut (dyn FnMut(&str) + Send),
    ) -> anyhow::Result<MembershipAnswer> {
        // Refused before anything is written.
        self.server(upstream)?;
        self.check_registered(upstream, "").await?;
        upstream::register(upstream, self.registration("", upstream::tunnel())).await?;
        report(&format!("✓ registered the physical cluster {}", self.name));
        let mut manifest = format!("{}\n---\n{}", manifests::rights(false)?, self.agent_manifest(upstream).await?);
        if let Some(access) = self.access.manifest()? {
            self.access.register(upstream, &upstream::path_of(&self.name)).await?;
            manifest = format!("{manifest}\n---\n{access}");
        }
        if self.dns {
            manifest = format!("{manifest}\n---\n{}", manifests::dns(&self.image));
        }
        report("Run this command with kubectl in the physical cluster, within an hour:");
        let command = manifests::command(&manifest)?;
        let object = json!({"physicalCluster": self.name, "command": command, "manifest": manifest});
        Ok(MembershipAnswer { lines: vec![command], object, failure: None })
    }

    fn registration<'a>(&'a self, member: &'a str, connection: Value) -> Registration<'a> {
        Registration { name: &self.name, member, connection, mapping: self.namespace_mapping.map(Into::into) }
    }

    async fn check_registered(&self, upstream: &ClusterApi, member: &str) -> anyhow::Result<()> {
        if self.replace_connection {
            return Ok(());
        }
        let kind = if self.agent || self.print_command { "tunnel" } else { "direct" };
        upstream::check_same(upstream, &self.name, member).await?;
        upstream::check_kind(upstream, &self.name, kind).await?;
        upstream::check_named(upstream, &self.name, member).await
    }

    async fn agent_manifest(&self, upstream: &ClusterApi) -> anyhow::Result<String> {
        let server = self.server(upstream)?;
        let token = upstream::create_token(upstream, &self.name, None).await?;
        Ok(manifests::agent(&server, &token.token, &self.image))
    }

    /// Returns the address of the server for the agent.
    fn server(&self, upstream: &ClusterApi) -> anyhow::Result<String> {
        addresses::agent_server(self.agent_server.as_deref(), upstream.server())
    }
}

/// Returns a client of the context of a kubeconfig; without a file, of the user's.
///
/// # Errors
/// A kubeconfig that cannot be read or used.
async fn api_of(path: Option<&std::path::Path>, context: Option<String>) -> anyhow::Result<ClusterApi> {
    let kubeconfig = match path {
        Some(path) => Kubeconfig::read_from(path).with_context(|| format!("{} cannot be used", path.display()))?,
        None => Kubeconfig::read().context("there is no kubeconfig: set KUBECONFIG")?,
    };
    let options = KubeConfigOptions { context, ..KubeConfigOptions::default() };
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &options).await;
    ClusterApi::new(config.context("the kubeconfig cannot be used")?)
}

/// Commands about bootstrap tokens of agents.
#[derive(Args)]
pub(crate) struct TokenArgs {
    /// Kubeconfig of the workspace; by default KUBECONFIG or ~/.kube/config.
    #[arg(long, global = true, value_name = "FILE")]
    upstream: Option<PathBuf>,
    /// Context in the kubeconfig of the workspace.
    #[arg(long, global = true, value_name = "NAME")]
    context: Option<String>,
    #[command(subcommand)]
    command: TokenCommand,
}

#[derive(Subcommand)]
enum TokenCommand {
    /// Print a new bootstrap token for the agent of a physical cluster. It revokes the last one.
    Create {
        /// Name of the physical cluster.
        #[arg(long, value_name = "NAME")]
        cluster: String,
        /// Time until it expires, from 1m to 24h.
        #[arg(long, value_name = "TIME", default_value = "1h", value_parser = super::values::time)]
        ttl: std::time::Duration,
    },
}

impl TokenArgs {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        super::runtime()?.block_on(async {
            let api = api_of(self.upstream.as_deref(), self.context).await?;
            let TokenCommand::Create { cluster, ttl } = &self.command;
            let token = upstream::create_token(&api, cluster, Some(*ttl)).await?;
            output::line(&token.token)
        })
    }
}
