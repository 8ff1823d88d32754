//! Other workloads of a namespace, for policies that place a workload beside them or away from them.

use portolan_placement::{Workload, WorkloadNeighbor};
use portolan_store::{RangeRequest, RangeScope};
use portolan_types::{GroupKind, ObjectKey, placement::PlacementRecord};

use crate::{
    context::SchedulerContext,
    facts::ClusterLineage,
    kinds::{self, Placeable},
    queue::{Task, rescan::placed_from_here},
    scheduler::SchedulerError,
};

/// Most workloads of one kind that are read: the first ones by name.
const MAX_NEIGHBORS: usize = 1_000;

/// Returns the other workloads of the namespace, if a policy that may hold there depends on them. The object is decided
/// again then when they move.
///
/// # Errors
/// Fails if the store fails, or one of them cannot be read: a damaged one must not look absent.
pub(super) async fn read_neighbors(
    ctx: &SchedulerContext,
    key: &ObjectKey,
    workload: &Workload,
    reach: &ClusterLineage,
) -> Result<Vec<WorkloadNeighbor>, SchedulerError> {
    let matters = !workload.role.follows() && ctx.facts().has_workload_terms(reach, &workload.namespace);
    if !matters {
        ctx.with_terms.remove(key);
        return Ok(Vec::new());
    }
    ctx.with_terms.add(key);
    let mut found = Vec::new();
    for placeable in kinds::PLACEABLE.iter().filter(|placeable| !placeable.follows) {
        found.extend(read_kind(ctx, key, placeable, reach).await?);
    }
    Ok(found)
}

async fn read_kind(
    ctx: &SchedulerContext,
    key: &ObjectKey,
    placeable: &Placeable,
    reach: &ClusterLineage,
) -> Result<Vec<WorkloadNeighbor>, SchedulerError> {
    let (Some(namespace), resource) = (key.namespace(), placeable.resource()) else { return Ok(Vec::new()) };
    let scope = RangeScope::Namespace(key.cluster, resource.clone(), namespace.clone());
    let request = RangeRequest {
        limit: Some(MAX_NEIGHBORS),
        labels: placed_from_here(),
        ..RangeRequest::all(scope).skip_damaged()
    };
    let page = ctx.objects.store().range(request).await?;
    if let Some(damaged) = page.damaged.first() {
        return Err(SchedulerError::Unreadable(damaged.key.to_string()));
    }
    let reads_objects = ctx.facts().reads_objects(reach, placeable.group, placeable.kind);
    let mut found = Vec::new();
    for stored in page.objects.iter().filter(|stored| stored.key != *key && !stored.record.header.is_deleting) {
        let object = stored.to_value()?;
        let kind = GroupKind { group: placeable.group.into(), kind: placeable.kind.into() };
        let other = Workload::of(kind, resource.clone(), &object);
        let other = if reads_objects { other.with_object(&object) } else { other };
        found.push(WorkloadNeighbor::new(other, &PlacementRecord::of(&object).unwrap_or_default()));
    }
    Ok(found)
}

/// Queues the workloads of the namespace that a policy places beside others or away from them.
pub(crate) fn requeue_neighbors(ctx: &SchedulerContext, of: &ObjectKey) {
    let depending = ctx.with_terms.of(of.cluster, of.namespace());
    depending.into_iter().filter(|key| key != of).for_each(|key| ctx.queue.tasks.add(Task::Object(key)));
}
