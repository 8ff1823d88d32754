//! Factory of collectors.

use prometheus::{
    HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGaugeVec, Opts, Registry, core::Collector,
};

/// Factory that creates and registers collectors. Names and labels are constants, so it cannot fail.
pub(super) struct MetricFactory(pub(super) Registry);

impl MetricFactory {
    pub(super) fn counter(&self, name: &str, help: &str, labels: &[&str]) -> IntCounterVec {
        self.keep(IntCounterVec::new(Opts::new(name, help), labels))
    }

    pub(super) fn count(&self, name: &str, help: &str) -> IntCounter {
        self.keep(IntCounter::new(name, help))
    }

    pub(super) fn gauge(&self, name: &str, help: &str, labels: &[&str]) -> IntGaugeVec {
        self.keep(IntGaugeVec::new(Opts::new(name, help), labels))
    }

    pub(super) fn histogram(&self, name: &str, help: &str, labels: &[&str], buckets: &[f64]) -> HistogramVec {
        self.keep(HistogramVec::new(HistogramOpts::new(name, help).buckets(buckets.to_vec()), labels))
    }

    pub(super) fn keep<C: Collector + Clone + 'static>(&self, collector: prometheus::Result<C>) -> C {
        let collector = collector.expect("names and labels are constants");
        self.0.register(Box::new(collector.clone())).expect("each name is registered once");
        collector
    }
}

/// Returns bucket bounds that grow by a factor.
pub(super) fn powers(start: f64, factor: f64, count: i32) -> Vec<f64> {
    (0..count).map(|n| start * factor.powi(n)).collect()
}
