//! Placement record on an upstream object, and the identity on its downstream copy.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{DivideBy, DrainMark, OrdinalRange, Override, RecordedCopy, RolloutState};
use crate::{annotations, group::GroupResource, names::Uid, object};

/// Phase in the life of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum CopyPhase {
    /// The copy should exist.
    Active,
    /// The copy should be deleted: the proof that the syncer needs to do so. The entry stays until the copy is gone.
    Leaving,
    /// The physical cluster made the object, and the syncer projects it upstream; it is never placed.
    Projected,
}

/// Physical cluster of a placement.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlacedCopy {
    /// Name of the physical cluster, for people.
    pub name: String,
    /// Uid of the `PhysicalCluster`: another one of the same name is another one.
    pub uid: Uid,
    /// Phase of the copy.
    pub phase: CopyPhase,
    /// Replicas of this copy, when the policy divides them; otherwise the object's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i64>,
    /// Number of the copy's stay, which grows with every arrival of the object anywhere: a late syncer cannot revive an
    /// earlier stay.
    pub epoch: u64,
}

/// Policy that decided.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyRef {
    /// `PlacementPolicy` or `ClusterPlacementPolicy`.
    pub kind: String,
    /// Path of the logical cluster that has the policy.
    pub workspace: String,
    /// Namespace of a `PlacementPolicy`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Name of the policy.
    pub name: String,
}

/// Placement record: the value of the annotation `portolan.dev/placement`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PlacementRecord {
    /// Sorted by name. Empty: the object is placed nowhere, and may be removed.
    #[serde(default)]
    pub clusters: Vec<PlacedCopy>,
    /// Winning policy; `None` for the namespace's default decision, or an object that follows another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<PolicyRef>,
    /// `metadata.generation` that the decision was made for.
    #[serde(default)]
    pub generation: i64,
    /// Basis of the division of replicas, set once every copy has its part. While it stays the same, only the total
    /// changes, and a new division starts from this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub divided_by: Option<DivisionBasis>,
    /// Replica limits by the bounds of physical clusters, by uid, where a limit is below the wanted number. The copies
    /// then do not share replicas; each unlisted copy has all of them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub limits: BTreeMap<Uid, i64>,
    /// Ordinals that a copy of a divided StatefulSet may have had during its stay, by uid. No other copy gets one of
    /// them before this one is gone. A copy without an entry has none yet.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub ordinals: BTreeMap<Uid, OrdinalRange>,
    /// Completions of each copy of a divided Job, by uid. They stay the same while the copy exists. Empty for a Job
    /// without completions.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub completions: BTreeMap<Uid, i64>,
    /// Time in seconds since the epoch since when a physical cluster of an earlier group fits, while the object runs on
    /// a later group as a fallback.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preferred_since: Option<i64>,
    /// Physical clusters to which policies suspend the dispatch: nothing is sent there but deletions.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub suspended: BTreeSet<Uid>,
    /// Copies that are about to leave, by uid, with the time, in seconds since the epoch, since when the rest is
    /// healthy. Services and Ingresses do not publish their addresses.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub retiring: BTreeMap<Uid, i64>,
    /// Copies that are created once the leaving copies are gone, of an object that must not run twice. They take room
    /// already: no other object stops for the same room.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub awaited: Vec<RecordedCopy>,
    /// Uids of copies that have arrived in the move in progress, and have not been available yet. Services and
    /// Ingresses do not publish their addresses.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub arriving: BTreeSet<Uid>,
    /// Physical clusters whose addresses a Service or Ingress does not publish, because nothing behind it serves there.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub withdrawn: BTreeSet<Uid>,
    /// Rollout of the template, if the deciding policy has stages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollout: Option<Box<RolloutState>>,
    /// Move in progress, or the last one that was taken back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub moving: Option<MoveAttempt>,
    /// Overrides of copies by policies, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub overrides: Vec<PlacedOverride>,
    /// Fields that policies let physical clusters own, as `spec.replicas`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub yields: Vec<String>,
    /// True if autoscalers of the object stay upstream, by a policy with `autoscaling: Global`.
    #[serde(default, skip_serializing_if = "is_false")]
    pub scales_globally: bool,
    /// `spec.replicas` as set by downstream autoscalers, if there are any. Another number on the object was set by a
    /// user, and goes downstream first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub autoscaled: Option<i64>,
    /// Mark of the `Drain` that moves the object or has moved it. It outlives the copies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drain: Option<Box<DrainMark>>,
}

/// Attempt to move an object that may run twice.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MoveAttempt {
    /// Time of its start, or of its return, in seconds since the epoch.
    pub since: i64,
    /// Uids of the physical clusters that it goes to.
    pub to: BTreeSet<Uid>,
    /// `metadata.generation` of the object at its start.
    pub generation: i64,
    /// True if it timed out and was taken back.
    #[serde(default, skip_serializing_if = "is_false")]
    pub is_returned: bool,
}

/// Basis of a division of replicas, besides their total.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DivisionBasis {
    /// Measure that the policy sets.
    pub by: DivideBy,
    /// Weights of the physical clusters that share the replicas, by uid; all 1 where the policy weighs none.
    pub weights: BTreeMap<Uid, u64>,
    /// Groups of an overflow, by uid; empty without one. 0 is filled first.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub groups: BTreeMap<Uid, usize>,
    /// Least and most replicas that the policy sets for a copy, by uid, where it sets any.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub limits: BTreeMap<Uid, (i64, Option<i64>)>,
}

/// Override of the copies on certain physical clusters.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlacedOverride {
    /// Policy that has the override.
    pub policy: PolicyRef,
    /// Uids of the physical clusters.
    pub on: Vec<Uid>,
    /// Change; its clusters are resolved in `on`.
    pub change: Override,
}

impl PlacementRecord {
    /// Reads the annotation's text; `None` when it is not a record, which only damage can cause.
    pub fn parse(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }

    /// Returns the record on an object.
    pub fn of(object: &Value) -> Option<Self> {
        object::annotation(object, annotations::PLACEMENT).and_then(Self::parse)
    }

    /// Returns the active copies as a split.
    pub fn split(&self) -> Vec<RecordedCopy> {
        let of = |copy: &PlacedCopy| RecordedCopy {
            name: copy.name.clone(),
            uid: copy.uid.clone(),
            replicas: copy.replicas,
        };
        self.active().map(of).collect()
    }

    /// Writes both annotations onto an object, or takes them off when no cluster, no awaited copy and no mark of a
    /// `Drain` is left.
    pub fn write_to(&self, object: &mut Value) {
        let active: Vec<&str> = self.active().map(|c| c.name.as_str()).collect();
        let names = if active.is_empty() { None } else { Some(active.join(",")) };
        let text = serde_json::to_string(self).expect("strings and numbers serialize");
        let is_needless = self.clusters.is_empty() && self.drain.is_none() && self.awaited.is_empty();
        let record = if is_needless { None } else { Some(text) };
        object::set_annotation(object, annotations::CLUSTERS, names);
        object::set_annotation(object, annotations::PLACEMENT, record);
    }

    /// Returns the copies that should exist.
    pub fn active(&self) -> impl Iterator<Item = &PlacedCopy> {
        self.clusters.iter().filter(|c| c.phase == CopyPhase::Active)
    }

    /// Returns the entry of one physical cluster.
    pub fn on(&self, physical: &Uid) -> Option<&PlacedCopy> {
        self.clusters.iter().find(|c| c.uid == *physical)
    }

    /// Returns true if these are the annotations of a projected object, as the server writes them; `object` may be
    /// another one that they were copied to.
    pub fn is_copied_from_projected(object: &Value) -> bool {
        let sources = ProjectionSource::all(object);
        let Some(record) = Self::of(object).filter(|record| record.is_projected() && !sources.is_empty()) else {
            return false;
        };
        let mut written = Value::Object(serde_json::Map::new());
        record.write_to(&mut written);
        ProjectionSource::write_all(&sources, &mut written);
        annotations::SERVER_OWNED.iter().all(|key| object::annotation(object, key) == object::annotation(&written, key))
    }

    /// Returns the replicas of a copy of an object that asks for `all`: its share, within its limit.
    pub fn replicas_of(&self, copy: &PlacedCopy, all: i64) -> i64 {
        let limit = self.limits.get(&copy.uid).copied().unwrap_or(i64::MAX);
        copy.replicas.unwrap_or(all).min(limit)
    }

    /// Returns the replicas that an object which asks for `all` takes of each physical cluster, leaving and awaited
    /// copies included. A projected object takes nothing.
    pub fn occupied(&self, all: i64) -> Vec<(&Uid, i64)> {
        let takes = |copy: &&PlacedCopy| matches!(copy.phase, CopyPhase::Active | CopyPhase::Leaving);
        let copies = self.clusters.iter().filter(takes).map(|copy| (&copy.uid, self.replicas_of(copy, all)));
        let awaited = self.awaited.iter().filter(|copy| self.on(&copy.uid).is_none()).map(|copy| {
            let limit = self.limits.get(&copy.uid).copied().unwrap_or(i64::MAX);
            (&copy.uid, copy.replicas.unwrap_or(all).min(limit))
        });
        copies.chain(awaited).collect()
    }

    /// Returns true if a physical cluster made the object.
    pub fn is_projected(&self) -> bool {
        self.clusters.iter().any(|c| c.phase == CopyPhase::Projected)
    }
}

/// Name of the `Placement` of an object, beside it in its namespace: `deployments.apps-web`. Where that is not a name
/// of an object, or too long, a hash stands in place of the object's name.
pub fn placement_name(resource: &GroupResource, name: &str) -> String {
    let fits = |text: &str| {
        let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
        text.len() <= 253
            && text.bytes().all(|b| inner(b) || b == b'-' || b == b'.')
            && text.bytes().last().is_some_and(inner)
    };
    let plain = format!("{resource}-{name}");
    if fits(&plain) {
        return plain;
    }
    // FNV-1a: the hash never changes, and a collision only makes the younger object's Placement wait.
    let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
    format!("{resource}-{hash:016x}")
}

/// Identity of a downstream object: the value of `sync.portolan.dev/identity`. An object without it is never changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CopyIdentity {
    /// Text form of the logical cluster id.
    pub cluster: String,
    /// Uid of the upstream object.
    pub uid: Uid,
    /// Uid of the `PhysicalCluster` that this copy is meant for.
    pub physical: Uid,
    /// Upstream namespace; empty at cluster scope.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// Upstream name.
    pub name: String,
    /// Upstream generation that this copy was made from.
    pub generation: i64,
    /// [`PlacedCopy::epoch`] that this copy was made for.
    pub epoch: u64,
    /// Number of the syncer that wrote it: writes of an older one are refused.
    pub syncer_epoch: u64,
}

impl CopyIdentity {
    /// Returns the identity on a downstream object.
    pub fn of(object: &Value) -> Option<Self> {
        serde_json::from_str(object::annotation(object, annotations::DOWN_IDENTITY)?).ok()
    }
}

/// Downstream location of a projected object: the value of `sync.portolan.dev/source` has one per uid of a physical
/// cluster.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ProjectionSource {
    /// Namespace downstream.
    pub namespace: String,
    /// Name downstream.
    pub name: String,
    /// Uid downstream.
    pub uid: String,
    /// True for a claim that a pod there uses.
    #[serde(default, rename = "isUsed", skip_serializing_if = "is_false")]
    pub is_used: bool,
    /// Hashes of the labels and annotations that it had downstream when it was shown last, by `labels/<key>` and
    /// `annotations/<key>`: a different value in the upstream object was set upstream.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub shown: BTreeMap<String, String>,
}

fn is_false(flag: &bool) -> bool {
    !*flag
}

impl ProjectionSource {
    /// Returns the downstream locations, by physical cluster.
    pub fn all(upstream: &Value) -> BTreeMap<Uid, Self> {
        let text = object::annotation(upstream, annotations::SOURCE).unwrap_or("{}");
        serde_json::from_str(text).unwrap_or_default()
    }

    /// Writes the downstream locations; removes the annotation if there are none.
    pub fn write_all(all: &BTreeMap<Uid, Self>, upstream: &mut Value) {
        let text = serde_json::to_string(all).expect("strings serialize");
        object::set_annotation(upstream, annotations::SOURCE, (!all.is_empty()).then_some(text));
    }

    /// Returns the downstream location on one physical cluster, for logs, exec and deletes.
    pub fn on(upstream: &Value, physical: &Uid) -> Option<Self> {
        Self::all(upstream).remove(physical)
    }

    /// Returns the location of an object that was read downstream.
    pub fn of(downstream: &Value) -> Self {
        let text = |key| object::meta_text(downstream, key).to_owned();
        let (namespace, name, uid) = (text("namespace"), text("name"), text("uid"));
        Self { namespace, name, uid, is_used: false, shown: BTreeMap::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_placement_is_named_after_its_object() {
        let deployments = GroupResource::new("apps", "deployments");
        assert_eq!(placement_name(&deployments, "web"), "deployments.apps-web");
        assert_eq!(placement_name(&GroupResource::new("", "configmaps"), "a.b"), "configmaps-a.b");
        let hashed = placement_name(&deployments, "system:Web");
        assert!(hashed.starts_with("deployments.apps-") && hashed.len() == "deployments.apps-".len() + 16);
        assert!(placement_name(&deployments, &"x".repeat(253)).len() < 64);
    }
}
