//! `kubectl portolan ui`: a one-time link to the web console.

use std::{
    fs,
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use clap::{Args, ValueEnum};
use http::Method;
use portolan_apiserver::pki::write_secret;
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
            let home = ctx.environment.home.as_deref().context("there is no home directory for the page to open")?;
            browse(&link_page(home, &address)?.to_string_lossy())?;
        }
        Ok(())
    }
}

/// Folder of the page that opens a link, in the home directory.
const FOLDER: &str = ".kube/cache/portolan-ui";

/// Writes a page that leads to a link, readable by its user alone, and returns its path. A browser is started with
/// this path instead of the link, because all users of a machine can read the arguments of its processes.
///
/// # Errors
/// Fails if the file cannot be written.
fn link_page(home: &Path, address: &str) -> anyhow::Result<PathBuf> {
    let folder = home.join(FOLDER);
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder);
    made.with_context(|| format!("{} cannot be made", folder.display()))?;
    let file = folder.join("open.html");
    let quoted = address.replace('&', "&amp;").replace('"', "&quot;").replace('<', "&lt;");
    let page = format!(
        "<!doctype html><meta charset=\"utf-8\"><title>Portolan</title>\
         <meta http-equiv=\"refresh\" content=\"0; url={quoted}\"><a href=\"{quoted}\">Open the console</a>\n"
    );
    write_secret(&file, page.as_bytes()).with_context(|| format!("{} cannot be written", file.display()))?;
    Ok(file)
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

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn the_page_that_opens_a_link_is_private_and_replaced() {
        let home = tempfile::tempdir().unwrap();
        for code in ["first", "a\"<b"] {
            let file = link_page(home.path(), &format!("https://a/ui#/root/objects?x=1&link={code}")).unwrap();
            let text = fs::read_to_string(&file).unwrap();
            let shown = code.replace('"', "&quot;").replace('<', "&lt;");
            assert_eq!(text.matches(&format!("x=1&amp;link={shown}\"")).count(), 2, "{text}");
            assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
            assert_eq!(fs::metadata(file.parent().unwrap()).unwrap().permissions().mode() & 0o777, 0o700);
        }
    }
}
