//! Looking from time to time, beside all other work, at all that a store on a disk holds. Who reads comes across damage in what it
//! reads; what nobody reads would be damaged for as long.
//!
//! A look is [`crate::audit`]'s, in slices: each sees the state of its own moment, so that no writer waits and no old state is kept. It reads
//! at most so many bytes a second, and rests three times as long as it works. What the engine has in memory it takes from there: that
//! was read from the disk, and checked, before.

use std::{
    sync::Arc,
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};
use portolan_types::Clock;
use prometheus::{IntGauge, Registry};

use crate::{Findings, audit::Rounds, core::Core, kv::NotOpen, metrics::register};

/// Before the first look: a start has other things to do.
const FIRST: Duration = Duration::from_secs(300);
/// Bytes of a slice: a few milliseconds of work.
const SLICE: usize = 128 << 10;
/// Bytes that are read in a second at most.
const PACE: f64 = (16 << 20) as f64;
/// A rest is at least so many times as long as the work before it.
const REST: u32 = 3;

/// A thread that looks, until this is dropped.
pub(crate) struct Inspection {
    over: Arc<Over>,
    thread: Option<JoinHandle<()>>,
}

/// Whether nobody waits for a look any more.
#[derive(Default)]
struct Over(Mutex<bool>, Condvar);

impl Over {
    fn set(&self) {
        *self.0.lock() = true;
        self.1.notify_all();
    }

    /// Waits for so long; `true` when it is over before.
    fn within(&self, time: Duration) -> bool {
        let (until, mut over) = (Instant::now() + time, self.0.lock());
        while !*over && !self.1.wait_until(&mut over, until).timed_out() {}
        *over
    }
}

/// What is told of the last look that came to its end.
struct Told {
    at: IntGauge,
    entries: IntGauge,
}

impl Told {
    fn new(registry: Option<&Registry>) -> prometheus::Result<Self> {
        let (at, entries) = ("portolan_store_inspected_timestamp_seconds", "portolan_store_inspected_entries");
        let told = Self {
            at: IntGauge::new(at, "When all that is stored was looked at last, in seconds since 1970; 0 if not yet.")?,
            entries: IntGauge::new(entries, "Objects, earlier states and writes that were looked at then.")?,
        };
        for gauge in [&told.at, &told.entries] {
            registry.into_iter().for_each(|registry| register(registry, Box::new(gauge.clone())));
        }
        Ok(told)
    }
}

impl Inspection {
    /// Looks soon, and again so long after each look; soon after one that did not come to its end.
    ///
    /// # Errors
    /// For a metric whose name Prometheus refuses.
    pub(crate) fn start(
        core: Arc<Core>,
        every: Duration,
        clock: Arc<dyn Clock>,
        registry: Option<&Registry>,
    ) -> prometheus::Result<Self> {
        let (over, told) = (Arc::new(Over::default()), Told::new(registry)?);
        let until = over.clone();
        let work = move || {
            let soon = every.min(FIRST);
            let mut wait = soon;
            while !until.within(wait) {
                let looked = look(&core, &until);
                wait = if looked.is_some() { every } else { soon };
                if let Some(rounds) = looked {
                    told.at.set(clock.now().as_second());
                    told.entries.set(i64::try_from(rounds.entries()).unwrap_or(i64::MAX));
                    core.faults.replace(others(rounds.findings));
                }
            }
        };
        let thread = thread::Builder::new().name("store-inspection".into()).spawn(work);
        if let Err(error) = &thread {
            tracing::error!(%error, "the store is not looked at while it is in use");
        }
        Ok(Self { over, thread: thread.ok() })
    }

    /// Ends the look that is under way, and looks no more.
    pub(crate) fn end(&self) {
        self.over.set();
    }
}

impl Drop for Inspection {
    fn drop(&mut self) {
        self.end();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Looks at all there is; `None` when it was ended before, or there was nothing open to look at.
fn look(core: &Core, over: &Over) -> Option<Rounds> {
    let mut rounds = Rounds::default();
    loop {
        let begun = Instant::now();
        let looked = core.view(|view| rounds.slice(view, &core.resources, SLICE)).and_then(|looked| looked);
        for (found, index) in rounds.met() {
            core.note(&found, index.as_ref());
        }
        let bytes = match looked {
            Ok(None) => return Some(rounds),
            Ok(Some(bytes)) => bytes,
            Err(error) if NotOpen::is_cause_of(&error) => return None,
            Err(error) => {
                rounds.pass_over(error);
                0
            }
        };
        let rest = Duration::from_secs_f64(bytes as f64 / PACE).max(begun.elapsed() * REST);
        if over.within(rest) || core.hub.is_closed() {
            return None;
        }
    }
}

/// What was found beside damaged objects, which are known one by one.
fn others(findings: Findings) -> impl Iterator<Item = String> {
    let Findings { earlier, other, .. } = findings;
    earlier.first.into_iter().map(|state| format!("an earlier state of {state}")).chain(other)
}

#[cfg(test)]
mod tests;
