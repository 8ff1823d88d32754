//! Drain of a physical cluster that is being deleted. The `PhysicalCluster` owns it, so its name, pace and report are
//! like those of any other drain. It cannot be aborted or undone, because a deletion cannot be either.

use portolan_store::{Expect, Transaction};
use portolan_types::{
    ObjectKey, Record, Uid, object,
    placement::{DrainBudget, DrainSpec, GROUP, VERSION},
};
use serde_json::{Value, json};

use super::part;
use crate::{context::SchedulerContext, kinds, queue::Task, scheduler::SchedulerError};

/// Objects that move at once, unless an administrator changes the budget.
const MAX_MOVING: u32 = 50;
/// Replicas that may be unavailable: an object that must not run twice has to stop before it starts elsewhere.
const MAX_UNAVAILABLE: u32 = i32::MAX as u32;
/// Characters of the uid in the name of the drain.
const UID_IN_NAME: usize = 8;
/// Maximum characters of the physical cluster's name in the name of the drain.
const MAX_NAME: usize = 200;

/// Returns the uid of the `PhysicalCluster` that owns a drain.
pub(super) fn owner_of(drain: &Value) -> Option<Uid> {
    let owner = object::controller_of(drain).filter(|owner| owner["kind"] == "PhysicalCluster")?;
    owner["uid"].as_str()?.parse().ok()
}

/// Returns the spec as it counts: the drain of a deletion is not called back.
pub(super) fn effective_spec(drain: &Value) -> DrainSpec {
    let spec: DrainSpec = part(drain, "spec");
    if owner_of(drain).is_some() { DrainSpec { abort: false, undo: false, ..spec } } else { spec }
}

/// Returns the key of the drain of a physical cluster that is being deleted.
fn key_of(physical: &ObjectKey, uid: &Uid) -> Option<ObjectKey> {
    let name: String = physical.name.chars().take(MAX_NAME).collect();
    let uid: String = uid.as_str().chars().filter(char::is_ascii_alphanumeric).take(UID_IN_NAME).collect();
    let name = format!("{}-deletion-{}", name.trim_end_matches(['-', '.']), uid.to_lowercase());
    Some(ObjectKey::cluster_scoped(physical.cluster, kinds::drains(), name.parse().ok()?))
}

/// Creates the drain of a physical cluster that is being deleted, unless it exists. A drain that was deleted is created
/// again.
///
/// # Errors
/// The errors of the store.
pub(crate) async fn ensure(ctx: &SchedulerContext, physical: &ObjectKey, object: &Value) -> Result<(), SchedulerError> {
    let Some((uid, key)) = object::uid(object).and_then(|uid| Some((uid.clone(), key_of(physical, &uid)?))) else {
        return Ok(());
    };
    if ctx.objects.store().get(&key).await?.is_some() {
        return Ok(());
    }
    let budget = DrainBudget { max_unavailable: Some(MAX_UNAVAILABLE), max_moving: Some(MAX_MOVING) };
    let spec = DrainSpec { physical_clusters: vec![physical.name.to_string()], budget, ..DrainSpec::default() };
    let api_version = format!("{GROUP}/{VERSION}");
    let drain = json!({
        "apiVersion": api_version,
        "kind": "Drain",
        "metadata": {
            "name": key.name.as_str(),
            "uid": ctx.seams.uid().as_str(),
            "generation": 1,
            "creationTimestamp": ctx.seams.now_text(),
            "ownerReferences": [{
                "apiVersion": api_version, "kind": "PhysicalCluster", "name": physical.name.as_str(),
                "uid": uid.as_str(), "controller": true,
            }],
        },
        "spec": spec,
    });
    ctx.objects.store().commit(Transaction::one(key, Expect::Absent, Some(Record::of(&drain)))).await?;
    // Objects that a deleted one has marked are free to move.
    let orphans = ctx.facts().drains.orphans();
    orphans.into_iter().for_each(|object| ctx.queue.tasks.add(Task::Object(object)));
    Ok(())
}

/// Releases the drain of a physical cluster that is proven empty from its owner: its report is the proof, and stays.
///
/// # Errors
/// The errors of the store.
pub(crate) async fn keep_report(
    ctx: &SchedulerContext,
    physical: &ObjectKey,
    object: &Value,
) -> Result<(), SchedulerError> {
    let Some(key) = object::uid(object).and_then(|uid| key_of(physical, &uid)) else { return Ok(()) };
    let Some((mut drain, revision)) = ctx.objects.get_value(&key).await? else { return Ok(()) };
    let has_started = drain.pointer("/status/startTime").is_some_and(Value::is_string);
    if owner_of(&drain).is_none() || !has_started {
        return Ok(());
    }
    drain["spec"] = json!(effective_spec(&drain));
    object::metadata_mut(&mut drain).remove("ownerReferences");
    ctx.objects.store().commit(Transaction::one(key, Expect::At(revision), Some(Record::of(&drain)))).await?;
    Ok(())
}
