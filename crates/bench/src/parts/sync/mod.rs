//! Sync with physical clusters: three real API servers, two of which the server dials and one of which an agent
//! connects, and simulated ones.

mod latency;
mod rollout;
mod sessions;
mod stage;
mod streams;

use anyhow::Result;

use super::super::figures::{Figure, Unit};
use super::super::proc::ProcessMemory;
use super::super::subject::{BenchSubject, Lab};
use super::MeasureLimits;
use harness::cluster;
use stage::{FAR, MemberStage, NEAR, THIRD};

pub(super) fn measure(subject: &BenchSubject, lab: &Lab, limits: &MeasureLimits) -> Result<Vec<Figure>> {
    let mut figures = sessions::measure(subject, lab, limits.agents)?;
    let names = [NEAR, FAR, THIRD].map(str::to_owned);
    let clusters = cluster::start_all(lab.tools(), subject.dir(), &names)?;
    let runtime = super::runtime()?;
    let stage = runtime.block_on(MemberStage::join(subject, lab, clusters))?;
    std::thread::sleep(super::workspaces::QUIET);
    figures.extend(agent_memory(&stage, "agent of an idle physical cluster: resident memory")?);
    eprintln!("latencies");
    figures.extend(runtime.block_on(latency::measure(&stage))?);
    eprintln!("streams");
    figures.extend(streams::measure(&stage, lab, &runtime)?);
    eprintln!("rollouts");
    figures.extend(runtime.block_on(rollout::measure(&stage, limits.deployments))?);
    figures.extend(agent_memory(&stage, "agent afterwards: resident memory")?);
    Ok(figures)
}

fn agent_memory(stage: &MemberStage, name: &str) -> Result<[Figure; 2]> {
    Ok(ProcessMemory::of(&[stage.agent.pid()])?.figures(name))
}

/// Figure of a part of the processes' memory in MiB.
fn mib(name: String, value: f64) -> Figure {
    Figure::new(name, value, Unit::MiB)
}
