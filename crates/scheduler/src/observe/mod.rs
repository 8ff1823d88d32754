//! Watch events become facts and tasks.

pub(crate) mod definition_events;
pub(crate) mod fact_barrier;
pub(crate) mod fact_events;
pub(crate) mod feed;
pub(crate) mod object_events;
pub(crate) mod placement_fields;
pub(crate) mod usage_count;

use portolan_store::{ChangeKind, Event, StoredObject};
use portolan_types::{GroupKind, GroupResource, GroupVersionKind, ObjectKey, Record};
use serde_json::Value;

use crate::{
    context::SchedulerContext,
    decide::pod_admission::observe_refusal_source,
    drain::events::{note_listed_mark, observe_drain, recheck_claim},
    failover::observe_heartbeat,
    kinds,
    observe::definition_events::{observe_definition, observe_definition_record},
    observe::fact_events::{observe_namespace, observe_physical_cluster, observe_placement, observe_policy},
    observe::object_events::{observe_end_of_template, observe_follower, observe_object},
    observe::usage_count::count_usage,
};

/// Returns the group and kind of an object.
pub(crate) fn kind_of(object: &Value) -> Option<GroupKind> {
    let text = |key: &str| object.get(key).and_then(Value::as_str);
    Some(GroupVersionKind::parse(text("apiVersion")?, text("kind")?).ok()?.group_kind())
}

/// Returns the value of a stored object; `None` if it is damaged.
pub(crate) fn tree(record: &Record) -> Option<Value> {
    serde_json::from_slice(record.body()).ok()
}

/// Drops the facts of a resource before it is listed.
pub(crate) fn clear_resource(ctx: &SchedulerContext, resource: &GroupResource) {
    let mut facts = ctx.facts();
    if *resource == kinds::physical_clusters() {
        facts.clear_physicals();
    } else if kinds::policies().contains(resource) {
        facts.clear_policies(resource);
    } else if *resource == kinds::definitions() {
        facts.definitions.clear();
    } else if *resource == kinds::drains() {
        facts.drains.clear();
    } else {
        facts.usage.clear(resource);
    }
}

/// Observes an object of a list. Returns true if a drain has marked it.
pub(crate) fn observe_listed(ctx: &SchedulerContext, stored: &StoredObject) -> bool {
    let (key, record) = (&stored.key, &stored.record);
    let facts = [kinds::physical_clusters(), kinds::drains()];
    if facts.contains(&key.resource) || kinds::policies().contains(&key.resource) {
        let event = Event {
            revision: stored.revision,
            change: ChangeKind::Created,
            key: key.clone(),
            record: record.clone(),
            previous: None,
        };
        observe_event(ctx, &event);
    } else if key.resource == kinds::heartbeats() {
        observe_heartbeat(ctx, key, stored.revision, record);
    } else if key.resource == kinds::definitions() {
        observe_definition_record(ctx, key, record);
    } else if key.resource != kinds::namespaces() && key.resource != kinds::placements() {
        count_usage(ctx, key, None, Some(record));
        return note_listed_mark(ctx, key, record);
    }
    false
}

/// Observes an object of a list that cannot be read.
pub(crate) fn observe_unreadable(ctx: &SchedulerContext, key: &ObjectKey) {
    if key.resource == kinds::physical_clusters() || kinds::policies().contains(&key.resource) {
        ctx.facts().put_unreadable(key);
    }
}

/// Observes an event: updates the facts, then queues the tasks that depend on it.
pub(crate) fn observe_event(ctx: &SchedulerContext, event: &Event) {
    let resource = &event.key.resource;
    // Followers come first: most writes are theirs.
    if kinds::is_follower(resource) {
        observe_follower(ctx, event);
        recheck_claim(ctx, event);
    } else if *resource == kinds::physical_clusters() {
        observe_physical_cluster(ctx, event);
    } else if *resource == kinds::drains() {
        observe_drain(ctx, event);
    } else if *resource == kinds::heartbeats() {
        observe_heartbeat(ctx, &event.key, event.revision, &event.record);
    } else if kinds::policies().contains(resource) {
        observe_policy(ctx, event);
    } else if *resource == kinds::namespaces() {
        observe_namespace(ctx, event);
    } else if *resource == kinds::definitions() {
        observe_definition(ctx, event);
    } else if *resource == kinds::placements() {
        observe_placement(ctx, event);
    } else if kinds::is_refusal_source(resource) {
        observe_refusal_source(ctx, event);
    } else if *resource == kinds::revisions() {
        observe_end_of_template(ctx, event);
    } else {
        observe_object(ctx, event);
    }
}
