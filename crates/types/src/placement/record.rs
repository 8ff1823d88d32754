//! The placement as it stands on an object upstream, and as its copy downstream names where it came from.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{DivideBy, Override};
use crate::{annotations, group::GroupResource, names::Uid, object};

/// Where a copy is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Phase {
    /// The copy should be there.
    Active,
    /// The copy should go: the positive proof that the syncer needs to delete it. The entry stays until it is gone.
    Leaving,
    /// The object was made by the physical cluster and is shown above by the syncer; it is never placed.
    Projected,
}

/// One physical cluster of a placement.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlacedCopy {
    /// Name of the physical cluster, for people.
    pub name: String,
    /// Uid of the `PhysicalCluster`: another one of the same name is another one.
    pub uid: Uid,
    /// Where the copy is in its life.
    pub phase: Phase,
    /// Replicas of this copy, when the policy divides them; otherwise the object's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i64>,
    /// Grows with every arrival of the object anywhere: a late syncer cannot resurrect an older stay.
    pub epoch: u64,
}

/// The policy that decided.
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

/// The value of the annotation `portolan.dev/placement`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PlacementRecord {
    /// Sorted by name. Empty: the object is placed nowhere, and may be removed.
    #[serde(default)]
    pub clusters: Vec<PlacedCopy>,
    /// The winning policy; `None` is the namespace's default decision, or an object that follows another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<PolicyRef>,
    /// `metadata.generation` that the decision was made for.
    #[serde(default)]
    pub generation: i64,
    /// Basis of the division of replicas, once every copy has its part: while it stays the same, only the total changes, and a
    /// new division starts from this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub divided_by: Option<DivisionBasis>,
    /// Most replicas that the bounds of a physical cluster admit on its copy, where that is fewer than the copy should have: by uid.
    /// The copies do not share replicas then; each that is not listed has all of them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub limits: BTreeMap<Uid, i64>,
    /// Since when, in seconds since the epoch, a physical cluster of an earlier group fits than those of the fallback in use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preferred_since: Option<i64>,
    /// What policies change on copies, in the order in which it is done.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub overrides: Vec<PlacedOverride>,
    /// Fields that policies let physical clusters own, as `spec.replicas`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub yields: Vec<String>,
    /// `spec.replicas` as it follows the autoscalers below, while there are any. Another number on the object is somebody's
    /// wish, which goes down first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub autoscaled: Option<i64>,
}

/// Basis of a division of replicas, besides their total.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DivisionBasis {
    /// As the policy says.
    pub by: DivideBy,
    /// Weights of the physical clusters that share the replicas, by uid; all 1 where the policy weighs none.
    pub weights: BTreeMap<Uid, u64>,
}

/// What a policy changes on the copies on certain physical clusters.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlacedOverride {
    /// The policy.
    pub policy: PolicyRef,
    /// Uids of the physical clusters.
    pub on: Vec<Uid>,
    /// The change. Which clusters it is for has been found, and stands in `on`.
    pub change: Override,
}

impl PlacementRecord {
    /// Reads the annotation's text; `None` when it is no record, which only damage can cause.
    pub fn parse(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }

    /// The record on an object.
    pub fn of(object: &Value) -> Option<Self> {
        object::annotation(object, annotations::PLACEMENT).and_then(Self::parse)
    }

    /// Writes both annotations onto an object, or takes them off when no cluster is left.
    pub fn write_to(&self, object: &mut Value) {
        let active: Vec<&str> = self.active().map(|c| c.name.as_str()).collect();
        let names = if active.is_empty() { None } else { Some(active.join(",")) };
        let text = serde_json::to_string(self).expect("strings and numbers serialize");
        let record = if self.clusters.is_empty() { None } else { Some(text) };
        object::set_annotation(object, annotations::CLUSTERS, names);
        object::set_annotation(object, annotations::PLACEMENT, record);
    }

    /// The copies that should be there.
    pub fn active(&self) -> impl Iterator<Item = &PlacedCopy> {
        self.clusters.iter().filter(|c| c.phase == Phase::Active)
    }

    /// The entry of one physical cluster.
    pub fn on(&self, physical: &Uid) -> Option<&PlacedCopy> {
        self.clusters.iter().find(|c| c.uid == *physical)
    }

    /// Whether these are the annotations of an object that a physical cluster made, as the server writes them; `object` may be
    /// another one that somebody copied them to.
    pub fn is_copied_from_projected(object: &Value) -> bool {
        let sources = Source::all(object);
        let Some(record) = Self::of(object).filter(|record| record.is_projected() && !sources.is_empty()) else {
            return false;
        };
        let mut written = Value::Object(serde_json::Map::new());
        record.write_to(&mut written);
        Source::write_all(&sources, &mut written);
        annotations::SERVER_OWNED.iter().all(|key| object::annotation(object, key) == object::annotation(&written, key))
    }

    /// Returns the replicas of a copy of an object that asks for `all`: its share, within its limit.
    pub fn replicas_of(&self, copy: &PlacedCopy, all: i64) -> i64 {
        let limit = self.limits.get(&copy.uid).copied().unwrap_or(i64::MAX);
        copy.replicas.unwrap_or(all).min(limit)
    }

    /// Whether the object was made by a physical cluster.
    pub fn is_projected(&self) -> bool {
        self.clusters.iter().any(|c| c.phase == Phase::Projected)
    }
}

/// Name of the `Placement` of an object, beside it in its namespace: `deployments.apps-web`. Where that is no name of an
/// object, or too long, a hash stands in place of the object's name.
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
    // FNV-1a: stable for ever, and a clash only makes the younger object's Placement wait.
    let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
    format!("{resource}-{hash:016x}")
}

/// Who a downstream object is a copy of: the value of `sync.portolan.dev/identity`. An object without it is never touched.
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
    /// Counts the syncers of this physical cluster: an older one's writes are refused.
    pub syncer_epoch: u64,
}

impl CopyIdentity {
    /// The identity on a downstream object.
    pub fn of(object: &Value) -> Option<Self> {
        serde_json::from_str(object::annotation(object, annotations::DOWN_IDENTITY)?).ok()
    }
}

/// Where a projected object is downstream: the value of `sync.portolan.dev/source` has one per uid of a physical cluster.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Source {
    /// Namespace downstream.
    pub namespace: String,
    /// Name downstream.
    pub name: String,
    /// Uid downstream.
    pub uid: String,
    /// Of a claim: a pod there uses it.
    #[serde(default, rename = "isUsed", skip_serializing_if = "is_false")]
    pub is_used: bool,
    /// Hashes of the labels and annotations that it had downstream when it was shown last, by `labels/<key>` and
    /// `annotations/<key>`: what the upstream object has otherwise was changed upstream.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub shown: BTreeMap<String, String>,
}

fn is_false(flag: &bool) -> bool {
    !*flag
}

impl Source {
    /// Where the object is downstream, by physical cluster.
    pub fn all(upstream: &Value) -> BTreeMap<Uid, Self> {
        let text = object::annotation(upstream, annotations::SOURCE).unwrap_or("{}");
        serde_json::from_str(text).unwrap_or_default()
    }

    /// Writes where the object is downstream, or takes that off.
    pub fn write_all(all: &BTreeMap<Uid, Self>, upstream: &mut Value) {
        let text = serde_json::to_string(all).expect("strings serialize");
        object::set_annotation(upstream, annotations::SOURCE, (!all.is_empty()).then_some(text));
    }

    /// Where the object is on one physical cluster. Logs, exec and deletes go there.
    pub fn on(upstream: &Value, physical: &Uid) -> Option<Self> {
        Self::all(upstream).remove(physical)
    }

    /// The address of an object that was read downstream.
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
