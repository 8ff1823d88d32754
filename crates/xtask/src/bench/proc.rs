//! What `/proc` knows about the server's processes and the machine.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result};

/// `USER_HZ`, which is 100 on every Linux that Rust runs on.
const TICKS_PER_SECOND: u64 = 100;

/// User and system time that the processes have used so far.
pub(super) fn cpu_time(pids: &[u32]) -> Result<Duration> {
    let ticks = pids.iter().map(|pid| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).with_context(|| format!("process {pid}"))?;
        // The name in parentheses may hold anything; utime and stime are the 12th and 13th field after it.
        let (_, fields) = stat.rsplit_once(')').context("/proc/<pid>/stat has no name")?;
        let mut fields = fields.split_whitespace().skip(11);
        let mut next = || -> Result<u64> { Ok(fields.next().context("/proc/<pid>/stat is short")?.parse()?) };
        Ok(next()? + next()?)
    });
    let ticks = ticks.sum::<Result<u64>>()?;
    Ok(Duration::from_millis(ticks * 1000 / TICKS_PER_SECOND))
}

/// Resident memory of the processes together, in MiB.
pub(super) fn resident_mib(pids: &[u32]) -> Result<f64> {
    let kibs = pids.iter().map(|pid| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).with_context(|| format!("process {pid}"))?;
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).context("no VmRSS")?;
        let kib = line.split_whitespace().nth(1).context("VmRSS has no value")?;
        Ok(kib.parse::<f64>()?)
    });
    Ok(kibs.sum::<Result<f64>>()? / 1024.0)
}

/// One line about the machine.
pub(super) fn machine() -> String {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let model = model.map_or("an unnamed processor", |(_, name)| name);
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    format!("{cores} cores of {model}, Linux {}; client and server share them", kernel.trim())
}
