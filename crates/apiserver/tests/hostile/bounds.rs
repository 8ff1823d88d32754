//! Cost of a request: processor time of this process, which does nothing else, and peak memory.

use std::{fmt, time::Duration};

use peak_alloc::PeakAlloc;

use crate::{cpu, pace, row::Step};

/// Counts live memory, not memory that the allocator keeps for later. So a request after a large one is measured like
/// the first.
#[global_allocator]
static HELD: PeakAlloc = PeakAlloc;

/// An unoptimized build, whose dependencies and reader of bodies are optimized a little, takes up to three times as
/// long as the rows allow. What the neighbour asks meanwhile is measured with it.
const UNOPTIMIZED: u32 = if cfg!(debug_assertions) { 3 } else { 1 };
/// Memory that a request may take beside its body, in multiples of it.
const TIMES_BODY: usize = 8;
/// Memory that a request of any size may take in addition, including that of the neighbor's request.
const BESIDES: usize = 2 << 20;

pub struct Usage {
    cpu: Duration,
    held: usize,
}

impl Usage {
    /// From here on.
    pub fn begin() -> Self {
        HELD.reset_peak_usage();
        Self { cpu: cpu::spent(), held: HELD.current_usage() }
    }

    /// Since the beginning: time, and the peak of memory.
    pub fn end(self) -> Self {
        Self { cpu: cpu::spent().saturating_sub(self.cpu), held: HELD.peak_usage().saturating_sub(self.held) }
    }

    /// Returns the bounds that are exceeded.
    pub fn complaints(&self, step: &Step, body: usize) -> Vec<String> {
        let time = self.slower_than(Duration::from_millis(step.cpu_ms()) * UNOPTIMIZED);
        let (memory, why) = match &step.memory {
            Some(memory) => (memory.mib << 20, &*memory.why),
            None => (BESIDES + TIMES_BODY * body, "eight times the body"),
        };
        let memory = (self.held > memory).then(|| format!("{} bytes, allowed are {memory}: {why}", self.held));
        time.into_iter().chain(memory).collect()
    }

    /// Returns a complaint if the time exceeds its bound, which grows while cores are slow.
    fn slower_than(&self, bound: Duration) -> Option<String> {
        if self.cpu <= bound {
            return None;
        }
        let slowness = pace::slowness();
        let allowed = bound.mul_f64(slowness);
        (self.cpu > allowed).then(|| {
            format!(
                "{:?} of CPU, allowed are {bound:?}, {allowed:?} on a core that is {slowness:.1} times slower",
                self.cpu
            )
        })
    }
}

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}, {} bytes", self.cpu, self.held)
    }
}
