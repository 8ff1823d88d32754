//! What a request took: processor time and memory, of this process, which does nothing else.

/// An unoptimized build takes so many times as long.
const SLOWNESS: u64 = if cfg!(debug_assertions) { 12 } else { 1 };
/// Memory that a request may take, in multiples of its body, and besides. A tree of short keys takes about ten times its text,
/// and a write holds the old one, the new one and their field sets at once.
const TIMES_BODY: usize = 32;
const BESIDES: usize = 16 << 20;

pub struct Usage {
    cpu_ms: u64,
    resident: usize,
}

impl Usage {
    /// From here on.
    pub fn begin() -> Self {
        // Sets the peak of the resident set back to what it is (proc(5)); where that is not allowed the old peak counts.
        let _ = std::fs::write("/proc/self/clear_refs", "5");
        Self { cpu_ms: cpu_ms(), resident: status("VmRSS:") }
    }

    /// Since the beginning: time, and the peak of memory.
    pub fn end(self) -> Self {
        Self { cpu_ms: cpu_ms().saturating_sub(self.cpu_ms), resident: status("VmHWM:").saturating_sub(self.resident) }
    }

    /// What is beyond its bound.
    pub fn complaints(&self, cpu_ms: u64, body: usize) -> Vec<String> {
        let (time, memory) = (cpu_ms * SLOWNESS, BESIDES + TIMES_BODY * body);
        let time = (self.cpu_ms > time).then(|| format!("{} ms of CPU, allowed are {time}", self.cpu_ms));
        let memory = (self.resident > memory).then(|| format!("{} bytes, allowed are {memory}", self.resident));
        time.into_iter().chain(memory).collect()
    }
}

fn cpu_ms() -> u64 {
    let text = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<&str> = text.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace().collect();
    let ticks = |at: usize| fields.get(at).and_then(|field| field.parse::<u64>().ok()).unwrap_or(0);
    (ticks(11) + ticks(12)) * 10
}

fn status(key: &str) -> usize {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(key)).unwrap_or_default();
    line.trim().trim_end_matches(" kB").parse::<usize>().map_or(0, |kib| kib * 1024)
}
