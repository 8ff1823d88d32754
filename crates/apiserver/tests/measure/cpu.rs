//! Processor time: others that are busy do not lengthen it, but for what they take of a core's units and caches.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// This process's so far, in user and kernel.
pub fn spent() -> Duration {
    since_start(ClockId::ProcessCPUTime)
}

/// This thread's so far, in user and kernel.
#[allow(dead_code, reason = "not every test measures by the thread")]
pub fn spent_by_thread() -> Duration {
    since_start(ClockId::ThreadCPUTime)
}

fn since_start(clock: ClockId) -> Duration {
    Duration::try_from(clock_gettime(clock)).unwrap_or_default()
}
