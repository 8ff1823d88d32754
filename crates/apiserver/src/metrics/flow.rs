//! Requests that take seats, under the names that kube-apiserver has for its priority and fairness. There is one way in which requests are
//! sorted, by logical cluster and user, and a level for each sort of seats.

use prometheus::{Histogram, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec};
use tokio::time::Instant;

use super::Maker;
use crate::pipeline::Counted;

/// The one way in which requests are sorted.
const FLOW_SCHEMA: &str = "logical-clusters";
const FLOW: [&str; 2] = ["flow_schema", "priority_level"];
/// Buckets of the time that requests wait and take, in seconds.
const DURATIONS: [f64; 13] = [0.0, 0.005, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 15.0, 30.0];

/// What is counted of all sorts of requests.
pub(super) struct Flows {
    waiting: [IntGaugeVec; 2],
    /// By whether they may change something.
    waiting_kinds: IntGaugeVec,
    executing: [IntGaugeVec; 2],
    limits: [IntGaugeVec; 2],
    dispatched: IntCounterVec,
    rejected: IntCounterVec,
    waits: HistogramVec,
    executions: HistogramVec,
}

/// What is counted of requests of one sort.
pub(crate) struct FlowMetrics {
    waiting: [IntGauge; 3],
    executing: [IntGauge; 2],
    dispatched: IntCounter,
    rejected: IntCounterVec,
    /// Of those that got a seat, and of those that did not.
    waits: [Histogram; 2],
    executions: Histogram,
    sort: &'static str,
}

/// A request that has a seat. It is counted until it is dropped.
pub(crate) struct Executing {
    _counted: [Counted; 2],
    since: Instant,
    took: Histogram,
}

impl Flows {
    pub(super) fn new(make: &Maker) -> Self {
        let gauge = |name: &str, help: &str| make.gauge(name, help, &FLOW);
        let limit = |name: &str, help: &str| make.gauge(name, help, &FLOW[1..]);
        Self {
            // A request takes one seat.
            waiting: [
                gauge("apiserver_flowcontrol_current_inqueue_requests", "Requests that wait for their turn."),
                gauge("apiserver_flowcontrol_current_inqueue_seats", "Seats that requests wait for."),
            ],
            waiting_kinds: make.gauge(
                "apiserver_current_inqueue_requests",
                "Requests that wait for their turn.",
                &["request_kind"],
            ),
            executing: [
                gauge("apiserver_flowcontrol_current_executing_requests", "Requests that have their turn."),
                gauge("apiserver_flowcontrol_current_executing_seats", "Seats that are taken."),
            ],
            limits: [
                limit("apiserver_flowcontrol_nominal_limit_seats", "Seats that there are."),
                limit("apiserver_flowcontrol_current_limit_seats", "Seats that there are at present."),
            ],
            dispatched: make.counter(
                "apiserver_flowcontrol_dispatched_requests_total",
                "Requests that had their turn.",
                &FLOW,
            ),
            rejected: make.counter(
                "apiserver_flowcontrol_rejected_requests_total",
                "Requests that were told to come back.",
                &["flow_schema", "priority_level", "reason"],
            ),
            waits: make.histogram(
                "apiserver_flowcontrol_request_wait_duration_seconds",
                "Time that requests waited for their turn.",
                &["flow_schema", "priority_level", "execute"],
                &DURATIONS,
            ),
            executions: make.histogram(
                "apiserver_flowcontrol_request_execution_seconds",
                "Time that requests had a seat.",
                &["flow_schema", "priority_level", "type"],
                &DURATIONS,
            ),
        }
    }

    /// Those of a sort, of which there are so many seats.
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
    /// One more that is not under way yet, for as long as the answer is kept.
    pub(crate) fn waiting(&self) -> [Counted; 3] {
        [0, 1, 2].map(|at| Counted::new(self.waiting[at].clone()))
    }

    /// One that has a seat, after so many seconds.
    pub(crate) fn executing(&self, waited: f64) -> Executing {
        self.waits[0].observe(waited);
        self.dispatched.inc();
        let counted = [0, 1].map(|at| Counted::new(self.executing[at].clone()));
        Executing { _counted: counted, since: Instant::now(), took: self.executions.clone() }
    }

    /// One that is told to come back after so many seconds, and why.
    pub(crate) fn rejected(&self, reason: &str, waited: f64) {
        self.waits[1].observe(waited);
        self.rejected.with_label_values(&[FLOW_SCHEMA, self.sort, reason]).inc();
    }
}

impl Drop for Executing {
    fn drop(&mut self) {
        self.took.observe(self.since.elapsed().as_secs_f64());
    }
}
