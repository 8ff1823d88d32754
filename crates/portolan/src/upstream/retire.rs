//! What is kept about a physical cluster goes with it: nobody will report about it, pay its debts or end what it shows.

use portolan_store::{Expect, RangeRequest, RangeScope, Transaction, Write};
use portolan_types::{
    ObjectKey, Record, Uid,
    placement::PlacementRecord,
    upstream::{Projection, UpstreamError},
};
use serde_json::Value;

use super::{StoreUpstream, copies, debts, epoch, projection, store_failed};

/// Rows read per step.
const PAGE: usize = 500;

/// What is still there of a physical cluster that is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Left {
    /// Nothing.
    Nothing,
    /// Objects are placed on it, and the scheduler has yet to take it off their records.
    Placements,
}

/// Safe to repeat: the count of its syncers goes last, and with it the last trace.
pub(super) async fn retire(upstream: &StoreUpstream, physical: &Uid) -> Result<Left, UpstreamError> {
    let (shown, is_placed) = placed_on(upstream, physical).await?;
    projection::project(upstream, physical, Projection { gone: shown, ..Projection::default() }).await?;
    debts::forget_all(upstream, physical).await?;
    if is_placed {
        return Ok(Left::Placements);
    }
    forget_states(upstream, physical).await?;
    match upstream.commit(Transaction::one(epoch::key(physical), Expect::Anything, None)).await {
        Ok(()) | Err(UpstreamError::Conflict) => Ok(Left::Nothing),
        Err(error) => Err(error),
    }
}

/// What it shows above, and whether anything else names it.
async fn placed_on(upstream: &StoreUpstream, physical: &Uid) -> Result<(Vec<ObjectKey>, bool), UpstreamError> {
    let scope = RangeScope::PlacedOn(physical.to_string());
    let page = upstream.plane.store().range(RangeRequest::all(scope).past_damage()).await.map_err(store_failed)?;
    let mut shown = Vec::new();
    // What cannot be read may be either: its physical cluster is not forgotten while it is there.
    let mut is_placed = !page.damaged.is_empty();
    for stored in page.objects {
        let object = stored.record.to_value(stored.revision).map_err(|error| super::failed(&error))?;
        match PlacementRecord::of(&object).is_some_and(|record| record.is_projected()) {
            true => shown.push(stored.key),
            false => is_placed = true,
        }
    }
    Ok((shown, is_placed))
}

/// Counts the objects with copies on a physical cluster, without what is only shown of it.
pub(super) async fn count_copies(upstream: &StoreUpstream, physical: &Uid) -> Result<usize, UpstreamError> {
    let scope = RangeScope::PlacedOn(physical.to_string());
    let page = upstream.plane.store().range(RangeRequest::all(scope).past_damage()).await.map_err(store_failed)?;
    let records = page.objects.iter().map(|stored| stored.record.to_value(stored.revision));
    let is_copied = |object: &Value| PlacementRecord::of(object).is_some_and(|record| !record.is_projected());
    Ok(records.filter(|object| object.as_ref().is_ok_and(is_copied)).count() + page.damaged.len())
}

/// Takes the states of its copies away, wherever they are kept.
async fn forget_states(upstream: &StoreUpstream, physical: &Uid) -> Result<(), UpstreamError> {
    let mut request = RangeRequest::all(RangeScope::AllClusters(copies::resource())).past_damage();
    request.limit = Some(PAGE);
    loop {
        let page = upstream.plane.store().range(request.clone()).await.map_err(store_failed)?;
        request.at = Some(page.revision);
        request.after = page.last.clone();
        for stored in page.objects {
            let kept = stored.record.to_value(stored.revision).map_err(|error| super::failed(&error))?;
            let Some(record) = without(kept.clone(), physical) else { continue };
            // Nobody else tells the object that this copy is gone.
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

/// The states without those of one physical cluster; the inner `None` when none is left, the outer when there was none.
fn without(mut kept: Value, physical: &Uid) -> Option<Option<Record>> {
    let states = kept.get_mut("copies")?.as_array_mut()?;
    let before = states.len();
    states.retain(|state| state.get("uid").and_then(Value::as_str) != Some(physical.as_str()));
    let (after, is_changed) = (states.len(), states.len() != before);
    is_changed.then(|| (after > 0).then(|| Record::of(&kept)))
}
