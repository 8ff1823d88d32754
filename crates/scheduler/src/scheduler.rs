//! The scheduler as a whole: its parts, its tasks, and how they start and end.

use std::{
    collections::BTreeSet,
    panic::AssertUnwindSafe,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures::FutureExt as _;
use portolan_store::{DynStore, Objects, StoreError};
use portolan_types::{GroupResource, LogicalClusterId, ObjectKey, Seams, Status, work::Outcome};
use tokio::{sync::Notify, task::JoinSet};
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, warn};

use crate::{
    admission::Waiting,
    facts::{Facts, Reach},
    kinds,
    queue::{Queue, Task},
    rescan::{Rescans, Scope},
    seams::{ClusterTree, KindCatalog, PodGate, UseRights},
};

/// Tasks that work on the queue at once: enough to keep the store's batches filled.
const WORKERS: usize = 16;
/// Pause of the writer of usages, in which more may come: a status is written at most that often.
const USAGE_STATUS_DELAY: Duration = Duration::from_secs(1);
/// How long the writers of policy status wait for more to come.
const POLICY_STATUS_DELAY: Duration = Duration::from_millis(300);

/// What a scheduler is made of.
pub struct Parts {
    /// Where everything is.
    pub store: DynStore,
    /// Time and randomness.
    pub seams: Seams,
    /// The tree of logical clusters.
    pub tree: Arc<dyn ClusterTree>,
    /// Who may use which physical cluster.
    pub rights: Arc<dyn UseRights>,
    /// Resources of kinds that policies name.
    pub kinds: Arc<dyn KindCatalog>,
    /// Whether the pods of templates are let in. Where there is none, they are.
    pub gate: Option<Arc<dyn PodGate>>,
}

/// Why the scheduler could not do something.
#[derive(Debug, thiserror::Error)]
pub enum SchedulerError {
    /// The store did not do it.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// An object names a physical cluster that exists and has not been seen yet. It is tried again.
    #[error("a physical cluster is not known yet")]
    Behind,
    /// What the decision depends on is there and cannot be read. It is tried again.
    #[error("{0} cannot be read")]
    Unreadable(String),
    /// Nobody could be asked whether pods are let in. It is tried again.
    #[error("admission: {0}")]
    Admission(Status),
    /// It panicked on what it read. It is tried again, after ever longer pauses.
    #[error("a panic")]
    Panicked,
    /// A step was about to be taken that must not be.
    #[error("{key}: {step}")]
    Illegal {
        /// Of which object.
        key: Box<ObjectKey>,
        /// Which rule does not hold.
        step: portolan_placement::IllegalStep,
    },
}

/// Places objects. Cheap to clone; all clones are one.
#[derive(Clone)]
pub struct Scheduler {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) objects: Objects,
    pub(crate) seams: Seams,
    pub(crate) tree: Arc<dyn ClusterTree>,
    pub(crate) rights: Arc<dyn UseRights>,
    pub(crate) kinds: Arc<dyn KindCatalog>,
    pub(crate) gate: Option<Arc<dyn PodGate>>,
    /// Objects whose pods are refused.
    pub(crate) refused: Waiting,
    /// Objects that lack room within the bounds of physical clusters. They are decided again when room is freed.
    pub(crate) without_room: Waiting,
    facts: Mutex<Facts>,
    pub(crate) queue: Queue,
    pub(crate) rescans: Rescans,
    /// Custom resources that policies name and that are watched, or are to be.
    custom: Mutex<BTreeSet<GroupResource>>,
    pub(crate) custom_changed: Notify,
    pub(crate) matched_changed: Notify,
    pub(crate) usage_changed: Notify,
    /// Whether decisions are this scheduler's to make.
    leads: AtomicBool,
}

impl Scheduler {
    /// A scheduler that does nothing until it runs.
    pub fn new(parts: Parts) -> Self {
        let queue = Queue::new(&parts.seams);
        let inner = Inner {
            objects: Objects::new(parts.store),
            seams: parts.seams,
            tree: parts.tree,
            rights: parts.rights,
            kinds: parts.kinds,
            gate: parts.gate,
            refused: Waiting::default(),
            without_room: Waiting::default(),
            facts: Mutex::default(),
            queue,
            rescans: Rescans::default(),
            custom: Mutex::default(),
            custom_changed: Notify::new(),
            matched_changed: Notify::new(),
            usage_changed: Notify::new(),
            leads: AtomicBool::new(true),
        };
        Self { inner: Arc::new(inner) }
    }

    /// Says whether decisions are this scheduler's to make, which they are at first. While another one makes them, facts are
    /// still kept for warnings and explanations. Who begins to lead looks at everything, since the other may have left
    /// something undone.
    pub fn lead(&self, leads: bool) {
        if !self.inner.leads.swap(leads, Ordering::AcqRel) && leads {
            self.inner.rescans.everything();
            self.inner.matched_changed.notify_one();
            self.inner.usage_changed.notify_one();
        }
    }

    /// Places until `shutdown` is cancelled. Failures are logged and tried again.
    pub async fn run(&self, shutdown: CancellationToken) {
        shutdown.run_until_cancelled(self.run_tasks(&shutdown)).await;
    }

    async fn run_tasks(&self, shutdown: &CancellationToken) {
        let inner = &self.inner;
        let mut tasks = JoinSet::new();
        // Facts come first, so that the first decisions are made with all of them.
        let facts = [kinds::physical_clusters(), kinds::namespaces()].into_iter().chain(kinds::policies());
        let placeable = kinds::PLACEABLE.iter().map(kinds::Placeable::resource);
        let causes = kinds::CAUSES.iter().filter(|_| inner.gate.is_some()).map(kinds::Cause::resource);
        let changing = [kinds::placements(), kinds::revisions()];
        for resource in facts.chain(placeable).chain(changing).chain(causes) {
            self.start_feed(&mut tasks, resource).await;
        }
        for _ in 0..WORKERS {
            let (inner, stop) = (inner.clone(), shutdown.clone());
            tasks.spawn(async move {
                stop.run_until_cancelled(inner.work()).await;
            });
        }
        inner.rescans.everything();
        let (rescans, status, stop) = (inner.clone(), inner.clone(), shutdown.clone());
        tasks.spawn(async move { rescans.run_rescans().await });
        tasks.spawn(async move {
            stop.run_until_cancelled(status.keep_policy_status(POLICY_STATUS_DELAY)).await;
        });
        let (usages, stop) = (inner.clone(), shutdown.clone());
        tasks.spawn(async move {
            stop.run_until_cancelled(usages.keep_usage_status(USAGE_STATUS_DELAY)).await;
        });
        loop {
            let wanted: Vec<_> = inner.custom().iter().cloned().collect();
            for resource in wanted {
                self.start_feed_once(&mut tasks, resource).await;
            }
            tokio::select! {
                () = inner.custom_changed.notified() => {}
                // None of them ends by itself. One that panicked takes the scheduler with it, which its owner sees.
                Some(ended) = tasks.join_next() => {
                    if let Err(Ok(panic)) = ended.map_err(tokio::task::JoinError::try_into_panic) {
                        std::panic::resume_unwind(panic);
                    }
                }
            }
        }
    }

    async fn start_feed(&self, tasks: &mut JoinSet<()>, resource: GroupResource) {
        // Of these only changes matter.
        let only_changes = [kinds::namespaces(), kinds::placements(), kinds::revisions()].contains(&resource)
            || kinds::is_cause(&resource);
        let after = match only_changes {
            true => self.inner.objects.store().current(),
            false => self.inner.list_until_done(&resource).await,
        };
        let inner = self.inner.clone();
        tasks.spawn(async move { inner.feed(resource, after).await });
    }

    async fn start_feed_once(&self, tasks: &mut JoinSet<()>, resource: GroupResource) {
        if self.inner.facts().fed.insert(resource.clone()) {
            self.start_feed(tasks, resource).await;
            self.inner.rescans.everything();
        }
    }

    /// Looks again at the objects of a logical cluster and those below it, because the right to use the physical clusters that
    /// are registered there has changed.
    pub fn rights_changed(&self, home: LogicalClusterId) {
        self.inner.rescans.add(Scope::Subtree(home));
    }

    /// Waits until everything that is known to be looked at has been. For tests and tools; new work may come any time.
    pub async fn settled(&self) {
        self.inner.queue.tasks.wait_idle().await;
    }
}

impl Inner {
    /// The facts. Held while a decision is made, never across an await.
    pub(crate) fn facts(&self) -> MutexGuard<'_, Facts> {
        // What panics under this lock decides; facts are only changed by code that does not.
        self.facts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn custom(&self) -> MutexGuard<'_, BTreeSet<GroupResource>> {
        self.custom.lock().expect("no code panics under this lock")
    }

    pub(crate) fn leads(&self) -> bool {
        self.leads.load(Ordering::Acquire)
    }

    /// Leaves a task to the scheduler that leads.
    fn leave(&self, task: Task) {
        if let Task::Followers(cluster, namespace) = &task {
            drop(self.queue.take_followers(*cluster, namespace));
        }
        self.queue.tasks.finish(task, Outcome::Done);
    }

    pub(crate) fn reach(&self, cluster: LogicalClusterId) -> Reach {
        Reach { lineage: self.tree.lineage(cluster) }
    }

    /// Seconds since the epoch.
    pub(crate) fn now(&self) -> i64 {
        self.seams.clock.now().as_second()
    }

    async fn work(&self) {
        loop {
            let task = self.queue.tasks.next().await;
            if !self.leads() {
                self.leave(task);
                continue;
            }
            let started = tokio::time::Instant::now();
            // One object that nothing is prepared for keeps no other from its place.
            let done = AssertUnwindSafe(self.attempt(&task)).catch_unwind().await;
            let done = done.unwrap_or(Err(SchedulerError::Panicked));
            debug!(?task, duration_us = started.elapsed().as_micros() as u64, "looked at");
            match done {
                Ok(()) => self.queue.tasks.finish(task, Outcome::Done),
                Err(error) => {
                    log_failure(&task, &error);
                    self.queue.tasks.fail(task);
                }
            }
        }
    }
}

impl Inner {
    async fn attempt(&self, task: &Task) -> Result<(), SchedulerError> {
        match task {
            Task::Object(key) => self.place_object(key).await,
            Task::Followers(cluster, namespace) => self.place_followers(*cluster, namespace).await,
            Task::Physical(key) => self.tend_physical(key).await,
            Task::Forget(key) => self.forget(key).await,
        }
    }
}

/// Others being faster is no news: the task comes again.
fn log_failure(task: &Task, error: &SchedulerError) {
    use StoreError::{AlreadyExists, ClusterGone, Conflict, NotFound};
    match error {
        SchedulerError::Store(Conflict { .. } | AlreadyExists { .. } | NotFound { .. } | ClusterGone { .. }) => {
            debug!(?task, %error, "somebody was faster");
        }
        SchedulerError::Behind => debug!(?task, %error, "not yet"),
        SchedulerError::Panicked => error!(?task, %error, "set aside, and tried again later"),
        error => warn!(?task, %error, "could not place"),
    }
}
