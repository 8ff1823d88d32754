//! Retention of history: the loop that compacts what exceeds a bound of age, number or bytes.

#[cfg(test)]
mod tests;

use std::{convert::Infallible, ops::RangeInclusive, time::Duration};

use portolan_types::{ResourceVersion, work::Backoff};
use prometheus::{IntCounterVec, IntGauge, Opts, Registry};
use tokio::time::Instant;

use crate::api::{DynStore, Store, StoreError};

/// Interval between checks of the bounds.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Backoff after a failed compaction.
const RETRY: Backoff = Backoff { first: Duration::from_secs(1), longest: Duration::from_secs(60) };
/// Multiple of [`HistoryBounds::time`] after which held history is logged, and logged again.
const HELD_LOG_FACTOR: u32 = 3;
/// Limits of that interval.
const HELD_LOG_INTERVAL: RangeInclusive<Duration> = Duration::from_secs(60)..=Duration::from_secs(3600);

/// Bounds of the history, from which watches resume and lists continue. The first one that is reached counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HistoryBounds {
    /// Age at which history may be compacted; it is compacted before it is twice as old.
    pub time: Duration,
    /// Most revisions, in the engine's own count ([`Store::back`]), plus those written within a second. A compaction
    /// removes a quarter of them, to be worth its cost.
    pub revisions: u64,
    /// Most bytes of superseded objects, plus those written within a second. A compaction removes a quarter of them. An
    /// embedded engine keeps fewer if its disk has less space. Not enforced with etcd, which does not count them.
    pub bytes: u64,
}

impl HistoryBounds {
    /// Compacts the history of a store that exceeds a bound. `aged` is the latest revision that is too old.
    ///
    /// # Errors
    /// Returns the errors of [`Store::compact`].
    pub async fn enforce(
        &self,
        store: &dyn Store,
        aged: Option<ResourceVersion>,
    ) -> Result<CompactionOutcome, StoreError> {
        let most = store.back(self.revisions);
        let fewer = store.back(self.revisions - self.revisions / 4);
        let before = store.oldest();
        let upto = compaction_target(before, aged, most, fewer);
        if upto.is_none() && !self.has_too_many_bytes(store) {
            return Ok(CompactionOutcome::NotDue);
        }
        if let Some(upto) = upto {
            store.compact(upto).await?;
        }
        if self.has_too_many_bytes(store) {
            store.shrink_history(self.bytes - self.bytes / 4).await?;
        }
        let now = store.oldest();
        // The revision limit may fall within a transaction, which is then kept completely; the age limit is at the end
        // of one.
        Ok(match (now == before, aged.is_some_and(|aged| now < aged)) {
            (true, _) => CompactionOutcome::Held,
            (false, true) => CompactionOutcome::Partly,
            (false, false) => CompactionOutcome::Done,
        })
    }

    fn has_too_many_bytes(&self, store: &dyn Store) -> bool {
        store.history_bytes().is_some_and(|bytes| bytes > self.bytes)
    }
}

/// Outcome of enforcing the bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompactionOutcome {
    /// All history beyond the bounds was compacted.
    Done,
    /// Some of it was compacted; a hold keeps the rest.
    Partly,
    /// Nothing was compacted: a hold keeps all of it.
    Held,
    /// No bound is exceeded.
    NotDue,
}

/// Returns the revision up to which history is to be compacted: the aged one, or `fewer` once `oldest` is before
/// `most`.
fn compaction_target(
    oldest: ResourceVersion,
    aged: Option<ResourceVersion>,
    most: ResourceVersion,
    fewer: ResourceVersion,
) -> Option<ResourceVersion> {
    let many = (oldest < most).then_some(fewer);
    aged.max(many).filter(|upto| *upto > oldest)
}

/// Metrics of compaction.
#[derive(Clone)]
pub struct HistoryMetrics {
    compactions: IntCounterVec,
    failing: IntGauge,
    held: IntGauge,
}

impl HistoryMetrics {
    /// Registers the metrics.
    ///
    /// # Errors
    /// Fails if metrics of these names are registered already.
    pub fn register(registry: &Registry) -> prometheus::Result<Self> {
        let tries = Opts::new("portolan_store_compactions_total", "Compactions of history, by outcome.");
        let failing = "Failed compactions since the last successful one; history grows meanwhile.";
        let held = "Seconds for which a hold has kept history that is due for compaction.";
        let metrics = Self {
            compactions: IntCounterVec::new(tries, &["outcome"])?,
            failing: IntGauge::new("portolan_store_compactions_failing", failing)?,
            held: IntGauge::new("portolan_store_history_held_seconds", held)?,
        };
        registry.register(Box::new(metrics.compactions.clone()))?;
        registry.register(Box::new(metrics.failing.clone()))?;
        registry.register(Box::new(metrics.held.clone()))?;
        Ok(metrics)
    }
}

/// Guard that resets the gauges when this server stops compacting.
struct MetricsReset<'a>(&'a HistoryMetrics);

impl Drop for MetricsReset<'_> {
    fn drop(&mut self) {
        self.0.failing.set(0);
        self.0.held.set(0);
    }
}

/// Compacts a store until it is canceled. Failed compactions are retried with backoff; the first is logged, and the
/// metrics count all.
pub async fn run_history_retention(store: DynStore, bounds: HistoryBounds, metrics: HistoryMetrics) -> Infallible {
    let (mut seen, mut since) = (store.current(), Instant::now());
    let mut failures = 0;
    let mut held = HeldHistory::new(bounds);
    let _reset = MetricsReset(&metrics);
    loop {
        let wait = if failures == 0 { CHECK_INTERVAL.min(bounds.time) } else { RETRY.after(failures, u32::MAX) };
        tokio::time::sleep(wait).await;
        let aged = (since.elapsed() >= bounds.time).then_some(seen);
        let outcome = bounds.enforce(&*store, aged).await;
        failures = record_outcome(&outcome, failures, &metrics);
        if held.record(&outcome, &metrics) {
            tracing::warn!(
                oldest = %store.oldest(),
                "history grows: a reader, such as a snapshot in progress, has held this revision for long",
            );
        }
        if aged.is_some() && matches!(outcome, Ok(CompactionOutcome::Done | CompactionOutcome::NotDue)) {
            (seen, since) = (store.current(), Instant::now());
        }
    }
}

/// Duration for which history that is due has been held.
struct HeldHistory {
    since: Option<Instant>,
    log_interval: Duration,
    logged: u32,
}

impl HeldHistory {
    fn new(bounds: HistoryBounds) -> Self {
        let interval = bounds.time.saturating_mul(HELD_LOG_FACTOR);
        let log_interval = interval.clamp(*HELD_LOG_INTERVAL.start(), *HELD_LOG_INTERVAL.end());
        Self { since: None, log_interval, logged: 0 }
    }

    /// Records an outcome, and returns true if the hold is to be logged.
    fn record(&mut self, outcome: &Result<CompactionOutcome, StoreError>, metrics: &HistoryMetrics) -> bool {
        match outcome {
            Ok(CompactionOutcome::Held) => drop(self.since.get_or_insert_with(Instant::now)),
            // The rest is kept by another hold.
            Ok(CompactionOutcome::Partly) => (self.since, self.logged) = (Some(Instant::now()), 0),
            Ok(CompactionOutcome::Done | CompactionOutcome::NotDue) => (self.since, self.logged) = (None, 0),
            Err(_) => {}
        }
        let held = self.since.map_or(Duration::ZERO, |since| since.elapsed());
        metrics.held.set(i64::try_from(held.as_secs()).unwrap_or(i64::MAX));
        let is_due = self.since.is_some() && held >= self.log_interval.saturating_mul(self.logged + 1);
        self.logged += u32::from(is_due);
        is_due
    }
}

/// Records the outcome of a compaction after `before` failed ones, and returns the new number of failed ones.
fn record_outcome(outcome: &Result<CompactionOutcome, StoreError>, before: u32, metrics: &HistoryMetrics) -> u32 {
    let failures = match outcome {
        // Nothing was tried, which is neither a failure nor the end of one.
        Ok(CompactionOutcome::NotDue | CompactionOutcome::Held) => before,
        Ok(CompactionOutcome::Done | CompactionOutcome::Partly) => {
            metrics.compactions.with_label_values(&["done"]).inc();
            if before > 0 {
                tracing::info!(failures = before, "history is compacted again");
            }
            0
        }
        Err(error) => {
            metrics.compactions.with_label_values(&["failed"]).inc();
            if before == 0 {
                tracing::warn!(%error, "history cannot be compacted and grows; retrying");
            }
            before.saturating_add(1)
        }
    };
    metrics.failing.set(failures.into());
    failures
}
