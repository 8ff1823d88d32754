//! Committer: the one thread that writes. It collects waiting writes into a batch, and the next batch fills while that
//! one syncs.
//!
//! An accepted write waits for at most 17 batches: one in progress, its own, and those of earlier writes. The queue is
//! bounded in number and bytes and each batch is full in one of them, so that earlier writes fill at most 7 batches by
//! number and 8 by bytes. Replaced and deleted values are read and kept as history, so they limit a batch too; each 32
//! MiB of them, in the batch in progress or in waiting writes, may add one batch, and deferred writes come first in the
//! next one. A nearly full disk may limit a batch further (see [`crate::write::disk_space::DiskSpace::batch_budget`]),
//! down to one write. A batch is one sync, and contains one slice of each maintenance task (a deletion, a compaction)
//! after the requested writes: no task gets its own batch while writes wait. Each earlier deletion of a logical cluster
//! or compaction adds at most two batches: it ends the batch before it, and the first slice of a deletion is committed
//! alone. After 200 ms without a write, the engine's preparation for a quick start, also one sync, may be in progress
//! instead of a batch.
//!
//! A batch takes as long as the disk: a write without an answer after [`crate::open::StoreConfig::commit_timeout`] is
//! unknown.

mod backlog;
mod request_queue;
#[cfg(test)]
mod tests;

use std::{
    collections::VecDeque,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    thread::JoinHandle,
    time::Duration,
};

use crossbeam_channel::{RecvTimeoutError, TryRecvError, TrySendError};
use parking_lot::Mutex;
use portolan_types::{LogicalClusterId, MonotonicInstant, ResourceVersion};
use tokio::sync::oneshot;

use self::{
    backlog::{Backlog, WaitingTransaction},
    request_queue::{RequestReceiver, RequestSender},
};
use crate::{
    api::StoreError,
    engine::failed,
    maintenance::{
        SliceProgress,
        queue::{MaintenanceQueue, delete_cluster},
    },
    read::state::{backend, closed},
    write::{
        accounts::PendingLinks,
        core::{AdmittedBatch, CommitResult, StoreCore},
        gate::WritePurpose,
        plan::BatchPlan,
        transaction::PreparedTransaction,
    },
};

/// Mark of how far a store is durable, which is outside of the engine. Dropping it releases the data directory.
pub(crate) trait DurableMark: Send {
    /// Records that the store is durable up to `last`. If that fails, the earlier mark stays valid.
    fn record(&mut self, last: u64);
}

/// Most transactions in the queue.
pub(crate) const QUEUE_TRANSACTIONS: usize = 8192;
/// Most bytes of transactions in the queue.
pub(crate) const QUEUE_BYTES: usize = 64 << 20;
/// Most transactions of one batch.
const BATCH_TRANSACTIONS: usize = 1024;
/// Most bytes of one batch; the last transaction may exceed it.
const BATCH_BYTES: usize = 8 << 20;
/// Most bytes of values that a batch replaces or deletes, which are read into memory; the last transaction may exceed
/// it.
const BATCH_REPLACED: u64 = 32 << 20;
/// Most batches until an accepted write is answered, its own included.
#[cfg(test)]
const MAX_BATCHES_WAITED: usize = 1 + (QUEUE_TRANSACTIONS - 1) / BATCH_TRANSACTIONS + QUEUE_BYTES / BATCH_BYTES + 1;
/// Pause in writes after which the engine prepares for a quick start.
const IDLE_TIMEOUT: Duration = Duration::from_millis(200);
/// Interval at which a full disk is checked for space.
const DISK_CHECK_INTERVAL: Duration = if cfg!(test) { Duration::from_millis(1) } else { Duration::from_secs(1) };

type CommitterReply<T> = oneshot::Sender<T>;

/// Request to the committer's thread.
pub(crate) enum CommitterRequest {
    Commit(WaitingTransaction),
    DeleteCluster(LogicalClusterId, CommitterReply<CommitResult>),
    Compact(ResourceVersion, CommitterReply<Result<(), StoreError>>),
    /// Compacts history down to so many bytes of superseded objects.
    ShrinkHistory(u64, CommitterReply<Result<(), StoreError>>),
    /// There are logical clusters to be linked to their parents.
    Link,
    Close(CommitterReply<()>),
}

/// Handle of the committer's thread. Dropping it finishes accepted writes and ends the thread.
pub(crate) struct Committer {
    queue: Option<RequestSender>,
    backlog: Arc<Backlog>,
    thread: Mutex<Option<JoinHandle<()>>>,
    core: Arc<StoreCore>,
    links: Arc<PendingLinks>,
}

impl Committer {
    /// Starts the thread. `sweeps` are unfinished deletions of logical clusters; `held` is released at the end.
    ///
    /// # Errors
    /// Fails if no thread can be started.
    pub(crate) fn start(
        core: Arc<StoreCore>,
        sweeps: Vec<LogicalClusterId>,
        held: Option<Box<dyn DurableMark>>,
    ) -> std::io::Result<Self> {
        let (queue, requests) = crossbeam_channel::bounded(QUEUE_TRANSACTIONS);
        let links = Arc::<PendingLinks>::default();
        let (chores, requests) = (MaintenanceQueue::resume(sweeps, links.clone()), RequestReceiver::new(requests));
        let worker =
            CommitterThread { core: core.clone(), requests, chores, next: VecDeque::new(), untidy: true, held };
        let thread = std::thread::Builder::new().name("store-committer".into()).spawn(move || worker.run())?;
        let queue = Some(RequestSender::new(queue, thread.thread()));
        Ok(Self { queue, backlog: Backlog::of(&core.metrics), thread: Mutex::new(Some(thread)), core, links })
    }

    /// Queues a transaction.
    ///
    /// # Errors
    /// `Overloaded` if the queue is full; `Backend` if the store takes no writes. Nothing was written then.
    pub(crate) fn commit(&self, txn: PreparedTransaction) -> Result<oneshot::Receiver<CommitResult>, StoreError> {
        let (purpose, (reply, answer)) = (txn.purpose(), oneshot::channel());
        let waiting = self.backlog.admit(txn, reply).inspect_err(|_| self.core.metrics.overloaded.inc())?;
        self.send(CommitterRequest::Commit(waiting), purpose).map(|()| answer)
    }

    /// Links a logical cluster to its parent, in a moment.
    pub(crate) fn link(&self, cluster: LogicalClusterId, parent: LogicalClusterId) {
        if self.links.add(cluster, parent) {
            // Where the queue is full, the thread takes it up with the next batch.
            let _ = self.send(CommitterRequest::Link, WritePurpose::MakeRoom);
        }
    }

    /// Queues a request.
    ///
    /// # Errors
    /// Returns the errors of [`Committer::commit`].
    pub(crate) fn send(&self, request: CommitterRequest, purpose: WritePurpose) -> Result<(), StoreError> {
        self.core.check_open(purpose)?;
        let queue = self.queue.as_ref().ok_or_else(closed)?;
        match queue.try_send(request) {
            Ok(()) => Ok(()),
            Err(TrySendError::Full(_)) => {
                self.core.metrics.overloaded.inc();
                Err(StoreError::Overloaded)
            }
            Err(TrySendError::Disconnected(_)) => Err(closed()),
        }
    }

    /// Stops the thread after it has finished accepted writes, however full the queue is.
    pub(crate) async fn close(&self) {
        let (reply, done) = oneshot::channel();
        let Some(queue) = self.queue.clone() else { return };
        let mut request = CommitterRequest::Close(reply);
        loop {
            match queue.try_send(request) {
                Ok(()) => break,
                Err(TrySendError::Disconnected(_)) => return,
                Err(TrySendError::Full(back)) => request = back,
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        // An error means that the thread has ended already.
        let _ = done.await;
    }
}

impl Drop for Committer {
    fn drop(&mut self) {
        self.queue = None;
        if let Some(thread) = self.thread.lock().take()
            && thread.join().is_err()
        {
            tracing::error!("the store's committer panicked");
        }
    }
}

struct CommitterThread {
    core: Arc<StoreCore>,
    requests: RequestReceiver,
    chores: MaintenanceQueue,
    /// Requests from the queue that did not fit into the batch.
    next: VecDeque<CommitterRequest>,
    /// True if something was written since the engine last prepared for a quick start.
    untidy: bool,
    held: Option<Box<dyn DurableMark>>,
}

/// Result of waiting for requests.
enum NextRequest {
    Request(CommitterRequest),
    Nothing,
    /// The disk is full, and it is time to check it again.
    Full,
    Over,
}

impl CommitterThread {
    fn run(mut self) {
        let closing = loop {
            match self.take() {
                NextRequest::Request(CommitterRequest::Close(reply)) => break Some(reply),
                NextRequest::Over => break None,
                NextRequest::Request(request) => self.guarded(|worker| worker.serve(request)),
                NextRequest::Nothing => self.guarded(|worker| worker.batch(Vec::new())),
                NextRequest::Full => self.guarded(Self::look_for_room),
            }
        };
        let sound = self.core.check_open(WritePurpose::Any).is_ok();
        self.core.stop(failed("the store is closed"));
        self.chores.answer(Err(closed()));
        match self.core.kv.tidy() {
            Ok(()) if sound => self.record_mark(),
            Ok(()) => {}
            Err(error) => tracing::error!(error = %error, "could not prepare the store for a quick start"),
        }
        self.core.hub.close();
        self.core.kv.close();
        self.requests.try_iter().for_each(refuse);
        // Dropping the lock lets the next process in.
        drop(self);
        if let Some(reply) = closing {
            let _ = reply.send(());
        }
    }

    /// Runs a step. Only a damaged file makes an engine panic; then the store takes no writes, and reads continue as
    /// far as possible.
    fn guarded(&mut self, step: impl FnOnce(&mut Self)) {
        if catch_unwind(AssertUnwindSafe(|| step(self))).is_err() {
            self.core.stop(failed("the engine panicked: the store is damaged"));
            // The step sent no answers: callers of its batch see their replies dropped, and waiting requests are
            // answered here.
            self.chores.answer(self.core.check_open(WritePurpose::MakeRoom));
        }
        self.untidy = true;
    }

    fn take(&mut self) -> NextRequest {
        if let Some(request) = self.next.pop_front() {
            return NextRequest::Request(request);
        }
        if !self.chores.is_idle(MonotonicInstant::now()) && self.core.check_open(WritePurpose::MakeRoom).is_ok() {
            return match self.requests.try_recv() {
                Ok(request) => NextRequest::Request(request),
                Err(TryRecvError::Empty) => NextRequest::Nothing,
                Err(TryRecvError::Disconnected) => NextRequest::Over,
            };
        }
        if self.core.gate.is_short_of_room() {
            let wait = if self.core.room.is_scanning() { Duration::ZERO } else { DISK_CHECK_INTERVAL };
            return received(self.requests.recv_timeout(wait), NextRequest::Full);
        }
        if self.untidy {
            match self.requests.recv_timeout(IDLE_TIMEOUT) {
                Err(RecvTimeoutError::Timeout) => self.tidy(),
                other => return received(other, NextRequest::Nothing),
            }
        }
        match self
            .chores
            .next_due(MonotonicInstant::now())
            .filter(|_| self.core.check_open(WritePurpose::MakeRoom).is_ok())
        {
            Some(rest) => received(self.requests.recv_timeout(rest), NextRequest::Nothing),
            None => self.requests.recv().map_or(NextRequest::Over, NextRequest::Request),
        }
    }

    fn tidy(&mut self) {
        if self.core.check_open(WritePurpose::Any).is_ok() {
            portolan_types::failpoint!("store/idle");
            match self.core.kv.tidy() {
                Ok(()) => self.record_mark(),
                Err(error) => self.core.stop(error),
            }
            portolan_types::failpoint!("store/tidied");
        }
        self.untidy = false;
    }

    /// Records the high-water mark: everything so far is durable.
    fn record_mark(&mut self) {
        if let Some(held) = &mut self.held {
            held.record(self.core.hub.marks().last);
        }
    }

    fn look_for_room(&mut self) {
        self.core.scan_free_pages();
        if let Some(sweeps) = self.core.recover() {
            self.chores.sweep_only(sweeps);
        }
    }

    fn serve(&mut self, request: CommitterRequest) {
        match request {
            CommitterRequest::Commit(first) => {
                let batch = self.collect(first);
                self.batch(batch);
            }
            CommitterRequest::DeleteCluster(cluster, reply) => self.delete_cluster(cluster, reply),
            CommitterRequest::Compact(upto, reply) => self.compact(upto, reply),
            CommitterRequest::ShrinkHistory(most, reply) => self.chores.shrink_history(most, reply),
            // It is done with the next slice of the chores.
            CommitterRequest::Link | CommitterRequest::Close(_) => {}
        }
    }

    /// Takes waiting transactions up to the limits of a batch.
    fn collect(&mut self, first: WaitingTransaction) -> Vec<WaitingTransaction> {
        let mut bytes = first.txn().bytes();
        let mut batch = vec![first];
        while batch.len() < BATCH_TRANSACTIONS && bytes < BATCH_BYTES {
            match self.next.pop_front().or_else(|| self.requests.try_recv().ok()) {
                Some(CommitterRequest::Commit(next)) => {
                    bytes += next.txn().bytes();
                    batch.push(next);
                }
                Some(other) => {
                    self.next.push_front(other);
                    break;
                }
                None => break,
            }
        }
        batch
    }

    /// Commits transactions, and a slice of each maintenance task. If there is not enough disk space for all, only
    /// those are committed that fit.
    fn batch(&mut self, mut transactions: Vec<WaitingTransaction>) {
        let core = self.core.clone();
        // Continuous deletions leave no other time to check the disk.
        core.scan_free_pages();
        if core.has_room_again() {
            self.look_for_room();
        }
        self.compact_for_room();
        for purpose in WritePurpose::EACH {
            match core.admit(purpose) {
                Ok(admitted) => {
                    if purpose == WritePurpose::Any
                        || !transactions.is_empty()
                        || !self.chores.is_idle(MonotonicInstant::now())
                    {
                        self.commit(admitted, transactions.into());
                    }
                    return;
                }
                Err(error) => {
                    let refused = transactions.extract_if(.., |waiting| waiting.txn().purpose() <= purpose);
                    refused.for_each(|waiting| waiting.refuse(&error));
                    if transactions.is_empty() && self.chores.is_idle(MonotonicInstant::now()) {
                        return;
                    }
                    if purpose == WritePurpose::MakeRoom {
                        self.chores.answer(Err(error));
                    }
                }
            }
        }
    }

    /// Compacts all history before any write is refused for want of room.
    fn compact_for_room(&mut self) {
        let core = self.core.clone();
        if !core.gate.is_short_of_room() && core.must_compact() {
            tracing::warn!("the disk is nearly full: history is compacted at once");
            self.chores.compact_all();
            while self.chores.is_shrinking()
                && core.must_compact()
                && let Ok(admitted) = core.admit(WritePurpose::MakeRoom)
            {
                self.commit(admitted, VecDeque::new());
            }
        }
    }

    fn commit(&mut self, admitted: AdmittedBatch<'_>, mut transactions: VecDeque<WaitingTransaction>) {
        let (core, chores) = (&self.core, &mut self.chores);
        let room = admitted.room();
        let (mut replies, waiting) = (Vec::with_capacity(transactions.len()), &mut transactions);
        let plan = |plan: &mut BatchPlan<'_>| {
            let mut answers = Vec::with_capacity(waiting.len());
            while (answers.is_empty() || plan.replaced() < BATCH_REPLACED && plan.written() < room)
                && let Some((txn, reply)) = waiting.pop_front().map(WaitingTransaction::begin)
            {
                replies.push(reply);
                answers.push(plan.transaction(txn));
            }
            (answers, chores.plan_slice(core, plan, MonotonicInstant::now()))
        };
        match admitted.commit(plan) {
            Ok((answers, upkept)) => {
                for (reply, answer) in replies.into_iter().zip(answers) {
                    let _ = reply.send(answer);
                }
                portolan_types::failpoint!("store/batch-answered");
                self.chores.answer(upkept.and(self.core.check_open(WritePurpose::MakeRoom)));
                self.put_back(transactions);
            }
            // Nothing was written. Further writes would fail in the same way, and so would a background deletion.
            Err(error) => {
                for reply in replies {
                    let _ = reply.send(Err(error.clone()));
                }
                transactions.into_iter().for_each(|waiting| waiting.refuse(&error));
                self.chores.defer_all(MonotonicInstant::now());
                self.chores.answer(Err(error));
            }
        }
    }

    /// Puts deferred requests back, before all later ones.
    fn put_back(&mut self, transactions: VecDeque<WaitingTransaction>) {
        for waiting in transactions.into_iter().rev() {
            self.next.push_front(CommitterRequest::Commit(waiting));
        }
    }

    fn delete_cluster(&mut self, cluster: LogicalClusterId, reply: CommitterReply<CommitResult>) {
        portolan_types::failpoint!("store/cluster-deletion-begins");
        let (answer, progress) = delete_cluster(&self.core, cluster);
        portolan_types::failpoint!("store/cluster-deleted");
        match (&answer, progress) {
            (Ok(_), SliceProgress::More) => self.chores.sweep(cluster),
            (Ok(_), SliceProgress::Done) => self.core.damage.remove_cluster(cluster),
            (Err(_), _) => {}
        }
        let _ = reply.send(answer);
    }

    fn compact(&mut self, upto: ResourceVersion, reply: CommitterReply<Result<(), StoreError>>) {
        if let Err(error) = self.core.hub.marks().check_happened(upto.get()) {
            let _ = reply.send(Err(error));
            return;
        }
        self.chores.compact(upto.get(), reply);
    }
}

/// Returns the received request, or the result of a timeout.
fn received(received: Result<CommitterRequest, RecvTimeoutError>, otherwise: NextRequest) -> NextRequest {
    match received {
        Ok(request) => NextRequest::Request(request),
        Err(RecvTimeoutError::Timeout) => otherwise,
        Err(RecvTimeoutError::Disconnected) => NextRequest::Over,
    }
}

/// Answers requests that arrive after the store was closed.
fn refuse(request: CommitterRequest) {
    // An error means that the caller is gone.
    match request {
        CommitterRequest::Commit(waiting) => waiting.refuse(&closed()),
        CommitterRequest::DeleteCluster(_, reply) => drop(reply.send(Err(closed()))),
        CommitterRequest::Compact(_, reply) | CommitterRequest::ShrinkHistory(_, reply) => {
            drop(reply.send(Err(closed())))
        }
        CommitterRequest::Link => {}
        CommitterRequest::Close(reply) => drop(reply.send(())),
    }
}

/// Returns the error of a thread that ended before it answered.
pub(crate) fn no_answer(core: &StoreCore) -> StoreError {
    match core.check_open(WritePurpose::MakeRoom) {
        Ok(()) => backend(failed("the store's committer is gone")),
        Err(error) => error,
    }
}
