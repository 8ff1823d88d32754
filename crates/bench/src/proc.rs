//! Readings of `/proc`: CPU time and memory of the server's processes, and the machine.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result};

use super::figures::{Figure, Unit};

/// `USER_HZ`, which is 100 on every Linux that Rust runs on.
const TICKS_PER_SECOND: u64 = 100;

/// Returns the user and system time that the processes have used so far.
pub(super) fn cpu_time(pids: &[u32]) -> Result<Duration> {
    let ticks = pids.iter().map(|pid| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).with_context(|| format!("process {pid}"))?;
        // The name in parentheses may contain any characters. utime and stime are the 12th and 13th field after it.
        let (_, fields) = stat.rsplit_once(')').context("/proc/<pid>/stat has no name")?;
        let mut fields = fields.split_whitespace().skip(11);
        let mut next = || -> Result<u64> { Ok(fields.next().context("/proc/<pid>/stat is short")?.parse()?) };
        Ok(next()? + next()?)
    });
    let ticks = ticks.sum::<Result<u64>>()?;
    Ok(Duration::from_millis(ticks * 1000 / TICKS_PER_SECOND))
}

/// Memory of processes together, in MiB.
pub(super) struct ProcessMemory {
    /// All resident memory (`VmRSS`). It includes pages of mapped files, which the kernel may reclaim.
    pub(super) resident: f64,
    /// Resident memory without mapped files (`RssAnon`).
    pub(super) anonymous: f64,
}

impl ProcessMemory {
    pub(super) fn of(pids: &[u32]) -> Result<Self> {
        let mut kibs = [0.0; 2];
        for pid in pids {
            let status = fs::read_to_string(format!("/proc/{pid}/status")).with_context(|| format!("process {pid}"))?;
            for (sum, name) in kibs.iter_mut().zip(["VmRSS:", "RssAnon:"]) {
                let value = status.lines().find_map(|line| line.strip_prefix(name));
                let kib =
                    value.and_then(|value| value.split_whitespace().next()).with_context(|| format!("no {name}"))?;
                *sum += kib.parse::<f64>()?;
            }
        }
        let [resident, anonymous] = kibs.map(|kib| kib / 1024.0);
        Ok(Self { resident, anonymous })
    }

    /// Returns both figures: binaries and etcd's database are mapped files, and some engines map their files.
    pub(super) fn figures(&self, name: &str) -> [Figure; 2] {
        [
            Figure::new(name, self.resident, Unit::MiB),
            Figure::new(format!("{name}, without mapped files"), self.anonymous, Unit::MiB),
        ]
    }
}

/// Returns a line about the machine.
pub(super) fn machine() -> String {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let model = model.map_or("an unnamed processor", |(_, name)| name);
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    format!("{cores} cores of {model}, Linux {}; client and server share them", kernel.trim())
}
