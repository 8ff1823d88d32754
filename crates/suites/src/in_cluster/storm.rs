//! A thousand agents of one process, and a restart of their server.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

use super::stage::InClusterStage;
use harness::agent_load::{self, AgentLoad};
use harness::kubectl::Kubectl;
use harness::poll;
use harness::portolan::Portolan;

const AGENTS: usize = 1_000;
/// Time for all agents to connect, the first time with certificates to be made. Agents wait up to 30 s between
/// attempts.
const LIMIT: Duration = Duration::from_secs(120);

/// All agents connect, and connect again once the server was killed and is back.
pub(super) fn agents_reconnect(stage: &InClusterStage<'_>) -> Result<()> {
    let program = agent_load::build()?;
    let dir = stage.dir.join("storm");
    let tokens = dir.join("tokens");
    fs::create_dir_all(&tokens).context("cannot make a folder")?;
    let mut server = Portolan::start(stage.program(), stage.tools, &dir.join("portolan"))?;
    let root = Kubectl::new(&stage.tools.kubectl(), server.kubeconfig(), &dir, "root")?;
    tokio::runtime::Runtime::new()?.block_on(agent_load::register(server.kubeconfig(), &tokens, AGENTS))?;
    let load = AgentLoad::start(&program, &format!("https://127.0.0.1:{}", server.port()), &tokens, &dir)?;
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

/// Waits until the server has all sessions, and returns the time.
fn all_connect(root: &Kubectl) -> Result<Duration> {
    let start = Instant::now();
    poll::until("all agents are connected", LIMIT, || {
        let sessions = agent_load::sessions(&root.run("get --raw /metrics")?)?;
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
