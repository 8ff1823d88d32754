//! Flush of sled that always ends.
//!
//! If a thread of sled fails to write the log, it keeps the error but wakes no waiter (`Log::exit_reservation` of
//! 0.34.7): a flush that is already waiting would wait forever. A later flush finds the error and wakes all waiters, so
//! a thread that lives as long as the store starts such a flush.

use std::{
    io,
    sync::Arc,
    thread::{self, JoinHandle},
    time::Duration,
};

use ::sled::Db;
use parking_lot::{Condvar, Mutex};
use portolan_types::MonotonicInstant;

/// Time after which a flush may have missed its wake-up. Doubled each time that it continues to run.
const WAKE_TIMEOUT: Duration = Duration::from_millis(500);

/// Flusher that makes every flush end.
pub(super) struct Flusher {
    shared: Arc<FlusherShared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct FlusherShared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    running: Option<RunningFlush>,
    /// True if the thread waits for the next flush, instead of polling.
    sleeps: bool,
    is_closed: bool,
}

struct RunningFlush {
    db: Db,
    begun: MonotonicInstant,
    patience: Duration,
    others: Vec<JoinHandle<()>>,
}

impl Flusher {
    /// # Errors
    /// Fails if the system cannot start a thread.
    pub(super) fn new() -> io::Result<Self> {
        let shared = Arc::new(FlusherShared::default());
        let watching = shared.clone();
        let thread = thread::Builder::new().name("sled-wake".into()).spawn(move || watching.watch())?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Flushes everything that was applied. One call at a time.
    ///
    /// # Errors
    /// Fails if anything could not be written or synced.
    pub(super) fn flush(&self, db: &Db) -> ::sled::Result<()> {
        self.shared.begin(db.clone());
        // Runs also if sled panics: no other thread may keep the database then.
        let _ended = RunningFlushGuard(&self.shared);
        db.flush().map(drop)
    }
}

impl Drop for Flusher {
    fn drop(&mut self) {
        self.shared.state.lock().is_closed = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct RunningFlushGuard<'a>(&'a FlusherShared);

impl Drop for RunningFlushGuard<'_> {
    fn drop(&mut self) {
        let running = self.0.state.lock().running.take();
        for other in running.into_iter().flat_map(|running| running.others) {
            let _ = other.join();
        }
    }
}

impl FlusherShared {
    fn begin(&self, db: Db) {
        let mut state = self.state.lock();
        state.running =
            Some(RunningFlush { db, begun: MonotonicInstant::now(), patience: WAKE_TIMEOUT, others: Vec::new() });
        if state.sleeps {
            self.changed.notify_all();
        }
    }

    fn watch(&self) {
        let mut state = self.state.lock();
        let mut was_idle = false;
        while !state.is_closed {
            let is_idle = state.running.is_none();
            state.look();
            state.sleeps = is_idle && was_idle;
            if state.sleeps {
                self.changed.wait(&mut state)
            } else {
                self.changed.wait_for(&mut state, WAKE_TIMEOUT);
            }
            was_idle = is_idle;
        }
    }
}

impl State {
    /// Starts another flush beside one that takes long.
    fn look(&mut self) {
        let Some(running) = self.running.as_mut().filter(|running| running.begun.elapsed() >= running.patience) else {
            return;
        };
        running.begun = MonotonicInstant::now();
        running.patience *= 2;
        let db = running.db.clone();
        // If the system cannot start a thread, the next look retries.
        let other = thread::Builder::new().name("sled-flush".into()).spawn(move || drop(db.flush()));
        running.others.extend(other);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn opened() -> (tempfile::TempDir, Db) {
        let dir = tempfile::tempdir().unwrap();
        let db = ::sled::Config::new().path(dir.path().join("s")).flush_every_ms(None).open().unwrap();
        (dir, db)
    }

    #[test]
    fn a_flush_that_takes_long_gets_company_which_ends_with_it() {
        let (_dir, db) = opened();
        let flusher = Flusher::new().unwrap();
        flusher.shared.begin(db.clone());
        let running = |look: fn(&RunningFlush) -> usize| flusher.shared.state.lock().running.as_ref().map(look);
        let begun = MonotonicInstant::now();
        while running(|running| running.others.len()) != Some(1) {
            assert!(begun.elapsed() < Duration::from_secs(60), "no caller came");
            thread::yield_now();
        }
        assert!(begun.elapsed() >= WAKE_TIMEOUT);
        assert_eq!(
            flusher.shared.state.lock().running.as_ref().map(|running| running.patience),
            Some(2 * WAKE_TIMEOUT)
        );
        drop(RunningFlushGuard(&flusher.shared));
        assert_eq!(running(|_| 0), None, "it is not watched any more");
    }

    #[test]
    fn a_flush_releases_the_database() {
        let (dir, mut db) = opened();
        let flusher = Flusher::new().unwrap();
        for round in 0..50u8 {
            db.insert("a", vec![round]).unwrap();
            flusher.flush(&db).unwrap();
            drop(db);
            // sled's threads may still be releasing the lock.
            db = crate::engine::sled::files::open(&dir.path().join("s"), 1 << 20).unwrap();
            assert_eq!(db.get("a").unwrap().unwrap(), vec![round]);
        }
    }
}
