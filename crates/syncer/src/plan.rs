//! (upstream object with its record, downstream object) → what to do. The whole decision, without IO.

mod owing;

use portolan_types::{
    GroupVersionKind, ObjectKey, Uid, annotations, object,
    placement::{CopyIdentity, Phase, PlacedCopy, PlacementRecord},
    upstream::UpstreamObject,
};
use serde_json::Value;

pub(crate) use owing::{Owing, claims_of, ends_with_its_pods, is_shared_claim, owing};

use crate::{
    rules::{Refusal, SyncRules, is_local},
    transform::{self, AcceptedAudiences, CopyContext, Lacking},
};

/// Finalizers of an upstream object that do not keep its copies: the garbage collector takes them off after its dependents,
/// which are below, are gone.
const NOT_WAITED_FOR: [&str; 2] = ["foregroundDeletion", "orphan"];

/// Finalizer of an object that is deleted without what it owns.
const ORPHAN: &str = "orphan";

/// Returns true for an object that is being deleted without what its controllers made.
pub(crate) fn is_orphaning(object: &Value) -> bool {
    object::is_deleting(object) && object::finalizers(object).any(|finalizer| finalizer == ORPHAN)
}

/// Why a copy may be deleted: positive proof, never the lack of sight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proof {
    /// Its upstream object was read and is being deleted, its finalizers done (for a Pod: its deletion was asked for).
    Deleting,
    /// The record was read and says that the copy leaves.
    Leaving,
    /// This worker saw the upstream object, and a later read says it has been removed.
    Tombstone,
    /// A read says that there is no upstream object; this worker never saw one.
    NeverSeen,
    /// The upstream object was read and is another one of the same name.
    Superseded,
    /// The upstream object and its record were read, and the record names other physical clusters only.
    Unplaced,
    /// A debt was recorded for exactly this copy.
    Debt,
}

impl Proof {
    /// Whether a change of this very object was seen. The others come in masses when something is wrong with what was read,
    /// so a brake limits them.
    pub fn is_firm(self) -> bool {
        match self {
            Self::Deleting | Self::Leaving | Self::Tombstone | Self::Debt => true,
            Self::NeverSeen | Self::Superseded | Self::Unplaced => false,
        }
    }
}

/// What was read upstream. There is no value for "could not be read": then nothing is planned.
#[derive(Clone, Copy, Debug)]
pub enum Above<'a> {
    /// It is there.
    Present(&'a UpstreamObject),
    /// It has been removed.
    Removed {
        /// This worker saw it before.
        seen: bool,
    },
}

/// What one plan is made from.
#[derive(Clone, Copy, Debug)]
pub struct Seen<'a> {
    /// The upstream address.
    pub key: &'a ObjectKey,
    /// What was read upstream.
    pub above: Above<'a>,
    /// What stands downstream in the place of the copy, with or without our identity.
    pub below: Option<&'a Value>,
    /// Namespace downstream; `None` at cluster scope.
    pub namespace: Option<&'a str>,
    /// The kind that the physical cluster serves for the resource, and whether it is namespaced.
    pub served: Option<(&'a GroupVersionKind, bool)>,
    /// An autoscaler downstream owns the number of replicas.
    pub autoscaled: bool,
    /// What stands below is exactly what the last apply of this syncer made of it: where it differs from what was applied, the
    /// physical cluster writes the same value in another way.
    pub settled: bool,
    /// Number of the newest syncer, as upstream says.
    pub newest_syncer: u64,
    /// What the object says that the API of the physical cluster has no field for.
    pub lacking: &'a Lacking,
    /// Audiences of tokens that are credentials for the physical cluster's API server.
    pub audiences: &'a AcceptedAudiences,
}

/// The physical cluster that is planned for.
#[derive(Clone, Copy, Debug)]
pub struct Target<'a> {
    /// Uid of the `PhysicalCluster`.
    pub physical: &'a Uid,
    /// Epoch of this syncer.
    pub syncer_epoch: u64,
    /// What may go down.
    pub rules: &'a SyncRules,
}

/// A conditional delete of one copy.
#[derive(Clone, Debug, PartialEq)]
pub struct Deletion {
    /// Uid downstream.
    pub uid: String,
    /// resourceVersion downstream that was read.
    pub resource_version: String,
    /// Why it may go.
    pub proof: Proof,
    /// Seconds that pods get to stop; their own number when `None`.
    pub grace: Option<i64>,
}

/// A write of the whole copy by server-side apply.
#[derive(Clone, Debug, PartialEq)]
pub struct Application {
    /// The copy, with the uid and resourceVersion that were read.
    pub body: Value,
}

/// What to do.
#[derive(Clone, Debug, PartialEq)]
pub enum Decision {
    /// Nothing stands below and nothing should.
    Nothing,
    /// The copy is as it should be.
    Keep,
    /// What upstream says has yet to be let in there: the copy stays as it is, or away.
    Wait,
    /// The physical cluster has its own of it.
    Local,
    /// Make the copy; it fails when something of the name is there.
    Create(Value),
    /// Bring the copy up to date; it fails when the copy has changed since.
    Apply(Application),
    /// Delete the copy, and tell upstream when it is gone.
    Delete(Deletion),
    /// The copy is on its way out: wait for its end.
    AwaitEnd,
    /// Nothing stands below any more, as it should be: tell upstream once that is proven.
    ConfirmGone {
        /// Uid upstream.
        uid: Uid,
        /// Epoch of the entry.
        epoch: u64,
    },
    /// It cannot go down; upstream is told why.
    Refuse(Refusal),
    /// What was read upstream is no longer so: read again later.
    Stale,
    /// A copy that upstream does not account for, without proof that it may go.
    Hold,
    /// The upstream object shows what a physical cluster made.
    Projected,
    /// A newer syncer has taken over, as upstream says.
    Fenced,
}

/// Whose the object below is.
enum Below<'a> {
    Nothing,
    Copy(&'a Value, CopyIdentity),
    Foreign,
}

/// Decides about one object.
pub fn plan(target: &Target<'_>, seen: &Seen<'_>) -> Decision {
    // The physical cluster's word for it is not enough: anybody who may write there could end this syncer by a high number.
    if seen.newest_syncer > target.syncer_epoch {
        return Decision::Fenced;
    }
    let below = classify(target, seen);
    match seen.above {
        Above::Removed { seen } => {
            let proof = if seen { Proof::Tombstone } else { Proof::NeverSeen };
            match below {
                Below::Copy(copy, _) => delete(copy, proof, None),
                Below::Nothing | Below::Foreign => Decision::Nothing,
            }
        }
        Above::Present(upstream) => plan_present(target, seen, upstream, below),
    }
}

fn plan_present(target: &Target<'_>, seen: &Seen<'_>, upstream: &UpstreamObject, below: Below<'_>) -> Decision {
    let Some(uid) = object::uid(&upstream.object) else { return Decision::Stale };
    if let Below::Copy(copy, identity) = &below
        && identity.uid != uid
    {
        return delete(copy, Proof::Superseded, None);
    }
    let record = PlacementRecord::of(&upstream.object);
    let entry = record.as_ref().and_then(|record| record.on(target.physical));
    match (entry, below) {
        (None, Below::Copy(copy, _)) if record.is_some() => delete(copy, Proof::Unplaced, None),
        (None, Below::Copy(..)) => Decision::Hold,
        (None, Below::Nothing | Below::Foreign) => Decision::Nothing,
        (Some(entry), _) if entry.phase == Phase::Projected => Decision::Projected,
        (Some(entry), below) => match leaving(upstream, entry) {
            Some(proof) => plan_leaving(upstream, uid, entry, proof, below),
            None => plan_active(target, seen, upstream, entry, below),
        },
    }
}

fn plan_leaving(upstream: &UpstreamObject, uid: Uid, entry: &PlacedCopy, proof: Proof, below: Below<'_>) -> Decision {
    match below {
        Below::Copy(copy, _) => delete(copy, proof, grace_of(upstream)),
        Below::Nothing | Below::Foreign => Decision::ConfirmGone { uid, epoch: entry.epoch },
    }
}

fn plan_active(
    target: &Target<'_>,
    seen: &Seen<'_>,
    upstream: &UpstreamObject,
    entry: &PlacedCopy,
    below: Below<'_>,
) -> Decision {
    if is_local(&upstream.key.resource, &upstream.object) {
        return Decision::Local;
    }
    match below {
        Below::Copy(copy, _) if object::is_deleting(copy) => return Decision::AwaitEnd,
        // What has ended is not run again when its copy goes.
        Below::Nothing | Below::Foreign if object::is_deleting(&upstream.object) || has_ended(upstream) => {
            return Decision::Nothing;
        }
        Below::Copy(..) | Below::Nothing | Below::Foreign => {}
    }
    if let Some(refusal) = refusal(target, seen, upstream) {
        return Decision::Refuse(refusal);
    }
    let below = match below {
        Below::Foreign => {
            let is_former =
                seen.below.and_then(CopyIdentity::of).is_some_and(|identity| names(&identity, &upstream.key));
            let whose = if is_former {
                "made for another registration of the physical cluster, whose administrator can take it over"
            } else {
                "not of this logical cluster"
            };
            let what = format!("{} {} is there and {whose}", upstream.key.resource, upstream.key.name);
            return Decision::Refuse(Refusal::conflict(what));
        }
        Below::Copy(copy, _) => Some(copy),
        Below::Nothing => None,
    };
    if upstream.is_held {
        return Decision::Wait;
    }
    let scaled_to =
        below.filter(|_| keeps_its_scale(seen, upstream)).and_then(|copy| copy["spec"]["replicas"].as_i64());
    let context = CopyContext {
        physical: target.physical,
        namespace: seen.namespace,
        entry,
        syncer_epoch: target.syncer_epoch,
        scaled_to,
        lacking: seen.lacking,
        audiences: seen.audiences,
        naming: target.rules.naming(),
        below,
    };
    match (transform::copy_of(upstream, &context), below) {
        (Err(refusal), _) => Decision::Refuse(refusal),
        (Ok(body), None) => Decision::Create(body),
        (Ok(body), Some(copy)) => update(target, body, copy, seen.settled),
    }
}

fn has_ended(upstream: &UpstreamObject) -> bool {
    object::has_ended(&upstream.kind.group, &upstream.kind.kind, &upstream.object)
}

/// Whether the number of replicas is the autoscaler's: it is, until somebody upstream sets another one than it has settled on.
fn keeps_its_scale(seen: &Seen<'_>, upstream: &UpstreamObject) -> bool {
    let followed = PlacementRecord::of(&upstream.object).and_then(|record| record.autoscaled);
    let wanted = upstream.object.pointer("/spec/replicas").and_then(Value::as_i64);
    seen.autoscaled && (followed.is_none() || followed == wanted)
}

fn refusal(target: &Target<'_>, seen: &Seen<'_>, upstream: &UpstreamObject) -> Option<Refusal> {
    let resource = &upstream.key.resource;
    if let Some(refusal) = target.rules.refusal(resource) {
        return Some(refusal);
    }
    match seen.served {
        None => Some(Refusal::incompatible(format!("the physical cluster does not serve {resource}"))),
        Some((_, false)) => {
            Some(Refusal::not_syncable(format!("{resource} belong to the physical cluster as a whole")))
        }
        Some((kind, true)) if *kind != upstream.kind => {
            Some(Refusal::incompatible(format!("the physical cluster serves {kind}, not {}", upstream.kind)))
        }
        Some((_, true)) => None,
    }
}

/// Nothing to write when what was applied last is what is wanted, and no field of it has drifted since.
fn update(target: &Target<'_>, mut body: Value, copy: &Value, settled: bool) -> Decision {
    let applied = |object| object::annotation(object, annotations::DOWN_APPLIED);
    let is_covered = || transform::covers(&without_identity(copy), &without_identity(&body));
    if applied(copy) == applied(&body) && (settled || is_covered()) && !names_newer_syncer(copy, target) {
        return Decision::Keep;
    }
    for key in ["uid", "resourceVersion"] {
        let read = object::meta_text(copy, key).to_owned();
        object::metadata_mut(&mut body).insert(key.into(), Value::String(read));
    }
    Decision::Apply(Application { body })
}

/// An older syncer's epoch in the identity is no reason for a write.
fn without_identity(object: &Value) -> Value {
    let mut object = object.clone();
    let identity = CopyIdentity::of(&object).map(|identity| CopyIdentity { syncer_epoch: 0, ..identity });
    let text = identity.and_then(|identity| serde_json::to_string(&identity).ok());
    object::set_annotation(&mut object, annotations::DOWN_IDENTITY, text);
    object
}

fn delete(copy: &Value, proof: Proof, grace: Option<i64>) -> Decision {
    match object::is_deleting(copy) {
        true => Decision::AwaitEnd,
        false => Decision::Delete(Deletion {
            uid: object::meta_text(copy, "uid").to_owned(),
            resource_version: object::meta_text(copy, "resourceVersion").to_owned(),
            proof,
            grace,
        }),
    }
}

/// Whether upstream, as it was read, says that the copy of `entry` should go.
pub(crate) fn leaving(upstream: &UpstreamObject, entry: &PlacedCopy) -> Option<Proof> {
    let finished = || object::finalizers(&upstream.object).all(|f| NOT_WAITED_FOR.contains(&f));
    match entry.phase {
        Phase::Leaving => Some(Proof::Leaving),
        Phase::Active | Phase::Projected if object::is_deleting(&upstream.object) => {
            (is_pod(&upstream.key) || finished()).then_some(Proof::Deleting)
        }
        Phase::Active | Phase::Projected => None,
    }
}

/// Whether a copy, by its own word, was written by a newer syncer.
pub(crate) fn names_newer_syncer(copy: &Value, target: &Target<'_>) -> bool {
    copy_identity(copy, target.physical).is_some_and(|identity| identity.syncer_epoch > target.syncer_epoch)
}

/// Whether a copy, by its own word, is of a later stay than upstream's record says.
pub(crate) fn names_later_stay(copy: &Value, entry: &PlacedCopy) -> bool {
    copy_identity(copy, &entry.uid).is_some_and(|identity| identity.epoch > entry.epoch)
}

fn is_pod(key: &ObjectKey) -> bool {
    key.resource.group.is_empty() && &*key.resource.resource == "pods"
}

/// How long a Pod that a user deletes may take to stop.
pub(crate) fn grace_of(upstream: &UpstreamObject) -> Option<i64> {
    if !object::is_deleting(&upstream.object) || !is_pod(&upstream.key) {
        return None;
    }
    let seconds = object::metadata(&upstream.object).get("deletionGracePeriodSeconds").and_then(Value::as_i64);
    // Upstream gives a Pod that has no node there no time at all. It has one downstream: 0 would kill it there, unproven.
    let has_node = upstream.object.pointer("/spec/nodeName").is_some_and(|node| node.as_str() != Some(""));
    seconds.filter(|seconds| *seconds > 0 || has_node)
}

fn classify<'a>(target: &Target<'_>, seen: &Seen<'a>) -> Below<'a> {
    match seen.below {
        None => Below::Nothing,
        Some(object) => match copy_identity(object, target.physical) {
            Some(identity) if names(&identity, seen.key) => Below::Copy(object, identity),
            Some(_) | None => Below::Foreign,
        },
    }
}

/// The identity of a copy that was made for `physical`. What a controller made is no copy, though Kubernetes hands the
/// annotations of a Deployment on to its ReplicaSets.
pub fn copy_identity(object: &Value, physical: &Uid) -> Option<CopyIdentity> {
    let identity = CopyIdentity::of(object).filter(|identity| identity.physical == *physical)?;
    let is_copy = object::controller_of(object).is_none() && identity.name == object::name(object);
    is_copy.then_some(identity)
}

/// Whether an identity is of what is at `key`.
pub(crate) fn names(identity: &CopyIdentity, key: &ObjectKey) -> bool {
    identity.cluster == key.cluster.to_string()
        && identity.namespace == key.namespace().map_or("", |namespace| namespace.as_str())
        && identity.name == key.name.as_str()
}

#[cfg(test)]
mod tests;
