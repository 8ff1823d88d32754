//! Physical clusters with real API servers, joined to the measured server.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::super::super::load::LoadTarget;
use super::super::super::objects::post;
use super::super::super::subject::{BenchSubject, Lab};
use super::super::workspaces::origin;
use harness::client::HttpClient;
use harness::cluster::PhysicalCluster;
use harness::process::Process;

/// Physical cluster that the server dials, and that the figures call direct.
pub(super) const NEAR: &str = "near";
/// Physical cluster behind an agent, which the figures call tunnel.
pub(super) const FAR: &str = "far";
/// Another one that the server dials.
pub(super) const THIRD: &str = "third";

/// Connections to measure, with their names in the figures.
pub(super) const CONNECTIONS: [(&str, &str); 2] = [(NEAR, "direct"), (FAR, "tunnel")];

const GROUP: &str = "/apis/portolan.dev/v1alpha1";
/// Time in which a physical cluster must be ready.
const READY: Duration = Duration::from_secs(120);
const LOOK: Duration = Duration::from_millis(50);

/// The measured server with its physical clusters. Dropping it ends them.
pub(super) struct MemberStage {
    pub(super) bench: LoadTarget,
    /// Agent of [`FAR`].
    pub(super) agent: Process,
    clusters: Vec<PhysicalCluster>,
}

impl MemberStage {
    /// Registers the clusters in root, and waits until they are ready.
    pub(super) async fn join(subject: &BenchSubject, lab: &Lab, clusters: Vec<PhysicalCluster>) -> Result<Self> {
        let bench = subject.bench();
        let client = bench.client().await?;
        bench.make_namespace("infra").await?;
        for cluster in clusters.iter().filter(|cluster| cluster.name() != FAR) {
            let name = cluster.name();
            let secret = json!({
                "apiVersion": "v1", "kind": "Secret", "metadata": {"name": name},
                "stringData": {"kubeconfig": cluster.kubeconfig().to_json()},
            });
            post(&client, "/api/v1/namespaces/infra/secrets", &secret).await?;
            let reference = json!({"namespace": "infra", "name": name, "key": "kubeconfig"});
            register(&client, name, &json!({"direct": {"kubeconfigSecretRef": reference}})).await?;
        }
        register(&client, FAR, &json!({"tunnel": {}})).await?;
        let token = token(&client, FAR).await?;
        let far = clusters.iter().find(|cluster| cluster.name() == FAR).context("no cluster is far")?;
        let agent = start_agent(subject.dir(), lab, &bench, &token, &far.kubeconfig_file())?;
        let stage = Self { bench, agent, clusters };
        for cluster in &stage.clusters {
            stage.until_ready(cluster.name()).await?;
        }
        Ok(stage)
    }

    /// Returns the physical cluster of this name.
    pub(super) fn cluster(&self, name: &str) -> Result<&PhysicalCluster> {
        self.clusters.iter().find(|cluster| cluster.name() == name).with_context(|| format!("no cluster {name}"))
    }

    /// Returns the physical clusters.
    pub(super) fn clusters(&self) -> &[PhysicalCluster] {
        &self.clusters
    }

    /// Waits until a physical cluster is ready.
    pub(super) async fn until_ready(&self, name: &str) -> Result<()> {
        let (client, begun) = (self.bench.client().await?, Instant::now());
        loop {
            let physical: Value =
                serde_json::from_slice(&client.get(&format!("{GROUP}/physicalclusters/{name}")).await?)?;
            let conditions = physical.pointer("/status/conditions").and_then(Value::as_array).into_iter().flatten();
            if conditions.filter(|one| one["type"] == "Ready").any(|one| one["status"] == "True") {
                return Ok(());
            }
            self.agent.check_alive()?;
            ensure!(begun.elapsed() < READY, "{name} is not ready: {}", physical["status"]);
            tokio::time::sleep(LOOK).await;
        }
    }
}

/// Registers a physical cluster.
pub(super) async fn register(client: &HttpClient, name: &str, connection: &Value) -> Result<()> {
    let physical = json!({
        "apiVersion": "portolan.dev/v1alpha1", "kind": "PhysicalCluster", "metadata": {"name": name},
        "spec": {"connection": connection},
    });
    post(client, &format!("{GROUP}/physicalclusters"), &physical).await.map(drop)
}

/// Returns a bootstrap token of the agent of a registered physical cluster.
async fn token(client: &HttpClient, name: &str) -> Result<String> {
    let request = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"audiences": []}});
    let answer = post(client, &format!("{GROUP}/physicalclusters/{name}/token"), &request).await?;
    let answer: Value = serde_json::from_slice(&answer)?;
    answer.pointer("/status/token").and_then(Value::as_str).map(str::to_owned).context("no token")
}

fn start_agent(dir: &Path, lab: &Lab, bench: &LoadTarget, token: &str, kubeconfig: &Path) -> Result<Process> {
    let file = dir.join("agent-token");
    std::fs::write(&file, token).context("cannot write a token")?;
    let args = [
        "agent".to_owned(),
        format!("--server={}", origin(&bench.config)),
        format!("--token-file={}", file.display()),
        format!("--kubeconfig={}", kubeconfig.display()),
        format!("--data-dir={}", dir.join("agent").display()),
    ];
    Process::spawn("agent", lab.program(), &args, &dir.join("logs"))
}
