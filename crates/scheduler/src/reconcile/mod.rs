//! Workers of the queue: each task is observed, decided and committed in one pass.

pub(crate) mod followers;
pub(crate) mod lost_placements;
pub(crate) mod object;
pub(crate) mod physical_cluster;

use std::{panic::AssertUnwindSafe, sync::Arc};

use futures::FutureExt as _;
use portolan_store::StoreError;
use portolan_types::work::WorkOutcome;
use tracing::{Instrument as _, Span, debug, debug_span, error, field::Empty, warn};

use crate::{
    context::SchedulerContext,
    drain::reconcile_drain,
    queue::Task,
    reconcile::followers::reconcile_followers,
    reconcile::object::{reconcile_object, remove_bookkeeping},
    reconcile::physical_cluster::reconcile_physical_cluster,
    scheduler::SchedulerError,
};

pub use physical_cluster::FINALIZER;

/// Works on the queue forever.
pub(crate) async fn run_worker(ctx: &Arc<SchedulerContext>) {
    loop {
        let task = ctx.queue.tasks.next().await;
        if !ctx.leads() {
            hand_over(ctx, task);
            continue;
        }
        let started = tokio::time::Instant::now();
        // A panic on one object keeps no other object waiting.
        let attempt = AssertUnwindSafe(reconcile(ctx, &task)).catch_unwind();
        let span = span_of(&task);
        let done = attempt.instrument(span.clone()).await.unwrap_or(Err(SchedulerError::Panicked));
        let duration = started.elapsed();
        match &task {
            Task::Object(_) => ctx.metrics.decision_seconds.observe(duration.as_secs_f64()),
            Task::Drain(_) => ctx.metrics.drain_pass_seconds.observe(duration.as_secs_f64()),
            Task::Followers(..) | Task::PhysicalCluster(_) | Task::Bookkeeping(_) => {}
        }
        let duration_us = duration.as_micros() as u64;
        span.in_scope(|| match done {
            Ok(()) => {
                debug!(duration_us, "reconciled");
                ctx.queue.tasks.finish(task, WorkOutcome::Done);
            }
            Err(error) => {
                log_failure(&task, &error);
                ctx.queue.tasks.fail(task);
            }
        });
    }
}

/// Returns the span of a reconcile. `resource_version` is recorded once the object has been read.
fn span_of(task: &Task) -> Span {
    match task {
        Task::Object(key) | Task::PhysicalCluster(key) | Task::Drain(key) | Task::Bookkeeping(key) => debug_span!(
            "reconcile",
            cluster = %key.cluster,
            resource = %key.resource,
            namespace = key.namespace().map(tracing::field::display),
            name = %key.name,
            resource_version = Empty,
        ),
        Task::Followers(cluster, namespace) => debug_span!("reconcile", %cluster, %namespace, resource = "followers"),
    }
}

async fn reconcile(ctx: &Arc<SchedulerContext>, task: &Task) -> Result<(), SchedulerError> {
    match task {
        Task::Object(key) => reconcile_object(ctx, key).await,
        Task::Followers(cluster, namespace) => reconcile_followers(ctx, *cluster, namespace).await,
        Task::PhysicalCluster(key) => reconcile_physical_cluster(ctx, key).await,
        Task::Drain(key) => reconcile_drain(ctx, key).await,
        Task::Bookkeeping(key) => remove_bookkeeping(ctx, key).await,
    }
}

/// Drops a task, which the leader does.
fn hand_over(ctx: &SchedulerContext, task: Task) {
    if let Task::Followers(cluster, namespace) = &task {
        drop(ctx.queue.take_followers(*cluster, namespace));
    }
    ctx.queue.tasks.finish(task, WorkOutcome::Done);
}

/// Logs a failure. Conflicts with other writers are expected: the task is retried.
fn log_failure(task: &Task, error: &SchedulerError) {
    use StoreError::{AlreadyExists, ClusterGone, Conflict, NotFound};
    match error {
        SchedulerError::Store(Conflict { .. } | AlreadyExists { .. } | NotFound { .. } | ClusterGone { .. }) => {
            debug!(?task, %error, "conflict with another writer");
        }
        SchedulerError::Behind => debug!(?task, %error, "facts are behind"),
        SchedulerError::Panicked => error!(?task, %error, "reconcile panicked, will retry"),
        error => warn!(?task, %error, "reconcile failed, will retry"),
    }
}
