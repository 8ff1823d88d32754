//! Sessions of very many agents with one server, and their way back after the server was killed.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tokio::runtime::Runtime;

use super::super::super::figures::{Figure, Unit};
use super::super::super::load::LoadTarget;
use super::super::super::proc::{self, ProcessMemory};
use super::super::super::subject::{BenchSubject, Lab, Recipe};
use super::super::workspaces::{QUIET, origin};
use super::mib;
use harness::agent_load::{self, AgentLoad};

/// Time for all agents to connect, the first time with certificates to be made. Agents wait up to 30 s between
/// attempts.
const LIMIT: Duration = Duration::from_secs(300);
const LOOK: Duration = Duration::from_millis(100);

/// Measures a server of its own, whose memory holds nothing else.
pub(super) fn measure(subject: &BenchSubject, lab: &Lab, agents: usize) -> Result<Vec<Figure>> {
    let program = agent_load::build()?;
    let dir = subject.dir().join("sessions");
    let mut server = lab.start(subject.which(), &dir, &Recipe::default())?;
    let runtime = super::super::runtime()?;
    std::thread::sleep(QUIET);
    let empty = ProcessMemory::of(&server.pids())?;
    let tokens = dir.join("tokens");
    fs::create_dir_all(&tokens).context("cannot make a folder")?;
    runtime.block_on(agent_load::register(&server.bench().config, &tokens, agents))?;
    std::thread::sleep(QUIET);
    let registered = ProcessMemory::of(&server.pids())?;

    let (begun, cpu) = (Instant::now(), proc::cpu_time(&server.pids())?);
    let load = AgentLoad::start(&program, origin(&server.bench().config), &tokens, &dir)?;
    let first = until_connected(&runtime, &server.bench(), agents, begun)?;
    let cpu = proc::cpu_time(&server.pids())? - cpu;
    std::thread::sleep(QUIET);
    let connected = ProcessMemory::of(&server.pids())?;
    server.kill()?;
    server.start_again()?;
    let again = until_connected(&runtime, &server.bench(), agents, Instant::now())?;
    std::thread::sleep(QUIET);
    let restarted = ProcessMemory::of(&server.pids())?;
    let process = ProcessMemory::of(&[load.pid()])?;
    load.check_alive()?;
    server.stop()?;

    let name = |what: &str| format!("{agents} agents: {what}");
    let each = |more: f64| more.max(0.0) * f64::from(1 << 20) / agents as f64;
    Ok(vec![
        Figure::millis(name("all connected, with new certificates"), first),
        Figure::new(name("CPU of the server, each"), cpu.as_secs_f64() * 1e6 / agents as f64, Unit::MicrosOfCpu),
        Figure::millis(name("all connected again, after kill -9 and a restart of the server"), again),
        mib(name("resident memory of the server, connected"), connected.resident),
        Figure::new(name("memory of a registration"), each(registered.anonymous - empty.anonymous), Unit::Bytes),
        Figure::new(name("memory of a session"), each(connected.anonymous - registered.anonymous), Unit::Bytes),
        mib(name("resident memory of the server, connected again"), restarted.resident),
        mib(name("resident memory of the process of all agents"), process.resident),
    ])
}

/// Waits until the server has all sessions, and returns the time since `begun`.
fn until_connected(runtime: &Runtime, bench: &LoadTarget, agents: usize, begun: Instant) -> Result<Duration> {
    loop {
        let sessions = runtime.block_on(async {
            let metrics = bench.clients(1).await?.remove(0).get("/metrics").await?;
            agent_load::sessions(std::str::from_utf8(&metrics)?)
        })?;
        if sessions == agents {
            return Ok(begun.elapsed());
        }
        ensure!(begun.elapsed() < LIMIT, "{sessions} of {agents} agents are connected");
        std::thread::sleep(LOOK);
    }
}
