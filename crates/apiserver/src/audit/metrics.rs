//! Metrics of audit, with kube-apiserver's names.

use prometheus::{IntCounter, IntCounterVec, Opts, Registry};

/// Metrics of audit.
pub(crate) struct AuditMetrics {
    events: IntCounter,
    levels: IntCounterVec,
    errors: IntCounterVec,
}

impl AuditMetrics {
    /// Registers the metrics; called once per registry, and only with audit on.
    pub(super) fn new(registry: &Registry) -> Self {
        let counter = |name: &str, help: &str, label: &str| {
            let counter = IntCounterVec::new(Opts::new(name, help), &[label]).expect("names and labels are constants");
            registry.register(Box::new(counter.clone())).expect("each name is registered once");
            counter
        };
        let events = IntCounter::new("apiserver_audit_event_total", "Number of audit events written to the sinks.");
        let events = events.expect("the name is constant");
        registry.register(Box::new(events.clone())).expect("each name is registered once");
        Self {
            events,
            levels: counter("apiserver_audit_level_total", "Number of requests by the level of their events.", "level"),
            errors: counter(
                "apiserver_audit_error_total",
                "Number of audit events that a sink has lost: its queue was full, or it could not be written.",
                "plugin",
            ),
        }
    }

    pub(super) fn decided(&self, level: &str) {
        self.levels.with_label_values(&[level]).inc();
    }

    pub(super) fn written(&self) {
        self.events.inc();
    }

    /// Counts events that a sink has lost.
    pub(super) fn failed(&self, plugin: &str, events: usize) {
        self.errors.with_label_values(&[plugin]).inc_by(events as u64);
    }
}
