//! Marks of drains on the records of objects: how they are written, and when they have no meaning any more.

use portolan_store::Step;
use portolan_types::{
    ObjectKey, object,
    placement::{DrainMark, DrainPhase, PlacementRecord},
};
use serde_json::Value;

use crate::{context::SchedulerContext, drain::drain_key, scheduler::SchedulerError};

/// Changes the record of an object. `change` returns false to leave it as it is.
///
/// # Errors
/// The errors of the store.
pub(crate) async fn change_record(
    ctx: &SchedulerContext,
    key: &ObjectKey,
    mut change: impl FnMut(&mut PlacementRecord) -> bool + Send,
) -> Result<(), SchedulerError> {
    let write = |object: &mut Value| {
        let mut record = PlacementRecord::of(object).unwrap_or_default();
        if object::is_deleting(object) || record.is_projected() || !change(&mut record) {
            return Ok::<_, SchedulerError>(Step::Keep);
        }
        record.write_to(object);
        Ok(Step::Write)
    };
    ctx.objects.modify(key, write).await.map(drop)
}

/// Changes the mark of a drain on an object. Nothing is written if another drain has marked it.
///
/// # Errors
/// The errors of the store.
pub(crate) async fn change_mark(
    ctx: &SchedulerContext,
    key: &ObjectKey,
    mark: &DrainMark,
    change: impl Fn(&mut DrainMark) + Send + Sync,
) -> Result<(), SchedulerError> {
    change_record(ctx, key, |record| {
        let own = record.drain.as_mut().filter(|own| own.uid == mark.uid && own.stage == mark.stage);
        own.map(|own| change(own)).is_some()
    })
    .await
}

/// Removes the mark of a drain from an object. The mark of an earlier drain that it replaced holds again.
///
/// # Errors
/// The errors of the store.
pub(crate) async fn remove_mark(
    ctx: &SchedulerContext,
    key: &ObjectKey,
    mark: &DrainMark,
) -> Result<(), SchedulerError> {
    change_record(ctx, key, |record| {
        let removed = record.drain.take_if(|own| own.uid == mark.uid);
        let is_removed = removed.is_some();
        record.drain = removed.and_then(|own| own.earlier).or(record.drain.take());
        is_removed
    })
    .await
}

/// Returns true if a mark has no meaning any more: its drain does not exist, or is undone.
///
/// # Errors
/// `Behind` if the drain exists and no event has shown it yet, and the errors of the store.
pub(crate) async fn is_stale(ctx: &SchedulerContext, mark: &DrainMark) -> Result<bool, SchedulerError> {
    if let Some(phase) = ctx.facts().drains.get(&mark.uid).map(|drain| drain.phase) {
        return Ok(phase == DrainPhase::Undone);
    }
    let Some(key) = drain_key(mark) else { return Ok(true) };
    let found = ctx.objects.get_value(&key).await?;
    match found {
        Some((drain, _)) if object::meta_text(&drain, "uid") == mark.uid.as_str() => Err(SchedulerError::Behind),
        _ => Ok(true),
    }
}
