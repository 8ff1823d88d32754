//! The worker of one physical cluster: makes downstream equal to upstream and brings the status up.
//!
//! Level-based: watches and upstream's changes only say which keys to look at. Whoever holds the lease of the physical
//! cluster runs one worker; an older one that has not noticed yet ends when upstream says that there is a newer one.

mod above;
mod below;
mod brake;
mod copies;
mod cut_off;
mod debts;
mod events;
mod failures;
mod forward;
mod health;
mod left_behind;
mod left_claims;
mod limits;
mod mirror;
mod namespace_labels;
mod namespaces;
mod orphans;
mod queue;
mod rates;
mod recreation;
mod reflect;
mod report;
mod session;
mod shown_names;
mod state;
mod tasks;
mod write;

use std::{
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use portolan_types::{
    ObjectKey, Seams, Uid,
    placement::PhysicalClusterSpec,
    upstream::{Debt, Upstream, UpstreamError},
    work::Outcome,
};
use tokio::task::{JoinHandle, JoinSet};
use tokio_util::sync::CancellationToken;

use self::{
    brake::Brake,
    mirror::Place,
    queue::{Ended, Queue},
    session::Session,
    state::State,
};
pub use self::{limits::SyncLimits, tasks::TaskWrapper};
pub use left_behind::LeftBehindOrder;

use crate::{client::DownstreamError, connector::Connector, namespace_labels::NamespaceNaming, rules::SyncRules};

/// What a worker is told.
#[derive(Clone, Debug)]
pub struct SyncerConfig {
    /// Name of the `PhysicalCluster`.
    pub name: String,
    /// Uid of the `PhysicalCluster`.
    pub uid: Uid,
    /// Its spec; a change of it takes a new worker.
    pub spec: PhysicalClusterSpec,
    /// Counts the workers of this physical cluster, from the lease: greater than any before.
    pub syncer_epoch: u64,
    /// Pieces of work at a time.
    pub concurrency: usize,
    /// Deadline of one request downstream.
    pub request_timeout: Duration,
    /// Time between two looks at the health of the physical cluster.
    pub heartbeat: Duration,
    /// How long the physical cluster may be out of reach before its copies count as unreachable.
    pub unreachable_after: Duration,
    /// How long it may be out of reach before what should be deleted there becomes a debt.
    pub deletion_timeout: Duration,
    /// How long a downstream namespace stays after its last object.
    pub namespace_linger: Duration,
    /// Deletions without firm proof were held back when the last worker ended; they stay so until somebody releases them.
    pub deletions_held: bool,
    /// The most that is held of the physical cluster.
    pub limits: SyncLimits,
    /// In whose name the tasks are polled.
    pub tasks: TaskWrapper,
}

impl SyncerConfig {
    /// With the usual times: requests 15 s, heartbeat 10 s, unreachable after 40 s, debts after 5 min, namespaces linger 5 s.
    pub fn new(name: impl Into<String>, uid: Uid, spec: PhysicalClusterSpec, syncer_epoch: u64) -> Self {
        Self {
            name: name.into(),
            uid,
            spec,
            syncer_epoch,
            concurrency: 8,
            request_timeout: Duration::from_secs(15),
            heartbeat: Duration::from_secs(10),
            unreachable_after: Duration::from_secs(40),
            deletion_timeout: Duration::from_secs(300),
            namespace_linger: Duration::from_secs(5),
            deletions_held: false,
            limits: SyncLimits::default(),
            tasks: TaskWrapper::default(),
        }
    }
}

/// What a worker has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SyncerStats {
    /// Copies made.
    pub creates: u64,
    /// Copies updated, drift repairs included.
    pub applies: u64,
    /// Copies updated although nothing changed upstream: somebody else had written our fields.
    pub repairs: u64,
    /// Copies deleted.
    pub deletes: u64,
    /// Copies whose deletion is held back now.
    pub held: u64,
}

#[derive(Default)]
struct Counters {
    creates: AtomicU64,
    applies: AtomicU64,
    repairs: AtomicU64,
    deletes: AtomicU64,
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
        let state = State::new(Brake::new(config.deletions_held));
        let worker = Arc::new(Worker {
            rules: SyncRules::new(&config.spec.synced_resources).with_naming(NamespaceNaming {
                mapping: config.spec.namespace_mapping,
                plane: upstream.plane().map(str::to_owned),
            }),
            config,
            upstream,
            connector,
            queue: Queue::new(&seams),
            seams,
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

/// A running worker. Dropping it does not stop the worker.
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

    /// What it has done so far.
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

    /// Lets up to `count` of the deletions that are held back happen within the next minute: somebody has looked at them.
    pub fn release_deletions(&self, count: usize) {
        {
            let mut state = self.worker.state();
            let held = usize::try_from(state.held()).unwrap_or(usize::MAX);
            state.brake.release(count, held);
        }
        self.worker.enqueue_everything();
    }

    /// Does what was ordered about what registrations that are gone have left downstream.
    pub fn settle_left_behind(&self, order: LeftBehindOrder) {
        self.worker.state().left_behind_order = Some(order);
        self.worker.queue.add(Work::LeftBehind);
    }

    /// Whether it ended although nobody stopped it and no newer worker has taken over: it failed.
    pub fn has_failed(&self) -> bool {
        self.task.is_finished() && !self.is_fenced()
    }

    /// Whether it ended because a newer worker has taken over.
    pub fn is_fenced(&self) -> bool {
        self.worker.is_fenced.load(Ordering::Relaxed)
    }
}

/// Something to reconcile.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Work {
    /// An upstream object and its copy.
    Copy(ObjectKey),
    /// A downstream object that is shown above.
    Below(Place),
    /// An Event downstream that has yet to be shown above.
    Event(Place),
    /// A downstream namespace that may be empty.
    Namespace(String),
    /// A downstream namespace whose labels may differ from those of its upstream one.
    NamespaceLabels(String),
    /// A copy that is to be deleted on return.
    Debt(Box<Debt>),
    /// All of those, to be read.
    Debts,
    /// Copies left downstream by registrations that are gone.
    LeftBehind,
}

/// Why a piece of work was not done. None of these proves anything about an object.
#[derive(Debug, thiserror::Error)]
enum SyncError {
    #[error(transparent)]
    Upstream(#[from] UpstreamError),
    #[error(transparent)]
    Downstream(#[from] DownstreamError),
    #[error("{0} have not been read yet")]
    NotSynced(String),
    #[error(
        "the physical cluster does not serve {resource} now, which proves no end: whoever knows that the copy has ended can say \
         so by the annotation portolan.dev/write-off={name}"
    )]
    NotServed { resource: String, name: String },
    #[error("{0} is not known above yet")]
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
    rules: SyncRules,
    upstream: Arc<dyn Upstream>,
    connector: Arc<dyn Connector>,
    seams: Seams,
    queue: Queue,
    state: Mutex<State>,
    counters: Counters,
    /// A snapshot of upstream has been read.
    is_view_synced: AtomicBool,
    is_fenced: AtomicBool,
    stop: CancellationToken,
}

impl Worker {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no code panics under this lock")
    }

    fn session(&self) -> Result<Arc<Session>, SyncError> {
        self.state().session.clone().ok_or(SyncError::CutOff)
    }

    fn enqueue_everything(&self) {
        let known: Vec<ObjectKey> = self.state().known.keys().cloned().collect();
        known.into_iter().for_each(|key| self.queue.add(Work::Copy(key)));
        if let Ok(session) = self.session() {
            session.all_watched().iter().for_each(|(resource, observed)| self.noticed(resource, &observed.object));
        }
    }

    /// Ends at once when upstream knows of a newer worker.
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

    /// How long the physical cluster has been out of reach.
    fn unreachable_for(&self) -> Duration {
        self.state().unreachable_since.map(|since| since.elapsed()).unwrap_or_default()
    }
}

async fn run(worker: Arc<Worker>) {
    let mut tasks = JoinSet::new();
    let wrapper = &worker.config.tasks;
    tasks.spawn(wrapper.wrap(guarded(worker.clone(), above::follow(worker.clone()))));
    tasks.spawn(wrapper.wrap(guarded(worker.clone(), session::supervise(worker.clone()))));
    tasks.spawn(wrapper.wrap(guarded(worker.clone(), namespace_labels::follow(worker.clone()))));
    for _ in 0..worker.config.concurrency.max(1) {
        tasks.spawn(wrapper.wrap(guarded(worker.clone(), work(worker.clone()))));
    }
    while let Some(ended) = tasks.join_next().await {
        if let Err(error) = ended {
            tracing::error!(cluster = %worker.config.name, %error, "a part of a syncer failed");
        }
        worker.stop.cancel(); // one part ending ends the rest
    }
}

async fn guarded(worker: Arc<Worker>, part: impl Future<Output = ()>) {
    let _ = worker.stop.run_until_cancelled(part).await;
}

async fn work(worker: Arc<Worker>) {
    loop {
        let work = worker.queue.next().await;
        let ended = match worker.reconcile(&work).await {
            Ok(outcome) => {
                worker.succeeded(&work);
                Ended::Well(outcome)
            }
            Err(error) => {
                tracing::debug!(cluster = %worker.config.name, ?work, %error, "will be tried again");
                worker.after_failure(&work, &error).await
            }
        };
        worker.queue.finish(work, ended);
    }
}

impl Worker {
    async fn reconcile(&self, work: &Work) -> Result<Outcome, SyncError> {
        match work {
            Work::Copy(key) => self.reconcile_copy(key).await,
            Work::Below(place) => self.reconcile_below(place).await,
            Work::Event(place) => self.reconcile_event(place).await,
            Work::Namespace(name) => self.reconcile_namespace(name).await,
            Work::NamespaceLabels(name) => self.reconcile_namespace_labels(name).await,
            Work::Debt(debt) => self.reconcile_debt(debt).await,
            Work::Debts => self.read_debts().await,
            Work::LeftBehind => self.reconcile_left_behind().await,
        }
    }
}
