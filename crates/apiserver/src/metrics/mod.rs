//! Metrics with the names, labels and buckets of kube-apiserver, so that its dashboards work. No label names a
//! logical cluster.

mod access;
mod admission;
mod bounded_labels;
mod caches;
mod connections;
mod factory;
mod failed_checks;
mod flow;
mod gauge_guard;
mod health;
mod labels;
mod metered_store;
mod policies;
mod process;
mod storage;
mod summary;
mod version;
mod watches;

use portolan_types::Status;
use prometheus::{Histogram, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Registry, TextEncoder};
use tokio::time::Instant;

use self::factory::{MetricFactory, powers};
pub(crate) use self::{
    access::{AccessMetrics, AuthenticatedUser},
    admission::{AdmissionMetrics, AdmissionStepLabels, WebhookOutcome},
    caches::{CacheMetrics, CacheSizes},
    connections::ConnectionMetrics,
    failed_checks::FailedHealthChecks,
    flow::{ExecutingRequest, FlowMetrics},
    gauge_guard::GaugeGuard,
    health::HealthMetrics,
    labels::RequestLabels,
    metered_store::metered,
    policies::{ExpressionMetrics, PolicyLabels, PolicyMetrics},
    process::ProcessCollector,
    storage::StorageMetrics,
    version::ServerVersion,
    watches::WatchMetrics,
};
use crate::routing::attributes::Attributes;

/// Buckets of request durations, in seconds.
const DURATIONS: [f64; 23] = [
    0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 15.0, 20.0, 30.0,
    45.0, 60.0,
];
/// Buckets of the time to the initial state of a watch, in seconds.
const WATCH_LISTS: [f64; 17] =
    [0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 2.0, 4.0, 6.0, 8.0, 10.0, 15.0, 20.0, 30.0, 45.0, 60.0];
const COMPONENT: &str = "apiserver";
const COUNTED: [&str; 9] =
    ["verb", "dry_run", "group", "version", "resource", "subresource", "scope", "component", "code"];
const REQUEST: [&str; 7] = ["verb", "group", "version", "resource", "subresource", "scope", "component"];

const BUILD_INFO: &str = "[BETA] A metric with a constant '1' value labeled by major, minor, git version, git commit, git tree \
    state, build date, Go version, and compiler from which Kubernetes was built, and platform on which it is running.";

/// Metrics of the server.
pub(crate) struct Metrics {
    registry: Registry,
    requests: IntCounterVec,
    durations: HistogramVec,
    /// Request durations for service level indicators, without watches and streams.
    service_durations: HistogramVec,
    sizes: HistogramVec,
    bodies: HistogramVec,
    terminations: IntCounterVec,
    deprecated: IntGaugeVec,
    inflight: IntGaugeVec,
    longrunning: IntGaugeVec,
    watch_events: IntCounterVec,
    watch_event_sizes: HistogramVec,
    watch_lists: HistogramVec,
    /// Authentication and authorization.
    pub(crate) access: AccessMetrics,
    /// Admission.
    pub(crate) admission: AdmissionMetrics,
    /// Connections.
    pub(crate) connections: ConnectionMetrics,
    /// Health checks.
    pub(crate) health: HealthMetrics,
    /// Store requests.
    pub(crate) storage: StorageMetrics,
    /// Policies.
    pub(crate) policies: PolicyMetrics,
    expressions: ExpressionMetrics,
    flows: flow::FlowMetricFamilies,
    /// Cache sizes.
    pub(crate) caches: CacheMetrics,
    compiled: IntCounter,
    frames: IntCounter,
    given_up: IntCounter,
}

/// Creates the histograms of requests: all durations, those of requests that end, and response sizes.
fn request_histograms(make: &MetricFactory) -> (HistogramVec, HistogramVec, HistogramVec) {
    let durations = make.histogram(
        "apiserver_request_duration_seconds",
        "Duration of requests in seconds.",
        &COUNTED[..8],
        &DURATIONS,
    );
    let service_durations = make.histogram(
        "apiserver_request_sli_duration_seconds",
        "Duration of requests in seconds, without watches and streams.",
        &REQUEST,
        &DURATIONS[2..],
    );
    let sizes = make.histogram(
        "apiserver_response_sizes",
        "Size of responses in bytes, before compression.",
        &REQUEST,
        &powers(1000.0, 10.0, 7),
    );
    (durations, service_durations, sizes)
}

impl Metrics {
    pub(crate) fn new(registry: Registry) -> Self {
        registry.register(Box::new(ProcessCollector::new())).expect("each name is registered once");
        let make = MetricFactory(registry.clone());
        let (durations, service_durations, sizes) = request_histograms(&make);
        let watched = ["group", "version", "resource"];
        Self {
            requests: make.counter("apiserver_request_total", "Number of answered requests.", &COUNTED),
            durations,
            service_durations,
            sizes,
            bodies: make.histogram(
                "apiserver_request_body_size_bytes",
                "Size of request bodies in bytes.",
                &["group", "resource", "verb"],
                &(0..31).map(|n| 50_000.0 + 100_000.0 * f64::from(n)).collect::<Vec<_>>(),
            ),
            terminations: make.counter(
                "apiserver_request_terminations_total",
                "Number of requests that the server ended to protect itself.",
                &["verb", "group", "version", "resource", "subresource", "scope", "component", "code"],
            ),
            deprecated: make.gauge(
                "apiserver_requested_deprecated_apis",
                "Deprecated APIs that have been requested.",
                &["group", "version", "resource", "subresource", "removed_release"],
            ),
            inflight: make.gauge(
                "apiserver_current_inflight_requests",
                "Number of running requests.",
                &["request_kind"],
            ),
            longrunning: make.gauge(
                "apiserver_longrunning_requests",
                "Number of running watches and streams.",
                &REQUEST,
            ),
            watch_events: make.counter("apiserver_watch_events_total", "Number of events sent to watchers.", &watched),
            watch_event_sizes: make.histogram(
                "apiserver_watch_events_sizes",
                "Size of events sent to watchers in bytes.",
                &watched,
                &powers(1024.0, 2.0, 8),
            ),
            watch_lists: make.histogram(
                "apiserver_watch_list_duration_seconds",
                "Time until the initial state of a watch was sent, in seconds.",
                &["group", "version", "resource", "scope"],
                &WATCH_LISTS,
            ),
            access: AccessMetrics::new(&make),
            admission: AdmissionMetrics::new(&make),
            connections: ConnectionMetrics::new(&make),
            health: HealthMetrics::new(),
            storage: StorageMetrics::new(&make),
            policies: PolicyMetrics::new(&make),
            expressions: ExpressionMetrics::new(&make),
            flows: flow::FlowMetricFamilies::new(&make),
            caches: CacheMetrics::new(&make),
            frames: make.count(
                "portolan_watch_frames_encoded_total",
                "Number of events encoded for watches, once for all watches of one form.",
            ),
            compiled: make.count(
                "portolan_definitions_compiled_total",
                "Number of compiled definitions, one for all logical clusters with the same definition.",
            ),
            given_up: make.count(
                "portolan_writes_given_up_total",
                "Number of writes that gave up after conflicts with other writers of the object.",
            ),
            registry,
        }
    }

    /// Sets the build info.
    pub(crate) fn built(&self, version: &ServerVersion) {
        let labels = [
            ("major", &*version.major),
            ("minor", &version.minor),
            ("git_version", &version.git_version),
            ("git_commit", ""),
            ("git_tree_state", ""),
            ("build_date", ""),
            ("go_version", ""),
            ("compiler", ServerVersion::COMPILER),
            ("platform", &ServerVersion::platform()),
        ];
        let make = MetricFactory(self.registry.clone());
        let info = make.gauge("kubernetes_build_info", BUILD_INFO, &labels.map(|(name, _)| name));
        info.with_label_values(&labels.map(|(_, value)| value)).set(1);
    }

    /// Returns the counter of compiled definitions.
    pub(crate) fn compiled(&self) -> IntCounter {
        self.compiled.clone()
    }

    /// Returns the counter of events encoded for watches.
    pub(crate) fn frames_encoded(&self) -> IntCounter {
        self.frames.clone()
    }

    /// Returns the counter of writes that failed after repeated conflicts.
    pub(crate) fn given_up(&self) -> &IntCounter {
        &self.given_up
    }

    /// Returns the seat metrics of one priority level.
    pub(crate) fn flow(&self, sort: &'static str, seats: usize) -> FlowMetrics {
        self.flows.of(sort, seats)
    }

    /// Returns the metrics of expressions.
    pub(crate) fn expressions(&self) -> ExpressionMetrics {
        self.expressions.clone()
    }

    /// Records a request that has been answered.
    pub(crate) fn answered(&self, labels: &RequestLabels, code: u16, seconds: f64) {
        let [verb, group, version, resource, subresource, scope, component] = labels.values();
        let text = code.to_string();
        let all = [verb, labels.dry_run, group, version, resource, subresource, scope, component, &text];
        self.requests.with_label_values(&all).inc();
        // A watch that has started is recorded at its end.
        if verb != "WATCH" || code >= 400 {
            self.durations.with_label_values(&all[..8]).observe(seconds);
        }
        if !matches!(verb, "WATCH" | "CONNECT") && labels.dry_run.is_empty() {
            self.service_durations.with_label_values(&labels.values()).observe(seconds);
        }
        if matches!(code, 429 | 504) {
            let ended = [verb, group, version, resource, subresource, scope, component, &text];
            self.terminations.with_label_values(&ended).inc();
        }
    }

    /// Records the body size of a write.
    pub(crate) fn body(&self, labels: &RequestLabels, verb: &str, bytes: usize) {
        let verb = match verb {
            "create" | "update" | "patch" | "delete" => verb,
            "deletecollection" => "delete_collection",
            _ => return,
        };
        let [group, _, resource] = labels.resource();
        self.bodies.with_label_values(&[group, resource, verb]).observe(bytes as f64);
    }

    /// Returns the histogram of response sizes; only reads have one, as in kube-apiserver.
    pub(crate) fn size(&self, labels: &RequestLabels) -> Option<Histogram> {
        matches!(labels.verb, "GET" | "LIST").then(|| self.sizes.with_label_values(&labels.values()))
    }

    /// Counts a request for a deprecated API whose removal is not scheduled.
    pub(crate) fn deprecated(&self, of: &Attributes) {
        self.deprecated.with_label_values(&[&of.group, &of.version, &of.resource, &of.subresource, ""]).set(1);
    }

    /// Returns the gauge of running requests, mutating or read-only.
    pub(crate) fn inflight(&self, is_write: bool) -> IntGauge {
        self.inflight.with_label_values(&[if is_write { "mutating" } else { "readOnly" }])
    }

    /// Returns the gauge of running watches and streams.
    pub(crate) fn longrunning(&self, labels: &RequestLabels) -> IntGauge {
        self.longrunning.with_label_values(&labels.values())
    }

    /// Returns the metrics of one watch.
    pub(crate) fn watch(&self, labels: &RequestLabels) -> WatchMetrics {
        let watched = labels.resource();
        let [group, version, resource] = watched;
        let [verb, _, _, _, subresource, scope, component] = labels.values();
        let all = [verb, labels.dry_run, group, version, resource, subresource, scope, component];
        WatchMetrics {
            sent: 0,
            since: Instant::now(),
            durations: self.durations.with_label_values(&all),
            lengths: self.sizes.with_label_values(&labels.values()),
            events: self.watch_events.with_label_values(&watched),
            sizes: self.watch_event_sizes.with_label_values(&watched),
            first_state: self.watch_lists.with_label_values(&[group, version, resource, labels.scope]),
        }
    }

    /// Returns the registry, to which other parts of the process add collectors.
    pub(crate) fn registry(&self) -> &Registry {
        &self.registry
    }

    /// Formats all metrics as text.
    pub(crate) fn text(&self) -> Result<String, Status> {
        text_of(&self.registry)
    }
}

fn text_of(registry: &Registry) -> Result<String, Status> {
    TextEncoder::new().encode_to_string(&registry.gather()).map_err(Status::internal)
}
