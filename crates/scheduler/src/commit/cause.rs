//! Cause of a transition: one word, the object that caused it, and the revision at which that was last changed.

use portolan_placement::{ExclusionReason, PinScope, PlacementDecision, TransitionCause};
use portolan_types::{
    ObjectKey, ObjectName,
    placement::{PlacedCopy, PolicyRef},
};

use crate::{
    commit::StepCommit,
    context::SchedulerContext,
    facts::{ClusterLineage, Facts},
    kinds,
};

/// Returns the cause of a step that changes where an object is; `None` for a step that changes nothing.
pub(crate) fn transition_cause(ctx: &SchedulerContext, change: &StepCommit) -> Option<TransitionCause> {
    change.step.cause.as_ref()?;
    let Some(decision) = change.decision else {
        return Some(TransitionCause { reason: "Followed".into(), ..TransitionCause::default() });
    };
    let facts = ctx.facts();
    let record = &change.step.record;
    if let Some(mark) = record.drain.as_deref().filter(|mark| mark.is_moving()) {
        let revision = facts.drains.get(&mark.uid).map(|drain| drain.revision.to_string());
        return Some(cause("Drain", mark.title(), revision));
    }
    let was_returned = change.previous.moving.as_ref().is_some_and(|attempt| attempt.is_returned);
    if record.moving.as_ref().is_some_and(|attempt| attempt.is_returned) && !was_returned {
        return Some(cause("TimedOut", title_of_object(change), Some(change.revision.to_string())));
    }
    let departs = |copy: &&PlacedCopy| !decision.chosen.iter().any(|chosen| chosen.uid == copy.uid);
    let departing = change.previous.active().filter(departs);
    let by_departure = departing.filter_map(|copy| cause_of_departure(ctx, &facts, change, decision, copy)).next();
    by_departure.or_else(|| cause_of_arrival(ctx, &facts, change, decision))
}

fn cause(reason: &str, actor: String, revision: Option<String>) -> TransitionCause {
    TransitionCause { reason: reason.to_owned(), actor, revision: revision.unwrap_or_default() }
}

/// Returns the cause for which a copy leaves, by the reason for which its physical cluster was rejected.
fn cause_of_departure(
    ctx: &SchedulerContext,
    facts: &Facts,
    change: &StepCommit,
    decision: &PlacementDecision,
    copy: &PlacedCopy,
) -> Option<TransitionCause> {
    let Some(physical) = facts.physical(&copy.uid) else {
        return Some(cause("Deletion", format!("PhysicalCluster {}", copy.name), None));
    };
    let reason = decision.rejected.iter().find(|one| one.uid == copy.uid)?.reason;
    let of_physical = |word| {
        let revision = facts.revision_of(&physical.key).map(|revision| revision.to_string());
        Some(cause(word, title_of(ctx, "PhysicalCluster", &physical.key), revision))
    };
    match reason {
        ExclusionReason::Deleting => of_physical("Deletion"),
        ExclusionReason::TaintNotTolerated if physical.info.is_unreachable() => of_physical("Failover"),
        ExclusionReason::TaintNotTolerated => of_physical("Taint"),
        ExclusionReason::OutOfBounds | ExclusionReason::InsufficientCapacity => of_physical("Capacity"),
        ExclusionReason::NotReachable | ExclusionReason::NoUseRight => of_physical("Access"),
        ExclusionReason::PinnedElsewhere => cause_of_arrival(ctx, facts, change, decision),
        _ => cause_by_policy(ctx, facts, change, decision),
    }
}

/// Returns the cause for which copies arrive.
fn cause_of_arrival(
    ctx: &SchedulerContext,
    facts: &Facts,
    change: &StepCommit,
    decision: &PlacementDecision,
) -> Option<TransitionCause> {
    match decision.pinned_by {
        Some(PinScope::Object) => Some(cause("Pin", title_of_object(change), Some(change.revision.to_string()))),
        Some(PinScope::Namespace) => {
            let namespace = change.key.namespace().map(ToString::to_string).unwrap_or_default();
            Some(cause("Pin", format!("Namespace {namespace}"), None))
        }
        None => cause_by_policy(ctx, facts, change, decision),
    }
}

fn cause_by_policy(
    ctx: &SchedulerContext,
    facts: &Facts,
    change: &StepCommit,
    decision: &PlacementDecision,
) -> Option<TransitionCause> {
    let Some(policy) = &decision.policy else {
        let namespace = change.key.namespace().map(ToString::to_string).unwrap_or_default();
        // Without a policy, replicas go to further physical clusters only because one is full.
        let grows = change.previous.active().next().is_some() && decision.divided_by.is_some();
        return Some(cause(if grows { "Capacity" } else { "Default" }, format!("Namespace {namespace}"), None));
    };
    let reach = ctx.lineage_of(change.key.cluster);
    let revision = policy_key(&reach, policy).and_then(|key| facts.revision_of(&key));
    let name = match &policy.namespace {
        Some(namespace) => format!("{namespace}/{}", policy.name),
        None => policy.name.clone(),
    };
    let actor = format!("{} {}:{name}", policy.kind, policy.workspace);
    Some(cause("Policy", actor, revision.map(|revision| revision.to_string())))
}

/// Returns the key of the policy that a reference names.
fn policy_key(reach: &ClusterLineage, policy: &PolicyRef) -> Option<ObjectKey> {
    let (cluster, _) = reach.lineage.iter().find(|(_, path)| path.to_string() == policy.workspace)?;
    let name: ObjectName = policy.name.parse().ok()?;
    let [of_namespace, of_cluster] = kinds::policies();
    match &policy.namespace {
        Some(namespace) => Some(ObjectKey::namespaced(*cluster, of_namespace, namespace.parse().ok()?, name)),
        None => Some(ObjectKey::cluster_scoped(*cluster, of_cluster, name)),
    }
}

fn title_of(ctx: &SchedulerContext, kind: &str, key: &ObjectKey) -> String {
    let lineage = ctx.tree.lineage(key.cluster);
    let home = lineage.first().map_or_else(|| key.cluster.to_string(), |(_, path)| path.to_string());
    format!("{kind} {home}:{}", key.name)
}

fn title_of_object(change: &StepCommit) -> String {
    format!("{} {}", change.object["kind"].as_str().unwrap_or_default(), change.key.name)
}
