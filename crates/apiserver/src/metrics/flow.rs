//! Metrics of seats, under the names of kube-apiserver's priority and fairness. There is one flow schema, by logical
//! cluster and user, and a priority level per kind of seats.

use prometheus::{Histogram, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec};
use tokio::time::Instant;

use super::MetricFactory;
use crate::metrics::GaugeGuard;

/// Name of the only flow schema.
const FLOW_SCHEMA: &str = "logical-clusters";
const FLOW: [&str; 2] = ["flow_schema", "priority_level"];
/// Buckets of waiting and running times, in seconds.
const DURATIONS: [f64; 13] = [0.0, 0.005, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 15.0, 30.0];

/// Seat metrics of all priority levels.
pub(super) struct FlowMetricFamilies {
    waiting: [IntGaugeVec; 2],
    /// Waiting requests, read-only and mutating.
    waiting_kinds: IntGaugeVec,
    executing: [IntGaugeVec; 2],
    limits: [IntGaugeVec; 2],
    dispatched: IntCounterVec,
    rejected: IntCounterVec,
    waits: HistogramVec,
    executions: HistogramVec,
}

/// Seat metrics of one priority level.
pub(crate) struct FlowMetrics {
    waiting: [IntGauge; 3],
    executing: [IntGauge; 2],
    dispatched: IntCounter,
    rejected: IntCounterVec,
    /// Waiting times of requests that got a seat, and of those that did not.
    waits: [Histogram; 2],
    executions: Histogram,
    sort: &'static str,
}

/// Request with a seat, counted until it is dropped.
pub(crate) struct ExecutingRequest {
    _counted: [GaugeGuard; 2],
    since: Instant,
    took: Histogram,
}

impl FlowMetricFamilies {
    pub(super) fn new(make: &MetricFactory) -> Self {
        let gauge = |name: &str, help: &str| make.gauge(name, help, &FLOW);
        let limit = |name: &str, help: &str| make.gauge(name, help, &FLOW[1..]);
        Self {
            // Each request takes one seat.
            waiting: [
                gauge("apiserver_flowcontrol_current_inqueue_requests", "Number of queued requests."),
                gauge("apiserver_flowcontrol_current_inqueue_seats", "Number of seats that queued requests need."),
            ],
            waiting_kinds: make.gauge(
                "apiserver_current_inqueue_requests",
                "Number of queued requests.",
                &["request_kind"],
            ),
            executing: [
                gauge("apiserver_flowcontrol_current_executing_requests", "Number of requests that hold a seat."),
                gauge("apiserver_flowcontrol_current_executing_seats", "Number of seats in use."),
            ],
            limits: [
                limit("apiserver_flowcontrol_nominal_limit_seats", "Nominal number of seats."),
                limit("apiserver_flowcontrol_current_limit_seats", "Current number of seats."),
            ],
            dispatched: make.counter(
                "apiserver_flowcontrol_dispatched_requests_total",
                "Number of requests that got a seat.",
                &FLOW,
            ),
            rejected: make.counter(
                "apiserver_flowcontrol_rejected_requests_total",
                "Number of requests refused for lack of seats.",
                &["flow_schema", "priority_level", "reason"],
            ),
            waits: make.histogram(
                "apiserver_flowcontrol_request_wait_duration_seconds",
                "Time that requests were queued, in seconds.",
                &["flow_schema", "priority_level", "execute"],
                &DURATIONS,
            ),
            executions: make.histogram(
                "apiserver_flowcontrol_request_execution_seconds",
                "Time that requests held a seat, in seconds.",
                &["flow_schema", "priority_level", "type"],
                &DURATIONS,
            ),
        }
    }

    /// Returns the metrics of one level with this number of seats.
    pub(super) fn of(&self, sort: &'static str, seats: usize) -> FlowMetrics {
        let own = [FLOW_SCHEMA, sort];
        let gauges = |all: &[IntGaugeVec; 2]| [0, 1].map(|at| all[at].with_label_values(&own));
        for limit in &self.limits {
            limit.with_label_values(&[sort]).set(i64::try_from(seats).unwrap_or(i64::MAX));
        }
        let kind = if sort == "reads" { "readOnly" } else { "mutating" };
        let [requests, seats] = gauges(&self.waiting);
        FlowMetrics {
            waiting: [requests, seats, self.waiting_kinds.with_label_values(&[kind])],
            executing: gauges(&self.executing),
            dispatched: self.dispatched.with_label_values(&own),
            rejected: self.rejected.clone(),
            waits: ["true", "false"].map(|execute| self.waits.with_label_values(&[FLOW_SCHEMA, sort, execute])),
            executions: self.executions.with_label_values(&[FLOW_SCHEMA, sort, "regular"]),
            sort,
        }
    }
}

impl FlowMetrics {
    /// Counts a waiting request for as long as the result is held.
    pub(crate) fn waiting(&self) -> [GaugeGuard; 3] {
        [0, 1, 2].map(|at| GaugeGuard::new(self.waiting[at].clone()))
    }

    /// Counts a request that got a seat after this time, in seconds.
    pub(crate) fn executing(&self, waited: f64) -> ExecutingRequest {
        self.waits[0].observe(waited);
        self.dispatched.inc();
        let counted = [0, 1].map(|at| GaugeGuard::new(self.executing[at].clone()));
        ExecutingRequest { _counted: counted, since: Instant::now(), took: self.executions.clone() }
    }

    /// Counts a request that was refused after this time, in seconds.
    pub(crate) fn rejected(&self, reason: &str, waited: f64) {
        self.waits[1].observe(waited);
        self.rejected.with_label_values(&[FLOW_SCHEMA, self.sort, reason]).inc();
    }
}

impl Drop for ExecutingRequest {
    fn drop(&mut self) {
        self.took.observe(self.since.elapsed().as_secs_f64());
    }
}
