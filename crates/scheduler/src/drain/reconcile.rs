//! Reconciles one drain: starts it, makes a pass, and writes the result.

use std::{sync::Arc, time::Duration};

use portolan_types::{
    ObjectKey, object,
    placement::{DrainPhase, DrainPlan, DrainStatus, DrainedCluster, WhenBlocked},
};
use tracing::Span;

use super::{
    deletion::owner_of,
    events::requeue_drains,
    objects::DrainObject,
    outcome::{phase, phase_of_undo},
    pass::LeavePass,
    registry::RegisteredDrain,
    status::{set_progress, status_after, time_text, with_condition, write_status},
    undo::ReturnPass,
};
use crate::{
    PlanError, PlannedChange,
    context::SchedulerContext,
    facts::Facts,
    queue::Task,
    scheduler::{Scheduler, SchedulerError},
};

/// Interval of passes while objects move, for changes without an event.
const LOOK_AGAIN: Duration = Duration::from_secs(5);
/// Delay of a pass after an event, in which it collects further ones.
pub(super) const COLLECT: Duration = Duration::from_millis(250);

/// Reason of a drain whose plan is not the expected one.
const PLAN_CHANGED: &str = "PlanChanged";

/// Message of the drain of a deletion.
const NO_WAY_BACK: &str = "the PhysicalCluster is being deleted: this drain can be paused, but not aborted or undone";

/// Condition of a drain on its way back.
const UNDOING: &str = "Undoing";
/// Reason of an undo that was requested together with an abort, or after it.
const AFTER_ABORT: &str = "RequestedAfterAbort";

/// Reason for which a drain does not start.
struct StartRefusal {
    reason: &'static str,
    message: String,
}

/// Reconciles a drain.
///
/// # Errors
/// The errors of the store, and if a fact that a decision needs cannot be read.
pub(crate) async fn reconcile_drain(ctx: &Arc<SchedulerContext>, key: &ObjectKey) -> Result<(), SchedulerError> {
    let Some(drain) = DrainObject::read(ctx, key).await? else { return forget(ctx, key).await };
    Span::current().record("resource_version", drain.revision.get());
    if object::is_deleting(&drain.object) {
        return Ok(());
    }
    if drain.status.start_time.is_none() {
        return start(ctx, &drain).await;
    }
    // The passes depend on the cordon, which follows from events: a decision must not send an object to a drained
    // physical cluster, nor an undo find it cordoned still.
    let is_seen = |known: &RegisteredDrain| known.has_started && known.revision >= drain.revision;
    let is_known = ctx.facts().drains.get(&drain.uid).is_some_and(is_seen);
    if !is_known {
        ctx.queue.tasks.add_after(Task::Drain(key.clone()), COLLECT);
        return Ok(());
    }
    match (drain.spec.undo, drain.status.phase) {
        (true, DrainPhase::Undone) | (false, DrainPhase::Aborted | DrainPhase::Undone) => Ok(()),
        (true, _) if has_aborted_undo(&drain.status) => Ok(()),
        // It stays completed, even if more objects could move later.
        (false, DrainPhase::Completed) if !drain.spec.abort => Ok(()),
        (true, _) => undo(ctx, &drain).await,
        (false, _) => leave(ctx, &drain).await,
    }
}

async fn leave(ctx: &SchedulerContext, drain: &DrainObject) -> Result<(), SchedulerError> {
    let tally = LeavePass::new(ctx, drain).run().await?;
    let phase = phase(&drain.spec, &tally.counts);
    write_status(ctx, drain, status_after(ctx, drain, tally, phase)).await?;
    look_again(ctx, drain, phase);
    Ok(())
}

async fn undo(ctx: &SchedulerContext, drain: &DrainObject) -> Result<(), SchedulerError> {
    // An abort cannot be taken back, so one from before the undo does not end the undo.
    let known = drain.status.conditions.iter().find(|condition| condition.kind == UNDOING);
    let follows_abort = known.map_or(drain.spec.abort, |known| known.reason == AFTER_ABORT);
    let aborts = drain.spec.abort && !follows_abort;
    let tally = ReturnPass::new(ctx, drain, aborts).run().await?;
    let phase = phase_of_undo(&drain.spec, &tally.counts, aborts);
    let is_undoing = phase.is_active();
    let reason = if follows_abort { AFTER_ABORT } else { "Requested" };
    let generation = object::generation(&drain.object);
    let status = status_after(ctx, drain, tally, phase);
    let status = with_condition(status, ctx, generation, (UNDOING, is_undoing, reason, String::new()));
    write_status(ctx, drain, status).await?;
    look_again(ctx, drain, phase);
    Ok(())
}

/// Returns true once the undo of a drain was aborted, and nothing of it moves.
pub(super) fn has_aborted_undo(status: &DrainStatus) -> bool {
    let undoing = status.conditions.iter().find(|condition| condition.kind == UNDOING);
    status.phase == DrainPhase::Aborted && undoing.is_some_and(|undoing| undoing.status == "False")
}

fn look_again(ctx: &SchedulerContext, drain: &DrainObject, phase: DrainPhase) {
    if phase.is_active() {
        ctx.queue.tasks.add_after(Task::Drain(drain.key.clone()), LOOK_AGAIN);
    }
}

/// Starts a drain, or says why it does not start.
async fn start(ctx: &Arc<SchedulerContext>, drain: &DrainObject) -> Result<(), SchedulerError> {
    let now = time_text(ctx.now());
    let generation = object::generation(&drain.object);
    let mut status = DrainStatus { observed_generation: generation, ..drain.status.clone() };
    if drain.spec.abort || drain.spec.undo {
        status.phase = if drain.spec.undo { DrainPhase::Undone } else { DrainPhase::Aborted };
        status.completion_time = status.completion_time.or(Some(now));
        return tell(ctx, drain, status, (true, "NotStarted", "it ended before it started".to_owned())).await;
    }
    status.phase = DrainPhase::Planned;
    let clusters = clusters_to_drain(&ctx.facts(), drain);
    status.clusters = match clusters {
        Ok(clusters) => clusters,
        Err(StartRefusal { reason, message }) => return tell(ctx, drain, status, (false, reason, message)).await,
    };
    // A plan that is not the expected one is refused permanently: a later change must not start the drain.
    let is_new = drain.status.observed_generation != generation;
    let was_refused = drain.status.conditions.iter().any(|c| c.kind == "Accepted" && c.reason == PLAN_CHANGED);
    if was_refused && !is_new {
        return Ok(());
    }
    if !drain.spec.paused || is_new || status.plan.is_none() {
        status.plan = plan(ctx, drain, &status.clusters, &now).await?;
    }
    let expected = drain.spec.expect_plan.as_str();
    let hash = status.plan.as_ref().map_or("", |plan| plan.hash.as_str());
    if !expected.is_empty() && expected != hash {
        let message = format!("the plan would now be {hash:?}, not {expected:?}");
        return tell(ctx, drain, status, (false, PLAN_CHANGED, message)).await;
    }
    if drain.spec.paused {
        return tell(ctx, drain, status, (true, "Paused", "it starts once spec.paused is false".to_owned())).await;
    }
    // The plan took time, and another drain may have started since. From here on no other one starts, although no event
    // has shown the start of this one yet.
    let claimed = claim(ctx, drain);
    if let Err(StartRefusal { reason, message }) = claimed {
        return tell(ctx, drain, status, (false, reason, message)).await;
    }
    (status.phase, status.start_time) = (DrainPhase::Running, Some(now));
    let message = if owner_of(&drain.object).is_some() { NO_WAY_BACK.to_owned() } else { String::new() };
    let started = tell(ctx, drain, status, (true, "Started", message)).await;
    if started.is_err() {
        ctx.facts().drains.release(&drain.uid);
        requeue_drains(ctx, drain.key.cluster);
    }
    started
}

/// Claims the physical clusters of a drain, unless another one is at work on them.
fn claim(ctx: &SchedulerContext, drain: &DrainObject) -> Result<(), StartRefusal> {
    let mut facts = ctx.facts();
    let clusters = clusters_to_drain(&facts, drain)?;
    facts.drains.claim(&drain.uid, clusters.into_iter().map(|cluster| cluster.uid));
    Ok(())
}

/// Writes a status with the condition `Accepted`: its truth, reason and message.
async fn tell(
    ctx: &SchedulerContext,
    drain: &DrainObject,
    status: DrainStatus,
    (is_accepted, reason, message): (bool, &str, String),
) -> Result<(), SchedulerError> {
    let generation = object::generation(&drain.object);
    let status = with_condition(status, ctx, generation, ("Accepted", is_accepted, reason, message));
    write_status(ctx, drain, status).await
}

/// Returns the plan of a drain in numbers; `None` if it is about too many objects to be planned.
async fn plan(
    ctx: &Arc<SchedulerContext>,
    drain: &DrainObject,
    clusters: &[DrainedCluster],
    now: &str,
) -> Result<Option<DrainPlan>, SchedulerError> {
    let keys: Vec<ObjectKey> = {
        let facts = ctx.facts();
        clusters.iter().filter_map(|cluster| Some(facts.physical(&cluster.uid)?.key.clone())).collect()
    };
    let force = drain.spec.when_blocked == WhenBlocked::Force;
    let changes: Vec<_> = keys.into_iter().map(|key| PlannedChange::Drain { key, force }).collect();
    let planned = Scheduler { ctx: ctx.clone() }.plan(drain.key.cluster, &changes).await;
    let plan = match planned {
        Ok(plan) => plan,
        Err(PlanError::TooManyObjects) => return Ok(None),
        Err(PlanError::Scheduler(error)) => return Err(error),
    };
    let counts = plan.counts();
    let number = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
    // Another time alone makes no other plan.
    let known = drain.status.plan.clone().filter(|known| known.hash == plan.hash);
    let time = known.map_or_else(|| now.to_owned(), |known| known.time);
    Ok(Some(DrainPlan { hash: plan.hash, moves: number(counts.moves), refused: number(counts.refused), time }))
}

/// Returns the physical clusters of a drain that may start.
fn clusters_to_drain(facts: &Facts, drain: &DrainObject) -> Result<Vec<DrainedCluster>, StartRefusal> {
    let mut clusters = Vec::new();
    for name in &drain.spec.physical_clusters {
        let Some(uid) = facts.registered_in(drain.key.cluster, name) else {
            let message = format!("no physical cluster {name:?} is registered in {}", drain.home);
            return Err(StartRefusal { reason: "UnknownCluster", message });
        };
        if let Some(other) = facts.drains.other_at_work(uid, &drain.uid) {
            let message = format!("{name} is being drained by Drain {}: this one waits for its end", other.key.name);
            return Err(StartRefusal { reason: "DrainedByOther", message });
        }
        clusters.push(DrainedCluster { name: name.clone(), uid: uid.clone() });
    }
    Ok(clusters)
}

/// Cleans up after a drain that was deleted: its marks, and the progress of its physical clusters.
async fn forget(ctx: &SchedulerContext, key: &ObjectKey) -> Result<(), SchedulerError> {
    let (orphans, physical) = {
        let facts = ctx.facts();
        (facts.drains.orphans(), facts.all_registered_in(key.cluster))
    };
    orphans.into_iter().for_each(|object| ctx.queue.tasks.add(Task::Object(object)));
    for physical in physical {
        set_progress(ctx, &physical, None, &key.name).await?;
    }
    Ok(())
}
