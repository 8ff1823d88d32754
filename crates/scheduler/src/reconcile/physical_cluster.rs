//! Reconciles physical clusters: a finalizer keeps one until nothing is placed on it, so that its deletion is a drain.
//!
//! While it is being deleted, nothing new is placed there, and its copies move off by legal steps. Objects without
//! another cluster that fits, volume claims with their data, and copies on an unreachable cluster block its deletion;
//! the condition `Drained` names them. The syncer turns unreachable copies into debts. Once nothing is left, `Drained`
//! is `True` and names the revision at which that was read; only then the finalizer is removed. If a user removes the
//! finalizer earlier, the copies are removed from the records, and nothing is deleted downstream.
//!
//! Its objects leave by a `Drain` that the `PhysicalCluster` owns, or at the pace of another one that is at work on it.
//! The report of that `Drain` stays when the `PhysicalCluster` is gone.

use portolan_placement::placed_condition;
use portolan_store::{Expect, RangeRequest, RangeScope, StoreError, StoredObject, Transaction};
use portolan_types::{
    ObjectKey, Record, ResourceVersion, object,
    placement::{PhysicalClusterStatus, StatusCondition},
};
use serde_json::{Value, json};
use tracing::Span;

use crate::{
    context::SchedulerContext,
    drain::{deletion, registry::RegisteredDrain, set_progress},
    inputs::placement_key,
    kinds,
    observe::placement_fields::PlacementFields,
    scheduler::SchedulerError,
};

/// Finalizer of a `PhysicalCluster`, until nothing is placed on it.
pub const FINALIZER: &str = "portolan.dev/placements";
/// Most objects that the condition names.
const MAX_NAMED: usize = 3;

pub(crate) async fn reconcile_physical_cluster(ctx: &SchedulerContext, key: &ObjectKey) -> Result<(), SchedulerError> {
    let Some(stored) = ctx.objects.store().get(key).await? else { return Ok(()) };
    Span::current().record("resource_version", stored.revision.get());
    let mut physical = stored.to_value()?;
    forget_drain(ctx, key, &physical).await?;
    let held = object::finalizers(&physical).any(|f| f == FINALIZER);
    let record = match (object::is_deleting(&physical), held) {
        (false, true) | (true, false) => return Ok(()),
        (false, false) => {
            set_finalizer(&mut physical, true);
            Some(Record::of(&physical))
        }
        (true, true) => {
            let (left, revision) = objects_left_on(ctx, &stored).await?;
            if !left.is_empty() {
                deletion::ensure(ctx, key, &physical).await?;
                return report_objects_left(ctx, stored, physical, left).await;
            }
            // The report of its drain must show this first. Its event triggers this check again.
            if is_drain_at_work(ctx, &physical) {
                return Ok(());
            }
            if !is_proven_empty(&physical) {
                return report_proof(ctx, stored, physical, revision).await;
            }
            deletion::keep_report(ctx, key, &physical).await?;
            set_finalizer(&mut physical, false);
            let removable = object::finalizers(&physical).next().is_none();
            (!removable).then(|| Record::of(&physical))
        }
    };
    ctx.objects.store().commit(Transaction::one(key.clone(), Expect::At(stored.revision), record)).await?;
    Ok(())
}

/// Removes the progress of a drain from a physical cluster once the drain no longer exists.
async fn forget_drain(ctx: &SchedulerContext, key: &ObjectKey, physical: &Value) -> Result<(), SchedulerError> {
    let Some(name) = physical.pointer("/status/drain/name").and_then(Value::as_str) else { return Ok(()) };
    let is_known = ctx.facts().drains.of(key.cluster).any(|(_, drain)| *drain.key.name == *name);
    if is_known { Ok(()) } else { set_progress(ctx, key, None, name).await }
}

/// Returns true while the drain of a deletion has objects under way, or has not noted that none is left.
fn is_drain_at_work(ctx: &SchedulerContext, physical: &Value) -> bool {
    let facts = ctx.facts();
    object::uid(physical).is_some_and(|uid| facts.drains.deletions_of(&uid).any(RegisteredDrain::is_at_work))
}

/// Returns true once the condition `Drained` says that nothing is left.
fn is_proven_empty(physical: &Value) -> bool {
    let conditions = physical.pointer("/status/conditions").and_then(Value::as_array);
    conditions.into_iter().flatten().any(|c| c["type"] == "Drained" && c["status"] == "True")
}

async fn report_proof(
    ctx: &SchedulerContext,
    stored: StoredObject,
    physical: Value,
    revision: ResourceVersion,
) -> Result<(), SchedulerError> {
    let drained = StatusCondition {
        kind: "Drained".into(),
        status: "True".into(),
        reason: "NothingLeft".into(),
        message: format!("nothing that Portolan placed was left at revision {revision}"),
        last_transition_time: ctx.seams.now_text(),
        observed_generation: object::generation(&physical),
    };
    write_drained(ctx, stored, physical, drained).await
}

/// Returns the objects on a physical cluster, except those that it made itself, and the revision of that answer.
async fn objects_left_on(
    ctx: &SchedulerContext,
    physical: &StoredObject,
) -> Result<(Vec<ObjectKey>, ResourceVersion), SchedulerError> {
    let scope = RangeScope::PlacedOn(physical.record.header.uid.clone());
    let labels = crate::queue::rescan::placed_from_here();
    let page = ctx.objects.store().range(RangeRequest { labels, ..RangeRequest::all(scope).skip_damaged() }).await?;
    // A ReplicaSet that several physical clusters share has no label of one of them.
    let placed = |stored: &StoredObject| !PlacementFields::of(&stored.record).record.is_projected();
    let damaged = page.damaged.into_iter().map(|found| found.key);
    let left = page.objects.into_iter().filter(placed).map(|stored| stored.key).chain(damaged).collect();
    Ok((left, page.revision))
}

async fn report_objects_left(
    ctx: &SchedulerContext,
    stored: StoredObject,
    physical: Value,
    mut left: Vec<ObjectKey>,
) -> Result<(), SchedulerError> {
    let status: PhysicalClusterStatus =
        serde_json::from_value(physical.get("status").cloned().unwrap_or_default()).unwrap_or_default();
    // Objects with followers are named before their followers.
    left.sort_by_key(|key| (kinds::is_follower(&key.resource), key.clone()));
    let mut named = Vec::new();
    for key in left.iter().take(MAX_NAMED) {
        named.push(describe_object_left(ctx, key).await?);
    }
    let more = if left.len() > MAX_NAMED { "; …" } else { "" };
    let message = format!("{} objects are still here: {}{more}", left.len(), named.join("; "));
    let known = status.conditions.iter().find(|c| c.kind == "Drained");
    if known.is_some_and(|c| c.message == message) {
        return Ok(());
    }
    let since = known.map_or_else(|| ctx.seams.now_text(), |c| c.last_transition_time.clone());
    let drained = StatusCondition {
        kind: "Drained".into(),
        status: "False".into(),
        reason: "ObjectsLeft".into(),
        message,
        last_transition_time: since,
        observed_generation: object::generation(&physical),
    };
    write_drained(ctx, stored, physical, drained).await
}

/// Writes the condition `Drained`.
async fn write_drained(
    ctx: &SchedulerContext,
    stored: StoredObject,
    mut physical: Value,
    drained: StatusCondition,
) -> Result<(), SchedulerError> {
    let status: PhysicalClusterStatus =
        serde_json::from_value(physical.get("status").cloned().unwrap_or_default()).unwrap_or_default();
    let others = status.conditions.into_iter().filter(|c| c.kind != "Drained");
    let conditions: Vec<_> = others.chain([drained]).collect();
    if let Some(fields) = physical.as_object_mut() {
        object::child_mut(fields, "status").insert("conditions".into(), json!(conditions));
    }
    let txn = Transaction::one(stored.key, Expect::At(stored.revision), Some(Record::of(&physical)));
    ctx.objects.store().commit(txn).await?;
    Ok(())
}

/// `root:shop: deployments/web in default (0/2 physical clusters fit: …)`.
async fn describe_object_left(ctx: &SchedulerContext, key: &ObjectKey) -> Result<String, SchedulerError> {
    let path =
        ctx.tree.lineage(key.cluster).first().map_or_else(|| key.cluster.to_string(), |(_, path)| path.to_string());
    let namespace = key.namespace().map(|namespace| format!(" in {namespace}")).unwrap_or_default();
    let placement = match ctx.objects.get_value(&placement_key(key)).await {
        Ok(found) => found.map(|(placement, _)| placement),
        Err(StoreError::Damaged { .. }) => None,
        Err(error) => return Err(error.into()),
    };
    let placed = placement.as_ref().and_then(placed_condition).filter(|(_, message)| !message.is_empty());
    let why = placed.map(|(_, why)| format!(" ({why})")).unwrap_or_default();
    Ok(format!("{path}: {}/{}{namespace}{why}", key.resource.resource, key.name))
}

fn set_finalizer(object: &mut Value, present: bool) {
    let kept = object::finalizers(object).filter(|f| *f != FINALIZER).map(Value::from);
    let finalizers: Vec<Value> = kept.chain(present.then(|| FINALIZER.into())).collect();
    let metadata = object::metadata_mut(object);
    if finalizers.is_empty() {
        drop(metadata.remove("finalizers"))
    } else {
        drop(metadata.insert("finalizers".into(), finalizers.into()))
    }
}
