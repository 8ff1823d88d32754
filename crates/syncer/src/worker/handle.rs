//! Start and handle of a worker.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use portolan_types::{Seams, upstream::Upstream};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::{
    Counters, LeftBehindOrder, SyncerConfig, Work, Worker, deletion_brake::DeletionBrake, queue::WorkerQueue, run,
    state::State,
};
use crate::{connector::Connector, memory::RegistrationMemory, namespace_naming::NamespaceNaming, rules::SyncRules};

/// Counts of the writes of a worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SyncerStats {
    /// Copies made.
    pub creates: u64,
    /// Copies updated, drift repairs included.
    pub applies: u64,
    /// Copies updated without an upstream change: another writer had changed the syncer's fields.
    pub repairs: u64,
    /// Copies deleted.
    pub deletes: u64,
    /// Copies whose deletion is stopped now.
    pub held: u64,
}

/// Starts workers.
pub struct Syncer;

impl Syncer {
    /// Starts the worker of one physical cluster. It ends after `shutdown`, or when a newer worker has taken over.
    pub fn spawn(
        config: SyncerConfig,
        upstream: Arc<dyn Upstream>,
        connector: Arc<dyn Connector>,
        seams: Seams,
        shutdown: &CancellationToken,
    ) -> SyncerHandle {
        let memory = RegistrationMemory::new(config.memory.clone(), config.workspace, config.limits);
        let state = State::new(DeletionBrake::new(config.deletions_held), &memory);
        let worker = Arc::new(Worker {
            rules: Mutex::new(Arc::new(SyncRules::new(&config.spec.synced_resources).with_naming(NamespaceNaming {
                mapping: config.spec.namespace_mapping,
                plane: upstream.plane().map(str::to_owned),
            }))),
            config,
            upstream,
            connector,
            queue: WorkerQueue::new(&seams),
            seams,
            memory,
            state: Mutex::new(state),
            counters: Counters::default(),
            is_view_synced: AtomicBool::new(false),
            is_fenced: AtomicBool::new(false),
            stop: shutdown.child_token(),
        });
        let task = tokio::spawn(run(worker.clone()));
        SyncerHandle { worker, task }
    }
}

/// Handle of a running worker. Dropping it does not stop the worker.
pub struct SyncerHandle {
    worker: Arc<Worker>,
    task: JoinHandle<()>,
}

impl SyncerHandle {
    /// Stops the worker and waits for its end.
    pub async fn stop(self) {
        self.worker.stop.cancel();
        self.ended().await;
    }

    /// Waits for the end of the worker.
    pub async fn ended(self) {
        if let Err(error) = self.task.await {
            tracing::error!(cluster = %self.worker.config.name, %error, "a syncer failed");
        }
    }

    /// Returns the counts so far.
    pub fn stats(&self) -> SyncerStats {
        let counters = &self.worker.counters;
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        SyncerStats {
            creates: read(&counters.creates),
            applies: read(&counters.applies),
            repairs: read(&counters.repairs),
            deletes: read(&counters.deletes),
            held: self.worker.state().held(),
        }
    }

    /// Permits up to `count` of the stopped deletions within the next minute, after an administrator has checked them.
    pub fn release_deletions(&self, count: usize) {
        {
            let mut state = self.worker.state();
            let held = usize::try_from(state.held()).unwrap_or(usize::MAX);
            state.brake.release(count, held);
        }
        self.worker.enqueue_everything();
    }

    /// Makes the worker read again which custom kinds and definitions may be synced to the physical cluster.
    pub fn refresh_custom_kinds(&self) {
        if let Ok(session) = self.worker.session() {
            session.refresh.notify_one();
        }
    }

    /// Carries out an order about copies that deleted registrations have left downstream.
    pub fn settle_left_behind(&self, order: LeftBehindOrder) {
        self.worker.state().left_behind_order = Some(order);
        self.worker.queue.add(Work::LeftBehind);
    }

    /// Returns true when the worker failed: it ended without being stopped, and no newer worker has taken over.
    pub fn has_failed(&self) -> bool {
        self.task.is_finished() && !self.is_fenced()
    }

    /// Returns true when the worker ended because a newer one has taken over.
    pub fn is_fenced(&self) -> bool {
        self.worker.is_fenced.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        TaskWrapper,
        testing::{FakeCluster, suite::SyncStage},
    };

    /// Most bytes of a task that waits.
    const WAITING_TASK: usize = 4 * 1024;

    #[tokio::test(start_paused = true)]
    async fn the_tasks_of_a_worker_take_little_room_while_they_wait() {
        let sizes: Arc<Mutex<Vec<usize>>> = Arc::default();
        let seen = sizes.clone();
        let tasks = TaskWrapper::new(move |task| {
            seen.lock().unwrap().push(std::mem::size_of_val(&*task));
            task
        });
        let stage = SyncStage::start(Arc::new(FakeCluster::default()), 9).await.unwrap();
        let stage = stage.restarted_wrapping(tasks).await;
        tokio::time::sleep(std::time::Duration::from_secs(5)).await;
        let sizes = sizes.lock().unwrap();
        assert!(sizes.len() > 10, "the tasks of the session are there: {sizes:?}");
        assert!(sizes.iter().all(|size| *size <= WAITING_TASK), "box what a task keeps only at work: {sizes:?}");
        let working = std::mem::size_of_val(&stage.handle.worker.reconcile_and_report(&Work::Debts));
        assert!(working > WAITING_TASK, "work of {working} bytes needs no box");
    }
}
