//! `kubectl portolan ui`: a one-time link to the web console.

use anyhow::Context as _;
use clap::{Args, ValueEnum};
use http::Method;
use portolan_types::LogicalClusterPath;
use serde_json::{Value, json};

use super::{context::PluginContext, session::ApiRequest};
use crate::cli::console::{LINK_PATH, link};

/// Print a link that opens the web console and signs in once.
///
/// The session has the rights of the kubeconfig's user, and ends with that credential, after twelve hours at most.
#[derive(Args)]
pub(crate) struct UiArgs {
    /// Open the link in a browser, too.
    #[arg(long)]
    open: bool,
    /// Output format.
    #[arg(short, long, value_enum, value_name = "FORMAT")]
    output: Option<LinkFormat>,
}

/// Format of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum LinkFormat {
    /// Object with the URL and its life.
    Json,
    /// URL alone.
    Url,
}

impl UiArgs {
    /// Runs the command.
    ///
    /// # Errors
    /// A refusal; a browser that does not start.
    pub(crate) async fn run(self, ctx: &mut PluginContext) -> anyhow::Result<()> {
        ctx.connect().await?;
        let session = ctx.session();
        let answer = session.send(ApiRequest::new(Method::POST, LINK_PATH).outside()).await?;
        let code = answer["code"].as_str().context("the answer has no code")?;
        let root = LogicalClusterPath::root();
        let url = session.url();
        let address = link(&url.base, url.workspace.as_ref().unwrap_or(&root), code);
        let seconds = answer["seconds"].as_i64().unwrap_or_default();
        if self.output == Some(LinkFormat::Json) {
            let printed = json!({"url": address, "seconds": seconds, "user": answer["user"]});
            ctx.terminal.line(&serde_json::to_string_pretty::<Value>(&printed)?)?;
        } else {
            ctx.terminal.line(&address)?;
        }
        if self.output.is_none() {
            let user = answer["user"].as_str().unwrap_or_default();
            ctx.terminal.note(&format!("It signs {user} in once, within {seconds} s."));
        }
        if self.open {
            browse(&address)?;
        }
        Ok(())
    }
}

/// Opens a URL in the user's browser.
///
/// # Errors
/// Fails if no program for it starts.
pub(super) fn browse(url: &str) -> anyhow::Result<()> {
    let program = if cfg!(target_os = "macos") { "open" } else { "xdg-open" };
    let mut command = std::process::Command::new(program);
    command.arg(url).stdin(std::process::Stdio::null()).stdout(std::process::Stdio::null());
    command.spawn().with_context(|| format!("{program} does not start; open the link yourself")).map(drop)
}
