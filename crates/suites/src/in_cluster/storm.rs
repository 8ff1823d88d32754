//! A thousand agents of one process, and a restart of their server.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use bytes::Bytes;
use http::Method;
use serde_json::{Value, json};

use super::stage::InClusterStage;
use harness::cargo;
use harness::client::HttpClient;
use harness::kubectl::Kubectl;
use harness::poll;
use harness::portolan::Portolan;
use harness::process::Process;

const AGENTS: usize = 1_000;
/// Time for all agents to connect, the first time with certificates to be made. Agents wait up to 30 s between
/// attempts.
const LIMIT: Duration = Duration::from_secs(120);

/// All agents connect, and connect again once the server was killed and is back.
pub(super) fn agents_reconnect(stage: &InClusterStage<'_>) -> Result<()> {
    let program = cargo::example("portolan-tunnel", "agents")?;
    let dir = stage.dir.join("storm");
    let (tokens, data) = (dir.join("tokens"), dir.join("data"));
    fs::create_dir_all(&tokens).and_then(|()| fs::create_dir_all(&data)).context("cannot make folders")?;
    let mut server = Portolan::start(stage.program(), stage.tools, &dir.join("portolan"))?;
    let root = Kubectl::new(&stage.tools.kubectl(), server.kubeconfig(), &dir, "root")?;
    tokio::runtime::Runtime::new()?.block_on(register(&server, &tokens))?;
    let address = format!("https://127.0.0.1:{}", server.port());
    let paths = [&tokens, &data].map(|path| path.display().to_string());
    let load = Process::spawn("agents", &program, [&address, &paths[0], &paths[1]], &dir)?;
    let first = all_connect(&root)?;
    server.kill()?;
    server.restart()?;
    let again = all_connect(&root)?;
    load.check_alive()?;
    println!(
        "      {AGENTS} agents connected in {first:.1?}, again in {again:.1?}; server {} MiB, agents {} MiB",
        resident(server.pid())?,
        resident(load.pid())?
    );
    Ok(())
}

/// Registers physical clusters, and writes a bootstrap token for each.
async fn register(server: &Portolan, tokens: &Path) -> Result<()> {
    let client = HttpClient::connect(server.kubeconfig(), 2).await?;
    let kind = "/apis/portolan.dev/v1alpha1/physicalclusters";
    for number in 0..AGENTS {
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

/// Waits until the server has all sessions, and returns the time.
fn all_connect(root: &Kubectl) -> Result<Duration> {
    let start = Instant::now();
    poll::until("all agents are connected", LIMIT, || {
        let metrics = root.run("get --raw /metrics")?;
        let line = metrics.lines().find_map(|line| line.strip_prefix("portolan_tunnel_sessions "));
        let sessions: usize = line.context("no number of sessions")?.parse()?;
        ensure!(sessions == AGENTS, "{sessions} sessions");
        Ok(())
    })?;
    Ok(start.elapsed())
}

/// Resident memory of a process, in MiB.
fn resident(pid: u32) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
    Ok(line.trim().trim_end_matches(" kB").parse::<u64>()? / 1024)
}
