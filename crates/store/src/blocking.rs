//! The one place that leaves the async runtime's threads for long reads.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, OnceLock},
    thread,
};

use crossbeam_channel::{Receiver, Sender, unbounded};
use tokio::sync::oneshot;

use crate::{StoreError, core::Core, kv::failed, read::backend};

/// Threads for heavy reads. More would not end earlier where the disk is what they wait for, and each keeps memory of the
/// allocator's: of the hundreds that a runtime makes when every loop lists its resources at a start, hundreds of megabytes.
const READERS: usize = 4;

type Job = Box<dyn FnOnce() + Send>;

/// Threads that last as long as the store, from its first heavy read on. Who asks waits for the answer, and what nobody waits for any
/// more is not read: no more wait in line than there are calls.
#[derive(Default)]
pub(crate) struct Readers(OnceLock<Sender<Job>>);

impl Readers {
    fn hand(&self, job: Job) {
        let jobs = self.0.get_or_init(|| {
            let (sender, receiver) = unbounded();
            for number in 0..READERS {
                let jobs = receiver.clone();
                let named = thread::Builder::new().name(format!("store-reader-{number}"));
                if let Err(error) = named.spawn(move || work_off(&jobs)) {
                    tracing::error!(%error, "the store has fewer threads to read than it should");
                }
            }
            sender
        });
        // Without any thread the job is dropped with the channel, and whoever waits for it is told.
        let _ = jobs.send(job);
    }
}

fn work_off(jobs: &Receiver<Job>) {
    for job in jobs {
        // Told to whoever waits, who gets no answer.
        let _ = catch_unwind(AssertUnwindSafe(job));
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
    weight: Weight,
    read: impl FnOnce(&Core) -> Result<T, StoreError> + Send + 'static,
) -> Result<T, StoreError> {
    if weight == Weight::Light || core.kv.is_in_memory() {
        return read(core);
    }
    let (reply, answer) = oneshot::channel();
    let reading = core.clone();
    core.readers.hand(Box::new(move || {
        if !reply.is_closed() {
            let _ = reply.send(read(&reading));
        }
    }));
    answer.await.unwrap_or_else(|_| Err(backend(failed("reading the store: the file is damaged"))))
}
