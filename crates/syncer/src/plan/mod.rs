//! Decision about one copy: from the upstream object with its record, and the downstream object, to the next step. No
//! IO.

mod adoption;
mod debt_permission;
mod decision;
mod input;

use portolan_types::{
    ObjectKey, Uid, annotations, object,
    placement::{CopyIdentity, CopyPhase, PlacedCopy, PlacementRecord},
    upstream::{UnplacedObject, UpstreamObject},
};
use serde_json::Value;

pub use decision::{CopyDecision, CopyDeletion, CopyUpdate, Proof};
pub use input::{PlanInput, SyncTarget, UpstreamState};

pub(crate) use debt_permission::{DebtPermission, claims_of, debt_permission, ends_with_its_pods, is_shared_claim};

use adoption::AdoptionMode;

use crate::{
    rules::{SyncRefusal, is_custom, is_local},
    transform::{self, CopyContext},
};

/// Finalizers of an upstream object that do not keep its copies: the garbage collector takes them off after its
/// dependents, which are downstream, are gone.
const NOT_WAITED_FOR: [&str; 2] = ["foregroundDeletion", "orphan"];

/// Finalizer of an object that is deleted without its dependents.
const ORPHAN: &str = "orphan";

/// Returns true for an object that is deleted without its dependents.
pub(crate) fn is_orphaning(object: &Value) -> bool {
    object::is_deleting(object) && object::finalizers(object).any(|finalizer| finalizer == ORPHAN)
}

/// State of the object at the address of the copy.
enum DownstreamState<'a> {
    Nothing,
    Copy(&'a Value, CopyIdentity),
    Foreign,
}

/// Decides about one object.
pub fn plan(target: &SyncTarget<'_>, seen: &PlanInput<'_>) -> CopyDecision {
    // A number from the physical cluster is not a proof: any writer there could stop this syncer with a high one.
    if seen.newest_syncer > target.syncer_epoch {
        return CopyDecision::Fenced;
    }
    let downstream = classify(target, seen);
    match seen.upstream {
        UpstreamState::Removed { seen } => {
            let proof = if seen { Proof::Tombstone } else { Proof::NeverSeen };
            match downstream {
                DownstreamState::Copy(copy, _) => delete(copy, proof, None),
                DownstreamState::Nothing | DownstreamState::Foreign => CopyDecision::Nothing,
            }
        }
        UpstreamState::NotPlaced(unplaced) => plan_not_placed(unplaced, downstream),
        UpstreamState::Present(upstream) => plan_present(target, seen, upstream, downstream),
    }
}

/// Deletes the copy of an object that is placed elsewhere, or that replaced the object of the copy.
fn plan_not_placed(unplaced: &UnplacedObject, downstream: DownstreamState<'_>) -> CopyDecision {
    match (downstream, &unplaced.uid) {
        (DownstreamState::Nothing | DownstreamState::Foreign, _) => CopyDecision::Nothing,
        (DownstreamState::Copy(..), None) => CopyDecision::Stale,
        (DownstreamState::Copy(copy, identity), Some(uid)) if identity.uid != *uid => {
            delete(copy, Proof::Superseded, None)
        }
        (DownstreamState::Copy(copy, _), Some(_)) if unplaced.has_record => delete(copy, Proof::Unplaced, None),
        (DownstreamState::Copy(..), Some(_)) => CopyDecision::Hold,
    }
}

fn plan_present(
    target: &SyncTarget<'_>,
    seen: &PlanInput<'_>,
    upstream: &UpstreamObject,
    downstream: DownstreamState<'_>,
) -> CopyDecision {
    let Some(uid) = object::uid(&upstream.object) else { return CopyDecision::Stale };
    if let DownstreamState::Copy(copy, identity) = &downstream
        && identity.uid != uid
    {
        return delete(copy, Proof::Superseded, None);
    }
    let record = PlacementRecord::of(&upstream.object);
    let Some(entry) = record.as_ref().and_then(|record| record.on(target.physical)) else {
        return plan_not_placed(&UnplacedObject { uid: Some(uid), has_record: record.is_some() }, downstream);
    };
    if entry.phase == CopyPhase::Projected {
        return CopyDecision::Projected;
    }
    match deletion_proof(upstream, entry) {
        Some(proof) => plan_leaving(upstream, uid, entry, proof, downstream),
        None => plan_active(target, seen, upstream, entry, downstream),
    }
}

fn plan_leaving(
    upstream: &UpstreamObject,
    uid: Uid,
    entry: &PlacedCopy,
    proof: Proof,
    downstream: DownstreamState<'_>,
) -> CopyDecision {
    match downstream {
        DownstreamState::Copy(copy, _) => delete(copy, proof, grace_of(upstream)),
        DownstreamState::Nothing | DownstreamState::Foreign => CopyDecision::ConfirmGone { uid, epoch: entry.epoch },
    }
}

fn plan_active(
    target: &SyncTarget<'_>,
    seen: &PlanInput<'_>,
    upstream: &UpstreamObject,
    entry: &PlacedCopy,
    downstream: DownstreamState<'_>,
) -> CopyDecision {
    if is_local(&upstream.key.resource, &upstream.object) {
        return CopyDecision::Local;
    }
    match downstream {
        DownstreamState::Copy(copy, _) if object::is_deleting(copy) => return CopyDecision::AwaitEnd,
        // An ended object does not run again when its copy is gone.
        DownstreamState::Nothing | DownstreamState::Foreign
            if object::is_deleting(&upstream.object) || has_ended(upstream) =>
        {
            return CopyDecision::Nothing;
        }
        DownstreamState::Copy(..) | DownstreamState::Nothing | DownstreamState::Foreign => {}
    }
    if let Some(refusal) = refusal(target, seen, upstream) {
        return CopyDecision::Refuse(refusal);
    }
    let mut adopted = None;
    let downstream = match downstream {
        DownstreamState::Foreign => {
            let is_former =
                seen.downstream.and_then(CopyIdentity::of).is_some_and(|identity| names(&identity, &upstream.key));
            let whose = if is_former {
                "made for another registration of the physical cluster, whose administrator can take it over"
            } else {
                "not of this logical cluster"
            };
            let what = format!("{} {} is there and {whose}", upstream.key.resource, upstream.key.name);
            match AdoptionMode::of(upstream) {
                Err(refusal) => return CopyDecision::Refuse(refusal),
                Ok(Some(mode)) if !is_former => adopted = seen.downstream.zip(Some(mode)),
                Ok(_) => return CopyDecision::Refuse(SyncRefusal::conflict(what)),
            }
            None
        }
        DownstreamState::Copy(copy, _) => Some(copy),
        DownstreamState::Nothing => None,
    };
    if upstream.is_held || is_suspended(target, upstream) {
        return CopyDecision::Wait;
    }
    let scaled_to = downstream.filter(|_| keeps_its_scale(seen, upstream)).and_then(|copy| upstream.wanted_in(copy));
    let context = CopyContext {
        physical: target.physical,
        namespace: seen.namespace,
        entry,
        syncer_epoch: target.syncer_epoch,
        scaled_to,
        lacking: seen.lacking,
        audiences: seen.audiences,
        naming: target.rules.naming(),
        downstream,
        pods: seen.pods,
    };
    match (transform::copy_of(upstream, &context), downstream) {
        (Err(refusal), _) => CopyDecision::Refuse(refusal),
        (Ok(body), None) => match adopted {
            Some((found, mode)) => adoption::adopt(mode, upstream, found, body),
            None => CopyDecision::Create(body),
        },
        (Ok(body), Some(copy)) => update(target, body, copy, seen.settled),
    }
}

/// Returns true while a policy suspends the dispatch to the physical cluster, or a rollout has not come to it: nothing
/// is made or changed there, and only deletions continue.
fn is_suspended(target: &SyncTarget<'_>, upstream: &UpstreamObject) -> bool {
    PlacementRecord::of(&upstream.object).is_some_and(|record| {
        let waits = record.rollout.as_ref().is_some_and(|rollout| rollout.held.contains(target.physical));
        waits || record.suspended.contains(target.physical)
    })
}

fn has_ended(upstream: &UpstreamObject) -> bool {
    object::has_ended(&upstream.kind.group, &upstream.kind.kind, &upstream.object)
}

/// Returns true while an autoscaler owns the number of replicas: until a user sets another number upstream than the
/// autoscaler's last one.
fn keeps_its_scale(seen: &PlanInput<'_>, upstream: &UpstreamObject) -> bool {
    let followed = PlacementRecord::of(&upstream.object).and_then(|record| record.autoscaled);
    let wanted = upstream.wanted_in(&upstream.object);
    seen.autoscaled && (followed.is_none() || followed == wanted)
}

fn refusal(target: &SyncTarget<'_>, seen: &PlanInput<'_>, upstream: &UpstreamObject) -> Option<SyncRefusal> {
    let resource = &upstream.key.resource;
    if let Some(refusal) = target.rules.refusal(resource, &upstream.kind.kind) {
        return Some(refusal);
    }
    let is_custom = is_custom(resource);
    match seen.served {
        None if is_custom => {
            Some(SyncRefusal::kind_not_served(format!("the physical cluster does not serve {resource}")))
        }
        Some((kind, true)) if is_custom && *kind != upstream.kind => {
            Some(SyncRefusal::kind_not_served(format!("the physical cluster serves {kind}, not {}", upstream.kind)))
        }
        None => Some(SyncRefusal::incompatible(format!("the physical cluster does not serve {resource}"))),
        Some((_, false)) => {
            Some(SyncRefusal::not_syncable(format!("{resource} belong to the physical cluster as a whole")))
        }
        Some((kind, true)) if *kind != upstream.kind => {
            Some(SyncRefusal::incompatible(format!("the physical cluster serves {kind}, not {}", upstream.kind)))
        }
        Some((_, true)) => None,
    }
}

/// Nothing is written if the last applied state is the wanted one, and no field has drifted since.
fn update(target: &SyncTarget<'_>, mut body: Value, copy: &Value, settled: bool) -> CopyDecision {
    let applied = |object| object::annotation(object, annotations::DOWN_APPLIED);
    let is_covered = || transform::covers(&without_identity(copy), &without_identity(&body));
    if applied(copy) == applied(&body) && (settled || is_covered()) && !names_newer_syncer(copy, target) {
        return CopyDecision::Keep;
    }
    for key in ["uid", "resourceVersion"] {
        let read = object::meta_text(copy, key).to_owned();
        object::metadata_mut(&mut body).insert(key.into(), Value::String(read));
    }
    CopyDecision::Apply(CopyUpdate { body })
}

/// Returns the object without the syncer's epoch, because an old epoch alone does not justify a write.
fn without_identity(object: &Value) -> Value {
    let mut object = object.clone();
    let identity = CopyIdentity::of(&object).map(|identity| CopyIdentity { syncer_epoch: 0, ..identity });
    let text = identity.and_then(|identity| serde_json::to_string(&identity).ok());
    object::set_annotation(&mut object, annotations::DOWN_IDENTITY, text);
    object
}

fn delete(copy: &Value, proof: Proof, grace: Option<i64>) -> CopyDecision {
    if object::is_deleting(copy) {
        CopyDecision::AwaitEnd
    } else {
        CopyDecision::Delete(CopyDeletion {
            uid: object::meta_text(copy, "uid").to_owned(),
            resource_version: object::meta_text(copy, "resourceVersion").to_owned(),
            proof,
            grace,
        })
    }
}

/// Returns why the copy of `entry` should be deleted, if upstream says so.
pub(crate) fn deletion_proof(upstream: &UpstreamObject, entry: &PlacedCopy) -> Option<Proof> {
    let finished = || object::finalizers(&upstream.object).all(|f| NOT_WAITED_FOR.contains(&f));
    match entry.phase {
        CopyPhase::Leaving => Some(Proof::Leaving),
        CopyPhase::Active | CopyPhase::Projected if object::is_deleting(&upstream.object) => {
            (is_pod(&upstream.key) || finished()).then_some(Proof::Deleting)
        }
        CopyPhase::Active | CopyPhase::Projected => None,
    }
}

/// Returns true when the identity on a copy names a newer syncer.
pub(crate) fn names_newer_syncer(copy: &Value, target: &SyncTarget<'_>) -> bool {
    copy_identity(copy, target.physical).is_some_and(|identity| identity.syncer_epoch > target.syncer_epoch)
}

/// Returns true when the identity on a copy names a later epoch than the upstream record.
pub(crate) fn names_later_stay(copy: &Value, entry: &PlacedCopy) -> bool {
    copy_identity(copy, &entry.uid).is_some_and(|identity| identity.epoch > entry.epoch)
}

fn is_pod(key: &ObjectKey) -> bool {
    key.resource.group.is_empty() && &*key.resource.resource == "pods"
}

/// Returns the grace period of a Pod that a user deletes.
pub(crate) fn grace_of(upstream: &UpstreamObject) -> Option<i64> {
    if !object::is_deleting(&upstream.object) || !is_pod(&upstream.key) {
        return None;
    }
    let seconds = object::metadata(&upstream.object).get("deletionGracePeriodSeconds").and_then(Value::as_i64);
    // Upstream, a Pod without a node gets the grace period 0. Downstream it has a node, and 0 would kill it without
    // proof.
    let has_node = upstream.object.pointer("/spec/nodeName").is_some_and(|node| node.as_str() != Some(""));
    seconds.filter(|seconds| *seconds > 0 || has_node)
}

fn classify<'a>(target: &SyncTarget<'_>, seen: &PlanInput<'a>) -> DownstreamState<'a> {
    match seen.downstream {
        None => DownstreamState::Nothing,
        Some(object) => match copy_identity(object, target.physical) {
            Some(identity) if names(&identity, seen.key) => DownstreamState::Copy(object, identity),
            Some(_) | None => DownstreamState::Foreign,
        },
    }
}

/// Returns the identity of a copy that was made for `physical`. An object that a controller made is not a copy, though
/// Kubernetes hands the annotations of a Deployment on to its ReplicaSets.
pub fn copy_identity(object: &Value, physical: &Uid) -> Option<CopyIdentity> {
    let identity = CopyIdentity::of(object).filter(|identity| identity.physical == *physical)?;
    let is_copy = object::controller_of(object).is_none() && identity.name == object::name(object);
    is_copy.then_some(identity)
}

/// Returns true when an identity names the object at `key`.
pub(crate) fn names(identity: &CopyIdentity, key: &ObjectKey) -> bool {
    identity.cluster == key.cluster.to_string()
        && identity.namespace == key.namespace().map_or("", |namespace| namespace.as_str())
        && identity.name == key.name.as_str()
}

#[cfg(test)]
mod tests;
