//! `kubectl create workspace`.

use std::time::Duration;

use anyhow::bail;
use clap::Args;
use serde_json::{Value, json};

use super::{WORKSPACES, contexts::store_context, current::type_of, enter, object_path};
use crate::cli::plugin::{
    context::{POLL, PluginContext},
    flags::{OutputFlags, wait_timeout},
    formats,
};

/// Create a workspace in the current one, and wait until it is ready.
#[derive(Args)]
pub(crate) struct CreateWorkspaceArgs {
    /// Name of the workspace.
    name: String,
    /// Type of the workspace: a name, or the path of the workspace that has the type and its name, as `root:universal`.
    #[arg(long = "type", value_name = "TYPE")]
    kind: Option<String>,
    /// Change to the workspace once it is ready.
    #[arg(long, visible_alias = "use")]
    enter: bool,
    /// Succeed if the workspace exists, with the same type if --type is given.
    #[arg(long)]
    ignore_existing: bool,
    /// Create a context of the workspace under this name.
    #[arg(long, value_name = "CONTEXT")]
    create_context: Option<String>,
    /// Time to wait until the workspace is ready.
    #[arg(long, value_name = "TIME", default_value = "1m", value_parser = wait_timeout)]
    ready_wait_timeout: Duration,
    #[command(flatten)]
    format: OutputFlags,
}

impl CreateWorkspaceArgs {
    /// Runs the command.
    ///
    /// # Errors
    /// A refusal, or a workspace that does not become ready in time.
    pub(crate) async fn run(self, ctx: &mut PluginContext) -> anyhow::Result<()> {
        ctx.connect().await?;
        let parent = ctx.session().workspace()?.clone();
        let Ok(path) = parent.child(&self.name) else {
            bail!("invalid workspace name \"{}\": it must be a DNS label of at most 63 characters", self.name);
        };
        let (workspace, is_new) = self.create(ctx).await?;
        ctx.print_warnings();
        let of_type = type_of(&workspace).map(|kind| format!(" (type {kind})")).unwrap_or_default();
        let done = if is_new { "created. Waiting for it to be ready..." } else { "already exists." };
        self.say(ctx, &format!("Workspace \"{}\"{of_type} {done}", self.name))?;
        let ready = self.wait(ctx, workspace).await?;
        if is_new {
            self.say(ctx, &format!("Workspace \"{}\"{of_type} is ready to use.", self.name))?;
        }
        if let Some(format) = self.format.object_format() {
            formats::print_object(&mut ctx.terminal, &format, &ready)?;
        }
        if let Some(context) = &self.create_context {
            let line = store_context(ctx, context, &path)?;
            self.say(ctx, &line)?;
        }
        if self.enter {
            let entered = enter::enter(ctx, &format!(":{path}")).await?;
            self.say(ctx, &entered.line(false))?;
        }
        Ok(())
    }

    /// Creates the workspace, or reads the existing one if that is allowed.
    async fn create(&self, ctx: &PluginContext) -> anyhow::Result<(Value, bool)> {
        let mut manifest = json!({"apiVersion": "tenancy.kcp.io/v1alpha1", "kind": "Workspace",
            "metadata": {"name": self.name}});
        if let Some(kind) = &self.kind {
            manifest["spec"]["type"] = match kind.trim_start_matches(':').rsplit_once(':') {
                Some((path, name)) => json!({"name": name, "path": path}),
                None => json!({"name": kind}),
            };
        }
        match ctx.session().create(None, WORKSPACES, &manifest).await {
            Ok(created) => Ok((created, true)),
            Err(error) if error.code() == Some(409) && self.ignore_existing => {
                let found = ctx.session().get(&object_path(&self.name)).await?;
                let there = type_of(&found).unwrap_or_default();
                let is_of_type = |kind: &str| there == kind || there.ends_with(&format!(":{kind}"));
                if self.kind.as_ref().is_some_and(|kind| !is_of_type(kind.trim_start_matches(':'))) {
                    bail!("workspace \"{}\" cannot be used: it is of type {there}", self.name);
                }
                Ok((found, false))
            }
            Err(error) => Err(error.into()),
        }
    }

    async fn wait(&self, ctx: &PluginContext, workspace: Value) -> anyhow::Result<Value> {
        let mut seen = workspace;
        let waiting = async {
            while seen["status"]["phase"] != "Ready" {
                tokio::time::sleep(POLL).await;
                seen = ctx.session().get(&object_path(&self.name)).await?;
            }
            anyhow::Ok(())
        };
        match tokio::time::timeout(self.ready_wait_timeout, waiting).await {
            Ok(waited) => waited.map(|()| seen),
            Err(_) => {
                let phase = seen["status"]["phase"].as_str().unwrap_or("Scheduling");
                bail!(
                    "workspace \"{}\" is not ready after {:?}: its phase is {phase}",
                    self.name,
                    self.ready_wait_timeout
                )
            }
        }
    }

    /// Prints a line of progress: to standard error if the workspace is printed.
    fn say(&self, ctx: &mut PluginContext, line: &str) -> anyhow::Result<()> {
        if self.format.object_format().is_some() {
            ctx.terminal.note(line);
            return Ok(());
        }
        ctx.terminal.line(line)
    }
}
