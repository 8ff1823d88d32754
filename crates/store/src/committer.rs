//! The one thread that writes: it collects what waits into a batch, and while that syncs the next one fills.
//!
//! How long a write waits that was accepted: for at most 17 batches. One may be under way, and its own comes last. What waits before it
//! fills at most 7 by its number and 8 by its bytes: the queue, which fills up again while a batch is under way, is bounded in both, and
//! each batch is full in one of them. What is replaced or deleted is read and kept as history, so it bounds a batch as well, and what
//! did not fit comes first in the next one: each 32 MiB of it, in the batch under way or in what waits, may add one. So may what a disk
//! that is nearly full has room for at once (see [`crate::room::Room::check`]), down to one for each write. A batch is one sync, and has one slice of each chore (a deletion, a compaction)
//! behind what was asked for: no chore gets a batch of its own while anything waits. Each deletion of a logical cluster, and each
//! compaction, that was asked for before it adds at most two: it ends the batch before it, and the first slice of a deletion goes alone.
//! After 200 ms without a write, no batch is under way but the engine's preparing for a quick start may be, which is one sync, too.
//!
//! Batches are as long as the disk makes them: a write that has no answer after [`crate::StoreConfig::commit_timeout`] is unknown.

mod backlog;
mod line;
#[cfg(test)]
mod tests;

use std::{
    collections::VecDeque,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    thread::JoinHandle,
    time::{Duration, Instant},
};

use crossbeam_channel::{RecvTimeoutError, TryRecvError, TrySendError};
use parking_lot::Mutex;
use portolan_types::{LogicalClusterId, ResourceVersion};
use tokio::sync::oneshot;

use self::{
    backlog::{Backlog, Waiting},
    line::{Line, Requests},
};
use crate::{
    StoreError,
    chores::{Chores, delete_cluster},
    core::{Admitted, Answer, Core, closed},
    gate::Purpose,
    kv::failed,
    open::Held,
    plan::{Plan, PreparedTransaction},
    read::backend,
    upkeep::Progress,
};

/// Most transactions that wait.
pub(crate) const QUEUE_TRANSACTIONS: usize = 8192;
/// Most bytes of transactions that wait.
pub(crate) const QUEUE_BYTES: usize = 64 << 20;
/// Most transactions of one batch.
const BATCH_TRANSACTIONS: usize = 1024;
/// Most bytes of one batch, give or take a transaction.
const BATCH_BYTES: usize = 8 << 20;
/// Most bytes that what a batch replaces or deletes takes, give or take a transaction: they are read into memory.
const BATCH_REPLACED: u64 = 32 << 20;
/// Most batches until a write is answered that was accepted, its own included.
#[cfg(test)]
const LONGEST_WAIT: usize = 1 + (QUEUE_TRANSACTIONS - 1) / BATCH_TRANSACTIONS + QUEUE_BYTES / BATCH_BYTES + 1;
/// After this time without a write, the engine prepares for a quick start.
const IDLE: Duration = Duration::from_millis(200);
/// How often is looked whether a full disk has room again.
const LOOK: Duration = if cfg!(test) { Duration::from_millis(1) } else { Duration::from_secs(1) };

type Reply<T> = oneshot::Sender<T>;

/// What the thread is asked to do.
pub(crate) enum Request {
    Commit(Waiting),
    DeleteCluster(LogicalClusterId, Reply<Answer>),
    Compact(ResourceVersion, Reply<Result<(), StoreError>>),
    Close(Reply<()>),
}

/// The way to the thread. Dropping it finishes what was accepted and ends the thread.
pub(crate) struct Committer {
    queue: Option<Line>,
    backlog: Arc<Backlog>,
    thread: Mutex<Option<JoinHandle<()>>>,
    core: Arc<Core>,
}

impl Committer {
    /// Starts the thread. `sweeps` are logical clusters whose deletion goes on; `held` is released at the end.
    ///
    /// # Errors
    /// When no thread can be started.
    pub(crate) fn start(core: Arc<Core>, sweeps: Vec<LogicalClusterId>, held: Option<Held>) -> std::io::Result<Self> {
        let (queue, requests) = crossbeam_channel::bounded(QUEUE_TRANSACTIONS);
        let (chores, requests) = (Chores::resume(sweeps), Requests::new(requests));
        let worker = Worker { core: core.clone(), requests, chores, next: VecDeque::new(), untidy: true, held };
        let thread = std::thread::Builder::new().name("store-committer".into()).spawn(move || worker.run())?;
        let queue = Some(Line::new(queue, thread.thread()));
        Ok(Self { queue, backlog: Backlog::of(&core.metrics), thread: Mutex::new(Some(thread)), core })
    }

    /// Hands a transaction over.
    ///
    /// # Errors
    /// `Overloaded` when too much waits already; `Backend` when no write is taken any more. Nothing was written then.
    pub(crate) fn commit(&self, txn: PreparedTransaction) -> Result<oneshot::Receiver<Answer>, StoreError> {
        let (purpose, (reply, answer)) = (txn.purpose(), oneshot::channel());
        let waiting = self.backlog.admit(txn, reply).inspect_err(|_| self.core.metrics.overloaded.inc())?;
        self.send(Request::Commit(waiting), purpose).map(|()| answer)
    }

    /// Hands a request over.
    ///
    /// # Errors
    /// As for [`Committer::commit`].
    pub(crate) fn send(&self, request: Request, purpose: Purpose) -> Result<(), StoreError> {
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

    /// Asks the thread to finish what it accepted and end, however full the queue is.
    pub(crate) async fn close(&self) {
        let (reply, done) = oneshot::channel();
        let Some(queue) = self.queue.clone() else { return };
        let mut request = Request::Close(reply);
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

struct Worker {
    core: Arc<Core>,
    requests: Requests,
    chores: Chores,
    /// Requests that were taken from the queue but did not fit into the batch.
    next: VecDeque<Request>,
    /// Whether something was written since the engine last prepared for a quick start.
    untidy: bool,
    held: Option<Held>,
}

/// What the queue had.
enum Taken {
    Request(Request),
    Nothing,
    /// The disk is full and was so a while ago.
    Full,
    Over,
}

impl Worker {
    fn run(mut self) {
        let closing = loop {
            match self.take() {
                Taken::Request(Request::Close(reply)) => break Some(reply),
                Taken::Over => break None,
                Taken::Request(request) => self.guarded(|worker| worker.serve(request)),
                Taken::Nothing => self.guarded(|worker| worker.batch(Vec::new())),
                Taken::Full => self.guarded(Self::look_for_room),
            }
        };
        let sound = self.core.check_open(Purpose::Any).is_ok();
        self.core.stop(failed("the store is closed"));
        self.chores.answer(Err(closed()));
        match self.core.kv.tidy() {
            Ok(()) if sound => self.tell(),
            Ok(()) => {}
            Err(error) => tracing::error!(error = %error, "the store could not be prepared for a quick start"),
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

    /// Only a damaged file makes an engine panic; then no write is taken any more, and reads go on as far as they can.
    fn guarded(&mut self, step: impl FnOnce(&mut Self)) {
        if catch_unwind(AssertUnwindSafe(|| step(self))).is_err() {
            self.core.stop(failed("the engine panicked: the store is damaged"));
            // The step answered nobody: those of its batch learn it by their dropped replies, those of a chore wait here.
            self.chores.answer(self.core.check_open(Purpose::MakeRoom));
        }
        self.untidy = true;
    }

    fn take(&mut self) -> Taken {
        if let Some(request) = self.next.pop_front() {
            return Taken::Request(request);
        }
        if !self.chores.is_idle(Instant::now()) && self.core.check_open(Purpose::MakeRoom).is_ok() {
            return match self.requests.try_recv() {
                Ok(request) => Taken::Request(request),
                Err(TryRecvError::Empty) => Taken::Nothing,
                Err(TryRecvError::Disconnected) => Taken::Over,
            };
        }
        if self.core.gate.is_short_of_room() {
            let wait = if self.core.room.is_looking() { Duration::ZERO } else { LOOK };
            return received(self.requests.recv_timeout(wait), Taken::Full);
        }
        if self.untidy {
            match self.requests.recv_timeout(IDLE) {
                Err(RecvTimeoutError::Timeout) => self.tidy(),
                other => return received(other, Taken::Nothing),
            }
        }
        match self.chores.rest(Instant::now()).filter(|_| self.core.check_open(Purpose::MakeRoom).is_ok()) {
            Some(rest) => received(self.requests.recv_timeout(rest), Taken::Nothing),
            None => self.requests.recv().map_or(Taken::Over, Taken::Request),
        }
    }

    fn tidy(&mut self) {
        if self.core.check_open(Purpose::Any).is_ok() {
            portolan_types::failpoint!("store/idle");
            match self.core.kv.tidy() {
                Ok(()) => self.tell(),
                Err(error) => self.core.stop(error),
            }
            portolan_types::failpoint!("store/tidied");
        }
        self.untidy = false;
    }

    /// Marks how far the store has come: all of it is durable.
    fn tell(&mut self) {
        if let Some(held) = &mut self.held {
            held.tell(self.core.hub.marks().last);
        }
    }

    fn look_for_room(&mut self) {
        self.core.look_into_files();
        if let Some(sweeps) = self.core.recover() {
            self.chores.sweep_only(sweeps);
        }
    }

    fn serve(&mut self, request: Request) {
        match request {
            Request::Commit(first) => {
                let batch = self.collect(first);
                self.batch(batch);
            }
            Request::DeleteCluster(cluster, reply) => self.delete_cluster(cluster, reply),
            Request::Compact(upto, reply) => self.compact(upto, reply),
            Request::Close(_) => {}
        }
    }

    /// Takes the transactions that wait, up to the bounds of a batch.
    fn collect(&mut self, first: Waiting) -> Vec<Waiting> {
        let mut bytes = first.txn().bytes();
        let mut batch = vec![first];
        while batch.len() < BATCH_TRANSACTIONS && bytes < BATCH_BYTES {
            match self.next.pop_front().or_else(|| self.requests.try_recv().ok()) {
                Some(Request::Commit(next)) => {
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

    /// Commits transactions, and a slice of the chores with them. Without room for all, those go alone for which there is some.
    fn batch(&mut self, mut transactions: Vec<Waiting>) {
        let core = self.core.clone();
        // Deletions that come without pause leave no time to look for room apart from them.
        core.look_into_files();
        if core.has_room_again() {
            self.look_for_room();
        }
        for purpose in Purpose::EACH {
            match core.admit(purpose) {
                Ok(admitted) => {
                    if purpose == Purpose::Any || !transactions.is_empty() || !self.chores.is_idle(Instant::now()) {
                        self.commit(admitted, transactions.into());
                    }
                    return;
                }
                Err(error) => {
                    let refused = transactions.extract_if(.., |waiting| waiting.txn().purpose() <= purpose);
                    refused.for_each(|waiting| waiting.refuse(&error));
                    if transactions.is_empty() && self.chores.is_idle(Instant::now()) {
                        return;
                    }
                    if purpose == Purpose::MakeRoom {
                        self.chores.answer(Err(error));
                    }
                }
            }
        }
    }

    fn commit(&mut self, admitted: Admitted<'_>, mut transactions: VecDeque<Waiting>) {
        let (core, chores) = (&self.core, &mut self.chores);
        let room = admitted.room();
        let (mut replies, waiting) = (Vec::with_capacity(transactions.len()), &mut transactions);
        let plan = |plan: &mut Plan<'_>| {
            let mut answers = Vec::with_capacity(waiting.len());
            while (answers.is_empty() || plan.replaced() < BATCH_REPLACED && plan.written() < room)
                && let Some((txn, reply)) = waiting.pop_front().map(Waiting::begin)
            {
                replies.push(reply);
                answers.push(plan.transaction(txn));
            }
            (answers, chores.slice(core, plan, Instant::now()))
        };
        match admitted.commit(plan) {
            Ok((answers, upkept)) => {
                for (reply, answer) in replies.into_iter().zip(answers) {
                    let _ = reply.send(answer);
                }
                portolan_types::failpoint!("store/batch-answered");
                self.chores.answer(upkept.and(self.core.check_open(Purpose::MakeRoom)));
                self.put_back(transactions);
            }
            // Nothing was written. What was not looked at yet would meet the same, and a deletion that goes on by itself too.
            Err(error) => {
                for reply in replies {
                    let _ = reply.send(Err(error.clone()));
                }
                transactions.into_iter().for_each(|waiting| waiting.refuse(&error));
                self.chores.put_off(Instant::now());
                self.chores.answer(Err(error));
            }
        }
    }

    /// Has what did not fit into a batch wait for the next one, before all that came later.
    fn put_back(&mut self, transactions: VecDeque<Waiting>) {
        for waiting in transactions.into_iter().rev() {
            self.next.push_front(Request::Commit(waiting));
        }
    }

    fn delete_cluster(&mut self, cluster: LogicalClusterId, reply: Reply<Answer>) {
        portolan_types::failpoint!("store/cluster-deletion-begins");
        let (answer, progress) = delete_cluster(&self.core, cluster);
        portolan_types::failpoint!("store/cluster-deleted");
        match (&answer, progress) {
            (Ok(_), Progress::More) => self.chores.sweep(cluster),
            (Ok(_), Progress::Done) => self.core.damage.remove_cluster(cluster),
            (Err(_), _) => {}
        }
        let _ = reply.send(answer);
    }

    fn compact(&mut self, upto: ResourceVersion, reply: Reply<Result<(), StoreError>>) {
        if let Err(error) = self.core.hub.marks().check_happened(upto.get()) {
            let _ = reply.send(Err(error));
            return;
        }
        self.chores.compact(upto.get(), reply);
    }
}

/// What a queue had, or what is to be done when it had nothing for so long.
fn received(received: Result<Request, RecvTimeoutError>, otherwise: Taken) -> Taken {
    match received {
        Ok(request) => Taken::Request(request),
        Err(RecvTimeoutError::Timeout) => otherwise,
        Err(RecvTimeoutError::Disconnected) => Taken::Over,
    }
}

/// Answers what came after the store was closed.
fn refuse(request: Request) {
    // An error means that nobody waits any more.
    match request {
        Request::Commit(waiting) => waiting.refuse(&closed()),
        Request::DeleteCluster(_, reply) => drop(reply.send(Err(closed()))),
        Request::Compact(_, reply) => drop(reply.send(Err(closed()))),
        Request::Close(reply) => drop(reply.send(())),
    }
}

/// The answer of a thread that ended before it answered.
pub(crate) fn no_answer(core: &Core) -> StoreError {
    match core.check_open(Purpose::MakeRoom) {
        Ok(()) => backend(failed("the store's committer is gone")),
        Err(error) => error,
    }
}
