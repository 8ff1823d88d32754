//! Processor time. Other busy processes hardly lengthen it: they only share a core's execution units and caches.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Returns the user and kernel time of this process.
pub fn spent() -> Duration {
    since_start(ClockId::ProcessCPUTime)
}

/// Returns the user and kernel time of this thread.
#[allow(dead_code, reason = "not every test measures by the thread")]
pub fn spent_by_thread() -> Duration {
    since_start(ClockId::ThreadCPUTime)
}

fn since_start(clock: ClockId) -> Duration {
    Duration::try_from(clock_gettime(clock)).unwrap_or_default()
}
