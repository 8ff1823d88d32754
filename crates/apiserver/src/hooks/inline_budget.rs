//! Time budget for expressions that run inline on threads which other requests need.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

/// Total of all inline evaluations of one request, in microseconds.
const TOTAL_MICROS: u64 = 10_000;
/// Duration after which an evaluation yields, in microseconds.
const YIELD_MICROS: u64 = 500;

/// Time that the inline evaluations of one request have used, in microseconds.
#[derive(Default)]
pub(crate) struct InlineBudget(AtomicU64);

impl InlineBudget {
    /// Returns true while the budget lasts.
    pub(crate) fn has_time(&self) -> bool {
        self.0.load(Ordering::Relaxed) < TOTAL_MICROS
    }

    /// Records the time of one evaluation. Returns true if the task should yield now.
    pub(crate) fn record(&self, used: Duration) -> bool {
        // Even an evaluation that is too short to measure is charged.
        let used = u64::try_from(used.as_micros()).unwrap_or(TOTAL_MICROS).clamp(1, TOTAL_MICROS);
        let before = self.0.fetch_add(used, Ordering::Relaxed);
        before / YIELD_MICROS != (before + used) / YIELD_MICROS
    }
}
