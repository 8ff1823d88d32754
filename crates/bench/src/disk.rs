//! Latency of one `fdatasync` on the disk of the data directories: the lower bound of the latency of a durable write.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result};

const WRITES: usize = 300;

/// Appends blocks of 4 KiB to a file in `dir` and syncs each. Returns the latency as a line of text.
pub(super) fn sync_latency(dir: &Path) -> Result<String> {
    let path = dir.join("fdatasync");
    let mut file = File::create(&path).with_context(|| format!("cannot make {}", path.display()))?;
    let block = [7u8; 4096];
    let mut micros = Vec::with_capacity(WRITES);
    for _ in 0..WRITES {
        let start = Instant::now();
        file.write_all(&block)?;
        file.sync_data()?;
        micros.push(start.elapsed().as_micros());
    }
    micros.sort_unstable();
    let at = |percent: usize| micros[(WRITES - 1) * percent / 100];
    Ok(format!("fdatasync of 4 KiB appended: p50 {} µs, p90 {} µs, p99 {} µs", at(50), at(90), at(99)))
}
