//! Numbers for `/metrics`, under the names that dashboards of kube-apiserver use. No label names a logical cluster.

use portolan_types::Status;
use prometheus::{
    HistogramOpts, HistogramVec, IntCounterVec, IntGaugeVec, Opts, Registry, TextEncoder, core::Collector,
};

/// What is counted.
pub(crate) struct Metrics {
    registry: Registry,
    requests: IntCounterVec,
    durations: HistogramVec,
    inflight: IntGaugeVec,
    longrunning: IntGaugeVec,
    watch_events: IntCounterVec,
    authentications: IntCounterVec,
}

/// What a request was, for the counters. Empty parts for paths that are no resources.
pub(crate) struct Labels<'a> {
    pub(crate) verb: &'a str,
    pub(crate) dry_run: &'a str,
    pub(crate) group: &'a str,
    pub(crate) version: &'a str,
    pub(crate) resource: &'a str,
    pub(crate) subresource: &'a str,
    pub(crate) scope: &'a str,
    pub(crate) code: u16,
}

impl Metrics {
    pub(crate) fn new() -> Self {
        let registry = Registry::new();
        let duration = HistogramOpts::new("apiserver_request_duration_seconds", "Time from a request to its answer.")
            .buckets(vec![0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0]);
        let counter = |name: &str, help: &str, labels: &[&str]| {
            keep(&registry, IntCounterVec::new(Opts::new(name, help), labels).expect("names and labels are constants"))
        };
        let gauge = |name: &str, help: &str, labels: &[&str]| {
            keep(&registry, IntGaugeVec::new(Opts::new(name, help), labels).expect("names and labels are constants"))
        };
        let request_labels =
            ["verb", "dry_run", "group", "version", "resource", "subresource", "scope", "component", "code"];
        let duration_labels = ["verb", "group", "version", "resource", "subresource", "scope"];
        Self {
            requests: counter("apiserver_request_total", "Answered requests.", &request_labels),
            durations: keep(
                &registry,
                HistogramVec::new(duration, &duration_labels).expect("names and labels are constants"),
            ),
            inflight: gauge("apiserver_current_inflight_requests", "Requests under way.", &["request_kind"]),
            longrunning: gauge(
                "apiserver_longrunning_requests",
                "Watches and streams under way.",
                &["verb", "resource"],
            ),
            watch_events: counter(
                "apiserver_watch_events_total",
                "Events sent to watchers.",
                &["group", "version", "resource"],
            ),
            authentications: counter("authentication_attempts", "Verified credentials, by outcome.", &["result"]),
            registry,
        }
    }

    /// A request has been answered.
    pub(crate) fn answered(&self, labels: &Labels<'_>, seconds: f64) {
        let Labels { verb, dry_run, group, version, resource, subresource, scope, code } = labels;
        let code = code.to_string();
        let all = [verb, dry_run, group, version, resource, subresource, scope, "apiserver", code.as_str()];
        self.requests.with_label_values(&all).inc();
        self.durations.with_label_values(&[verb, group, version, resource, subresource, scope]).observe(seconds);
    }

    /// Requests under way, by kind.
    pub(crate) fn inflight(&self, is_write: bool) -> prometheus::IntGauge {
        self.inflight.with_label_values(&[if is_write { "mutating" } else { "readOnly" }])
    }

    /// Watches and streams under way.
    pub(crate) fn longrunning(&self, verb: &str, resource: &str) -> prometheus::IntGauge {
        self.longrunning.with_label_values(&[verb, resource])
    }

    /// Events sent, for one resource.
    pub(crate) fn watch_events(&self, group: &str, version: &str, resource: &str) -> prometheus::IntCounter {
        self.watch_events.with_label_values(&[group, version, resource])
    }

    /// Credentials have been looked at.
    pub(crate) fn authenticated(&self, good: bool) {
        self.authentications.with_label_values(&[if good { "success" } else { "failure" }]).inc();
    }

    /// Where others may add theirs.
    pub(crate) fn registry(&self) -> &Registry {
        &self.registry
    }

    /// All of it as text.
    pub(crate) fn text(&self) -> Result<String, Status> {
        TextEncoder::new().encode_to_string(&self.registry.gather()).map_err(Status::internal)
    }
}

fn keep<C: Collector + Clone + 'static>(registry: &Registry, collector: C) -> C {
    registry.register(Box::new(collector.clone())).expect("each name is registered once");
    collector
}
