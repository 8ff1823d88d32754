//! Facts in memory: physical clusters, policies, and sums of the placed objects. They follow from watch events. Their
//! size is bounded by the number of physical clusters and policies.

pub(crate) mod definitions;
pub(crate) mod overruns;
pub(crate) mod policy_complaints;
pub(crate) mod usage;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use portolan_placement::{ClusterFacts, ClusterInfo, CompiledPolicy, ExpressionSubject, LeveledPolicy, Readiness};
use portolan_types::{
    GroupResource, LogicalClusterId, LogicalClusterPath, ObjectKey, ResourceVersion, Uid, object,
    placement::{
        PhysicalClusterSpec, PhysicalClusterStatus, PlacementPolicySpec, PlacementRecord, PolicyRef, ResourceAmounts,
        StatusCondition, Taint,
    },
};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::{
    drain::registry::{DeletionStage, DrainRegistry},
    facts::definitions::DefinitionFacts,
    facts::overruns::OverrideOverruns,
    facts::policy_complaints::PolicyComplaints,
    facts::usage::PlacedUsage,
    kinds,
    seams::UseRights,
};

/// A physical cluster and where it is registered.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RegisteredCluster {
    pub(crate) key: ObjectKey,
    pub(crate) info: Arc<ClusterInfo>,
    /// True if the physical cluster has ever answered.
    pub(crate) was_reached: bool,
    /// False if its connection is misconfigured.
    pub(crate) has_connection: bool,
    pub(crate) deletion: DeletionStage,
}

/// Policy with its creation time.
#[derive(Clone, Debug, PartialEq)]
struct RegisteredPolicy {
    policy: Arc<CompiledPolicy>,
    created: String,
}

/// Facts of all logical clusters.
#[derive(Clone, Default)]
pub(crate) struct Facts {
    physical: BTreeMap<Uid, RegisteredCluster>,
    homes: BTreeMap<LogicalClusterId, BTreeSet<Uid>>,
    policies: BTreeMap<LogicalClusterId, BTreeMap<ObjectKey, RegisteredPolicy>>,
    pub(crate) usage: PlacedUsage,
    pub(crate) drains: DrainRegistry,
    pub(crate) overruns: OverrideOverruns,
    /// Objects of which it is not known if a policy is about them.
    pub(crate) failed_selections: PolicyComplaints,
    pub(crate) definitions: DefinitionFacts,
    /// Revisions at which physical clusters and policies were last changed.
    revisions: BTreeMap<ObjectKey, ResourceVersion>,
    /// Physical clusters and policies that exist but cannot be read.
    unreadable: BTreeSet<ObjectKey>,
    /// Custom resources that are watched.
    pub(crate) fed: BTreeSet<GroupResource>,
    /// True if objects may name physical clusters that no longer exist.
    has_strays: bool,
}

/// A logical cluster and its ancestors, itself first.
pub(crate) struct ClusterLineage {
    pub(crate) lineage: Vec<(LogicalClusterId, LogicalClusterPath)>,
}

impl ClusterLineage {
    /// Returns true if `home` may be within reach. The lineage of a logical cluster that is being deleted is unknown.
    pub(crate) fn may_contain(&self, home: LogicalClusterId) -> bool {
        self.lineage.is_empty() || self.lineage.iter().any(|(id, _)| *id == home)
    }
}

/// Returns the reference by which a record names a policy.
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
    /// Returns a copy for a plan, without data per object: a plan evaluates no patches and expressions, so it needs
    /// neither their outcomes nor the marks of drains. Sums are merged.
    pub(crate) fn copy_for_plan(&self) -> Self {
        Self {
            physical: self.physical.clone(),
            homes: self.homes.clone(),
            policies: self.policies.clone(),
            usage: self.usage.merged(),
            drains: self.drains.without_marks(),
            overruns: OverrideOverruns::default(),
            failed_selections: PolicyComplaints::default(),
            definitions: self.definitions.clone(),
            revisions: self.revisions.clone(),
            unreadable: self.unreadable.clone(),
            fed: self.fed.clone(),
            has_strays: self.has_strays,
        }
    }

    /// Stores the present state of a physical cluster. Returns true if a field that placement reads has changed.
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
            // Its taints and bounds are unknown: it takes nothing new and keeps its copies.
            Err(error) => (PhysicalClusterSpec { unschedulable: true, ..Default::default() }, Some(error)),
        };
        let status: PhysicalClusterStatus = part(object, "status");
        let is_unusable = |c: &StatusCondition| c.kind == "Ready" && c.reason == "InvalidConnection";
        let has_connection = !status.conditions.iter().any(is_unusable);
        let was_reached = !status.version.is_empty();
        let mut info = ClusterInfo::new(object::name(object), uid.clone(), spec, status, since);
        if let Some(error) = unreadable {
            info.readiness = Readiness::NotReady(format!("its spec cannot be read: {error}"));
        }
        info.labels = labels(object);
        info.subject = ExpressionSubject::of_cluster(object).after(known.map(|p| &p.info.subject));
        info.deleting = object::is_deleting(object);
        let deletion = DeletionStage::of(object);
        info.draining = self.drains.is_draining(&uid, deletion);
        let physical =
            RegisteredCluster { key: key.clone(), info: Arc::new(info), was_reached, has_connection, deletion };
        let changed = known != Some(&physical);
        self.homes.entry(key.cluster).or_default().insert(uid.clone());
        self.physical.insert(uid, physical);
        changed
    }

    /// Notes the revision of a change of a physical cluster or policy; `None` once it is deleted.
    pub(crate) fn note_revision(&mut self, key: &ObjectKey, revision: Option<ResourceVersion>) {
        match revision {
            Some(revision) => drop(self.revisions.insert(key.clone(), revision)),
            None => drop(self.revisions.remove(key)),
        }
    }

    /// Returns the revision at which a physical cluster or policy was last changed.
    pub(crate) fn revision_of(&self, key: &ObjectKey) -> Option<ResourceVersion> {
        self.revisions.get(key).copied()
    }

    /// Takes over from the drains which physical clusters take nothing new. Returns true if that has changed.
    pub(crate) fn refresh_draining(&mut self) -> bool {
        let mut has_changed = false;
        for (uid, physical) in &mut self.physical {
            let draining = self.drains.is_draining(uid, physical.deletion);
            if physical.info.draining != draining {
                Arc::make_mut(&mut physical.info).draining = draining;
                has_changed = true;
            }
        }
        has_changed
    }

    /// Marks a physical cluster as closed to new objects, as for a drain that exists only in a plan.
    pub(crate) fn drain_physical(&mut self, uid: &Uid) {
        if let Some(physical) = self.physical.get_mut(uid) {
            Arc::make_mut(&mut physical.info).draining = true;
        }
    }

    /// Lets the objects of a physical cluster leave, as at the end of the drain of its deletion.
    pub(crate) fn let_leave(&mut self, uid: &Uid) {
        if let Some(physical) = self.physical.get_mut(uid) {
            Arc::make_mut(&mut physical.info).draining = false;
        }
    }

    /// Returns the uid of the physical cluster of a name that is registered in a logical cluster.
    pub(crate) fn registered_in(&self, home: LogicalClusterId, name: &str) -> Option<&Uid> {
        let known = self.homes.get(&home)?;
        known.iter().find(|uid| self.physical.get(*uid).is_some_and(|physical| physical.info.name == name))
    }

    /// Returns the keys of the physical clusters that are registered in a logical cluster.
    pub(crate) fn all_registered_in(&self, home: LogicalClusterId) -> Vec<ObjectKey> {
        let known = self.homes.get(&home).into_iter().flatten();
        known.filter_map(|uid| Some(self.physical.get(uid)?.key.clone())).collect()
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

    /// Notes a physical cluster or policy that cannot be read.
    pub(crate) fn put_unreadable(&mut self, key: &ObjectKey) {
        self.unreadable.insert(key.clone());
    }

    /// Returns an unreadable policy that may hold in a namespace.
    pub(crate) fn unreadable_policy(&self, reach: &ClusterLineage, namespace: &str) -> Option<&ObjectKey> {
        let concerns = |key: &&ObjectKey| match key.namespace() {
            None => reach.lineage.iter().any(|(id, _)| *id == key.cluster),
            Some(own) => reach.lineage.first().is_some_and(|(id, _)| *id == key.cluster) && own.as_str() == namespace,
        };
        self.unreadable.iter().filter(|key| kinds::policies().contains(&key.resource)).find(concerns)
    }

    /// Returns an unreadable physical cluster within reach.
    pub(crate) fn unreadable_physical(&self, reach: &ClusterLineage) -> Option<&ObjectKey> {
        let physical = self.unreadable.iter().filter(|key| key.resource == kinds::physical_clusters());
        physical.into_iter().find(|key| reach.may_contain(key.cluster))
    }

    /// Returns a logical cluster within reach that has physical clusters and unknown rights.
    pub(crate) fn unknown_home(&self, reach: &ClusterLineage, rights: &dyn UseRights) -> Option<LogicalClusterId> {
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
    pub(crate) fn all_physical(&self) -> impl Iterator<Item = (&Uid, &ObjectKey, &ResourceAmounts)> {
        self.physical.iter().map(|(uid, physical)| (uid, &physical.key, &physical.info.bounds))
    }

    /// Returns all physical clusters.
    pub(crate) fn all_registered(&self) -> impl Iterator<Item = (&Uid, &RegisteredCluster)> {
        self.physical.iter()
    }

    /// Returns a physical cluster, wherever it is registered.
    pub(crate) fn physical(&self, uid: &Uid) -> Option<&RegisteredCluster> {
        self.physical.get(uid)
    }

    /// Notes a physical cluster that an object names.
    pub(crate) fn note_place(&mut self, uid: &Uid) {
        self.has_strays |= !self.physical.contains_key(uid);
    }

    /// Returns true if objects of a logical cluster may be placed, or may have been. Without a physical cluster within
    /// reach they are not.
    pub(crate) fn may_be_placed(&self, reach: &ClusterLineage) -> bool {
        self.has_strays
            || self.homes.keys().any(|home| reach.may_contain(*home))
            || self.unreadable_physical(reach).is_some()
    }

    /// Stores the present state of a policy. Returns true if its spec has changed; its status does not count.
    pub(crate) fn put_policy(&mut self, key: &ObjectKey, object: &Value) -> bool {
        let spec = object.get("spec").cloned().unwrap_or_default();
        let created = object::meta_text(object, "creationTimestamp").to_owned();
        let known = self.policies.entry(key.cluster).or_default();
        let before = known.get(key).filter(|p| p.created == created);
        let policy = match serde_json::from_value::<PlacementPolicySpec>(spec.clone()) {
            // Writes of the status are frequent: expressions are compiled once for each spec.
            Ok(spec) if before.is_some_and(|p| p.policy.is_of(&spec)) => return false,
            Ok(spec) => CompiledPolicy::compile(spec),
            Err(error) => CompiledPolicy::unreadable(&spec, &error),
        };
        if before.is_some_and(|p| *p.policy == policy) {
            return false;
        }
        known.insert(key.clone(), RegisteredPolicy { policy: Arc::new(policy), created });
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

    /// Returns all policies with their keys.
    pub(crate) fn all_policies(&self) -> impl Iterator<Item = (&ObjectKey, &Arc<CompiledPolicy>)> {
        self.policies.values().flatten().map(|(key, known)| (key, &known.policy))
    }

    /// Returns the groups that a policy names, without `*`.
    pub(crate) fn groups_named_by(&self, policy: &ObjectKey) -> Vec<String> {
        let known = self.policies.get(&policy.cluster).and_then(|known| known.get(policy));
        let groups: BTreeSet<&str> =
            known.into_iter().flat_map(|known| known.policy.kinds()).map(|(group, _)| group).collect();
        groups.into_iter().filter(|group| *group != "*").map(str::to_owned).collect()
    }

    /// Returns the physical clusters within reach of a logical cluster, and any others that `record` names.
    pub(crate) fn clusters(
        &self,
        reach: &ClusterLineage,
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

    /// Returns the physical clusters of a logical cluster and its ancestors. Where several have a name, the nearest one
    /// that may be used hides the others, as the API shows them.
    fn in_reach(&self, own: LogicalClusterId, reach: &ClusterLineage, rights: &dyn UseRights) -> BTreeSet<&Uid> {
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

    /// Returns the policies that may hold in a namespace.
    pub(crate) fn policies(&self, reach: &ClusterLineage, namespace: &str) -> Vec<LeveledPolicy> {
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

    /// Returns true if an expression of a policy of the lineage reads objects of a kind.
    pub(crate) fn reads_objects(&self, reach: &ClusterLineage, group: &str, kind: &str) -> bool {
        let known = reach.lineage.iter().filter_map(|(id, _)| self.policies.get(id));
        known.flat_map(BTreeMap::values).any(|p| p.policy.reads_objects_of(group, kind))
    }

    /// Returns true if a policy that may hold in a namespace depends on where other workloads are.
    pub(crate) fn has_workload_terms(&self, reach: &ClusterLineage, namespace: &str) -> bool {
        self.policies(reach, namespace).iter().any(|p| p.policy.has_workload_terms())
    }

    /// Returns true if a policy has an expression over physical clusters or objects.
    pub(crate) fn has_expressions(&self) -> bool {
        self.all_policies().any(|(_, policy)| policy.has_expressions())
    }

    /// Returns true if a policy of the lineage is about a kind.
    pub(crate) fn is_kind_selected(&self, reach: &ClusterLineage, group: &str, kind: &str) -> bool {
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
        let reach = ClusterLineage {
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
        let root = ClusterLineage { lineage: reach.lineage[1..].to_vec() };
        assert_eq!(facts.clusters(&root, &AllMayUse, &PlacementRecord::default()).len(), 2);
    }

    #[test]
    fn nothing_is_placed_without_a_reachable_physical_cluster() {
        let shop = LogicalClusterId::new(7);
        let physical = |home: LogicalClusterId, name: &str| {
            let key = ObjectKey::cluster_scoped(home, kinds::physical_clusters(), name.parse().unwrap());
            (key, json!({"metadata": {"name": name, "uid": name}}))
        };
        let reach = ClusterLineage {
            lineage: vec![(shop, "root:shop".parse().unwrap()), (LogicalClusterId::ROOT, LogicalClusterPath::root())],
        };
        let mut facts = Facts::default();
        assert!(!facts.may_be_placed(&reach), "there is none at all");
        let (far, object) = physical(LogicalClusterId::new(8), "far");
        facts.put_physical(&far, &object, 0);
        facts.note_place(&"far".parse().unwrap());
        assert!(!facts.may_be_placed(&reach), "it is registered elsewhere");
        assert!(
            facts.may_be_placed(&ClusterLineage { lineage: Vec::new() }),
            "of a logical cluster in deletion that is unknown"
        );
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
        assert!(facts.may_be_placed(&reach), "an object is on an unknown physical cluster");
    }
}
