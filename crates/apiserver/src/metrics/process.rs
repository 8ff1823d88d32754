//! Process metrics under the names of all Prometheus client libraries. Empty without `/proc`.

use prometheus::{
    Counter, Gauge, IntGauge,
    core::{Collector, Desc},
    proto::MetricFamily,
};

/// Clock ticks of `/proc/self/stat` in a second: fixed by the Linux ABI.
const TICKS: f64 = 100.0;
/// Bytes of a page in `/proc/self/stat`, on all supported machines.
const PAGE: i64 = 4096;

/// Returns the start time of the process, in seconds since 1970; `None` without `/proc`.
pub(crate) fn started() -> Option<f64> {
    let ticks: f64 = stat()?.get(19)?.parse().ok()?;
    let system = std::fs::read_to_string("/proc/stat").ok()?;
    let booted: f64 = system.lines().find_map(|line| line.strip_prefix("btime "))?.parse().ok()?;
    Some(booted + ticks / TICKS)
}

/// Reads `/proc/self/stat` from its third field on. The second one, a name in parentheses, may contain anything.
fn stat() -> Option<Vec<String>> {
    let text = std::fs::read_to_string("/proc/self/stat").ok()?;
    Some(text.rsplit_once(')')?.1.split_whitespace().map(str::to_owned).collect())
}

/// Collector that reads `/proc/self` on each scrape.
pub(crate) struct ProcessCollector {
    cpu: Counter,
    resident: IntGauge,
    virtual_size: IntGauge,
    files: IntGauge,
    most_files: Gauge,
    most_virtual: Gauge,
    received: Counter,
    sent: Counter,
    started: Gauge,
}

impl ProcessCollector {
    pub(crate) fn new() -> Self {
        let float = |name: &str, help: &str| Counter::new(name, help).expect("the name is a constant");
        let bound = |name: &str, help: &str| Gauge::new(name, help).expect("the name is a constant");
        let whole = |name: &str, help: &str| IntGauge::new(name, help).expect("the name is a constant");
        Self {
            cpu: float("process_cpu_seconds_total", "Total user and system CPU time in seconds."),
            resident: whole("process_resident_memory_bytes", "Resident memory size in bytes."),
            virtual_size: whole("process_virtual_memory_bytes", "Virtual memory size in bytes."),
            files: whole("process_open_fds", "Number of open file descriptors."),
            most_files: bound("process_max_fds", "Maximum number of open file descriptors."),
            most_virtual: bound("process_virtual_memory_max_bytes", "Maximum virtual memory size in bytes."),
            received: float("process_network_receive_bytes_total", "Number of bytes received over the network."),
            sent: float("process_network_transmit_bytes_total", "Number of bytes sent over the network."),
            started: bound("process_start_time_seconds", "Start time of the process in seconds since 1970."),
        }
    }

    fn all(&self) -> [&dyn Collector; 9] {
        let Self { cpu, resident, virtual_size, files, most_files, most_virtual, received, sent, started } = self;
        [cpu, resident, virtual_size, files, most_files, most_virtual, received, sent, started]
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
        self.started.set(started()?);
        let limits = std::fs::read_to_string("/proc/self/limits").ok()?;
        self.most_files.set(limit(&limits, "Max open files")?);
        self.most_virtual.set(limit(&limits, "Max address space")?);
        let counts = std::fs::read_to_string("/proc/self/net/netstat").ok()?;
        for (counter, column) in [(&self.received, "InOctets"), (&self.sent, "OutOctets")] {
            counter.inc_by((octets(&counts, column)? - counter.get()).max(0.0));
        }
        Some(())
    }
}

/// Returns a current limit; the largest number if there is none, as in Go's library.
fn limit(limits: &str, name: &str) -> Option<f64> {
    let line = limits.lines().find_map(|line| line.strip_prefix(name))?;
    match line.split_whitespace().next()? {
        "unlimited" => Some(u64::MAX as f64),
        number => number.parse().ok(),
    }
}

/// Returns a number of `/proc/self/net/netstat`, in which a line of values follows a line of names.
fn octets(counts: &str, column: &str) -> Option<f64> {
    let mut lines = counts.lines().filter(|line| line.starts_with("IpExt:")).map(str::split_whitespace);
    let (names, numbers) = (lines.next()?, lines.next()?);
    names.zip(numbers).find(|(name, _)| *name == column)?.1.parse().ok()
}

impl Collector for ProcessCollector {
    fn desc(&self) -> Vec<&Desc> {
        self.all().into_iter().flat_map(|one| one.desc()).collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        match self.read() {
            Some(()) => self.all().into_iter().flat_map(|one| one.collect()).collect(),
            None => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_and_counts_are_read_by_their_names() {
        let limits = "Limit Soft\nMax open files            20000   20000   files\nMax address space   unlimited   unlimited   bytes\n";
        assert_eq!(limit(limits, "Max open files"), Some(20000.0));
        assert_eq!(limit(limits, "Max address space"), Some(1.844_674_407_370_955_2e19));
        assert_eq!(limit(limits, "Max nothing"), None);
        let counts = "TcpExt: InOctets\nTcpExt: 9\nIpExt: InNoRoutes InOctets OutOctets\nIpExt: 0 7 8\n";
        assert_eq!((octets(counts, "InOctets"), octets(counts, "OutOctets")), (Some(7.0), Some(8.0)));
        assert_eq!(octets("IpExt: InOctets\n", "InOctets"), None);
    }
}
