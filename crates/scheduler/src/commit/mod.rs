//! Transaction of a step: the object with its record, the `Placement` that explains it, and an Event if a user should
//! know of it.

mod cause;
pub(crate) mod events;

use portolan_placement::{
    AdmissionRecord, DecisionOutcome, ExclusionReason, PlacementDecision, PlacementReport, PlacementStep,
    PlacementSubject, TransitionCause, placement_object,
};
use portolan_store::{Expect, Transaction, Write, commit_with_notes};
use portolan_types::{
    ObjectKey, Record, ResourceVersion, annotations, object,
    placement::{CopyPhase, ObjectReference, PlacedCopy, PlacementRecord},
};
use serde_json::Value;

use crate::{
    commit::cause::transition_cause,
    commit::events::placement_event,
    context::SchedulerContext,
    inputs::{api_version, placement_key},
    scheduler::SchedulerError,
};

/// Step of one object, to be committed.
pub(crate) struct StepCommit<'a> {
    pub(crate) key: &'a ObjectKey,
    pub(crate) object: &'a Value,
    pub(crate) revision: ResourceVersion,
    pub(crate) previous: &'a PlacementRecord,
    pub(crate) step: &'a PlacementStep,
    /// `None` for an object that follows others.
    pub(crate) decision: Option<&'a PlacementDecision>,
    pub(crate) placement: Option<&'a (Value, ResourceVersion)>,
    /// Record of the last admission.
    pub(crate) admitted: &'a AdmissionRecord,
    /// New status of the object, if it differs.
    pub(crate) status: Option<Value>,
}

/// Commits a step. Writes nothing if nothing differs.
pub(crate) async fn commit_step(
    ctx: &SchedulerContext,
    change: &StepCommit<'_>,
    more: impl IntoIterator<Item = Write>,
) -> Result<(), SchedulerError> {
    track_room_wait(ctx, change);
    let mut txn = Transaction::default();
    if change.step.cause.is_some() || change.status.is_some() {
        let mut object = change.object.clone();
        change.step.record.write_to(&mut object);
        if is_forced_by(change) {
            object::set_annotation(&mut object, annotations::FORCE, None);
        }
        if let (Some(status), Some(fields)) = (&change.status, object.as_object_mut()) {
            fields.insert("status".into(), status.clone());
        }
        txn.writes.push(Write {
            key: change.key.clone(),
            expect: Expect::At(change.revision),
            record: Some(Record::of(&object)),
        });
    } else {
        txn.checks.push((change.key.clone(), Expect::At(change.revision)));
    }
    let now = ctx.seams.now_text();
    let because = transition_cause(ctx, change);
    let placement = placement_after(ctx, change, because.as_ref(), &now);
    let mut notes = Vec::new();
    let (before, revision) = change.placement.map(|(value, revision)| (value, *revision)).unzip();
    if !before.is_some_and(|before| is_same(before, &placement)) {
        let expect = revision.map_or(Expect::Absent, Expect::At);
        let record = Some(Record::of(&placement));
        txn.writes.push(Write { key: placement_key(change.key), expect, record });
        notes.extend(placement_event(&ctx.seams, change, before, &placement));
    }
    txn.writes.extend(more);
    if !txn.writes.is_empty() {
        portolan_types::failpoint!("scheduler/step-planned");
        commit_with_notes(ctx.objects.store(), txn, notes).await?;
        portolan_types::failpoint!("scheduler/step-committed");
        if let Some(because) = &because {
            ctx.metrics.moved(change.previous, &change.step.record, &because.reason);
        }
    }
    Ok(())
}

/// Returns true if an object waits for room within the bounds of physical clusters.
pub(crate) fn waits_for_room(decision: &PlacementDecision) -> bool {
    let is_out = decision.rejected.iter().any(|rejected| rejected.reason == ExclusionReason::OutOfBounds);
    let lacks = matches!(decision.outcome, DecisionOutcome::Partly(_) | DecisionOutcome::Unplaced);
    !decision.limits.is_empty() || (is_out && lacks)
}

/// Returns true if a copy leaves by the annotation that forces a move, which is for one move only.
fn is_forced_by(change: &StepCommit) -> bool {
    let leaves =
        |copy: &PlacedCopy| change.step.record.on(&copy.uid).is_some_and(|now| now.phase == CopyPhase::Leaving);
    object::annotation(change.object, annotations::FORCE).is_some() && change.previous.active().any(leaves)
}

/// Notes if the object waits for room within the bounds of physical clusters.
fn track_room_wait(ctx: &SchedulerContext, change: &StepCommit) {
    if change.decision.is_some_and(waits_for_room) {
        ctx.without_room.add(change.key);
    } else {
        ctx.without_room.remove(change.key);
    }
}

fn placement_after(ctx: &SchedulerContext, change: &StepCommit, because: Option<&TransitionCause>, now: &str) -> Value {
    let key = placement_key(change.key);
    let (api_version, kind) = api_version(change.object);
    let (name, uid) = (object::name(change.object).to_owned(), object::meta_text(change.object, "uid").to_owned());
    let about = PlacementSubject {
        name: &key.name,
        namespace: object::namespace(change.object),
        object: ObjectReference { api_version, kind, name, uid },
        new_uid: ctx.seams.uid(),
        now,
    };
    let StepCommit { previous, step, decision, admitted, .. } = *change;
    let report = PlacementReport { previous, step, decision, admitted, because };
    placement_object(change.placement.map(|(value, _)| value), &about, &report)
}

/// Returns true if two objects differ in nothing but the resourceVersion.
fn is_same(before: &Value, after: &Value) -> bool {
    let plain = |object: &Value| {
        let mut metadata = object::metadata(object).clone();
        metadata.remove("resourceVersion");
        metadata
    };
    before.get("status") == after.get("status")
        && before.get("spec") == after.get("spec")
        && plain(before) == plain(after)
}
