//! Removal of all records about a deleted physical cluster: reports, debts and projected objects.

use portolan_store::{Expect, RangeRequest, RangeScope, Transaction, Write};
use portolan_types::{
    ObjectKey, Record, Uid,
    placement::PlacementRecord,
    upstream::{Projection, UpstreamError},
};
use serde_json::Value;

use super::{StoreUpstream, copies, debts, epoch, heartbeats, projection, store_failed};

/// Objects read per request.
const PAGE: usize = 500;

/// Progress of the removal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RetirementProgress {
    /// Nothing is left.
    Done,
    /// Objects are still placed there, until the scheduler changes their records.
    Placed,
}

/// Removes the records. Safe to repeat: the count of syncers, by which the physical cluster is found, goes last.
pub(super) async fn retire(upstream: &StoreUpstream, physical: &Uid) -> Result<RetirementProgress, UpstreamError> {
    let (shown, is_placed) = placed_on(upstream, physical).await?;
    projection::project(upstream, physical, Projection { gone: shown, ..Projection::default() }).await?;
    debts::forget_all(upstream, physical).await?;
    if is_placed {
        return Ok(RetirementProgress::Placed);
    }
    forget_states(upstream, physical).await?;
    heartbeats::forget(upstream, physical).await?;
    match upstream.commit(Transaction::one(epoch::key(physical), Expect::Anything, None)).await {
        Ok(()) | Err(UpstreamError::Conflict) => Ok(RetirementProgress::Done),
        Err(error) => Err(error),
    }
}

/// Returns the objects projected from the physical cluster, and true if other objects name it.
async fn placed_on(upstream: &StoreUpstream, physical: &Uid) -> Result<(Vec<ObjectKey>, bool), UpstreamError> {
    let scope = RangeScope::PlacedOn(physical.to_string());
    let page = upstream.plane.store().range(RangeRequest::all(scope).skip_damaged()).await.map_err(store_failed)?;
    let mut shown = Vec::new();
    // A damaged object may be either, so the physical cluster is not forgotten.
    let mut is_placed = !page.damaged.is_empty();
    for stored in page.objects {
        let object = stored.record.to_value(stored.revision).map_err(|error| super::failed(&error))?;
        if PlacementRecord::of(&object).is_some_and(|record| record.is_projected()) {
            shown.push(stored.key)
        } else {
            is_placed = true
        }
    }
    Ok((shown, is_placed))
}

/// Counts the objects with copies on a physical cluster, except projected ones.
pub(super) async fn count_copies(upstream: &StoreUpstream, physical: &Uid) -> Result<usize, UpstreamError> {
    let scope = RangeScope::PlacedOn(physical.to_string());
    let page = upstream.plane.store().range(RangeRequest::all(scope).skip_damaged()).await.map_err(store_failed)?;
    let records = page.objects.iter().map(|stored| stored.record.to_value(stored.revision));
    let is_copied = |object: &Value| PlacementRecord::of(object).is_some_and(|record| !record.is_projected());
    Ok(records.filter(|object| object.as_ref().is_ok_and(is_copied)).count() + page.damaged.len())
}

/// Removes the states of its copies.
async fn forget_states(upstream: &StoreUpstream, physical: &Uid) -> Result<(), UpstreamError> {
    let mut request = RangeRequest::all(RangeScope::AllClusters(copies::resource())).skip_damaged();
    request.limit = Some(PAGE);
    loop {
        let page = upstream.plane.store().range(request.clone()).await.map_err(store_failed)?;
        request.at = Some(page.revision);
        request.after = page.last.clone();
        for stored in page.objects {
            let kept = stored.record.to_value(stored.revision).map_err(|error| super::failed(&error))?;
            let Some(record) = without(kept.clone(), physical) else { continue };
            // The object's status is merged again, as no report will do it.
            if !copies::merge_anew(upstream, &stored.key, &kept).await? {
                let write = Write { key: stored.key, expect: Expect::At(stored.revision), record };
                upstream.commit(Transaction { writes: vec![write], ..Transaction::default() }).await?;
            }
        }
        if !page.more {
            return Ok(());
        }
    }
}

/// Returns the states without those of one physical cluster. The inner `None` stands for no states, the outer for no
/// change.
fn without(mut kept: Value, physical: &Uid) -> Option<Option<Record>> {
    let states = kept.get_mut("copies")?.as_array_mut()?;
    let before = states.len();
    states.retain(|state| state.get("uid").and_then(Value::as_str) != Some(physical.as_str()));
    let (after, is_changed) = (states.len(), states.len() != before);
    is_changed.then(|| (after > 0).then(|| Record::of(&kept)))
}
