//! A thousand watches that are resumed concurrently, each a hundred events behind, as after a network failure.

use std::time::{Duration, Instant};

use anyhow::Result;

use super::super::figures::{Figure, Unit};
use super::super::load::Until;
use super::super::objects::Size;
use super::super::proc;
use super::super::subject::BenchSubject;
use super::super::watchers::Crowd;

const WATCHES: usize = 1000;
const CONNECTIONS: usize = 100;
const BEHIND: usize = 100;
const LIMIT: Duration = Duration::from_secs(120);

pub(super) fn measure(subject: &BenchSubject) -> Result<Vec<Figure>> {
    let bench = subject.bench();
    super::runtime()?.block_on(async {
        bench.warm_up().await?;
        bench.make_namespace("resumed").await?;
        let clients = bench.clients(CONNECTIONS).await?;
        let last_seen = Crowd::version(&clients[0], "resumed").await?;
        bench.create("resumed", 16, Size::SMALL, Until::Count(BEHIND)).await?;
        let (start, cpu) = (Instant::now(), proc::cpu_time(&bench.pids)?);
        let crowd = Crowd::resume(clients, WATCHES, "resumed", &last_seen);
        crowd.wait_for(WATCHES * BEHIND, LIMIT).await?;
        let (wall, cpu) = (start.elapsed(), proc::cpu_time(&bench.pids)? - cpu);
        let name = format!("{WATCHES} watches resumed {BEHIND} events behind");
        let each = cpu.as_secs_f64() * 1e6 / WATCHES as f64;
        Ok(vec![
            Figure::millis(format!("{name}: until all have caught up"), wall),
            Figure::new(format!("{name}: server, per watch"), each, Unit::MicrosOfCpu),
        ])
    })
}
