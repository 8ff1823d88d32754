//! Status of a drain, the progress of its physical clusters, and the Events about it.

use jiff::Timestamp;
use portolan_store::{Expect, Step, Transaction, Write, commit_with_notes};
use portolan_types::{
    ObjectKey, Record,
    event_draft::EventDraft,
    object,
    placement::{DrainPhase, DrainProgress, DrainReport, DrainRowState, DrainStatus, MAX_REPORTED, StatusCondition},
    seams::seconds_text,
};
use serde_json::{Value, json};

use super::{
    objects::DrainObject,
    outcome::{seconds_left, summary},
    rows::line,
    tally::PassTally,
};
use crate::{context::SchedulerContext, scheduler::SchedulerError};

/// Seconds to which the estimated end is rounded, so that it is not written again all the time.
const ESTIMATE_STEP: i64 = 10;
/// Most objects that a condition names.
const MAX_NAMED: usize = 3;

/// Returns a time as RFC 3339 text; empty if there is no such time.
pub(crate) fn time_text(seconds: i64) -> String {
    Timestamp::from_second(seconds).map(seconds_text).unwrap_or_default()
}

/// Returns the seconds since the epoch of an RFC 3339 text.
pub(crate) fn seconds_of(text: &str) -> Option<i64> {
    text.parse::<Timestamp>().ok().map(Timestamp::as_second)
}

/// Returns a status with a condition, whose time stays while its status does.
pub(super) fn with_condition(
    mut status: DrainStatus,
    ctx: &SchedulerContext,
    generation: i64,
    (kind, is_true, reason, message): (&str, bool, &str, String),
) -> DrainStatus {
    let word = if is_true { "True" } else { "False" };
    let known = status.conditions.iter().position(|condition| condition.kind == kind);
    let since = known.map(|at| &status.conditions[at]).filter(|condition| condition.status == word);
    let condition = StatusCondition {
        kind: kind.into(),
        status: word.into(),
        reason: reason.into(),
        message,
        last_transition_time: since.map_or_else(|| ctx.seams.now_text(), |known| known.last_transition_time.clone()),
        observed_generation: generation,
    };
    match known {
        Some(at) => status.conditions[at] = condition,
        None => status.conditions.push(condition),
    }
    status
}

/// Returns the status after a pass.
pub(super) fn status_after(
    ctx: &SchedulerContext,
    drain: &DrainObject,
    tally: PassTally,
    phase: DrainPhase,
) -> DrainStatus {
    let generation = object::generation(&drain.object);
    let now = ctx.now();
    let blocked: Vec<String> = tally.rows.of(DrainRowState::Blocked).iter().take(MAX_NAMED).map(line).collect();
    let more = if tally.counts.blocked > blocked.len() as i64 { "; …" } else { "" };
    let message = match tally.counts.blocked {
        0 => String::new(),
        number => format!("{number} objects cannot move: {}{more}", blocked.join("; ")),
    };
    let reason = if message.is_empty() { "NothingBlocked" } else { "ObjectsBlocked" };
    let started = drain.status.start_time.as_deref().and_then(seconds_of).unwrap_or(now);
    let left = seconds_left(&tally.counts, now - started).filter(|_| phase == DrainPhase::Running && !drain.spec.undo);
    let estimate = left.map(|seconds| time_text((now + seconds).div_euclid(ESTIMATE_STEP) * ESTIMATE_STEP));
    let has_ended = !phase.is_active() && phase != DrainPhase::Planned;
    let ended = drain.status.completion_time.clone().filter(|_| drain.status.phase == phase);
    let report = report(drain, &tally, phase, now - started);
    let (counts, unavailable) = (tally.counts, tally.unavailable);
    let (objects, objects_omitted) = tally.rows.finish();
    let status = DrainStatus {
        phase,
        observed_generation: generation,
        counts,
        unavailable_replicas: unavailable,
        estimated_completion_time: estimate,
        completion_time: has_ended.then(|| ended.unwrap_or_else(|| time_text(now))),
        objects,
        objects_omitted,
        report: Some(report),
        ..drain.status.clone()
    };
    let is_blocked = !message.is_empty();
    with_condition(status, ctx, generation, ("Blocked", is_blocked, reason, message))
}

/// Returns the report. Until the end it has only the largest number of unavailable replicas.
fn report(drain: &DrainObject, tally: &PassTally, phase: DrainPhase, seconds: i64) -> DrainReport {
    let known = drain.status.report.clone().unwrap_or_default();
    let most_unavailable = known.most_unavailable.max(tally.unavailable);
    if phase.is_active() || phase == DrainPhase::Planned {
        return DrainReport { most_unavailable, ..DrainReport::default() };
    }
    let exceptions = [DrainRowState::Blocked, DrainRowState::Changed, DrainRowState::Skipped];
    let exceptions = exceptions.into_iter().flat_map(|state| tally.rows.of(state)).take(MAX_REPORTED).cloned();
    let is_same = drain.status.phase == phase && !known.summary.is_empty();
    DrainReport {
        summary: summary(phase, &tally.counts, tally.left.values().sum()),
        seconds: if is_same { known.seconds } else { seconds },
        most_unavailable,
        left: tally.left.clone(),
        revision: tally.revision.map(|revision| revision.to_string()).unwrap_or_default(),
        exceptions: exceptions.collect(),
    }
}

/// Returns true if two statuses tell the same. The revision of a report moves on without a change.
fn is_same(known: &DrainStatus, next: &DrainStatus) -> bool {
    let plain = |status: &DrainStatus| {
        let report = status.report.clone().map(|report| DrainReport { revision: String::new(), ..report });
        DrainStatus { report, ..status.clone() }
    };
    plain(known) == plain(next)
}

/// Writes the status of a drain if it differs, with an Event about a new phase, and the progress of its physical
/// clusters.
///
/// # Errors
/// `Conflict` if the drain was written meanwhile, and the errors of the store.
pub(super) async fn write_status(
    ctx: &SchedulerContext,
    drain: &DrainObject,
    status: DrainStatus,
) -> Result<(), SchedulerError> {
    if !is_same(&drain.status, &status) {
        let mut object = drain.object.clone();
        object["status"] = json!(status);
        let write =
            Write { key: drain.key.clone(), expect: Expect::At(drain.revision), record: Some(Record::of(&object)) };
        let txn = Transaction { writes: vec![write], ..Transaction::default() };
        commit_with_notes(ctx.objects.store(), txn, event(ctx, drain, &status).into_iter().collect()).await?;
    }
    write_progress(ctx, drain, &status).await
}

/// Returns the Event about a new phase.
fn event(ctx: &SchedulerContext, drain: &DrainObject, status: &DrainStatus) -> Option<Write> {
    if drain.status.phase == status.phase {
        return None;
    }
    let (reason, message) = match status.phase {
        DrainPhase::Planned => return None,
        DrainPhase::Running if drain.status.phase == DrainPhase::Planned => ("DrainStarted", String::new()),
        DrainPhase::Running => ("DrainGoesOn", String::new()),
        DrainPhase::Paused => ("DrainPaused", String::new()),
        DrainPhase::Blocked => ("DrainBlocked", message_of(status, "Blocked")),
        DrainPhase::Completed => ("DrainCompleted", summary_of(status)),
        DrainPhase::Aborted => ("DrainAborted", summary_of(status)),
        DrainPhase::Undone => ("DrainUndone", summary_of(status)),
    };
    let names: Vec<&str> = drain.spec.physical_clusters.iter().map(String::as_str).collect();
    let message = if message.is_empty() { format!("drain of {}", names.join(",")) } else { message };
    let name = format!("drain-{}", status.phase.word().to_lowercase());
    let is_warning = status.phase == DrainPhase::Blocked;
    let draft = EventDraft { component: "portolan-scheduler", name: &name, is_warning, reason, message: &message };
    let (key, event) = draft.about(&ctx.seams, &drain.key, &drain.object)?;
    Some(Write { key, expect: Expect::Anything, record: Some(Record::of(&event)) })
}

fn message_of(status: &DrainStatus, kind: &str) -> String {
    status.conditions.iter().find(|c| c.kind == kind).map(|c| c.message.clone()).unwrap_or_default()
}

fn summary_of(status: &DrainStatus) -> String {
    status.report.as_ref().map(|report| report.summary.clone()).unwrap_or_default()
}

/// Writes the progress to the status of the physical clusters; takes it off once the drain is aborted or undone.
async fn write_progress(
    ctx: &SchedulerContext,
    drain: &DrainObject,
    status: &DrainStatus,
) -> Result<(), SchedulerError> {
    let is_over = matches!(status.phase, DrainPhase::Planned | DrainPhase::Aborted | DrainPhase::Undone);
    let done = if drain.spec.undo { status.counts.restored } else { status.counts.moved };
    let progress =
        DrainProgress { name: drain.key.name.to_string(), phase: status.phase, done, total: status.counts.total };
    let keys: Vec<ObjectKey> = {
        let facts = ctx.facts();
        drain.clusters().iter().filter_map(|uid| Some(facts.physical(uid)?.key.clone())).collect()
    };
    for key in keys {
        set_progress(ctx, &key, (!is_over).then_some(&progress), &drain.key.name).await?;
    }
    Ok(())
}

/// Sets the progress of a physical cluster, or takes it off if it is that of the drain `name`.
pub(crate) async fn set_progress(
    ctx: &SchedulerContext,
    key: &ObjectKey,
    progress: Option<&DrainProgress>,
    name: &str,
) -> Result<(), SchedulerError> {
    let change = |physical: &mut Value| {
        let known = physical.pointer("/status/drain").filter(|known| !known.is_null());
        match progress {
            Some(progress) if known == Some(&json!(progress)) => return Ok::<_, SchedulerError>(Step::Keep),
            None if known.is_none_or(|known| known["name"] != *name) => return Ok(Step::Keep),
            Some(progress) => physical["status"]["drain"] = json!(progress),
            None => drop(physical["status"].as_object_mut().map(|status| status.remove("drain"))),
        }
        Ok(Step::Write)
    };
    ctx.objects.modify(key, change).await.map(drop)
}
