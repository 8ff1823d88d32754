//! `kubectl ws create-context`: a context of a workspace under a name of the user's own.

use anyhow::{Context as _, bail};
use clap::Args;
use portolan_types::LogicalClusterPath;
use serde_json::json;

use super::enter::StoredContext;
use crate::cli::plugin::{
    context::PluginContext,
    flags::ReportFlags,
    formats,
    kubeconfig_files::{KubeconfigEdit, KubeconfigFiles, KubeconfigSection},
};

/// Create a context of the current workspace under a name of its own, and switch to it.
#[derive(Args)]
pub(super) struct CreateContextArgs {
    /// Name of the context; by default the path of the workspace.
    name: Option<String>,
    /// Replace a context of that name.
    #[arg(long)]
    overwrite: bool,
    /// Stay in the current context.
    #[arg(long)]
    keep_current: bool,
    #[command(flatten)]
    format: ReportFlags,
}

impl CreateContextArgs {
    pub(super) fn run(self, ctx: &mut PluginContext) -> anyhow::Result<()> {
        let files = ctx.files()?;
        let from = StoredContext::find(&files, &files.context_name(&ctx.flags)?)?;
        let path = from.url()?.workspace.map(|path| path.to_string());
        let name = self.name.or(path);
        let name = name.context("the server of the current context is no workspace; name the new context")?;
        let line = store(&files, &from, &name, &NewContext { overwrite: self.overwrite, switch: !self.keep_current })?;
        match self.format.output {
            None => ctx.terminal.line(&line),
            Some(format) => {
                let made = json!({"context": name, "isCurrent": !self.keep_current, "server": from.cluster["server"]});
                formats::print_object(&mut ctx.terminal, &format.into(), &made)
            }
        }
    }
}

/// Treatment of a new context.
struct NewContext {
    overwrite: bool,
    switch: bool,
}

/// Stores a context of another workspace of the same server, without switching to it, and returns the line about it.
///
/// # Errors
/// A context of that name, or a kubeconfig that cannot be changed.
pub(super) fn store_context(ctx: &PluginContext, name: &str, path: &LogicalClusterPath) -> anyhow::Result<String> {
    let files = ctx.files()?;
    let mut of = StoredContext::find(&files, &files.context_name(&ctx.flags)?)?;
    of.cluster["server"] = of.url()?.of(path).into();
    store(&files, &of, name, &NewContext { overwrite: false, switch: false })
}

fn store(files: &KubeconfigFiles, of: &StoredContext, name: &str, new: &NewContext) -> anyhow::Result<String> {
    let is_there = files.names(KubeconfigSection::Contexts).iter().any(|there| there == name);
    if is_there && !new.overwrite {
        bail!("context \"{name}\" already exists in kubeconfig, use --overwrite to update it");
    }
    let mut edits = of.stored_as(name).to_vec();
    if new.switch {
        edits.push(KubeconfigEdit::CurrentContext(name.to_owned()));
    }
    files.modify(&edits)?;
    let done = if is_there { "Updated" } else { "Created" };
    let switched = if new.switch { " and switched to it" } else { "" };
    Ok(format!("{done} context \"{name}\"{switched}."))
}
