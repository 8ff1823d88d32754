//! The scheduler as a whole: its parts, its tasks, and how they start and end.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use portolan_store::{DynStore, StoreError};
use portolan_types::{GroupResource, LogicalClusterId, ObjectKey, Seams, Status};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::{
    context::SchedulerContext,
    drain::events::recheck_blocked,
    failover::{FailoverStats, FailoverTiming, run_failover},
    kinds,
    observe::{
        definition_events::{request_recounts, run_definition_scans, scan_groups_of_placed},
        fact_barrier::FeedProgress,
        feed::{PAUSES, list_with_retry, run_feed},
    },
    queue::rescan::{RescanScope, run_rescans},
    reconcile::run_worker,
    seams::{ClusterTree, KindCatalog, PodGate, UseRights},
    status::policy_status::run_policy_status,
    status::usage_status::run_usage_status,
};

/// Workers of the queue: enough to keep the store's batches filled.
const WORKERS: usize = 16;
/// Delay of the writer of usages, in which it collects changes: it writes a status at most that often.
const USAGE_STATUS_DELAY: Duration = Duration::from_secs(1);
/// Delay of the writer of policy statuses, in which it collects changes.
const POLICY_STATUS_DELAY: Duration = Duration::from_millis(300);

/// Collaborators of a scheduler.
pub struct SchedulerParts {
    /// Store of all objects.
    pub store: DynStore,
    /// Time and randomness.
    pub seams: Seams,
    /// The tree of logical clusters.
    pub tree: Arc<dyn ClusterTree>,
    /// The RBAC verb `use` on physical clusters.
    pub rights: Arc<dyn UseRights>,
    /// Resources of kinds that policies name.
    pub kinds: Arc<dyn KindCatalog>,
    /// Admission and quota of the pods of templates. All are admitted without one.
    pub gate: Option<Arc<dyn PodGate>>,
    /// Times of failover.
    pub failover: FailoverTiming,
}

/// Failure of a task. The task is retried with backoff.
#[derive(Debug, thiserror::Error)]
pub enum SchedulerError {
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The facts are older than the object, or an object names a physical cluster that no event has shown yet.
    #[error("the facts are older than the object")]
    Behind,
    /// An object that the decision depends on exists and cannot be read.
    #[error("{0} cannot be read")]
    Unreadable(String),
    /// Admission or quota could not be asked.
    #[error("admission: {0}")]
    Admission(Status),
    /// The task panicked on what it read.
    #[error("a panic")]
    Panicked,
    /// The next step would break a rule. It is never committed.
    #[error("{key}: {step}")]
    Illegal {
        /// Key of the object.
        key: Box<ObjectKey>,
        /// Rule that the step breaks.
        step: portolan_placement::IllegalStep,
    },
}

/// Handle of the scheduler. Cheap to clone; all clones are one scheduler.
#[derive(Clone)]
pub struct Scheduler {
    pub(crate) ctx: Arc<SchedulerContext>,
}

impl Scheduler {
    /// Makes a scheduler that does nothing until it runs.
    pub fn new(parts: SchedulerParts) -> Self {
        Self { ctx: Arc::new(SchedulerContext::new(parts)) }
    }

    /// Sets the leadership, which a new scheduler has. Without it the scheduler keeps its facts for warnings and
    /// explanations, and decides nothing.
    pub fn lead(&self, leads: bool) {
        self.ctx.set_leads(leads);
    }

    /// Places until `shutdown` is cancelled. Failures are logged and retried.
    pub async fn run(&self, shutdown: CancellationToken) {
        shutdown.run_until_cancelled(self.run_tasks(&shutdown)).await;
    }

    async fn run_tasks(&self, shutdown: &CancellationToken) {
        let ctx = &self.ctx;
        let mut tasks = JoinSet::new();
        self.start_builtin_feeds(&mut tasks).await;
        for _ in 0..WORKERS {
            let (ctx, stop) = (ctx.clone(), shutdown.clone());
            tasks.spawn(async move {
                stop.run_until_cancelled(run_worker(&ctx)).await;
            });
        }
        ctx.rescans.everything();
        let rescans = ctx.clone();
        tasks.spawn(async move { run_rescans(&rescans).await });
        let (policies, stop) = (ctx.clone(), shutdown.clone());
        tasks.spawn(async move {
            stop.run_until_cancelled(run_policy_status(&policies, POLICY_STATUS_DELAY)).await;
        });
        let (usages, stop) = (ctx.clone(), shutdown.clone());
        tasks.spawn(async move {
            stop.run_until_cancelled(run_usage_status(&usages, USAGE_STATUS_DELAY)).await;
        });
        let (losses, stop) = (ctx.clone(), shutdown.clone());
        tasks.spawn(async move {
            stop.run_until_cancelled(run_failover(&losses)).await;
        });
        self.supervise(&mut tasks).await;
    }

    /// Starts feeds of resources that policies begin to name, until a task panics.
    async fn supervise(&self, tasks: &mut JoinSet<()>) {
        let mut is_placed_scanned = false;
        loop {
            if let Err(error) = self.follow_custom_resources(tasks, &mut is_placed_scanned).await {
                warn!(%error, "definitions of custom resources cannot be read, will retry");
                tokio::time::sleep(PAUSES.1).await;
                continue;
            }
            tokio::select! {
                () = self.ctx.signals.custom_resources.notified() => {}
                // No task ends by itself. A panic ends the scheduler, and its owner sees it.
                Some(ended) = tasks.join_next() => {
                    if let Err(Ok(panic)) = ended.map_err(tokio::task::JoinError::try_into_panic) {
                        std::panic::resume_unwind(panic);
                    }
                }
            }
        }
    }

    async fn start_builtin_feeds(&self, tasks: &mut JoinSet<()>) {
        // Facts come first, so that the first decisions are made with all of them.
        let facts = [kinds::drains(), kinds::physical_clusters(), kinds::heartbeats(), kinds::namespaces()];
        let facts = facts.into_iter().chain(kinds::policies());
        let placeable = kinds::PLACEABLE.iter().map(kinds::Placeable::resource);
        let has_gate = self.ctx.gate.is_some();
        let sources = kinds::REFUSAL_SOURCES.iter().filter(|_| has_gate).map(kinds::RefusalSource::resource);
        let changing = [kinds::placements(), kinds::revisions()];
        let changing = changing.into_iter().chain([kinds::definitions()]);
        for resource in facts.chain(placeable).chain(changing).chain(sources) {
            self.start_feed(tasks, resource).await;
        }
    }

    async fn start_feed(&self, tasks: &mut JoinSet<()>, resource: GroupResource) {
        // Only changes of these resources matter, not the present objects.
        let changing = [kinds::namespaces(), kinds::placements(), kinds::revisions(), kinds::definitions()];
        let only_changes = changing.contains(&resource) || kinds::is_refusal_source(&resource);
        let after =
            if only_changes { self.ctx.objects.store().current() } else { list_with_retry(&self.ctx, &resource).await };
        let progress = Arc::new(FeedProgress::at(after));
        if kinds::is_fact(&resource) {
            self.ctx.fact_barrier.add(progress.clone());
        } else if resource == kinds::definitions() {
            self.ctx.definition_barrier.add(progress.clone());
        }
        self.ctx.feeds().insert(resource.clone(), progress.clone());
        let ctx = self.ctx.clone();
        tasks.spawn(async move { run_feed(&ctx, resource, after, &progress).await });
    }

    /// Reads definitions whose groups policies name, starts feeds of resources that have none, and then rescans the
    /// objects that waited for them.
    async fn follow_custom_resources(
        &self,
        tasks: &mut JoinSet<()>,
        is_placed_scanned: &mut bool,
    ) -> Result<(), StoreError> {
        let ctx = &self.ctx;
        if !*is_placed_scanned {
            scan_groups_of_placed(ctx).await?;
            *is_placed_scanned = true;
        }
        run_definition_scans(ctx).await?;
        let arrivals = std::mem::take(&mut *ctx.arrivals());
        let recounts = std::mem::take(&mut *ctx.recounts());
        let named = ctx.custom().clone();
        let defined: Vec<_> = ctx.facts().definitions.resources().into_iter().cloned().collect();
        let mut new_feeds = BTreeSet::new();
        for resource in named {
            if self.start_feed_once(tasks, resource.clone()).await {
                ctx.rescans.everything();
                new_feeds.insert(resource);
            }
        }
        for resource in defined {
            if self.start_feed_once(tasks, resource.clone()).await {
                new_feeds.insert(resource);
            }
        }
        // A new feed has counted by the present fields.
        let (counted, recounts) = recounts.into_iter().partition(|(_, resource)| new_feeds.contains(resource));
        ctx.facts().usage.note_fresh(&counted);
        request_recounts(ctx, recounts).await?;
        arrivals.into_iter().for_each(|scope| ctx.rescans.add(scope));
        Ok(())
    }

    /// Returns true if the resource had no feed.
    async fn start_feed_once(&self, tasks: &mut JoinSet<()>, resource: GroupResource) -> bool {
        let is_new = self.ctx.facts().fed.insert(resource.clone());
        if is_new {
            self.start_feed(tasks, resource).await;
        }
        is_new
    }

    /// Rescans a logical cluster and its descendants, because the right to use the physical clusters that are
    /// registered there has changed.
    pub fn rights_changed(&self, home: LogicalClusterId) {
        recheck_blocked(&self.ctx);
        self.ctx.rescans.add(RescanScope::Subtree(home));
    }

    /// Returns the numbers of failover, for metrics.
    pub fn failover_stats(&self) -> FailoverStats {
        self.ctx.failover.stats(&self.ctx.facts())
    }

    /// Waits until the queue is empty. For tests and tools; new work may come at any time.
    pub async fn settled(&self) {
        self.ctx.queue.tasks.wait_idle().await;
    }
}
