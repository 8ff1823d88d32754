//! How much history stays: the loop that forgets what is older, or more, than that.

#[cfg(test)]
mod tests;

use std::{convert::Infallible, ops::RangeInclusive, time::Duration};

use portolan_types::{ResourceVersion, work::Backoff};
use prometheus::{IntCounterVec, IntGauge, Opts, Registry};
use tokio::time::Instant;

use crate::{DynStore, Store, StoreError};

/// How often the number of revisions is looked at.
const LOOK: Duration = Duration::from_secs(1);
/// Before a compaction that failed is tried again.
const RETRY: Backoff = Backoff { first: Duration::from_secs(1), longest: Duration::from_secs(60) };
/// What has been held for so many times the time that history stays is told of, each time anew.
const HELD_TIMES: u32 = 3;
/// But neither sooner nor later than this.
const HELD: RangeInclusive<Duration> = Duration::from_secs(60)..=Duration::from_secs(3600);

/// How much history stays: what watches resume from and pages go on at. Whichever bound is reached first counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HistoryBounds {
    /// What is as old may be forgotten, and is before it is twice as old.
    pub time: Duration,
    /// At most so many revisions stay, in the engine's own count ([`Store::back`]), give or take what is written within a
    /// second; a quarter is forgotten at once, so that a compaction is worth its cost.
    pub revisions: u64,
}

impl HistoryBounds {
    /// Forgets what is too much of a store's history. `aged` is what is too old.
    ///
    /// # Errors
    /// Those of [`Store::compact`].
    pub async fn enforce(&self, store: &dyn Store, aged: Option<ResourceVersion>) -> Result<Compaction, StoreError> {
        let most = store.back(self.revisions);
        let fewer = store.back(self.revisions - self.revisions / 4);
        let before = store.oldest();
        let Some(upto) = due(before, aged, most, fewer) else { return Ok(Compaction::NotDue) };
        store.compact(upto).await?;
        let now = store.oldest();
        // What is too much may end within a transaction, which stays whole; a place in time is at the end of one.
        Ok(match (now == before, aged.is_some_and(|aged| now < aged)) {
            (true, _) => Compaction::Held,
            (false, true) => Compaction::Partly,
            (false, false) => Compaction::Done,
        })
    }
}

/// Whether history was forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compaction {
    /// It was.
    Done,
    /// Some of what is due was; somebody still reads the rest.
    Partly,
    /// Nothing was: somebody still reads all that is due.
    Held,
    /// There is none that is too old or too much.
    NotDue,
}

/// Up to where history is to be forgotten, of which `oldest` is the oldest there is: what has aged, or all before `fewer` once
/// some of it is before `most`.
fn due(
    oldest: ResourceVersion,
    aged: Option<ResourceVersion>,
    most: ResourceVersion,
    fewer: ResourceVersion,
) -> Option<ResourceVersion> {
    let many = (oldest < most).then_some(fewer);
    aged.max(many).filter(|upto| *upto > oldest)
}

/// What compaction tells about itself.
#[derive(Clone)]
pub struct HistoryMetrics {
    compactions: IntCounterVec,
    failing: IntGauge,
    held: IntGauge,
}

impl HistoryMetrics {
    /// Registers them.
    ///
    /// # Errors
    /// When there is something of these names already.
    pub fn register(registry: &Registry) -> prometheus::Result<Self> {
        let tries = Opts::new("portolan_store_compactions_total", "Compactions of history, by how they ended.");
        let failing = "Compactions that failed since one was done; history grows meanwhile.";
        let held =
            "Seconds for which history that is due to be forgotten has been kept because somebody still reads it.";
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

/// Who does not compact any more has no failures, and nobody keeps it from anything.
struct Cleared<'a>(&'a HistoryMetrics);

impl Drop for Cleared<'_> {
    fn drop(&mut self) {
        self.0.failing.set(0);
        self.0.held.set(0);
    }
}

/// Compacts a store for ever. What fails is tried again, however long that goes on: history grows meanwhile, which the log says
/// once and the metrics all the time.
pub async fn keep_history(store: DynStore, bounds: HistoryBounds, metrics: HistoryMetrics) -> Infallible {
    let (mut seen, mut since) = (store.current(), Instant::now());
    let mut failures = 0;
    let mut held = Held::new(bounds);
    let _cleared = Cleared(&metrics);
    loop {
        let wait = if failures == 0 { LOOK.min(bounds.time) } else { RETRY.after(failures, u32::MAX) };
        tokio::time::sleep(wait).await;
        let aged = (since.elapsed() >= bounds.time).then_some(seen);
        let outcome = bounds.enforce(&*store, aged).await;
        failures = note(&outcome, failures, &metrics);
        if held.note(&outcome, &metrics) {
            tracing::warn!(
                oldest = %store.oldest(),
                "history grows: somebody has been reading this old state for long, as a snapshot that is being saved",
            );
        }
        if aged.is_some() && matches!(outcome, Ok(Compaction::Done | Compaction::NotDue)) {
            (seen, since) = (store.current(), Instant::now());
        }
    }
}

/// How long what is due has been held.
struct Held {
    since: Option<Instant>,
    /// When it is told of, and after as much time again.
    patience: Duration,
    told: u32,
}

impl Held {
    fn new(bounds: HistoryBounds) -> Self {
        let patience = bounds.time.saturating_mul(HELD_TIMES).clamp(*HELD.start(), *HELD.end());
        Self { since: None, patience, told: 0 }
    }

    /// Notes how a compaction ended, and whether that is to be told.
    fn note(&mut self, outcome: &Result<Compaction, StoreError>, metrics: &HistoryMetrics) -> bool {
        match outcome {
            Ok(Compaction::Held) => drop(self.since.get_or_insert_with(Instant::now)),
            // What holds the rest is not what held this.
            Ok(Compaction::Partly) => (self.since, self.told) = (Some(Instant::now()), 0),
            Ok(Compaction::Done | Compaction::NotDue) => (self.since, self.told) = (None, 0),
            Err(_) => {}
        }
        let long = self.since.map_or(Duration::ZERO, |since| since.elapsed());
        metrics.held.set(i64::try_from(long.as_secs()).unwrap_or(i64::MAX));
        let is_told = self.since.is_some() && long >= self.patience.saturating_mul(self.told + 1);
        self.told += u32::from(is_told);
        is_told
    }
}

/// Tells how a compaction ended after so many that failed, and how many have failed now.
fn note(outcome: &Result<Compaction, StoreError>, before: u32, metrics: &HistoryMetrics) -> u32 {
    let failures = match outcome {
        // Nothing was tried, which is neither a failure nor the end of one.
        Ok(Compaction::NotDue | Compaction::Held) => before,
        Ok(Compaction::Done | Compaction::Partly) => {
            metrics.compactions.with_label_values(&["done"]).inc();
            if before > 0 {
                tracing::info!(failures = before, "history is compacted again");
            }
            0
        }
        Err(error) => {
            metrics.compactions.with_label_values(&["failed"]).inc();
            if before == 0 {
                tracing::warn!(%error, "history cannot be compacted and grows, this is tried again");
            }
            before.saturating_add(1)
        }
    };
    metrics.failing.set(failures.into());
    failures
}
