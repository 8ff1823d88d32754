//! Events of the objects that decisions depend on: physical clusters, policies, namespaces and `Placement`s.

use portolan_placement::placed_condition;
use portolan_store::{ChangeKind, Event};
use portolan_types::{GroupVersionKind, ObjectKey, object};
use serde_json::Value;

use crate::{
    context::SchedulerContext,
    decide::pod_admission::recheck_refused,
    drain::events::{note_report, recheck_blocked, requeue_drains},
    inputs::{namespace_default_key, namespace_places::with_ready_pods},
    kinds,
    observe::definition_events::scan_named_groups,
    observe::placement_fields::PlacementFields,
    observe::tree,
    queue::Task,
    queue::rescan::RescanScope,
};

pub(crate) fn observe_physical_cluster(ctx: &SchedulerContext, event: &Event) {
    let Some(object) = tree(&event.record) else { return };
    if event.change == ChangeKind::Deleted {
        let Some(uid) = object::uid(&object) else { return };
        ctx.facts().remove_physical(&event.key, &uid);
        ctx.signals.policy_status.notify_one();
        ctx.facts().note_revision(&event.key, None);
        requeue_drains(ctx, event.key.cluster);
        ctx.rescans.add(RescanScope::PlacedOn(uid));
        return;
    }
    let changed = ctx.facts().put_physical(&event.key, &object, ctx.now());
    if changed || ctx.facts().has_expressions() {
        ctx.signals.policy_status.notify_one();
    }
    if changed {
        ctx.facts().note_revision(&event.key, Some(event.revision));
        ctx.rescans.add(RescanScope::Subtree(event.key.cluster));
        ctx.signals.usage_status.notify_one();
        requeue_drains(ctx, event.key.cluster);
        recheck_blocked(ctx);
    }
    ctx.queue.tasks.add(Task::PhysicalCluster(event.key.clone()));
}

pub(crate) fn observe_policy(ctx: &SchedulerContext, event: &Event) {
    let changed = match (event.change, tree(&event.record)) {
        (ChangeKind::Deleted, _) => ctx.facts().remove_policy(&event.key),
        (_, Some(object)) => ctx.facts().put_policy(&event.key, &object),
        (_, None) => false,
    };
    if !changed {
        return;
    }
    let is_deleted = event.change == ChangeKind::Deleted;
    ctx.facts().note_revision(&event.key, (!is_deleted).then_some(event.revision));
    watch_selected_kinds(ctx, &event.key);
    recheck_blocked(ctx);
    ctx.signals.policy_status.notify_one();
    ctx.rescans.add(match event.key.namespace() {
        Some(namespace) => RescanScope::Namespace(event.key.cluster, namespace.clone()),
        None => RescanScope::Subtree(event.key.cluster),
    });
}

/// Adds feeds for kinds that a policy names and that have none.
fn watch_selected_kinds(ctx: &SchedulerContext, policy: &ObjectKey) {
    let groups: Vec<String> = ctx.facts().groups_named_by(policy);
    scan_named_groups(ctx, policy, groups.into_iter());
    let facts = ctx.facts();
    let named = facts.all_policies().flat_map(|(_, policy)| policy.kinds());
    let resources = named.filter_map(|(group, kind)| ctx.kinds.resource_of(group, kind));
    let new: Vec<_> = resources.filter(|r| !kinds::PLACEABLE.iter().any(|p| p.resource() == *r)).collect();
    drop(facts);
    let mut custom = ctx.custom();
    let before = custom.len();
    custom.extend(new);
    if custom.len() > before {
        ctx.signals.custom_resources.notify_one();
    }
}

pub(crate) fn observe_namespace(ctx: &SchedulerContext, event: &Event) {
    let Ok(namespace) = event.key.name.parse() else { return };
    if event.previous.as_ref().is_some_and(|previous| previous.header.labels != event.record.header.labels) {
        recheck_refused(ctx, event.key.cluster, Some(&namespace));
    }
    match (event.change, &event.previous) {
        (ChangeKind::Deleted, _) => {
            ctx.queue.tasks.add(Task::Bookkeeping(namespace_default_key(event.key.cluster, namespace)))
        }
        (_, Some(previous)) if PlacementFields::of(previous).pin != PlacementFields::of(&event.record).pin => {
            ctx.rescans.add(RescanScope::Namespace(event.key.cluster, namespace));
            recheck_blocked(ctx);
        }
        _ => {}
    }
}

/// Queues a moving object when the report about its copies changes, and one whose `Placement` was deleted.
pub(crate) fn observe_placement(ctx: &SchedulerContext, event: &Event) {
    let is_drained = || ctx.facts().drains.is_at_work();
    let Some(placement) = tree(&event.record) else { return };
    match event.change {
        ChangeKind::Created => {}
        ChangeKind::Updated => {
            serve_elsewhere(ctx, event, &placement);
            let is_moving =
                placed_condition(&placement).is_some_and(|(reason, _)| matches!(reason, "Moving" | "RollingOut"));
            if !is_moving && !is_drained() {
                return;
            }
            let Some(object) = object_of(ctx, event, &placement) else { return };
            note_report(ctx, &object);
            if is_moving {
                ctx.queue.tasks.add(Task::Object(object));
            }
        }
        ChangeKind::Deleted if !ctx.leads() => {}
        ChangeKind::Deleted => {
            let Some(object) = object_of(ctx, event, &placement) else { return };
            ctx.lost_placements.put(&object, &event.record);
            ctx.queue.tasks.add(Task::Object(object));
        }
    }
}

/// Queues the Services in front of a workload with several copies when other ones have ready pods than before.
fn serve_elsewhere(ctx: &SchedulerContext, event: &Event, placement: &Value) {
    let copies = placement.pointer("/status/clusters").and_then(Value::as_array).map_or(0, Vec::len);
    let (Some(previous), Some(namespace), true) = (event.previous.as_deref(), event.key.namespace(), copies > 1) else {
        return;
    };
    let before = tree(previous).as_ref().map(with_ready_pods).unwrap_or_default();
    if before != with_ready_pods(placement) {
        ctx.queue.add_followers(event.key.cluster, namespace, None);
    }
}

/// Returns the key of the object that a `Placement` is about.
fn object_of(ctx: &SchedulerContext, event: &Event, placement: &Value) -> Option<ObjectKey> {
    let text = |path: &str| placement.pointer(path).and_then(Value::as_str).unwrap_or_default();
    let kind = GroupVersionKind::parse(text("/spec/object/apiVersion"), text("/spec/object/kind")).ok()?;
    let resource = ctx.resource_in(event.key.cluster, &kind.group, &kind.kind)?;
    let name = text("/spec/object/name").parse().ok()?;
    Some(ObjectKey { resource, name, ..event.key.clone() })
}
