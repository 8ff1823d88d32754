//! The way to the server of a data directory, by the credentials that it left there.

use std::path::Path;

use anyhow::{Context as _, anyhow, ensure};
use http::Uri;
use http_body_util::{BodyExt as _, Limited};
use kube::{
    Client,
    client::Body,
    config::{KubeConfigOptions, Kubeconfig},
};

/// Most bytes of an answer that is a message.
const MESSAGE_BYTES: usize = 64 << 10;

/// The kubeconfig that a server writes into its data directory.
pub(super) const KUBECONFIG: &str = "admin.kubeconfig";

/// A client of the server that a kubeconfig leads to, and where that is. Who waits for an answer is told at once, and can run it again.
///
/// # Errors
/// When the kubeconfig cannot be read or used.
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

/// Why no answer came. Of all causes the last one says why; those before it, that it did not work.
pub(super) fn no_answer(server: &Uri, error: &kube::Error) -> anyhow::Error {
    let mut cause: &dyn std::error::Error = error;
    while let Some(next) = cause.source() {
        cause = next;
    }
    anyhow!("the server does not answer at {server}: {cause}")
}

/// What the server says in a Status; other words are not its own.
pub(super) async fn message(body: Body) -> String {
    let body = Limited::new(body, MESSAGE_BYTES).collect().await;
    let body = body.map(http_body_util::Collected::to_bytes).unwrap_or_default();
    let status: serde_json::Value = serde_json::from_slice(&body).unwrap_or_default();
    status["message"].as_str().unwrap_or("it does not say why").to_owned()
}
