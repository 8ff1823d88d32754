//! Drains and marked objects as they are stored.

use std::collections::BTreeSet;

use portolan_types::{
    ObjectKey, ResourceVersion, Uid, object,
    placement::{DrainMark, DrainSpec, DrainStatus, PlacementRecord},
};
use serde_json::Value;

use super::{
    deletion::effective_spec,
    part,
    progress::{MoveProgress, progress},
};
use crate::{context::SchedulerContext, inputs::placement_key, scheduler::SchedulerError};

/// Stored drain.
pub(super) struct DrainObject {
    pub(super) key: ObjectKey,
    pub(super) revision: ResourceVersion,
    pub(super) object: Value,
    pub(super) uid: Uid,
    /// Path of its logical cluster.
    pub(super) home: String,
    pub(super) spec: DrainSpec,
    pub(super) status: DrainStatus,
}

impl DrainObject {
    /// Reads a drain; `None` if it does not exist.
    pub(super) async fn read(ctx: &SchedulerContext, key: &ObjectKey) -> Result<Option<Self>, SchedulerError> {
        let Some((object, revision)) = ctx.objects.get_value(key).await? else { return Ok(None) };
        let Some(uid) = object::uid(&object) else { return Ok(None) };
        let lineage = ctx.tree.lineage(key.cluster);
        let home = lineage.first().map_or_else(|| key.cluster.to_string(), |(_, path)| path.to_string());
        let (spec, status) = (effective_spec(&object), part(&object, "status"));
        Ok(Some(Self { key: key.clone(), revision, object, uid, home, spec, status }))
    }

    /// Returns the physical clusters that it started with.
    pub(super) fn clusters(&self) -> BTreeSet<Uid> {
        self.status.clusters.iter().map(|cluster| cluster.uid.clone()).collect()
    }
}

/// Object with a mark of the drain, and its progress.
pub(super) struct MarkedObject {
    pub(super) key: ObjectKey,
    pub(super) object: Value,
    pub(super) revision: ResourceVersion,
    pub(super) record: PlacementRecord,
    pub(super) mark: DrainMark,
    pub(super) progress: MoveProgress,
}

/// Reads an object with a mark; `None` if it is gone, is being deleted, or has lost its mark.
pub(super) async fn read_marked(
    ctx: &SchedulerContext,
    drain: &Uid,
    key: &ObjectKey,
) -> Result<Option<MarkedObject>, SchedulerError> {
    let Some((object, revision)) = ctx.objects.get_value(key).await? else { return Ok(None) };
    let record = PlacementRecord::of(&object).unwrap_or_default();
    let Some(mark) = record.drain.as_deref().filter(|mark| mark.uid == *drain).cloned() else { return Ok(None) };
    if object::is_deleting(&object) {
        return Ok(None);
    }
    let placement = ctx.objects.get_value(&placement_key(key)).await?.map(|(placement, _)| placement);
    let replicas = object.pointer("/spec/replicas").and_then(Value::as_i64);
    let progress = progress(&record, &mark, replicas, placement.as_ref(), ctx.now());
    Ok(Some(MarkedObject { key: key.clone(), object, revision, record, mark, progress }))
}
