//! What the scheduler keeps in memory: physical clusters, policies, and sums of what is placed. All of it follows from
//! watched events, and is bounded by the number of physical clusters and policies.

mod overruns;
mod usage;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use portolan_placement::{ClusterFacts, ClusterInfo, LeveledPolicy, Policy, Readiness};
use portolan_types::{
    GroupResource, LogicalClusterId, LogicalClusterPath, ObjectKey, Uid, object,
    placement::{
        PhysicalClusterSpec, PhysicalClusterStatus, PlacementPolicySpec, PlacementRecord, PolicyRef, Resources, Taint,
    },
};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::{kinds, seams::UseRights};

pub(crate) use overruns::OverrideOverruns;
pub(crate) use usage::{Amounts, Usage};

/// A physical cluster and where it is registered.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Physical {
    pub(crate) key: ObjectKey,
    pub(crate) info: Arc<ClusterInfo>,
}

/// A policy and where it stands.
#[derive(Clone, Debug, PartialEq)]
struct KnownPolicy {
    policy: Arc<Policy>,
    created: String,
}

/// Facts of all logical clusters.
#[derive(Default)]
pub(crate) struct Facts {
    physical: BTreeMap<Uid, Physical>,
    homes: BTreeMap<LogicalClusterId, BTreeSet<Uid>>,
    policies: BTreeMap<LogicalClusterId, BTreeMap<ObjectKey, KnownPolicy>>,
    pub(crate) usage: Usage,
    pub(crate) overruns: OverrideOverruns,
    /// Physical clusters and policies that are there and cannot be read.
    unreadable: BTreeSet<ObjectKey>,
    /// Custom resources that are watched.
    pub(crate) fed: BTreeSet<GroupResource>,
    /// Whether objects may name physical clusters that are not there any more.
    has_strays: bool,
}

/// A logical cluster and its ancestors, itself first.
pub(crate) struct Reach {
    pub(crate) lineage: Vec<(LogicalClusterId, LogicalClusterPath)>,
}

impl Reach {
    /// Whether what is registered in `home` may be within reach. Of a logical cluster that ends nobody knows.
    pub(crate) fn may_contain(&self, home: LogicalClusterId) -> bool {
        self.lineage.is_empty() || self.lineage.iter().any(|(id, _)| *id == home)
    }
}

/// How a record names a policy.
pub(crate) fn reference(key: &ObjectKey, path: &LogicalClusterPath) -> PolicyRef {
    let kind = if key.namespace().is_some() { "PlacementPolicy" } else { "ClusterPlacementPolicy" };
    PolicyRef {
        kind: kind.into(),
        workspace: path.to_string(),
        namespace: key.namespace().map(ToString::to_string),
        name: key.name.to_string(),
    }
}

impl Facts {
    /// Takes in a physical cluster as it is now. Returns whether anything that placement looks at changed.
    pub(crate) fn put_physical(&mut self, key: &ObjectKey, object: &Value, now: i64) -> bool {
        let Some(uid) = object::uid(object) else { return false };
        let known = self.physical.get(&uid);
        let since = |taint: &Taint| {
            let before = known.and_then(|p| p.info.taints.iter().find(|fact| fact.taint == *taint));
            before.map_or(now, |fact| fact.since)
        };
        let spec = object.get("spec").cloned().unwrap_or_default();
        let (spec, unreadable) = match serde_json::from_value::<PhysicalClusterSpec>(spec) {
            Ok(spec) => (spec, None),
            // Its taints and bounds are not known: nothing new comes, and what is there stays.
            Err(error) => (PhysicalClusterSpec { unschedulable: true, ..Default::default() }, Some(error)),
        };
        let status: PhysicalClusterStatus = part(object, "status");
        let mut info = ClusterInfo::new(object::name(object), uid.clone(), spec, status, since);
        if let Some(error) = unreadable {
            info.readiness = Readiness::NotReady(format!("its spec cannot be read: {error}"));
        }
        info.labels = labels(object);
        info.deleting = object::is_deleting(object);
        let physical = Physical { key: key.clone(), info: Arc::new(info) };
        let changed = known != Some(&physical);
        self.homes.entry(key.cluster).or_default().insert(uid.clone());
        self.physical.insert(uid, physical);
        changed
    }

    /// Forgets a physical cluster that has been deleted.
    pub(crate) fn remove_physical(&mut self, key: &ObjectKey, uid: &Uid) {
        self.physical.remove(uid);
        self.has_strays = true;
        if let Some(home) = self.homes.get_mut(&key.cluster) {
            home.remove(uid);
            if home.is_empty() {
                self.homes.remove(&key.cluster);
            }
        }
    }

    /// Takes in that a physical cluster or policy cannot be read.
    pub(crate) fn put_unreadable(&mut self, key: &ObjectKey) {
        self.unreadable.insert(key.clone());
    }

    /// What must be known for a decision in a namespace, and cannot be read: a policy that may hold there.
    pub(crate) fn unreadable_policy(&self, reach: &Reach, namespace: &str) -> Option<&ObjectKey> {
        let concerns = |key: &&ObjectKey| match key.namespace() {
            None => reach.lineage.iter().any(|(id, _)| *id == key.cluster),
            Some(own) => reach.lineage.first().is_some_and(|(id, _)| *id == key.cluster) && own.as_str() == namespace,
        };
        self.unreadable.iter().filter(|key| kinds::policies().contains(&key.resource)).find(concerns)
    }

    /// A physical cluster within reach that cannot be read.
    pub(crate) fn unreadable_physical(&self, reach: &Reach) -> Option<&ObjectKey> {
        let physical = self.unreadable.iter().filter(|key| key.resource == kinds::physical_clusters());
        physical.into_iter().find(|key| reach.may_contain(key.cluster))
    }

    /// A logical cluster within reach that has physical clusters, of whose rights nothing is known.
    pub(crate) fn unknown_home(&self, reach: &Reach, rights: &dyn UseRights) -> Option<LogicalClusterId> {
        let homes = reach.lineage.iter().map(|(id, _)| *id).filter(|id| self.homes.contains_key(id));
        homes.into_iter().find(|home| !rights.are_known(*home))
    }

    /// Forgets all physical clusters, before they are listed.
    pub(crate) fn clear_physicals(&mut self) {
        self.has_strays |= !self.physical.is_empty();
        self.physical.clear();
        self.homes.clear();
        self.unreadable.retain(|key| key.resource != kinds::physical_clusters());
    }

    /// Forgets all policies of one of the two kinds, before they are listed.
    pub(crate) fn clear_policies(&mut self, resource: &GroupResource) {
        self.unreadable.retain(|key| key.resource != *resource);
        self.policies.values_mut().for_each(|known| known.retain(|key, _| key.resource != *resource));
    }

    /// Returns all physical clusters, with their keys and bounds.
    pub(crate) fn all_physical(&self) -> impl Iterator<Item = (&Uid, &ObjectKey, &Resources)> {
        self.physical.iter().map(|(uid, physical)| (uid, &physical.key, &physical.info.bounds))
    }

    /// A physical cluster, wherever it is registered.
    pub(crate) fn physical(&self, uid: &Uid) -> Option<&Physical> {
        self.physical.get(uid)
    }

    /// Takes in that an object is placed there.
    pub(crate) fn note_place(&mut self, uid: &Uid) {
        self.has_strays |= !self.physical.contains_key(uid);
    }

    /// Whether anything of a logical cluster may be placed, or may have been: where no physical cluster is registered, nothing is.
    pub(crate) fn may_be_placed(&self, reach: &Reach) -> bool {
        self.has_strays
            || self.homes.keys().any(|home| reach.may_contain(*home))
            || self.unreadable_physical(reach).is_some()
    }

    /// Takes in a policy as it is now. Returns whether what it says changed; its status is not part of that.
    pub(crate) fn put_policy(&mut self, key: &ObjectKey, object: &Value) -> bool {
        let spec = object.get("spec").cloned().unwrap_or_default();
        let policy = match serde_json::from_value::<PlacementPolicySpec>(spec.clone()) {
            Ok(spec) => Policy::compile(spec),
            Err(error) => Policy::unreadable(&spec, &error),
        };
        let created = object::meta_text(object, "creationTimestamp").to_owned();
        let known = self.policies.entry(key.cluster).or_default();
        if known.get(key).is_some_and(|p| *p.policy == policy && p.created == created) {
            return false;
        }
        known.insert(key.clone(), KnownPolicy { policy: Arc::new(policy), created });
        true
    }

    /// Forgets a policy.
    pub(crate) fn remove_policy(&mut self, key: &ObjectKey) -> bool {
        let Some(known) = self.policies.get_mut(&key.cluster) else { return false };
        let removed = known.remove(key).is_some();
        if known.is_empty() {
            self.policies.remove(&key.cluster);
        }
        removed
    }

    /// All policies, with their keys.
    pub(crate) fn all_policies(&self) -> impl Iterator<Item = (&ObjectKey, &Arc<Policy>)> {
        self.policies.values().flatten().map(|(key, known)| (key, &known.policy))
    }

    /// The physical clusters that a logical cluster reaches, and those that `record` names besides.
    pub(crate) fn clusters(
        &self,
        reach: &Reach,
        rights: &dyn UseRights,
        record: &PlacementRecord,
    ) -> Vec<ClusterFacts> {
        let Some((own, _)) = reach.lineage.first() else { return Vec::new() };
        let in_reach = self.in_reach(*own, reach, rights);
        let named = record.clusters.iter().map(|c| &c.uid).filter(|uid| !in_reach.contains(uid));
        let facts = |uid: &Uid, in_reach: bool| {
            let physical = self.physical.get(uid)?;
            let may_use = in_reach && rights.may_use(*own, physical.key.cluster, &physical.info.name);
            Some(ClusterFacts { info: physical.info.clone(), used: self.usage.of(uid), in_reach, may_use })
        };
        let near = in_reach.iter().filter_map(|uid| facts(uid, true));
        near.chain(named.filter_map(|uid| facts(uid, false))).collect()
    }

    /// Returns the physical clusters of a logical cluster and its ancestors. Where several have a name, the nearest one that may be used
    /// hides the others, as the API shows them.
    fn in_reach(&self, own: LogicalClusterId, reach: &Reach, rights: &dyn UseRights) -> BTreeSet<&Uid> {
        let (mut names, mut in_reach) = (BTreeSet::new(), BTreeSet::new());
        for (home, _) in &reach.lineage {
            for uid in self.homes.get(home).into_iter().flatten() {
                let Some(physical) = self.physical.get(uid) else { continue };
                let name = &*physical.info.name;
                let is_hidden = names.contains(name);
                if *home == own || rights.may_use(own, *home, name) {
                    names.insert(name);
                }
                if !is_hidden {
                    in_reach.insert(uid);
                }
            }
        }
        in_reach
    }

    /// The policies that may hold in a namespace.
    pub(crate) fn policies(&self, reach: &Reach, namespace: &str) -> Vec<LeveledPolicy> {
        let mut found = Vec::new();
        for ((id, path), depth) in reach.lineage.iter().zip(1..) {
            for (key, known) in self.policies.get(id).into_iter().flatten() {
                let level = match key.namespace() {
                    None => depth,
                    Some(own) if depth == 1 && own.as_str() == namespace => 0,
                    Some(_) => continue,
                };
                let (policy, created) = (known.policy.clone(), known.created.clone());
                found.push(LeveledPolicy { level, reference: reference(key, path), created, policy });
            }
        }
        found
    }

    /// Whether any policy in sight of `cluster` is about a kind.
    pub(crate) fn is_kind_selected(&self, reach: &Reach, group: &str, kind: &str) -> bool {
        let known = reach.lineage.iter().filter_map(|(id, _)| self.policies.get(id));
        known.flat_map(BTreeMap::values).any(|p| p.policy.is_about_kind(group, kind))
    }
}

fn part<T: DeserializeOwned + Default>(object: &Value, key: &str) -> T {
    let value = object.get(key).cloned().unwrap_or_default();
    serde_json::from_value(value).unwrap_or_default()
}

fn labels(object: &Value) -> BTreeMap<String, String> {
    let labels = object::metadata(object).get("labels").and_then(Value::as_object);
    let pairs = labels.into_iter().flatten();
    pairs.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned()))).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    struct AllMayUse;

    impl UseRights for AllMayUse {
        fn may_use(&self, _: LogicalClusterId, _: LogicalClusterId, _: &str) -> bool {
            true
        }

        fn are_known(&self, _: LogicalClusterId) -> bool {
            true
        }
    }

    #[test]
    fn the_nearest_physical_cluster_hides_those_of_its_name() {
        let shop = LogicalClusterId::new(7);
        let reach = Reach {
            lineage: vec![(shop, "root:shop".parse().unwrap()), (LogicalClusterId::ROOT, LogicalClusterPath::root())],
        };
        let mut facts = Facts::default();
        for (home, name, uid) in [
            (LogicalClusterId::ROOT, "east", "a-root-east"),
            (LogicalClusterId::ROOT, "west", "root-west"),
            (shop, "east", "shop-east"),
        ] {
            let key = ObjectKey::cluster_scoped(home, kinds::physical_clusters(), name.parse().unwrap());
            facts.put_physical(&key, &json!({"metadata": {"name": name, "uid": uid}}), 0);
        }
        let found = facts.clusters(&reach, &AllMayUse, &PlacementRecord::default());
        let uids: Vec<&str> = found.iter().map(|cluster| cluster.info.uid.as_str()).collect();
        assert_eq!(uids, ["root-west", "shop-east"]);
        let root = Reach { lineage: reach.lineage[1..].to_vec() };
        assert_eq!(facts.clusters(&root, &AllMayUse, &PlacementRecord::default()).len(), 2);
    }

    #[test]
    fn where_no_physical_cluster_is_in_reach_nothing_is_placed() {
        let shop = LogicalClusterId::new(7);
        let physical = |home: LogicalClusterId, name: &str| {
            let key = ObjectKey::cluster_scoped(home, kinds::physical_clusters(), name.parse().unwrap());
            (key, json!({"metadata": {"name": name, "uid": name}}))
        };
        let reach = Reach {
            lineage: vec![(shop, "root:shop".parse().unwrap()), (LogicalClusterId::ROOT, LogicalClusterPath::root())],
        };
        let mut facts = Facts::default();
        assert!(!facts.may_be_placed(&reach), "there is none at all");
        let (far, object) = physical(LogicalClusterId::new(8), "far");
        facts.put_physical(&far, &object, 0);
        facts.note_place(&"far".parse().unwrap());
        assert!(!facts.may_be_placed(&reach), "it is registered elsewhere");
        assert!(facts.may_be_placed(&Reach { lineage: Vec::new() }), "of a logical cluster that ends nobody knows");
        let (near, object) = physical(LogicalClusterId::ROOT, "near");
        facts.put_unreadable(&near);
        assert!(facts.may_be_placed(&reach), "it is there and cannot be read");
        facts.clear_physicals();
        facts.has_strays = false;
        facts.put_physical(&near, &object, 0);
        assert!(facts.may_be_placed(&reach), "it is registered above");
        facts.remove_physical(&near, &"near".parse().unwrap());
        assert!(facts.may_be_placed(&reach), "what was on it may be left");
        let mut facts = Facts::default();
        facts.note_place(&"unknown".parse().unwrap());
        assert!(facts.may_be_placed(&reach), "something is on one that nobody knows");
    }
}
