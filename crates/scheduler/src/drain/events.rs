//! Events that matter to drains.

use std::time::Duration;

use portolan_store::{ChangeKind, Event};
use portolan_types::{
    LogicalClusterId, ObjectKey, Record,
    placement::{CopyPhase, DrainPhase, PlacementRecord},
};

use super::{deletion::owner_of, reconcile::COLLECT, scan::SCAN_CHANGED};
use crate::{
    context::SchedulerContext, observe::placement_fields::PlacementFields, observe::tree, queue::Task,
    queue::rescan::RescanScope,
};

/// Observes a drain: its cordon, and those that wait for it.
pub(crate) fn observe_drain(ctx: &SchedulerContext, event: &Event) {
    let mut facts = ctx.facts();
    let has_new_phase = match (event.change, tree(&event.record)) {
        (ChangeKind::Deleted, _) => {
            facts.drains.remove(&event.key);
            true
        }
        (_, Some(object)) => facts.drains.put(&event.key, event.revision, &object),
        (_, None) => false,
    };
    let has_new_cordon = facts.refresh_draining();
    let physical =
        tree(&event.record).as_ref().and_then(owner_of).and_then(|uid| Some(facts.physical(&uid)?.key.clone()));
    drop(facts);
    // The deletion of the physical cluster continues with this drain, and creates it again if it was deleted.
    physical.into_iter().for_each(|physical| ctx.queue.tasks.add(Task::PhysicalCluster(physical)));
    ctx.queue.tasks.add(Task::Drain(event.key.clone()));
    forget_undone(ctx, event);
    if has_new_cordon {
        ctx.rescans.add(RescanScope::Subtree(event.key.cluster));
    }
    if has_new_phase {
        requeue_drains(ctx, event.key.cluster);
    }
}

/// Queues the objects of an undone drain: their marks have no meaning any more.
fn forget_undone(ctx: &SchedulerContext, event: &Event) {
    let marked = {
        let facts = ctx.facts();
        let own = facts.drains.of(event.key.cluster).find(|(_, drain)| drain.key == event.key);
        let undone = own.filter(|(_, drain)| drain.phase == DrainPhase::Undone);
        undone.map(|(uid, _)| facts.drains.marked(uid)).unwrap_or_default()
    };
    marked.into_iter().for_each(|key| ctx.queue.tasks.add(Task::Object(key)));
}

/// Queues the drains of a logical cluster: one may wait for another, or for a physical cluster.
pub(crate) fn requeue_drains(ctx: &SchedulerContext, home: LogicalClusterId) {
    let keys: Vec<ObjectKey> = ctx.facts().drains.of(home).map(|(_, drain)| drain.key.clone()).collect();
    keys.into_iter().for_each(|key| ctx.queue.tasks.add_after(Task::Drain(key), COLLECT));
}

/// Queues all drains, as a new leader does.
pub(crate) fn requeue_all_drains(ctx: &SchedulerContext) {
    let keys: Vec<ObjectKey> = ctx.facts().drains.all().map(|drain| drain.key.clone()).collect();
    keys.into_iter().for_each(|key| ctx.queue.tasks.add(Task::Drain(key)));
}

/// Notes a change for which objects that are blocked may be able to move: drains at work look at them soon.
pub(crate) fn recheck_blocked(ctx: &SchedulerContext) {
    let keys: Vec<ObjectKey> = {
        let facts = ctx.facts();
        facts.drains.all().filter(|drain| drain.is_at_work()).map(|drain| drain.key.clone()).collect()
    };
    if keys.is_empty() {
        return;
    }
    ctx.verdicts.begin_epoch();
    let delay = Duration::from_secs(SCAN_CHANGED.unsigned_abs());
    keys.into_iter().for_each(|key| ctx.queue.tasks.add_after(Task::Drain(key), delay));
}

/// Notes a change of an object by another one than the scheduler: it may be able to move where it was blocked.
pub(crate) fn recheck_if_blocked(ctx: &SchedulerContext, key: &ObjectKey, is_marked: bool) {
    if ctx.facts().drains.is_at_work() && (is_marked || ctx.verdicts.has_blocked(key)) {
        recheck_blocked(ctx);
    }
}

/// Records the change of a claim: its data may no longer prevent a move.
pub(crate) fn recheck_claim(ctx: &SchedulerContext, event: &Event) {
    let is_claim = &*event.key.resource.resource == "persistentvolumeclaims";
    if is_claim && event.change != ChangeKind::Created && ctx.verdicts.has_blocked_for("Volumes") {
        recheck_blocked(ctx);
    }
}

/// Notes the change of a record: the mark of a drain, and copies that come to drained physical clusters or leave them.
/// Returns true if the object has to be decided again.
pub(crate) fn note_record(
    ctx: &SchedulerContext,
    key: &ObjectKey,
    before: Option<&PlacementRecord>,
    after: Option<&PlacementRecord>,
) -> bool {
    let mark = |record: Option<&PlacementRecord>| record.and_then(|record| record.drain.as_deref().cloned());
    let (old, new) = (mark(before), mark(after));
    let placed = |record: Option<&PlacementRecord>| -> Vec<_> {
        let copies = record.into_iter().flat_map(|record| &record.clusters);
        copies.filter(|copy| copy.phase != CopyPhase::Projected).map(|copy| copy.uid.clone()).collect()
    };
    let (was_on, is_on) = (placed(before), placed(after));
    let mut facts = ctx.facts();
    let mut concerned = Vec::new();
    if old != new {
        facts.drains.note_mark(key, old.as_ref(), new.as_ref());
        let drains = old.iter().chain(&new).filter_map(|mark| facts.drains.get(&mark.uid));
        concerned.extend(drains.map(|drain| drain.key.clone()));
    }
    let moved =
        was_on.iter().filter(|uid| !is_on.contains(uid)).chain(is_on.iter().filter(|uid| !was_on.contains(uid)));
    for uid in moved {
        concerned.extend(facts.drains.on(uid).map(|(_, drain)| drain.key.clone()));
    }
    drop(facts);
    concerned.into_iter().for_each(|drain| ctx.queue.tasks.add_after(Task::Drain(drain), COLLECT));
    before.is_some() && old != new
}

/// Notes the mark of an object of a list.
pub(crate) fn note_listed_mark(ctx: &SchedulerContext, key: &ObjectKey, record: &Record) -> bool {
    let may_have = std::str::from_utf8(record.body()).is_ok_and(|body| body.contains("portolan.dev/placement"));
    let found = may_have.then(|| PlacementFields::of(record).record.drain).flatten();
    if let Some(mark) = &found {
        ctx.facts().drains.put_listed_mark(key, mark);
    }
    found.is_some()
}

/// Notes that the report about the copies of an object has changed.
pub(crate) fn note_report(ctx: &SchedulerContext, object: &ObjectKey) {
    let moving = ctx.facts().drains.moving(object);
    moving.into_iter().for_each(|drain| ctx.queue.tasks.add_after(Task::Drain(drain), COLLECT));
}
