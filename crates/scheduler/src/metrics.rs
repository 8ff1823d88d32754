//! Metrics of the scheduler: a constant number of series.

use std::sync::Arc;

use portolan_placement::DecisionOutcome;
use portolan_types::placement::{CopyPhase, PlacementRecord};
use prometheus::{
    Histogram, HistogramOpts, IntCounterVec, IntGaugeVec, Opts,
    core::{Collector, Desc},
    proto::MetricFamily,
};

use crate::{context::SchedulerContext, scheduler::Scheduler};

/// Buckets of durations in seconds: from 0.1 ms, each about three times the one before.
const BUCKETS: [f64; 10] = [0.000_1, 0.000_3, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0];
/// Causes of transitions that evict copies.
const EVICTING: [&str; 4] = ["Taint", "Failover", "Drain", "Deletion"];

/// Metrics of one scheduler.
pub(crate) struct SchedulerMetrics {
    decisions: IntCounterVec,
    moves: IntCounterVec,
    evictions: IntCounterVec,
    drains: IntGaugeVec,
    /// Time from reading an object to its committed step.
    pub(crate) decision_seconds: Histogram,
    /// Time of a `PlacementPlan`.
    pub(crate) plan_seconds: Histogram,
    /// Time of a pass over the objects of a drain.
    pub(crate) drain_pass_seconds: Histogram,
}

impl Default for SchedulerMetrics {
    fn default() -> Self {
        let clearly = "names and labels are constants";
        let counter =
            |name: &str, help: &str, label: &str| IntCounterVec::new(Opts::new(name, help), &[label]).expect(clearly);
        let histogram = |name: &str, help: &str| {
            Histogram::with_opts(HistogramOpts::new(name, help).buckets(BUCKETS.to_vec())).expect(clearly)
        };
        let drains = Opts::new("portolan_drains", "Drains by phase.");
        Self {
            decisions: counter("portolan_scheduler_decisions_total", "Decisions about objects by outcome.", "outcome"),
            moves: counter(
                "portolan_scheduler_moves_total",
                "Committed steps that change where an object is, by the reason of the transition.",
                "reason",
            ),
            evictions: counter(
                "portolan_scheduler_evictions_total",
                "Copies that began to leave a physical cluster that is tainted, lost, drained or deleted.",
                "reason",
            ),
            drains: IntGaugeVec::new(drains, &["phase"]).expect(clearly),
            decision_seconds: histogram(
                "portolan_scheduler_decision_duration_seconds",
                "Time from reading an object to its committed step.",
            ),
            plan_seconds: histogram("portolan_scheduler_plan_duration_seconds", "Time to compute a PlacementPlan."),
            drain_pass_seconds: histogram(
                "portolan_scheduler_drain_pass_duration_seconds",
                "Time of a pass over the objects of a drain.",
            ),
        }
    }
}

impl SchedulerMetrics {
    /// Counts a decision.
    pub(crate) fn decided(&self, outcome: &DecisionOutcome) {
        let word = match outcome {
            DecisionOutcome::Placed => "placed",
            DecisionOutcome::Partly(_) => "partly",
            DecisionOutcome::Unplaced => "unplaced",
            DecisionOutcome::Stopped => "stopped",
            DecisionOutcome::Finished => "finished",
            DecisionOutcome::Refused(_) => "refused",
            DecisionOutcome::Suspended(_) => "suspended",
        };
        self.decisions.with_label_values(&[word]).inc();
    }

    /// Counts a committed step with its reason.
    pub(crate) fn moved(&self, before: &PlacementRecord, after: &PlacementRecord, reason: &str) {
        let uids = |record: &PlacementRecord| record.active().map(|copy| copy.uid.clone()).collect::<Vec<_>>();
        if uids(before) == uids(after) {
            return;
        }
        self.moves.with_label_values(&[reason]).inc();
        let begins = |uid| after.on(uid).is_some_and(|copy| copy.phase == CopyPhase::Leaving);
        let leaving = before.active().filter(|copy| begins(&copy.uid)).count() as u64;
        if leaving > 0 && EVICTING.contains(&reason) {
            self.evictions.with_label_values(&[reason]).inc_by(leaving);
        }
    }
}

/// Collector of the metrics of a scheduler.
pub struct SchedulerCollector(Arc<SchedulerContext>);

impl SchedulerCollector {
    fn parts(&self) -> [&dyn Collector; 7] {
        let metrics = &self.0.metrics;
        [
            &metrics.decisions,
            &metrics.moves,
            &metrics.evictions,
            &metrics.drains,
            &metrics.decision_seconds,
            &metrics.plan_seconds,
            &metrics.drain_pass_seconds,
        ]
    }
}

impl Collector for SchedulerCollector {
    fn desc(&self) -> Vec<&Desc> {
        self.parts().into_iter().flat_map(|part| part.desc()).collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        for (phase, number) in self.0.facts().drains.phases() {
            self.0.metrics.drains.with_label_values(&[phase.word()]).set(number);
        }
        self.parts().into_iter().flat_map(|part| part.collect()).collect()
    }
}

impl Scheduler {
    /// Returns a collector of the scheduler's metrics.
    pub fn metrics(&self) -> SchedulerCollector {
        SchedulerCollector(self.ctx.clone())
    }
}
