//! Numbers for `/metrics`, under the names, labels and buckets of kube-apiserver, so that its dashboards work. No label names a
//! logical cluster.

mod access;
mod admission;
mod caches;
mod connections;
mod flow;
mod health;
mod names;
mod policies;
mod storage;
mod summary;

use std::sync::Arc;

use portolan_machinery::kinds::Kind;
use portolan_types::Status;
use prometheus::{
    Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry,
    TextEncoder, core::Collector,
};
use tokio::time::Instant;

pub(crate) use self::{
    access::AccessMetrics,
    admission::{AdmissionMetrics, Called, Step},
    caches::CacheMetrics,
    connections::ConnectionMetrics,
    flow::{Executing, FlowMetrics},
    health::HealthMetrics,
    policies::{Asked, ExpressionMetrics, PolicyMetrics},
    storage::StorageMetrics,
};
use crate::{attributes::Attributes, process::Process, version::Version};

/// Buckets of the duration of requests, in seconds.
const DURATIONS: [f64; 23] = [
    0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 15.0, 20.0, 30.0,
    45.0, 60.0,
];
/// Buckets of the duration of first states of watches, in seconds.
const WATCH_LISTS: [f64; 17] =
    [0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 2.0, 4.0, 6.0, 8.0, 10.0, 15.0, 20.0, 30.0, 45.0, 60.0];
const COMPONENT: &str = "apiserver";
const COUNTED: [&str; 9] =
    ["verb", "dry_run", "group", "version", "resource", "subresource", "scope", "component", "code"];
const REQUEST: [&str; 7] = ["verb", "group", "version", "resource", "subresource", "scope", "component"];

const BUILD_INFO: &str = "[BETA] A metric with a constant '1' value labeled by major, minor, git version, git commit, git tree \
    state, build date, Go version, and compiler from which Kubernetes was built, and platform on which it is running.";

/// What is counted.
pub(crate) struct Metrics {
    registry: Registry,
    requests: IntCounterVec,
    durations: HistogramVec,
    /// The part of the durations that the service level is about: no watches, no streams.
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
    /// Who asks, and whether they may.
    pub(crate) access: AccessMetrics,
    /// What admission took.
    pub(crate) admission: AdmissionMetrics,
    /// What becomes of connections.
    pub(crate) connections: ConnectionMetrics,
    /// What checks of health came to.
    pub(crate) health: HealthMetrics,
    /// What is asked of the store.
    pub(crate) storage: StorageMetrics,
    /// What policies said.
    pub(crate) policies: PolicyMetrics,
    expressions: ExpressionMetrics,
    flows: flow::Flows,
    /// What caches take.
    pub(crate) caches: CacheMetrics,
    compiled: IntCounter,
    frames: IntCounter,
    given_up: IntCounter,
}

/// What a request was. Empty parts for paths that are no resources: clients must not be able to make new label values. Where health is asked
/// for, its path stands for a subresource.
#[derive(Clone, Debug, Default)]
pub(crate) struct Labels {
    pub(crate) verb: &'static str,
    pub(crate) dry_run: &'static str,
    pub(crate) kind: Option<Arc<Kind>>,
    pub(crate) subresource: Option<Arc<str>>,
    pub(crate) scope: &'static str,
}

impl Labels {
    fn values(&self) -> [&str; 7] {
        let [group, version, resource] = self.resource();
        let subresource = self.subresource.as_deref().unwrap_or_default();
        let component = if self.kind.is_none() && !subresource.is_empty() { "" } else { COMPONENT };
        [self.verb, group, version, resource, subresource, self.scope, component]
    }

    /// Group, version and resource.
    pub(crate) fn resource(&self) -> [&str; 3] {
        self.kind.as_ref().map_or([""; 3], |kind| [&*kind.gvk.group, &*kind.gvk.version, &*kind.resource])
    }
}

/// What one watch counts.
pub(crate) struct WatchMetrics {
    /// Events sent.
    pub(crate) events: IntCounter,
    /// Their sizes.
    pub(crate) sizes: Histogram,
    /// Time until the first state was sent.
    pub(crate) first_state: Histogram,
    /// All bytes sent.
    pub(crate) sent: usize,
    since: Instant,
    /// Of watches that have ended: how long they took, and how much they sent.
    durations: Histogram,
    lengths: Histogram,
}

impl Drop for WatchMetrics {
    fn drop(&mut self) {
        self.durations.observe(self.since.elapsed().as_secs_f64());
        self.lengths.observe(self.sent as f64);
    }
}

/// Makes and registers collectors. Names and labels are constants, so nothing here can fail.
struct Maker(Registry);

impl Maker {
    fn counter(&self, name: &str, help: &str, labels: &[&str]) -> IntCounterVec {
        self.keep(IntCounterVec::new(Opts::new(name, help), labels))
    }

    fn count(&self, name: &str, help: &str) -> IntCounter {
        self.keep(IntCounter::new(name, help))
    }

    fn gauge(&self, name: &str, help: &str, labels: &[&str]) -> IntGaugeVec {
        self.keep(IntGaugeVec::new(Opts::new(name, help), labels))
    }

    fn histogram(&self, name: &str, help: &str, labels: &[&str], buckets: &[f64]) -> HistogramVec {
        self.keep(HistogramVec::new(HistogramOpts::new(name, help).buckets(buckets.to_vec()), labels))
    }

    fn keep<C: Collector + Clone + 'static>(&self, collector: prometheus::Result<C>) -> C {
        let collector = collector.expect("names and labels are constants");
        self.0.register(Box::new(collector.clone())).expect("each name is registered once");
        collector
    }
}

/// Of requests: how long they took, how long those took that end, and how large their answers were.
fn request_histograms(make: &Maker) -> (HistogramVec, HistogramVec, HistogramVec) {
    let durations = make.histogram(
        "apiserver_request_duration_seconds",
        "Time from a request to its answer.",
        &COUNTED[..8],
        &DURATIONS,
    );
    let service_durations = make.histogram(
        "apiserver_request_sli_duration_seconds",
        "Time from a request to its answer, without watches and streams.",
        &REQUEST,
        &DURATIONS[2..],
    );
    let sizes = make.histogram(
        "apiserver_response_sizes",
        "Bytes of answers, before compression.",
        &REQUEST,
        &powers(1000.0, 10.0, 7),
    );
    (durations, service_durations, sizes)
}

fn powers(start: f64, factor: f64, count: i32) -> Vec<f64> {
    (0..count).map(|n| start * factor.powi(n)).collect()
}

impl Metrics {
    pub(crate) fn new(registry: Registry) -> Self {
        registry.register(Box::new(Process::new())).expect("each name is registered once");
        let make = Maker(registry.clone());
        let (durations, service_durations, sizes) = request_histograms(&make);
        let watched = ["group", "version", "resource"];
        Self {
            requests: make.counter("apiserver_request_total", "Answered requests.", &COUNTED),
            durations,
            service_durations,
            sizes,
            bodies: make.histogram(
                "apiserver_request_body_size_bytes",
                "Bytes of bodies of requests.",
                &["group", "resource", "verb"],
                &(0..31).map(|n| 50_000.0 + 100_000.0 * f64::from(n)).collect::<Vec<_>>(),
            ),
            terminations: make.counter(
                "apiserver_request_terminations_total",
                "Requests that were ended in self-defence.",
                &["verb", "group", "version", "resource", "subresource", "scope", "component", "code"],
            ),
            deprecated: make.gauge(
                "apiserver_requested_deprecated_apis",
                "Deprecated APIs that have been asked for.",
                &["group", "version", "resource", "subresource", "removed_release"],
            ),
            inflight: make.gauge("apiserver_current_inflight_requests", "Requests under way.", &["request_kind"]),
            longrunning: make.gauge("apiserver_longrunning_requests", "Watches and streams under way.", &REQUEST),
            watch_events: make.counter("apiserver_watch_events_total", "Events sent to watchers.", &watched),
            watch_event_sizes: make.histogram(
                "apiserver_watch_events_sizes",
                "Bytes of events sent to watchers.",
                &watched,
                &powers(1024.0, 2.0, 8),
            ),
            watch_lists: make.histogram(
                "apiserver_watch_list_duration_seconds",
                "Time until the first state of a watch was sent.",
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
            flows: flow::Flows::new(&make),
            caches: CacheMetrics::new(&make),
            frames: make.count(
                "portolan_watch_frames_encoded_total",
                "Events encoded for watches, each once for all who watch in the same form.",
            ),
            compiled: make.count(
                "portolan_definitions_compiled_total",
                "Compilations of definitions, one for all logical clusters that have the same.",
            ),
            given_up: make.count(
                "portolan_writes_given_up_total",
                "Writes that ended unwritten, since others kept writing the same object until their time was over.",
            ),
            registry,
        }
    }

    /// Tells once and for all which build it is.
    pub(crate) fn built(&self, version: &Version) {
        let labels = [
            ("major", &*version.major),
            ("minor", &version.minor),
            ("git_version", &version.git_version),
            ("git_commit", ""),
            ("git_tree_state", ""),
            ("build_date", ""),
            ("go_version", ""),
            ("compiler", Version::COMPILER),
            ("platform", &Version::platform()),
        ];
        let make = Maker(self.registry.clone());
        let info = make.gauge("kubernetes_build_info", BUILD_INFO, &labels.map(|(name, _)| name));
        info.with_label_values(&labels.map(|(_, value)| value)).set(1);
    }

    /// Compilations of definitions.
    pub(crate) fn compiled(&self) -> IntCounter {
        self.compiled.clone()
    }

    /// Events encoded for watches.
    pub(crate) fn frames_encoded(&self) -> IntCounter {
        self.frames.clone()
    }

    /// Writes that lost races until their time was over.
    pub(crate) fn given_up(&self) -> &IntCounter {
        &self.given_up
    }

    /// What is counted of requests of one sort, of which so many may be under way.
    pub(crate) fn flow(&self, sort: &'static str, seats: usize) -> FlowMetrics {
        self.flows.of(sort, seats)
    }

    /// Time that expressions take.
    pub(crate) fn expressions(&self) -> ExpressionMetrics {
        self.expressions.clone()
    }

    /// A request has been answered.
    pub(crate) fn answered(&self, labels: &Labels, code: u16, seconds: f64) {
        let [verb, group, version, resource, subresource, scope, component] = labels.values();
        let text = code.to_string();
        let all = [verb, labels.dry_run, group, version, resource, subresource, scope, component, &text];
        self.requests.with_label_values(&all).inc();
        // That of a watch which has begun is told when it ends.
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

    /// The body of a write of a resource has been read.
    pub(crate) fn body(&self, labels: &Labels, verb: &str, bytes: usize) {
        let verb = match verb {
            "create" | "update" | "patch" | "delete" => verb,
            "deletecollection" => "delete_collection",
            _ => return,
        };
        let [group, _, resource] = labels.resource();
        self.bodies.with_label_values(&[group, resource, verb]).observe(bytes as f64);
    }

    /// Where the size of an answer is counted: of reads, as upstream.
    pub(crate) fn size(&self, labels: &Labels) -> Option<Histogram> {
        matches!(labels.verb, "GET" | "LIST").then(|| self.sizes.with_label_values(&labels.values()))
    }

    /// Somebody asked for an API that is deprecated and not to be removed yet.
    pub(crate) fn deprecated(&self, of: &Attributes) {
        self.deprecated.with_label_values(&[&of.group, &of.version, &of.resource, &of.subresource, ""]).set(1);
    }

    /// Requests under way, by kind.
    pub(crate) fn inflight(&self, is_write: bool) -> IntGauge {
        self.inflight.with_label_values(&[if is_write { "mutating" } else { "readOnly" }])
    }

    /// Watches and streams under way.
    pub(crate) fn longrunning(&self, labels: &Labels) -> IntGauge {
        self.longrunning.with_label_values(&labels.values())
    }

    /// What a watch counts.
    pub(crate) fn watch(&self, labels: &Labels) -> WatchMetrics {
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

    /// Where others may add theirs.
    pub(crate) fn registry(&self) -> &Registry {
        &self.registry
    }

    /// All of it as text.
    pub(crate) fn text(&self) -> Result<String, Status> {
        text_of(&self.registry)
    }
}

fn text_of(registry: &Registry) -> Result<String, Status> {
    TextEncoder::new().encode_to_string(&registry.gather()).map_err(Status::internal)
}
