//! How much history stays: the loop that forgets what is older, or more, than that.

#[cfg(test)]
mod tests;

use std::{convert::Infallible, time::Duration};

use portolan_types::{ResourceVersion, work::Backoff};
use prometheus::{IntCounterVec, IntGauge, Opts, Registry};
use tokio::time::Instant;

use crate::{DynStore, Store, StoreError};

/// How often the number of revisions is looked at.
const LOOK: Duration = Duration::from_secs(1);
/// Before a compaction that failed is tried again.
const RETRY: Backoff = Backoff { first: Duration::from_secs(1), longest: Duration::from_secs(60) };

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
}

impl HistoryMetrics {
    /// Registers them.
    ///
    /// # Errors
    /// When there is something of these names already.
    pub fn register(registry: &Registry) -> prometheus::Result<Self> {
        let tries = Opts::new("portolan_store_compactions_total", "Compactions of history, by how they ended.");
        let failing = "Compactions that failed since one was done; history grows meanwhile.";
        let metrics = Self {
            compactions: IntCounterVec::new(tries, &["outcome"])?,
            failing: IntGauge::new("portolan_store_compactions_failing", failing)?,
        };
        registry.register(Box::new(metrics.compactions.clone()))?;
        registry.register(Box::new(metrics.failing.clone()))?;
        Ok(metrics)
    }
}

/// Who does not compact any more has no failures.
struct Cleared<'a>(&'a IntGauge);

impl Drop for Cleared<'_> {
    fn drop(&mut self) {
        self.0.set(0);
    }
}

/// Compacts a store for ever. What fails is tried again, however long that goes on: history grows meanwhile, which the log says
/// once and the metrics all the time.
pub async fn keep_history(store: DynStore, bounds: HistoryBounds, metrics: HistoryMetrics) -> Infallible {
    let (mut seen, mut since) = (store.current(), Instant::now());
    let mut failures = 0;
    let _cleared = Cleared(&metrics.failing);
    loop {
        let wait = if failures == 0 { LOOK.min(bounds.time) } else { RETRY.after(failures, u32::MAX) };
        tokio::time::sleep(wait).await;
        let aged = (since.elapsed() >= bounds.time).then_some(seen);
        let outcome = bounds.enforce(&*store, aged).await;
        failures = note(&outcome, failures, &metrics);
        if aged.is_some() && matches!(outcome, Ok(Compaction::Done | Compaction::NotDue)) {
            (seen, since) = (store.current(), Instant::now());
        }
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
