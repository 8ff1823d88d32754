//! Start to ready.

use std::time::{Duration, Instant};

use anyhow::Result;

use super::super::figures::Figure;
use super::super::proc::ProcessMemory;
use super::super::subject::BenchSubject;

pub(super) fn measure(subject: &mut BenchSubject) -> Result<Vec<Figure>> {
    let ready = Figure::millis("start to ready, empty", to_ready(subject)?);
    std::thread::sleep(Duration::from_secs(5));
    let [resident, anonymous] = ProcessMemory::of(&subject.pids())?.figures("idle resident memory");
    Ok(vec![ready, resident, anonymous])
}

/// Measures the time from the start of the process to the first 200 of `/readyz`, after a clean stop: the median of
/// three.
pub(super) fn to_ready(subject: &mut BenchSubject) -> Result<Duration> {
    median(subject, |subject| subject.stop())
}

/// Measures the same time after `end`, which stops the server.
pub(super) fn median(
    subject: &mut BenchSubject,
    mut end: impl FnMut(&mut BenchSubject) -> Result<()>,
) -> Result<Duration> {
    let mut taken = Vec::new();
    for _ in 0..3 {
        end(subject)?;
        let start = Instant::now();
        subject.start_again()?;
        taken.push(start.elapsed());
    }
    taken.sort_unstable();
    Ok(taken[1])
}
