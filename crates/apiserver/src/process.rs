//! The process itself as numbers, under the names that every Prometheus client library uses. Empty where there is no `/proc`.

use prometheus::{
    Counter, IntGauge,
    core::{Collector, Desc},
    proto::MetricFamily,
};

/// Clock ticks of `/proc/self/stat` in a second: fixed by the Linux ABI.
const TICKS: f64 = 100.0;
/// Bytes of a page in `/proc/self/stat`, on all machines that we build for.
const PAGE: i64 = 4096;

/// When the process began, in seconds since 1970; `None` where there is no `/proc`.
pub(crate) fn started() -> Option<f64> {
    let ticks: f64 = stat()?.get(19)?.parse().ok()?;
    let system = std::fs::read_to_string("/proc/stat").ok()?;
    let booted: f64 = system.lines().find_map(|line| line.strip_prefix("btime "))?.parse().ok()?;
    Some(booted + ticks / TICKS)
}

/// `/proc/self/stat` from its third field on. The second one, a name in parentheses, may hold anything.
fn stat() -> Option<Vec<String>> {
    let text = std::fs::read_to_string("/proc/self/stat").ok()?;
    Some(text.rsplit_once(')')?.1.split_whitespace().map(str::to_owned).collect())
}

/// Reads `/proc/self` when it is asked.
pub(crate) struct Process {
    cpu: Counter,
    resident: IntGauge,
    virtual_size: IntGauge,
    files: IntGauge,
}

impl Process {
    pub(crate) fn new() -> Self {
        let float = |name: &str, help: &str| Counter::new(name, help).expect("the name is a constant");
        let whole = |name: &str, help: &str| IntGauge::new(name, help).expect("the name is a constant");
        Self {
            cpu: float("process_cpu_seconds_total", "Time on processors, in seconds."),
            resident: whole("process_resident_memory_bytes", "Resident memory, in bytes."),
            virtual_size: whole("process_virtual_memory_bytes", "Virtual memory, in bytes."),
            files: whole("process_open_fds", "Open file descriptors."),
        }
    }

    fn read(&self) -> Option<()> {
        let fields = stat()?;
        let number = |at: usize| fields.get(at)?.parse::<i64>().ok();
        let cpu = (number(11)? + number(12)?) as f64 / TICKS;
        self.cpu.inc_by((cpu - self.cpu.get()).max(0.0));
        self.virtual_size.set(number(20)?);
        self.resident.set(number(21)? * PAGE);
        let files = std::fs::read_dir("/proc/self/fd").ok()?.count();
        self.files.set(i64::try_from(files).unwrap_or(i64::MAX));
        Some(())
    }
}

impl Collector for Process {
    fn desc(&self) -> Vec<&Desc> {
        [self.cpu.desc(), self.resident.desc(), self.virtual_size.desc(), self.files.desc()].concat()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        match self.read() {
            Some(()) => {
                let whole = [&self.resident, &self.virtual_size, &self.files];
                self.cpu.collect().into_iter().chain(whole.into_iter().flat_map(IntGauge::collect)).collect()
            }
            None => Vec::new(),
        }
    }
}
