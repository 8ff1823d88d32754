//! Results of health checks for `/metrics/slis`, which is cheap to scrape often.

use portolan_types::Status;
use prometheus::{Gauge, IntCounterVec, IntGaugeVec, Registry};

use super::{MetricFactory, text_of};
use crate::metrics::process;

/// Metrics of health checks, labelled by the server's own check names.
pub(crate) struct HealthMetrics {
    registry: Registry,
    last: IntGaugeVec,
    all: IntCounterVec,
}

impl HealthMetrics {
    pub(super) fn new() -> Self {
        let make = MetricFactory(Registry::new());
        let started: Gauge = make.keep(Gauge::new(
            "process_start_time_seconds",
            "[ALPHA] Start time of the process since unix epoch in seconds.",
        ));
        started.set(process::started().unwrap_or_default());
        Self {
            last: make.gauge(
                "kubernetes_healthcheck",
                "[STABLE] This metric records the result of a single healthcheck.",
                &["name", "type"],
            ),
            all: make.counter(
                "kubernetes_healthchecks_total",
                "[STABLE] This metric records the results of all healthcheck.",
                &["name", "type", "status"],
            ),
            registry: make.0,
        }
    }

    /// Counts the result of a check at an endpoint: `healthz`, `livez` or `readyz`.
    pub(crate) fn checked(&self, name: &str, endpoint: &str, is_well: bool) {
        self.last.with_label_values(&[name, endpoint]).set(i64::from(is_well));
        let status = if is_well { "success" } else { "error" };
        self.all.with_label_values(&[name, endpoint, status]).inc();
    }

    /// Formats them as text.
    pub(crate) fn text(&self) -> Result<String, Status> {
        text_of(&self.registry)
    }
}
