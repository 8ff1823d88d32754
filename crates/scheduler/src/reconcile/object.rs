//! Reconciles one object with a decision of its own.

use std::time::Duration;

use portolan_placement::{DecisionOutcome, PinScope, PlacementDecision, Role};
use portolan_store::{Expect, StoreError, Transaction, Write};
use portolan_types::{ObjectKey, Record, ResourceVersion, object, placement::PlacementRecord};
use serde_json::json;
use tokio::sync::OwnedMutexGuard;
use tracing::Span;

use crate::{
    commit::{StepCommit, commit_step},
    context::SchedulerContext,
    decide::PlannedStep,
    decide::pod_admission::{AdmittedPlan, admit_plan, remove_placement},
    decide::refusal_status::refusal_status_of,
    decide::scheduling_gates::plan_with_gates,
    drain::marks::{is_stale, remove_mark},
    inputs::move_gates::{departs, read_move_gates},
    inputs::{DecisionInputs, gone_clusters, namespace_default_key, read_inputs},
    kinds,
    queue::Task,
    reconcile::lost_placements::make_lost_placement,
    scheduler::SchedulerError,
};

/// Observes an object, decides, and commits the next step, if there is one.
pub(crate) async fn reconcile_object(ctx: &SchedulerContext, key: &ObjectKey) -> Result<(), SchedulerError> {
    let Some((object, revision)) = ctx.objects.get_value(key).await? else {
        ctx.refused.remove(key);
        ctx.without_room.remove(key);
        ctx.with_terms.remove(key);
        ctx.lost_placements.forget(key);
        return remove_placement(ctx, key).await;
    };
    Span::current().record("resource_version", revision.get());
    let record = PlacementRecord::of(&object).unwrap_or_default();
    if record.is_projected() {
        return remove_if_orphaned(ctx, key, &record, revision).await;
    }
    if object::is_deleting(&object) {
        return remove_gone_copies(ctx, key, object, revision).await;
    }
    ctx.fact_barrier.wait_for(revision).await?;
    if kinds::placeable(&key.resource).is_none() {
        ctx.definition_barrier.wait_for(revision).await?;
    }
    make_lost_placement(ctx, key, &object).await?;
    if let Some(mark) = &record.drain
        && is_stale(ctx, mark).await?
    {
        // Its event brings the object here again.
        return remove_mark(ctx, key, mark).await;
    }
    if kinds::is_follower(&key.resource) {
        if let Some(namespace) = key.namespace() {
            ctx.queue.add_followers(key.cluster, namespace, Some(key.clone()));
        }
        return Ok(());
    }
    let Some(mut inputs) = read_inputs(ctx, key, object, revision).await? else { return Ok(()) };
    let (planned, _counted) = plan_object(ctx, &mut inputs).await?;
    let passed = admit_plan(ctx, &inputs, planned).await;
    if passed.is_err() {
        ctx.facts().usage.release(key);
    }
    let AdmittedPlan { planned, admitted, charged } = passed?;
    let rechecks = [planned.decision.recheck_in, planned.step.recheck_in];
    if let Some(seconds) = rechecks.into_iter().flatten().min() {
        ctx.queue.tasks.add_after(Task::Object(key.clone()), Duration::from_secs(seconds.unsigned_abs()));
    }
    let nothing = inputs.record.clusters.is_empty() && planned.step.record.clusters.is_empty();
    if nothing && inputs.workload.role == Role::Explicit && planned.decision.policy.is_none() {
        return Ok(());
    }
    let home = new_home(&inputs, &planned.decision, &planned.step.record);
    let status = refusal_status_of(ctx, &inputs, &planned, &admitted);
    let change = StepCommit {
        key,
        object: &inputs.object,
        revision: inputs.revision,
        previous: &inputs.record,
        step: &planned.step,
        decision: Some(&planned.decision),
        placement: inputs.placement.as_ref(),
        admitted: &admitted,
        status,
    };
    let (charges, turn) = charged.map(|charged| (charged.writes, charged.turn)).unzip();
    let home = home.map(|uids| namespace_default_write(&inputs, uids));
    let committed = commit_step(ctx, &change, charges.into_iter().flatten().chain(home)).await;
    drop(turn);
    match &committed {
        Ok(()) => ctx.metrics.decided(&planned.decision.outcome),
        Err(_) => ctx.facts().usage.release(key),
    }
    committed
}

/// Plans the next step. The conditions of a departure are read when a copy is to depart; one that a disruption budget
/// bounds is counted, until the guard is dropped, before the next one is planned.
async fn plan_object(
    ctx: &SchedulerContext,
    inputs: &mut DecisionInputs,
) -> Result<(PlannedStep, Option<OwnedMutexGuard<()>>), SchedulerError> {
    let planned = plan_with_gates(ctx, inputs)?;
    if !departs(&inputs.record, &planned.decision) {
        return Ok((planned, None));
    }
    // What the first plan reserved must not make its target look fuller to the second.
    ctx.facts().usage.release(&inputs.key);
    let mut counted = None;
    let mut gates = read_move_gates(ctx, inputs, &planned.decision).await;
    if gates.as_ref().is_ok_and(|gates| gates.budget.is_some()) {
        counted = Some(ctx.budgeted.take(inputs.key.cluster, &inputs.namespace).await);
        gates = read_move_gates(ctx, inputs, &planned.decision).await;
    }
    inputs.gates = gates?;
    Ok((plan_with_gates(ctx, inputs)?, counted))
}

/// Returns the write of the default decision of a namespace, for the transaction of the object that made it.
pub(crate) fn namespace_default_write(inputs: &DecisionInputs, uids: Vec<&str>) -> Write {
    let kept = json!({
        "metadata": {"name": "default", "namespace": &*inputs.namespace},
        "namespaceUid": inputs.namespace_uid,
        "physical": uids,
    });
    Write {
        key: namespace_default_key(inputs.key.cluster, inputs.namespace.clone()),
        expect: inputs.home.revision.map_or(Expect::Absent, Expect::At),
        record: Some(Record::of(&kept)),
    }
}

/// Takes physical clusters that do not exist off a deleted object, room that is reserved for future copies, and the
/// mark of a drain off one without copies. The syncer removes its other copies.
async fn remove_gone_copies(
    ctx: &SchedulerContext,
    key: &ObjectKey,
    mut object: serde_json::Value,
    revision: ResourceVersion,
) -> Result<(), SchedulerError> {
    let mut record = PlacementRecord::of(&object).unwrap_or_default();
    let gone = gone_clusters(ctx, &record, &ctx.lineage_of(key.cluster)).await?;
    let is_only_marked = record.clusters.is_empty() && record.drain.take().is_some();
    let reserved = std::mem::take(&mut record.awaited);
    if gone.is_empty() && !is_only_marked && reserved.is_empty() {
        return Ok(());
    }
    record.clusters.retain(|c| !gone.contains(&c.uid));
    let removable = record.clusters.is_empty() && object::finalizers(&object).next().is_none();
    record.write_to(&mut object);
    let after = (!removable).then(|| Record::of(&object));
    ctx.objects.store().commit(Transaction::one(key.clone(), Expect::At(revision), after)).await?;
    Ok(())
}

/// Removes an object that a physical cluster made, once that does not exist: no syncer will report its end.
async fn remove_if_orphaned(
    ctx: &SchedulerContext,
    key: &ObjectKey,
    record: &PlacementRecord,
    revision: ResourceVersion,
) -> Result<(), SchedulerError> {
    let gone = gone_clusters(ctx, record, &ctx.lineage_of(key.cluster)).await?;
    if !gone.is_empty() && record.clusters.iter().all(|c| gone.contains(&c.uid)) {
        ctx.objects.store().commit(Transaction::one(key.clone(), Expect::At(revision), None)).await?;
    }
    Ok(())
}

/// Removes a record of the scheduler's own, if it exists.
pub(crate) async fn remove_bookkeeping(ctx: &SchedulerContext, key: &ObjectKey) -> Result<(), SchedulerError> {
    let Some(stored) = ctx.objects.store().get(key).await? else { return Ok(()) };
    remove_record(ctx, key.clone(), stored.revision, Vec::new()).await
}

/// Removes a record together with other writes, unless it is gone already.
pub(crate) async fn remove_record(
    ctx: &SchedulerContext,
    key: ObjectKey,
    revision: ResourceVersion,
    others: Vec<Write>,
) -> Result<(), SchedulerError> {
    let mut txn = Transaction::one(key.clone(), Expect::At(revision), None);
    txn.writes.extend(others);
    match ctx.objects.store().commit(txn).await {
        Ok(_) => Ok(()),
        Err(StoreError::NotFound { key: gone }) if gone == key => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Returns the new default decision of a namespace, if this decision makes it: the first decision, or one that differs
/// because the default takes nothing new.
pub(crate) fn new_home<'a>(
    inputs: &DecisionInputs,
    decision: &'a PlacementDecision,
    next: &PlacementRecord,
) -> Option<Vec<&'a str>> {
    let own_pin = inputs.workload.pin.as_ref().is_some_and(|pin| pin.on == PinScope::Object);
    let by_default = inputs.workload.role == Role::Workload && decision.policy.is_none() && !own_pin;
    let arrives = inputs.record.active().next().is_none() && next.active().next().is_some();
    let goes_home = decision.chosen.iter().any(|c| inputs.home.uids.contains(&c.uid));
    let placed = matches!(decision.outcome, DecisionOutcome::Placed | DecisionOutcome::Partly(_));
    // An object that a drain moves may come back.
    let is_drained = inputs.record.drain.as_ref().is_some_and(|mark| mark.is_moving());
    let makes = by_default && placed && arrives && !goes_home && !is_drained;
    makes.then(|| decision.chosen.iter().map(|c| c.uid.as_str()).collect())
}
