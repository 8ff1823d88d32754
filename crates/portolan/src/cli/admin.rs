//! Administrator's client of a server, with the credentials in its data directory.

use std::path::Path;

use anyhow::{Context as _, anyhow, ensure};
use http::Uri;
use http_body_util::{BodyExt as _, Limited};
use kube::{
    Client,
    client::Body,
    config::{KubeConfigOptions, Kubeconfig},
};

/// Most bytes of a response that is a message.
const MESSAGE_BYTES: usize = 64 << 10;

/// Kubeconfig that a server writes into its data directory.
pub(super) const KUBECONFIG: &str = "admin.kubeconfig";

/// Returns a client of the server in a kubeconfig, and the server's address. It does not retry: the user sees the
/// failure at once, and can repeat the command.
///
/// # Errors
/// Fails if the kubeconfig cannot be read or used.
pub(super) async fn connect(kubeconfig: &Path) -> anyhow::Result<(Client, Uri)> {
    let shown = kubeconfig.display();
    ensure!(kubeconfig.try_exists().unwrap_or(true), "there is no {shown}: has a server been started there?");
    let unusable = || format!("{shown} cannot be used");
    let config = Kubeconfig::read_from(kubeconfig).with_context(unusable)?;
    let mut config =
        kube::Config::from_custom_kubeconfig(config, &KubeConfigOptions::default()).await.with_context(unusable)?;
    config.read_timeout = None;
    config.default_retry = false;
    let server = config.cluster_url.clone();
    Ok((Client::try_from(config).with_context(unusable)?, server))
}

/// Returns the error for a missing response. Of its causes the last one gives the reason.
pub(super) fn no_answer(server: &Uri, error: &kube::Error) -> anyhow::Error {
    let mut cause: &dyn std::error::Error = error;
    while let Some(next) = cause.source() {
        cause = next;
    }
    anyhow!("the server does not answer at {server}: {cause}")
}

/// Returns the message of a Status; any other text is not the server's.
pub(super) async fn message(body: Body) -> String {
    let body = Limited::new(body, MESSAGE_BYTES).collect().await;
    let body = body.map(http_body_util::Collected::to_bytes).unwrap_or_default();
    let status: serde_json::Value = serde_json::from_slice(&body).unwrap_or_default();
    status["message"].as_str().unwrap_or("it does not say why").to_owned()
}
