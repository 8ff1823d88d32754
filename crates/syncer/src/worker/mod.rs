//! Worker of one physical cluster: it syncs placed objects downstream and reports their status upstream.
//!
//! The worker is level-based: watches downstream and changes upstream only name the keys to reconcile. The server that
//! holds the lease of the physical cluster runs the worker. A worker of an earlier holder ends when it reads upstream
//! that a newer one exists.

mod cluster_report;
mod config;
mod copies;
mod custom_kinds;
mod debts;
mod definitions;
mod deletion_brake;
mod events;
mod failures;
mod forwarded_changes;
mod gone_pods;
mod handle;
mod health;
mod heartbeats;
mod keep;
mod left_behind;
mod left_claims;
mod limits;
mod namespace_labels;
mod namespaces;
mod orphans;
mod pod_views;
mod projected_names;
mod projections;
mod queue;
mod recreation;
mod reflector;
mod reflector_cache;
mod report;
mod session;
mod spans;
mod state;
mod task_wrapper;
mod token_buckets;
mod unreachable;
mod upstream_changes;
mod write;

use std::{
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use portolan_types::{
    ObjectKey, Seams,
    upstream::{Debt, Upstream, UpstreamError, UpstreamObject},
    work::WorkOutcome,
};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;

pub use self::{
    config::SyncerConfig,
    handle::{Syncer, SyncerHandle, SyncerStats},
    limits::SyncLimits,
    task_wrapper::TaskWrapper,
};
use self::{
    queue::{WorkResult, WorkerQueue},
    reflector_cache::ObjectRef,
    session::Session,
    state::State,
};
pub use left_behind::LeftBehindOrder;

use crate::{client::DownstreamError, connector::Connector, memory::RegistrationMemory, rules::SyncRules};

#[derive(Default)]
struct Counters {
    creates: AtomicU64,
    applies: AtomicU64,
    repairs: AtomicU64,
    deletes: AtomicU64,
}

/// Something to reconcile.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Work {
    /// Upstream object and its copy.
    Copy(ObjectKey),
    /// Downstream object that is projected upstream.
    Projection(ObjectRef),
    /// Downstream Event that waits to be projected.
    Event(ObjectRef),
    /// Downstream namespace that may be empty.
    Namespace(String),
    /// Downstream namespace whose labels may differ from those of its upstream one.
    NamespaceLabels(String),
    /// Copy that is deleted once the physical cluster is back.
    Debt(Box<Debt>),
    /// All debts, to be read.
    Debts,
    /// Copies left downstream by deleted registrations.
    LeftBehind,
}

/// Reason why a piece of work failed. No error proves that an object is gone.
#[derive(Debug, thiserror::Error)]
enum SyncError {
    #[error(transparent)]
    Upstream(#[from] UpstreamError),
    #[error(transparent)]
    Downstream(#[from] DownstreamError),
    #[error("{0} have not been read yet")]
    NotSynced(String),
    #[error(
        "the physical cluster does not serve {resource} now, which proves no end: an administrator who knows that the copy has ended can say \
         so by the annotation portolan.dev/write-off={name}"
    )]
    NotServed { resource: String, name: String },
    #[error("{0} is not known upstream yet")]
    OwnerUnknown(String),
    #[error("it changed each time it was read")]
    KeepsChanging,
    #[error("{0} is still there")]
    StillThere(String),
    #[error("the namespace downstream is being deleted")]
    NamespaceEnding,
    #[error("claims of a workload that was deleted before are still to be deleted there")]
    ClaimsOwed,
    #[error("there is no connection to the physical cluster")]
    CutOff,
}

struct Worker {
    config: SyncerConfig,
    rules: Mutex<Arc<SyncRules>>,
    upstream: Arc<dyn Upstream>,
    connector: Arc<dyn Connector>,
    seams: Seams,
    queue: WorkerQueue,
    memory: Arc<RegistrationMemory>,
    state: Mutex<State>,
    counters: Counters,
    /// True once a snapshot of upstream was read.
    is_view_synced: AtomicBool,
    is_fenced: AtomicBool,
    stop: CancellationToken,
}

impl Worker {
    /// Returns the resources and kinds that may be synced now.
    fn rules(&self) -> Arc<SyncRules> {
        self.rules.lock().expect("no code panics under this lock").clone()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no code panics under this lock")
    }

    /// Reads an upstream object, if it is placed on the physical cluster.
    async fn read_placed(&self, key: &ObjectKey) -> Result<Option<UpstreamObject>, SyncError> {
        Ok(self.upstream.get(&self.config.uid, key).await?.placed())
    }

    fn session(&self) -> Result<Arc<Session>, SyncError> {
        self.state().session.clone().ok_or(SyncError::CutOff)
    }

    fn enqueue_everything(&self) {
        let known: Vec<ObjectKey> = self.state().known.keys().cloned().collect();
        known.into_iter().for_each(|key| self.queue.add(Work::Copy(key)));
        if let Ok(session) = self.session() {
            session
                .all_watched()
                .iter()
                .for_each(|(resource, observed)| self.observe_object(resource, &observed.object));
        }
    }

    /// Stops the worker when upstream knows a newer one.
    async fn check_newest(&self) -> Result<(), SyncError> {
        if self.upstream.newest_syncer(&self.config.uid).await? > self.config.syncer_epoch {
            self.fence();
        }
        Ok(())
    }

    fn fence(&self) {
        self.is_fenced.store(true, Ordering::Relaxed);
        tracing::warn!(cluster = %self.config.name, "a newer syncer has taken over");
        self.stop.cancel();
    }

    /// Returns how long the physical cluster has been unreachable.
    fn unreachable_for(&self) -> Duration {
        self.state().unreachable_since.map(|since| since.elapsed()).unwrap_or_default()
    }
}

async fn run(worker: Arc<Worker>) {
    let mut tasks = JoinSet::new();
    let wrapper = &worker.config.tasks;
    tasks.spawn(wrapper.wrap(run_until_stopped(worker.clone(), upstream_changes::follow(worker.clone()))));
    tasks.spawn(wrapper.wrap(run_until_stopped(worker.clone(), session::connect_forever(worker.clone()))));
    tasks.spawn(wrapper.wrap(run_until_stopped(worker.clone(), namespace_labels::follow(worker.clone()))));
    tasks.spawn(wrapper.wrap(run_until_stopped(worker.clone(), namespace_labels::follow_imports(worker.clone()))));
    for _ in 0..worker.config.concurrency.max(1) {
        tasks.spawn(wrapper.wrap(run_until_stopped(worker.clone(), run_queue(worker.clone()))));
    }
    while let Some(ended) = tasks.join_next().await {
        if let Err(error) = ended {
            tracing::error!(cluster = %worker.config.name, %error, "a part of a syncer failed");
        }
        worker.stop.cancel(); // one part ending ends the rest
    }
}

async fn run_until_stopped(worker: Arc<Worker>, part: impl Future<Output = ()>) {
    let _ = worker.stop.run_until_cancelled(part).await;
}

async fn run_queue(worker: Arc<Worker>) {
    loop {
        let work = worker.queue.next().await;
        let span = spans::reconcile(&worker.config.name, &work);
        // Most workers wait most of the time: only work under way takes the room of its state.
        let result = Box::pin(worker.reconcile_and_report(&work)).instrument(span).await;
        worker.queue.finish(work, result);
    }
}

impl Worker {
    /// Reconciles once, and reports a failure that repeats.
    async fn reconcile_and_report(&self, work: &Work) -> WorkResult {
        match self.reconcile(work).await {
            Ok(outcome) => {
                self.succeeded(work);
                WorkResult::Well(outcome)
            }
            Err(error) => {
                tracing::debug!(cluster = %self.config.name, ?work, %error, "reconcile failed, it will be retried");
                self.after_failure(work, &error).await
            }
        }
    }

    async fn reconcile(&self, work: &Work) -> Result<WorkOutcome, SyncError> {
        match work {
            Work::Copy(key) => self.reconcile_copy(key).await,
            Work::Projection(place) => self.reconcile_projection(place).await,
            Work::Event(place) => self.reconcile_event(place).await,
            Work::Namespace(name) => self.reconcile_namespace(name).await,
            Work::NamespaceLabels(name) => self.reconcile_namespace_labels(name).await,
            Work::Debt(debt) => self.reconcile_debt(debt).await,
            Work::Debts => self.read_debts().await,
            Work::LeftBehind => self.reconcile_left_behind().await,
        }
    }
}
