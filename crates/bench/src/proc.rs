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
        let [resident, anonymous] = kibs(pids, ["VmRSS:", "RssAnon:"])?.map(|kib| kib / 1024.0);
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

/// Returns the sums of fields of `/proc/<pid>/status`, in KiB.
fn kibs<const N: usize>(pids: &[u32], names: [&str; N]) -> Result<[f64; N]> {
    let mut sums = [0.0; N];
    for pid in pids {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).with_context(|| format!("process {pid}"))?;
        for (sum, name) in sums.iter_mut().zip(names) {
            let value = status.lines().find_map(|line| line.strip_prefix(name));
            let kib = value.and_then(|value| value.split_whitespace().next()).with_context(|| format!("no {name}"))?;
            *sum += kib.parse::<f64>()?;
        }
    }
    Ok(sums)
}

/// Returns the number of threads of the processes together.
pub(super) fn threads(pids: &[u32]) -> Result<usize> {
    let count = |pid: &u32| fs::read_dir(format!("/proc/{pid}/task")).map(Iterator::count);
    pids.iter().map(count).sum::<std::io::Result<usize>>().context("the threads cannot be counted")
}

/// Sets the peak of the resident memory of each process to its present use.
pub(super) fn reset_peak(pids: &[u32]) -> Result<()> {
    let reset = |pid: &u32| fs::write(format!("/proc/{pid}/clear_refs"), "5").with_context(|| format!("process {pid}"));
    pids.iter().try_for_each(reset)
}

/// Returns the sum of the peaks of resident memory (`VmHWM`), in MiB.
pub(super) fn peak_memory(pids: &[u32]) -> Result<f64> {
    Ok(kibs(pids, ["VmHWM:"])?[0] / 1024.0)
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
