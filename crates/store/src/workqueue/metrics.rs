//! Metrics of work queues, with the names, labels and buckets of client-go's.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard},
};

use prometheus::{
    Gauge, GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts,
    Registry,
    core::{Collector, Desc},
    proto::MetricFamily,
};
use tokio::time::Instant;

/// Histogram buckets: from 10 ns, each ten times the one before.
const BUCKETS: (f64, f64, usize) = (10e-9, 10.0, 10);

/// Metrics of all work queues of a process.
#[derive(Clone)]
pub struct WorkMetrics(Arc<WorkMetricFamilies>);

struct WorkMetricFamilies {
    depth: IntGaugeVec,
    adds: IntCounterVec,
    retries: IntCounterVec,
    waited: HistogramVec,
    worked: HistogramVec,
    running: RunningWork,
}

impl WorkMetrics {
    /// Registers the metrics.
    ///
    /// # Errors
    /// Fails if metrics of these names are registered already.
    pub fn register(registry: &Registry) -> prometheus::Result<Self> {
        let options = |name: &str, help: &str| Opts::new(format!("workqueue_{name}"), help);
        let buckets = prometheus::exponential_buckets(BUCKETS.0, BUCKETS.1, BUCKETS.2)?;
        let histogram = |name, help| -> prometheus::Result<HistogramVec> {
            HistogramVec::new(HistogramOpts::from(options(name, help)).buckets(buckets.clone()), &["name"])
        };
        let families = WorkMetricFamilies {
            depth: IntGaugeVec::new(options("depth", "Current number of due keys in the queue."), &["name"])?,
            adds: IntCounterVec::new(options("adds_total", "Total number of keys added to the queue."), &["name"])?,
            retries: IntCounterVec::new(
                options("retries_total", "Total number of keys requeued after a failure."),
                &["name"],
            )?,
            waited: histogram("queue_duration_seconds", "Time in seconds that a due key waits for a worker.")?,
            worked: histogram("work_duration_seconds", "Time in seconds that processing a key takes.")?,
            running: RunningWork::new()?,
        };
        let collectors: [Box<dyn Collector>; 6] = [
            Box::new(families.depth.clone()),
            Box::new(families.adds.clone()),
            Box::new(families.retries.clone()),
            Box::new(families.waited.clone()),
            Box::new(families.worked.clone()),
            Box::new(families.running.clone()),
        ];
        for collector in collectors {
            registry.register(collector)?;
        }
        Ok(Self(Arc::new(families)))
    }

    /// Returns the metrics of the queue of this name.
    pub fn of(&self, name: &'static str) -> QueueMetrics {
        let families = &self.0;
        QueueMetrics {
            depth: families.depth.with_label_values(&[name]),
            adds: families.adds.with_label_values(&[name]),
            retries: families.retries.with_label_values(&[name]),
            waited: families.waited.with_label_values(&[name]),
            worked: families.worked.with_label_values(&[name]),
            running: families.running.clone(),
            name,
        }
    }
}

/// Metrics of one work queue.
pub struct QueueMetrics {
    pub(super) depth: IntGauge,
    pub(super) adds: IntCounter,
    pub(super) retries: IntCounter,
    pub(super) waited: Histogram,
    worked: Histogram,
    running: RunningWork,
    name: &'static str,
}

impl QueueMetrics {
    /// Starts the timer of a key; dropping it ends the measurement.
    pub(super) fn begin(&self) -> WorkTimer {
        let started = Instant::now();
        let number = self.running.begin(self.name, started);
        WorkTimer { started, number, name: self.name, worked: self.worked.clone(), running: self.running.clone() }
    }
}

impl Drop for QueueMetrics {
    fn drop(&mut self) {
        self.depth.set(0);
    }
}

/// Timer of a key in progress.
pub(super) struct WorkTimer {
    started: Instant,
    number: u64,
    name: &'static str,
    worked: Histogram,
    running: RunningWork,
}

impl Drop for WorkTimer {
    fn drop(&mut self) {
        self.worked.observe(self.started.elapsed().as_secs_f64());
        self.running.end(self.name, self.number);
    }
}

/// Metrics of the work in progress, computed when they are collected.
#[derive(Clone)]
struct RunningWork {
    unfinished: GaugeVec,
    longest: GaugeVec,
    begun: Arc<Mutex<WorkStarts>>,
}

#[derive(Default)]
struct WorkStarts {
    last: u64,
    /// Start times of the work in progress, by queue. Queues are never removed.
    by_queue: BTreeMap<&'static str, BTreeMap<u64, Instant>>,
}

impl RunningWork {
    fn new() -> prometheus::Result<Self> {
        let gauge = |name, help| GaugeVec::new(Opts::new(name, help), &["name"]);
        Ok(Self {
            unfinished: gauge(
                "workqueue_unfinished_work_seconds",
                "Total time in seconds that the work in progress has taken so far.",
            )?,
            longest: gauge(
                "workqueue_longest_running_processor_seconds",
                "Time in seconds that the longest work in progress has taken so far.",
            )?,
            begun: Arc::default(),
        })
    }

    fn begun(&self) -> MutexGuard<'_, WorkStarts> {
        self.begun.lock().expect("no code panics under this lock")
    }

    fn begin(&self, name: &'static str, now: Instant) -> u64 {
        let mut begun = self.begun();
        begun.last += 1;
        let number = begun.last;
        begun.by_queue.entry(name).or_default().insert(number, now);
        number
    }

    fn end(&self, name: &'static str, number: u64) {
        if let Some(all) = self.begun().by_queue.get_mut(name) {
            all.remove(&number);
        }
    }

    fn read(&self) {
        let set = |gauge: &Gauge, seconds: f64| gauge.set(seconds);
        for (name, all) in &self.begun().by_queue {
            let seconds = || all.values().map(|since| since.elapsed().as_secs_f64());
            set(&self.unfinished.with_label_values(&[name]), seconds().sum());
            set(&self.longest.with_label_values(&[name]), seconds().fold(0.0, f64::max));
        }
    }
}

impl Collector for RunningWork {
    fn desc(&self) -> Vec<&Desc> {
        [self.unfinished.desc(), self.longest.desc()].concat()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        self.read();
        [self.unfinished.collect(), self.longest.collect()].concat()
    }
}
