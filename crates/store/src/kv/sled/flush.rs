//! sled's flush, made to end.
//!
//! A thread of sled's that cannot write the log keeps the error, but wakes nobody (`Log::exit_reservation` of 0.34.7): a flush that
//! waits by then would wait for ever. A flush that begins after it finds the error, and wakes all others. A thread that lasts as
//! long as the store begins one.

use std::{
    io,
    sync::Arc,
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use ::sled::Db;
use parking_lot::{Condvar, Mutex};

/// After how long a flush may have missed its wake. Each time that it goes on, it is given twice as long.
const PATIENCE: Duration = Duration::from_millis(500);

/// Flushes, and sees to it that each ends.
pub(super) struct Flusher {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    running: Option<Running>,
    /// Whether the thread waits to be told of the next flush, instead of looking from time to time.
    sleeps: bool,
    is_closed: bool,
}

struct Running {
    db: Db,
    begun: Instant,
    patience: Duration,
    others: Vec<JoinHandle<()>>,
}

impl Flusher {
    /// # Errors
    /// When the system has no thread to give.
    pub(super) fn new() -> io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let watching = shared.clone();
        let thread = thread::Builder::new().name("sled-wake".into()).spawn(move || watching.watch())?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Writes out all that was applied. One at a time.
    ///
    /// # Errors
    /// What could not be written or synced.
    pub(super) fn flush(&self, db: &Db) -> ::sled::Result<()> {
        self.shared.begin(db.clone());
        // Also when sled panics: nobody else may keep the database then.
        let _ended = Ended(&self.shared);
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

struct Ended<'a>(&'a Shared);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        let running = self.0.state.lock().running.take();
        for other in running.into_iter().flat_map(|running| running.others) {
            let _ = other.join();
        }
    }
}

impl Shared {
    fn begin(&self, db: Db) {
        let mut state = self.state.lock();
        state.running = Some(Running { db, begun: Instant::now(), patience: PATIENCE, others: Vec::new() });
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
            match state.sleeps {
                true => self.changed.wait(&mut state),
                false => drop(self.changed.wait_for(&mut state, PATIENCE)),
            }
            was_idle = is_idle;
        }
    }
}

impl State {
    /// Begins another flush where one takes long.
    fn look(&mut self) {
        let Some(running) = self.running.as_mut().filter(|running| running.begun.elapsed() >= running.patience) else {
            return;
        };
        running.begun = Instant::now();
        running.patience *= 2;
        let db = running.db.clone();
        // Where the system has no thread to give, it is tried again later.
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
        let running = |look: fn(&Running) -> usize| flusher.shared.state.lock().running.as_ref().map(look);
        let begun = Instant::now();
        while running(|running| running.others.len()) != Some(1) {
            assert!(begun.elapsed() < Duration::from_secs(60), "nobody came");
            thread::yield_now();
        }
        assert!(begun.elapsed() >= PATIENCE);
        assert_eq!(flusher.shared.state.lock().running.as_ref().map(|running| running.patience), Some(2 * PATIENCE));
        drop(Ended(&flusher.shared));
        assert_eq!(running(|_| 0), None, "it is not watched any more");
    }

    #[test]
    fn nobody_keeps_the_database_after_a_flush() {
        let (dir, mut db) = opened();
        let flusher = Flusher::new().unwrap();
        for round in 0..50u8 {
            db.insert("a", vec![round]).unwrap();
            flusher.flush(&db).unwrap();
            drop(db);
            // sled's own threads may still be letting go.
            db = crate::kv::sled::files::open(&dir.path().join("s"), 1 << 20).unwrap();
            assert_eq!(db.get("a").unwrap().unwrap(), vec![round]);
        }
    }
}
