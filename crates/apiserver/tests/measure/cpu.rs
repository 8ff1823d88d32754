//! Processor time of this process: others that are busy do not lengthen it.

use std::time::Duration;

/// A clock tick of `/proc/self/stat`: fixed by the Linux ABI.
const TICK: Duration = Duration::from_millis(10);

/// So far, in user and kernel.
pub fn spent() -> Duration {
    let text = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<&str> = text.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace().collect();
    let ticks = |at: usize| fields.get(at).and_then(|field| field.parse::<u32>().ok()).unwrap_or(0);
    TICK * (ticks(11) + ticks(12))
}
