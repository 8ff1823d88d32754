//! Scrubber: reads all of a store on disk from time to time, in the background. Damage is otherwise found only in data
//! that something reads.
//!
//! A scrub is an [`crate::integrity::audit`] in slices. Each slice reads the latest state, so that no writer waits and
//! no old state is kept. It reads a bounded number of bytes per second and rests three times as long as it works. Pages
//! in the engine's cache are not read again: they were checked when they were read from disk.

use std::{
    sync::Arc,
    thread::{self, JoinHandle},
    time::Duration,
};

use parking_lot::{Condvar, Mutex};
use portolan_types::{Clock, MonotonicInstant};
use prometheus::{IntGauge, Registry};

use crate::{
    api::damage::DamageReport, engine::NotOpen, integrity::audit::IncrementalAudit, metrics::register,
    write::core::StoreCore,
};

/// Delay of the first scrub, so that it does not slow the start.
const FIRST_DELAY: Duration = Duration::from_secs(300);
/// Bytes of a slice: a few milliseconds of work.
const SLICE_SIZE: usize = 128 << 10;
/// Most bytes read per second.
const BYTES_PER_SECOND: f64 = (16 << 20) as f64;
/// Length of a rest, as a multiple of the work before it.
const REST_FACTOR: u32 = 3;

/// Background thread that scrubs the store until this is dropped.
pub(crate) struct Scrubber {
    over: Arc<StopSignal>,
    thread: Option<JoinHandle<()>>,
}

/// Signal that ends the thread.
#[derive(Default)]
struct StopSignal(Mutex<bool>, Condvar);

impl StopSignal {
    fn set(&self) {
        *self.0.lock() = true;
        self.1.notify_all();
    }

    /// Waits for `time`; returns true if the signal was set meanwhile.
    fn wait(&self, time: Duration) -> bool {
        let mut over = self.0.lock();
        self.1.wait_while_for(&mut over, |over| !*over, time);
        *over
    }
}

/// Metrics of the last complete scrub.
struct ScrubReport {
    at: IntGauge,
    entries: IntGauge,
}

impl ScrubReport {
    fn new(registry: Option<&Registry>) -> prometheus::Result<Self> {
        let (at, entries) = ("portolan_store_inspected_timestamp_seconds", "portolan_store_inspected_entries");
        let told = Self {
            at: IntGauge::new(at, "Unix time in seconds of the last complete scrub of the store; 0 before the first.")?,
            entries: IntGauge::new(entries, "Objects, superseded states and writes read by the last complete scrub.")?,
        };
        for gauge in [&told.at, &told.entries] {
            registry.into_iter().for_each(|registry| register(registry, Box::new(gauge.clone())));
        }
        Ok(told)
    }
}

impl Scrubber {
    /// Starts the thread. It scrubs soon, then `every` so often; an incomplete scrub is repeated soon.
    ///
    /// # Errors
    /// Fails if Prometheus rejects the name of a metric.
    pub(crate) fn start(
        core: Arc<StoreCore>,
        every: Duration,
        clock: Arc<dyn Clock>,
        registry: Option<&Registry>,
    ) -> prometheus::Result<Self> {
        let (over, told) = (Arc::new(StopSignal::default()), ScrubReport::new(registry)?);
        let until = over.clone();
        let work = move || {
            let soon = every.min(FIRST_DELAY);
            let mut wait = soon;
            while !until.wait(wait) {
                let looked = scrub(&core, &until);
                wait = if looked.is_some() { every } else { soon };
                if let Some(rounds) = looked {
                    told.at.set(clock.now().as_second());
                    told.entries.set(i64::try_from(rounds.entries()).unwrap_or(i64::MAX));
                    core.faults.replace(other_damage(rounds.findings));
                }
            }
        };
        let thread = thread::Builder::new().name("store-inspection".into()).spawn(work);
        if let Err(error) = &thread {
            tracing::error!(%error, "could not start the scrubber of the store");
        }
        Ok(Self { over, thread: thread.ok() })
    }

    /// Stops the scrub in progress and the thread.
    pub(crate) fn end(&self) {
        self.over.set();
    }
}

impl Drop for Scrubber {
    fn drop(&mut self) {
        self.end();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Scrubs the whole store; returns `None` if it was stopped before the end or the engine is not open.
fn scrub(core: &StoreCore, over: &StopSignal) -> Option<IncrementalAudit> {
    let mut rounds = IncrementalAudit::default();
    loop {
        let begun = MonotonicInstant::now();
        let looked = core.view(|view| rounds.slice(view, &core.resources, SLICE_SIZE)).and_then(|looked| looked);
        for (found, index) in rounds.take_damaged() {
            core.note(&found, index.as_ref());
        }
        let bytes = match looked {
            Ok(None) => return Some(rounds),
            Ok(Some(bytes)) => bytes,
            Err(error) if NotOpen::is_cause_of(&error) => return None,
            Err(error) => {
                rounds.skip_pass(error);
                0
            }
        };
        let rest = Duration::from_secs_f64(bytes as f64 / BYTES_PER_SECOND).max(begun.elapsed() * REST_FACTOR);
        if over.wait(rest) || core.hub.is_closed() {
            return None;
        }
    }
}

/// Returns the damage beside latest objects, which are known individually.
fn other_damage(findings: DamageReport) -> impl Iterator<Item = String> {
    let DamageReport { earlier, other, .. } = findings;
    earlier.first.into_iter().map(|state| format!("an earlier state of {state}")).chain(other)
}

#[cfg(test)]
mod tests;
