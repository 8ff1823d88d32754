//! Reader threads: the one place that leaves the async runtime's threads for long reads.
//!
//! The threads are few, so waiting reads take turns by tenant: a flood of one logical cluster delays another by a read
//! or two. Reads of all logical clusters, such as those of controllers, share one tenant, and each physical cluster's
//! syncer is a tenant.

mod tenant;

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    thread,
};

use parking_lot::{Condvar, Mutex};
use portolan_types::round_robin::{QueueTicket, RoundRobinQueue};
use prometheus::IntGauge;
use tokio::sync::oneshot;

pub(crate) use self::tenant::ReadTenant;
use crate::{api::StoreError, engine::failed, read::state::backend};

/// Threads for heavy reads. More would not finish earlier if the disk is the bottleneck, and each costs allocator
/// memory: the hundreds of threads of a runtime, when every controller lists its resources at a start, take hundreds of
/// megabytes.
const THREADS: usize = 4;
/// Most threads of one tenant: one is always left for the others.
const THREADS_PER_TENANT: usize = THREADS - 1;

type ReadJob = Box<dyn FnOnce() + Send>;

/// Pool of reader threads. They start with the first heavy read and live as long as the store. A canceled read leaves
/// the queue, so that the queue is no longer than the number of pending calls.
pub(crate) struct ReaderPool(Arc<ReaderPoolShared>);

struct ReaderPoolShared {
    state: Mutex<State>,
    changed: Condvar,
    waiting: IntGauge,
}

struct State {
    turns: RoundRobinQueue<ReadTenant, ReadJob>,
    /// Number of threads; `None` before the first heavy read.
    threads: Option<usize>,
    is_over: bool,
}

/// Queued read, withdrawn when this is dropped.
struct QueuedRead<'a> {
    readers: &'a ReaderPool,
    party: ReadTenant,
    ticket: QueueTicket,
}

impl ReaderPool {
    /// Creates a pool that reports its waiting reads in a gauge.
    pub(crate) fn new(waiting: IntGauge) -> Self {
        let state = State { turns: RoundRobinQueue::new(THREADS_PER_TENANT), threads: None, is_over: false };
        Self(Arc::new(ReaderPoolShared { state: Mutex::new(state), changed: Condvar::new(), waiting }))
    }

    /// Queues a job; `None` if there are no threads.
    fn queue_read(&self, party: ReadTenant, job: ReadJob) -> Option<QueuedRead<'_>> {
        let mut state = self.0.state.lock();
        if *state.threads.get_or_insert_with(|| self.0.start()) == 0 {
            return None;
        }
        let ticket = state.turns.push(party.clone(), job);
        self.0.update_gauge(&state);
        drop(state);
        self.0.changed.notify_one();
        Some(QueuedRead { readers: self, party, ticket })
    }
}

impl Drop for ReaderPool {
    fn drop(&mut self) {
        self.0.state.lock().is_over = true;
        self.0.changed.notify_all();
    }
}

impl Drop for QueuedRead<'_> {
    fn drop(&mut self) {
        let mut state = self.readers.0.state.lock();
        let withdrawn = state.turns.withdraw(&self.party, self.ticket);
        self.readers.0.update_gauge(&state);
        drop(state);
        // It may hold the last reference to the store, which must not be dropped under the lock.
        drop(withdrawn);
    }
}

impl ReaderPoolShared {
    /// Starts the threads, and returns their number.
    fn start(self: &Arc<Self>) -> usize {
        let start = |number: &usize| {
            let shared = self.clone();
            let named = thread::Builder::new().name(format!("store-reader-{number}"));
            let started = named.spawn(move || shared.run_jobs());
            if let Err(error) = &started {
                tracing::error!(%error, "could not start a reader thread of the store");
            }
            started.is_ok()
        };
        (0..THREADS).filter(start).count()
    }

    fn run_jobs(&self) {
        let mut state = self.state.lock();
        while !state.is_over {
            let Some((party, job)) = state.turns.take() else {
                self.changed.wait(&mut state);
                continue;
            };
            self.update_gauge(&state);
            drop(state);
            // The waiting caller gets no answer, and reports that.
            let _ = catch_unwind(AssertUnwindSafe(job));
            state = self.state.lock();
            state.turns.done(&party);
        }
    }

    fn update_gauge(&self, state: &State) {
        self.waiting.set(i64::try_from(state.turns.waiting()).unwrap_or(i64::MAX));
    }
}

/// Expected duration of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadWeight {
    /// Microseconds: runs in place.
    Light,
    /// Milliseconds, or a wait for the disk: runs on a reader thread.
    Heavy,
}

/// Subject of reads that a pool runs.
pub(crate) trait PooledReader: Send + Sync + 'static {
    /// Returns the pool of its heavy reads.
    fn pool(&self) -> &ReaderPool;

    /// Returns true if its reads never wait.
    fn is_in_memory(&self) -> bool;
}

/// Runs a read in place, or on a reader thread if it is heavy and may wait at all.
pub(crate) async fn run<R: PooledReader, T: Send + 'static>(
    reader: &Arc<R>,
    party: ReadTenant,
    weight: ReadWeight,
    read: impl FnOnce(&R) -> Result<T, StoreError> + Send + 'static,
) -> Result<T, StoreError> {
    if weight == ReadWeight::Light || reader.is_in_memory() {
        return read(reader);
    }
    let (reply, answer) = oneshot::channel();
    let reading = reader.clone();
    let job = Box::new(move || {
        if !reply.is_closed() {
            let _ = reply.send(read(&reading));
        }
    });
    let reader_failed = || backend(failed("reading the store: the file is damaged"));
    let _place = reader.pool().queue_read(party, job).ok_or_else(reader_failed)?;
    answer.await.unwrap_or_else(|_| Err(reader_failed()))
}

#[cfg(test)]
mod tests;
