//! Web console: its files for the server, and one-time links to it.

use anyhow::{Context as _, bail};
use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt as _, Full};
use portolan_apiserver::{User, hooks::ConsoleFile};
use portolan_console::PAGES;
use portolan_control_plane::ControlPlane;
use portolan_types::LogicalClusterPath;
use serde_json::{Value, json};
use tower::ServiceExt as _;

/// Path at which a caller gets a one-time code.
pub(super) const LINK_PATH: &str = "/ui/link";
/// Life of the link of a demo, in seconds.
const DEMO_SECONDS: u32 = 600;

/// Returns the files of the console for a server.
pub(super) fn files() -> Vec<ConsoleFile> {
    let file = |page: &portolan_console::ConsolePage| ConsoleFile {
        path: page.path,
        media_type: page.media_type,
        etag: page.etag,
        gzip: page.gzip,
    };
    PAGES.iter().map(file).collect()
}

/// Returns the URL that opens the console in a workspace and signs in once. The code is in the fragment, which browsers
/// send to no server.
pub(super) fn link(base: &str, workspace: &LogicalClusterPath, code: &str) -> String {
    format!("{base}/ui#/{workspace}/objects?link={code}")
}

/// Makes a link to a session of the administrator, for the process that runs the control plane.
///
/// # Errors
/// Fails if the server refuses it.
pub(super) async fn one_time_link(plane: &ControlPlane, workspace: &LogicalClusterPath) -> anyhow::Result<String> {
    let admin = User { name: "portolan-demo".into(), groups: vec!["system:masters".into()], ..User::default() };
    let body = Bytes::from(json!({"seconds": DEMO_SECONDS}).to_string());
    let request = Request::post(LINK_PATH).body(Full::new(body))?;
    let Ok(answer) = plane.api().service_as(admin).oneshot(request).await;
    let body = answer.into_body().collect().await.map_err(|error| anyhow::anyhow!("{error}"))?.to_bytes();
    let answer: Value = serde_json::from_slice(&body).context("the answer is no JSON")?;
    let Some(code) = answer["code"].as_str() else {
        bail!("no link to the console: {}", answer["message"].as_str().unwrap_or_default())
    };
    Ok(link(&format!("https://{}", plane.address()), workspace, code))
}
