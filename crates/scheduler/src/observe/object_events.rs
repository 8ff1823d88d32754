//! Events of workloads and followers.

use portolan_placement::ExpressionSubject;
use portolan_store::{ChangeKind, Event};
use portolan_types::{GroupResource, ObjectKey, Record, object};
use serde_json::Value;

use crate::{
    context::SchedulerContext,
    decide::pod_admission::observe_refusal_source,
    drain::events::{note_record, recheck_if_blocked},
    inputs::neighbors::requeue_neighbors,
    kinds,
    observe::placement_fields::{PlacementFields, may_have_pin},
    observe::usage_count::count_usage,
    observe::{kind_of, tree},
    queue::Task,
};

pub(crate) fn observe_follower(ctx: &SchedulerContext, event: &Event) {
    if event.key.resource == kinds::accounts() {
        observe_refusal_source(ctx, event);
    }
    let Some(namespace) = event.key.namespace() else { return };
    let add = |key| ctx.queue.add_followers(event.key.cluster, namespace, key);
    match (event.change, event.previous.as_deref()) {
        (ChangeKind::Deleted, previous) => {
            count_usage(ctx, &event.key, previous.or(Some(&event.record)), None);
            ctx.queue.tasks.add(Task::Object(event.key.clone()));
            requeue_followers(ctx, &event.key, Some(&event.record), None);
        }
        (_, None) if has_nowhere_to_go(ctx, event) => {}
        (_, None) => add(Some(event.key.clone())),
        (_, Some(previous)) => {
            let (before, after) = (&previous.header, &event.record.header);
            if before.placed_on != after.placed_on {
                count_usage(ctx, &event.key, Some(previous), Some(&event.record));
            }
            let lost = before.placed_on.iter().any(|uid| !after.placed_on.contains(uid));
            let deleting = before.is_deleting != after.is_deleting;
            let is_pinned = may_have_pin(previous) || may_have_pin(&event.record);
            // An autoscaler with a new target arrives there first, and leaves the old physical clusters afterwards.
            let resized = kinds::is_divided_with_its_target(&event.key.resource)
                && (before.placed_on != after.placed_on || spec_of(previous) != spec_of(&event.record));
            // A policy may want the object elsewhere; it arrives there before it leaves here.
            let moves = !before.placed_on.is_empty() && before.placed_on != after.placed_on;
            if lost
                || deleting
                || resized
                || moves
                || reads_otherwise(ctx, event, previous)
                || before.labels != after.labels
                || is_pinned
            {
                add(Some(event.key.clone()));
            }
            // Other objects follow this one: they are checked again once it is placed or refers to another object.
            if before.placed_on != after.placed_on {
                requeue_followers(ctx, &event.key, None, Some(&event.record));
            } else if previous.body() != event.record.body() {
                requeue_followers(ctx, &event.key, Some(previous), Some(&event.record));
            }
        }
    }
}

/// Returns true if a new follower cannot be placed. All followers within reach are rescanned once that changes.
pub(crate) fn has_nowhere_to_go(ctx: &SchedulerContext, event: &Event) -> bool {
    let ObjectKey { cluster, resource, .. } = &event.key;
    let Some(kind) = kinds::placeable(resource) else { return false };
    let (reach, facts) = (ctx.lineage_of(*cluster), ctx.facts());
    event.record.header.placed_on.is_empty()
        && !facts.may_be_placed(&reach)
        && !facts.is_kind_selected(&reach, kind.group, kind.kind)
}

pub(crate) fn observe_object(ctx: &SchedulerContext, event: &Event) {
    if event.record.header.label(portolan_types::annotations::PROJECTED_FROM).is_some() {
        return observe_end_of_template(ctx, event);
    }
    let Some(namespace) = event.key.namespace() else { return };
    if event.change == ChangeKind::Deleted {
        count_event(ctx, event, Some(&event.record), None);
        note_counted(ctx, event);
        note_record(ctx, &event.key, Some(&PlacementFields::of(&event.record).record), None);
        ctx.queue.tasks.add(Task::Object(event.key.clone()));
        ctx.queue.add_followers(event.key.cluster, namespace, None);
        requeue_neighbors(ctx, &event.key);
        return;
    }
    let Some(previous) = event.previous.as_deref() else {
        count_event(ctx, event, None, Some(&event.record));
        note_counted(ctx, event);
        ctx.queue.tasks.add(Task::Object(event.key.clone()));
        return;
    };
    let (before, after) = (PlacementFields::of(previous), PlacementFields::of(&event.record));
    let new_spec = before.generation != after.generation;
    if new_spec || before.record != after.record || ends(&event.key.resource, previous, &event.record) {
        count_event(ctx, event, Some(previous), Some(&event.record));
    }
    note_counted(ctx, event);
    let header =
        |record: &Record| (record.header.labels.clone(), record.header.owners.clone(), record.header.is_deleting);
    // The status of a Job or Pod decides if it may still move.
    let by_status = matches!(&*event.key.resource.resource, "jobs" | "pods");
    let lost = before.lost_copies(&after);
    let is_marked = note_record(ctx, &event.key, Some(&before.record), Some(&after.record));
    let is_asked = before.is_asked_otherwise(&after);
    let is_requested = is_marked || is_asked;
    let has_new_header = header(previous) != header(&event.record);
    if new_spec || by_status || is_asked || has_new_header {
        recheck_if_blocked(ctx, &event.key, after.record.drain.is_some());
    }
    if new_spec || by_status || lost || is_requested || has_new_header || reads_otherwise(ctx, event, previous) {
        ctx.queue.tasks.add(Task::Object(event.key.clone()));
    }
    if has_new_header || before.record.clusters != after.record.clusters {
        requeue_neighbors(ctx, &event.key);
    }
    // Autoscalers depend on the limits of their targets.
    let serves = |fields: &PlacementFields| (fields.record.retiring.clone(), fields.record.arriving.clone());
    let moves = before.record.clusters != after.record.clusters || serves(&before) != serves(&after);
    let scales_elsewhere = before.record.scales_globally != after.record.scales_globally;
    if moves || scales_elsewhere || before.record.limits != after.record.limits {
        ctx.queue.add_followers(event.key.cluster, namespace, None);
    } else if new_spec && !after.record.clusters.is_empty() {
        requeue_followers(ctx, &event.key, Some(previous), Some(&event.record));
    }
}

/// Updates the sums after a write, unless a list has counted it already.
fn count_event(ctx: &SchedulerContext, event: &Event, previous: Option<&Record>, record: Option<&Record>) {
    let was_listed = ctx.facts().usage.was_listed(&event.key.resource, event.revision);
    count_usage(ctx, &event.key, if was_listed { record } else { previous }, record);
}

/// Notes that an event is in the sums, so that its object can be decided.
fn note_counted(ctx: &SchedulerContext, event: &Event) {
    ctx.facts().usage.note_counted(&event.key.resource, event.revision);
}

/// Returns true if an expression of a policy may find another value in an object than before.
fn reads_otherwise(ctx: &SchedulerContext, event: &Event, previous: &Record) -> bool {
    if !ctx.facts().has_expressions() {
        return false;
    }
    let seen = |record: &Record| tree(record).map(|object| (kind_of(&object), ExpressionSubject::of_object(&object)));
    match (seen(previous), seen(&event.record)) {
        (Some((_, before)), Some((Some(kind), after))) => {
            let reach = ctx.lineage_of(event.key.cluster);
            !before.has_same_fields(&after) && ctx.facts().reads_objects(&reach, &kind.group, &kind.kind)
        }
        _ => true,
    }
}

/// Queues the followers of a namespace when an object is gone whose pods may have had an earlier template.
pub(crate) fn observe_end_of_template(ctx: &SchedulerContext, event: &Event) {
    let resource = &event.key.resource;
    // Pods matter only if nothing else keeps their template.
    let keeps = *resource != kinds::pods()
        || tree(&event.record).is_some_and(|pod| {
            object::controller_of(&pod).is_some_and(|owner| owner["kind"] == "ReplicationController")
        });
    if let (ChangeKind::Deleted, true, Some(namespace)) = (event.change, keeps, event.key.namespace()) {
        ctx.queue.add_followers(event.key.cluster, namespace, None);
    }
}

/// Queues the followers of a namespace when an object names others than before. `None` is an object without a place.
pub(crate) fn requeue_followers(
    ctx: &SchedulerContext,
    key: &ObjectKey,
    previous: Option<&Record>,
    record: Option<&Record>,
) {
    let Some(namespace) = key.namespace() else { return };
    if kinds::is_follower(&key.resource) && !kinds::referrers().any(|referrer| referrer.resource() == key.resource) {
        return;
    }
    let names = |record: &Record| tree(record).map(|o| ctx.references_of(key, &o)).unwrap_or_default();
    if previous.map(names).unwrap_or_default() != record.map(names).unwrap_or_default() {
        ctx.queue.add_followers(key.cluster, namespace, None);
    }
}

/// Returns true when a write says that a Job or Pod has ended. Of other kinds nothing is parsed.
fn ends(resource: &GroupResource, before: &Record, after: &Record) -> bool {
    let kind = match (&*resource.group, &*resource.resource) {
        ("batch", "jobs") => "Job",
        ("", "pods") => "Pod",
        _ => return false,
    };
    let has_ended = |record| tree(record).is_some_and(|object| object::has_ended(&resource.group, kind, &object));
    has_ended(after) && !has_ended(before)
}

/// Returns the spec of a stored object, of a kind whose generation does not tell that it changed.
fn spec_of(record: &Record) -> Option<Value> {
    tree(record).map(|mut object| object["spec"].take())
}
