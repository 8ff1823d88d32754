//! Sums over placed objects, updated by events.

use portolan_placement::contribution;
use portolan_types::{ObjectKey, Record, Uid, object, placement::CopyPhase};

use crate::{
    context::SchedulerContext,
    facts::usage::UsageByCluster,
    kinds,
    observe::placement_fields::{PlacementFields, may_await_copies},
    observe::{kind_of, tree},
    queue::Task,
};

/// Updates the sums after a write: usage of physical clusters, and matches of policies.
pub(crate) fn count_usage(ctx: &SchedulerContext, key: &ObjectKey, previous: Option<&Record>, record: Option<&Record>) {
    let takes = |record: &&Record| !record.header.placed_on.is_empty() || may_await_copies(record);
    let peek = |record: Option<&Record>| record.filter(takes).map(PlacementFields::of);
    let (before, after) = (peek(previous), peek(record));
    let taken = |peek: &Option<PlacementFields>, record: Option<&Record>| match (peek, record) {
        (Some(peek), Some(record)) => amounts(ctx, key, record, peek),
        _ => UsageByCluster::new(),
    };
    let (took, takes) = (taken(&before, previous), taken(&after, record));
    let policy = |peek: &Option<PlacementFields>| peek.as_ref().and_then(|p| p.record.policy.clone());
    let mut facts = ctx.facts();
    if record.is_none() && (facts.overruns.forget(key) | facts.failed_selections.note(key, Vec::new())) {
        ctx.signals.policy_status.notify_one();
    }
    after.iter().flat_map(|peek| &peek.record.clusters).for_each(|copy| facts.note_place(&copy.uid));
    facts.usage.replace(&key.resource, &took, &takes);
    let placed = |peek: &Option<PlacementFields>| -> Vec<Uid> {
        let copies = peek.iter().flat_map(|peek| &peek.record.clusters);
        copies.filter(|copy| copy.phase != CopyPhase::Projected).map(|copy| copy.uid.clone()).collect()
    };
    let is_workload = !kinds::is_follower(&key.resource);
    let is_counted = is_workload && facts.usage.count_workload(&key.resource, &placed(&before), &placed(&after));
    if took != takes || is_counted {
        ctx.signals.usage_status.notify_one();
    }
    facts.usage.release(key);
    if facts.usage.rematch(&key.resource, policy(&before).as_ref(), policy(&after).as_ref()) {
        ctx.signals.policy_status.notify_one();
    }
    let stays = |uid: &Uid| after.as_ref().is_some_and(|p| p.record.on(uid).is_some());
    let left = before.iter().flat_map(|p| &p.record.clusters).map(|c| &c.uid).filter(|uid| !stays(uid));
    let emptied = left.filter_map(|uid| facts.physical(uid)).filter(|p| p.info.deleting);
    emptied.for_each(|p| ctx.queue.tasks.add(Task::PhysicalCluster(p.key.clone())));
}

/// Returns the requests of a listed object per physical cluster.
pub(crate) fn listed_amounts(ctx: &SchedulerContext, key: &ObjectKey, record: &Record) -> UsageByCluster {
    if record.header.placed_on.is_empty() && !may_await_copies(record) {
        return UsageByCluster::new();
    }
    amounts(ctx, key, record, &PlacementFields::of(record))
}

/// Returns the requests of an object per physical cluster. A Job or Pod that has ended takes nothing.
fn amounts(ctx: &SchedulerContext, key: &ObjectKey, record: &Record, peek: &PlacementFields) -> UsageByCluster {
    if peek.record.clusters.is_empty() && peek.record.awaited.is_empty() {
        return UsageByCluster::new();
    }
    let Some(object) = tree(record) else { return UsageByCluster::new() };
    let Some(kind) = kind_of(&object) else { return UsageByCluster::new() };
    if object::has_ended(&kind.group, &kind.kind, &object) {
        return UsageByCluster::new();
    }
    contribution(&ctx.workload_of(kind, key, &object), &peek.record)
}
