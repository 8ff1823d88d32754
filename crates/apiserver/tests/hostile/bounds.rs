//! What a request took: processor time of this process, which does nothing else, and memory that was allocated at once.

use std::fmt;

use peak_alloc::PeakAlloc;

use crate::{cpu, row::Step};

/// Counts what is held, and not what the system's allocator keeps for later: a request after a large one is measured as if it
/// were the first.
#[global_allocator]
static HELD: PeakAlloc = PeakAlloc;

/// An unoptimized build, whose dependencies are optimized, takes up to twice as long as the rows allow; a core that shares its
/// units with another that is busy, up to twice that; and what the neighbour asks meanwhile is measured with it.
const SLOWNESS: u64 = if cfg!(debug_assertions) { 6 } else { 1 };
/// Memory that a request may take beside its body, in multiples of it.
const TIMES_BODY: usize = 8;
/// And what a request of any size takes, with the neighbour's.
const BESIDES: usize = 2 << 20;

pub struct Usage {
    cpu_ms: u64,
    held: usize,
}

impl Usage {
    /// From here on.
    pub fn begin() -> Self {
        HELD.reset_peak_usage();
        Self { cpu_ms: cpu_ms(), held: HELD.current_usage() }
    }

    /// Since the beginning: time, and the peak of memory.
    pub fn end(self) -> Self {
        Self { cpu_ms: cpu_ms().saturating_sub(self.cpu_ms), held: HELD.peak_usage().saturating_sub(self.held) }
    }

    /// What is beyond its bound.
    pub fn complaints(&self, step: &Step, body: usize) -> Vec<String> {
        let time = step.cpu_ms() * SLOWNESS;
        let time = (self.cpu_ms > time).then(|| format!("{} ms of CPU, allowed are {time}", self.cpu_ms));
        let (memory, why) = match &step.memory {
            Some(memory) => (memory.mib << 20, &*memory.why),
            None => (BESIDES + TIMES_BODY * body, "eight times the body"),
        };
        let memory = (self.held > memory).then(|| format!("{} bytes, allowed are {memory}: {why}", self.held));
        time.into_iter().chain(memory).collect()
    }
}

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ms, {} bytes", self.cpu_ms, self.held)
    }
}

fn cpu_ms() -> u64 {
    u64::try_from(cpu::spent().as_millis()).unwrap_or(u64::MAX)
}
