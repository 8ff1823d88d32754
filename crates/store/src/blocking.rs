//! The one place that leaves the async runtime's threads for long reads.
//!
//! The threads are few, so those who wait for them take turns by logical cluster: a flood of one delays another by a read or two,
//! however many wait. Whoever reads all logical clusters, as the loops do, takes turns with them as one of their own, and so does
//! what syncs a physical cluster.

mod party;

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    thread,
};

use parking_lot::{Condvar, Mutex};
use portolan_types::turns::{Ticket, Turns};
use prometheus::IntGauge;
use tokio::sync::oneshot;

pub(crate) use self::party::Party;
use crate::{StoreError, core::Core, kv::failed, read::backend};

/// Threads for heavy reads. More would not end earlier where the disk is what they wait for, and each keeps memory of the
/// allocator's: of the hundreds that a runtime makes when every loop lists its resources at a start, hundreds of megabytes.
const READERS: usize = 4;
/// Threads that one party may have at once: for all others there is always one whose read ends soon.
const SHARE: usize = READERS - 1;

type Job = Box<dyn FnOnce() + Send>;

/// Threads that last as long as the store, from its first heavy read on. Who asks waits for the answer, and who does not wait any
/// more leaves the line: no more wait than there are calls.
pub(crate) struct Readers(Arc<Shared>);

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    waiting: IntGauge,
}

struct State {
    turns: Turns<Party, Job>,
    /// `None` before the first heavy read.
    threads: Option<usize>,
    is_over: bool,
}

/// A place in line, given up when this is dropped.
struct Place<'a> {
    readers: &'a Readers,
    party: Party,
    ticket: Ticket,
}

impl Readers {
    /// Tells a gauge how many reads wait.
    pub(crate) fn new(waiting: IntGauge) -> Self {
        let state = State { turns: Turns::new(SHARE), threads: None, is_over: false };
        Self(Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new(), waiting }))
    }

    /// `None` when there is no thread to do it.
    fn hand(&self, party: Party, job: Job) -> Option<Place<'_>> {
        let mut state = self.0.state.lock();
        if *state.threads.get_or_insert_with(|| self.0.start()) == 0 {
            return None;
        }
        let ticket = state.turns.push(party.clone(), job);
        self.0.show(&state);
        drop(state);
        self.0.changed.notify_one();
        Some(Place { readers: self, party, ticket })
    }
}

impl Drop for Readers {
    fn drop(&mut self) {
        self.0.state.lock().is_over = true;
        self.0.changed.notify_all();
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut state = self.readers.0.state.lock();
        let withdrawn = state.turns.withdraw(&self.party, self.ticket);
        self.readers.0.show(&state);
        drop(state);
        // What it has may be the last of a store, which must not end under the lock.
        drop(withdrawn);
    }
}

impl Shared {
    /// How many threads there are to read.
    fn start(self: &Arc<Self>) -> usize {
        let start = |number: &usize| {
            let shared = self.clone();
            let named = thread::Builder::new().name(format!("store-reader-{number}"));
            let started = named.spawn(move || shared.work());
            if let Err(error) = &started {
                tracing::error!(%error, "the store has fewer threads to read than it should");
            }
            started.is_ok()
        };
        (0..READERS).filter(start).count()
    }

    fn work(&self) {
        let mut state = self.state.lock();
        while !state.is_over {
            let Some((party, job)) = state.turns.take() else {
                self.changed.wait(&mut state);
                continue;
            };
            self.show(&state);
            drop(state);
            // Told to whoever waits, who gets no answer.
            let _ = catch_unwind(AssertUnwindSafe(job));
            state = self.state.lock();
            state.turns.done(&party);
        }
    }

    fn show(&self, state: &State) {
        self.waiting.set(i64::try_from(state.turns.waiting()).unwrap_or(i64::MAX));
    }
}

/// How long a read may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Weight {
    /// Microseconds: it runs where it is.
    Light,
    /// It may take milliseconds, or wait for the disk.
    Heavy,
}

/// Runs a read in place, or on a thread of the store's when it is heavy and may wait at all.
pub(crate) async fn run<T: Send + 'static>(
    core: &Arc<Core>,
    party: Party,
    weight: Weight,
    read: impl FnOnce(&Core) -> Result<T, StoreError> + Send + 'static,
) -> Result<T, StoreError> {
    if weight == Weight::Light || core.kv.is_in_memory() {
        return read(core);
    }
    let (reply, answer) = oneshot::channel();
    let reading = core.clone();
    let job = Box::new(move || {
        if !reply.is_closed() {
            let _ = reply.send(read(&reading));
        }
    });
    let nobody = || backend(failed("reading the store: the file is damaged"));
    let _place = core.readers.hand(party, job).ok_or_else(nobody)?;
    answer.await.unwrap_or_else(|_| Err(nobody()))
}

#[cfg(test)]
mod tests;
