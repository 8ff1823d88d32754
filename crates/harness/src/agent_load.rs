//! Load of many agents at one server, all of one process and without physical clusters behind them.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use bytes::Bytes;
use http::Method;
use serde_json::{Value, json};

use super::cargo;
use super::client::HttpClient;
use super::kubeconfig::UserKubeconfig;
use super::process::Process;

/// Running load process.
pub struct AgentLoad {
    process: Process,
}

impl AgentLoad {
    /// Starts an agent for each token in the folder `tokens`. `dir` gets the credentials and the log.
    pub fn start(program: &Path, server: &str, tokens: &Path, dir: &Path) -> Result<Self> {
        let credentials = dir.join("credentials");
        fs::create_dir_all(&credentials).context("cannot make a folder")?;
        let paths = [tokens, &credentials].map(|path| path.display().to_string());
        Ok(Self { process: Process::spawn("agents", program, [server, &paths[0], &paths[1]], dir)? })
    }

    /// Returns the id of the process.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Fails if the process has ended.
    pub fn check_alive(&self) -> Result<()> {
        self.process.check_alive()
    }
}

/// Builds the load process.
pub fn build() -> Result<PathBuf> {
    cargo::example("portolan-tunnel", "agents")
}

/// Registers the physical clusters `c0`, `c1`, …, and writes a bootstrap token for each into the folder `tokens`.
pub async fn register(config: &UserKubeconfig, tokens: &Path, count: usize) -> Result<()> {
    let client = HttpClient::connect(config, 2).await?;
    let kind = "/apis/portolan.dev/v1alpha1/physicalclusters";
    for number in 0..count {
        let name = format!("c{number}");
        let cluster = json!({"apiVersion": "portolan.dev/v1alpha1", "kind": "PhysicalCluster",
            "metadata": {"name": name}, "spec": {"connection": {"tunnel": {}}}});
        post(&client, kind, &cluster).await?;
        let request =
            json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"audiences": []}});
        let answer = post(&client, &format!("{kind}/{name}/token"), &request).await?;
        let token = answer["status"]["token"].as_str().context("no token")?;
        fs::write(tokens.join(&name), token).context("cannot write a token")?;
    }
    Ok(())
}

async fn post(client: &HttpClient, path: &str, object: &Value) -> Result<Value> {
    let answer = client.send(Method::POST, path, Bytes::from(object.to_string())).await?.success()?;
    serde_json::from_slice(&answer).context("the answer is no JSON")
}

/// Returns the number of sessions in the metrics of a server.
pub fn sessions(metrics: &str) -> Result<usize> {
    let line = metrics.lines().find_map(|line| line.strip_prefix("portolan_tunnel_sessions "));
    line.context("no number of sessions")?.parse().context("the number of sessions is no number")
}
