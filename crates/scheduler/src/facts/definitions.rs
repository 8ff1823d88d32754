//! Definitions of custom resources, as far as policies name their groups.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Weak},
};

use portolan_types::{
    GroupResource, LogicalClusterId, ObjectKey, ScaleFields, annotations, declared_references::DeclaredReferences,
    object, placement::is_governing_group,
};
use serde_json::Value;

use crate::facts::ClusterLineage;

/// Most variants of one definition that are shared between logical clusters. Further ones are kept for each.
const MAX_SHARED: usize = 16;

/// Namespaced custom kind of a logical cluster, as far as placement depends on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CustomKind {
    pub(crate) resource: GroupResource,
    pub(crate) kind: String,
    /// Fields of the subresource `scale` in the version of storage.
    pub(crate) scale: Option<ScaleFields>,
    pub(crate) references: DeclaredReferences,
}

impl CustomKind {
    /// Reads the kind of a definition; `None` while it is not served, for a cluster-scoped kind, and for one that never
    /// goes to a physical cluster.
    fn of(crd: &Value) -> Option<Self> {
        let text = |pointer: &str| crd.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        let (group, plural) = (text("/spec/group"), text("/spec/names/plural"));
        let conditions = crd.pointer("/status/conditions").and_then(Value::as_array).into_iter().flatten();
        let is_established = conditions.into_iter().any(|c| c["type"] == "Established" && c["status"] == "True");
        let is_served = is_established && text("/status/acceptedNames/plural") == plural;
        if !is_served || text("/spec/scope") != "Namespaced" || is_governing_group(group) {
            return None;
        }
        let mut versions = crd.pointer("/spec/versions").and_then(Value::as_array).into_iter().flatten();
        let stored = versions.find(|version| version["storage"] == true);
        let declared = object::annotation(crd, annotations::REFERENCES);
        Some(Self {
            resource: GroupResource::new(group, plural),
            kind: text("/status/acceptedNames/kind").to_owned(),
            scale: stored.and_then(ScaleFields::of_version),
            // A faulty annotation names nothing; the write of the definition was answered with a warning.
            references: declared.and_then(|text| DeclaredReferences::parse(text).ok()).unwrap_or_default(),
        })
    }

    /// Returns the replicas that an object requests; `None` if it has no such field. The number is limited to the range
    /// of a Kubernetes scale (int32), because a schema may have no bounds and sums of larger numbers could overflow.
    pub(crate) fn replicas(&self, object: &Value) -> Option<i64> {
        Some(self.scale.as_ref()?.wanted(object)?.clamp(0, i64::from(i32::MAX)))
    }
}

/// Effect of an event of a definition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DefinitionChange {
    /// Nothing that placement depends on.
    Nothing,
    /// A kind can be placed that could not.
    New,
    /// The fields changed that refer to other objects or contain the number of replicas.
    Different,
}

/// Definitions in memory.
#[derive(Clone, Default)]
pub(crate) struct DefinitionFacts {
    /// Groups that policies of a logical cluster name, or have named, for it and its descendants.
    named: BTreeSet<(LogicalClusterId, Arc<str>)>,
    known: BTreeMap<LogicalClusterId, BTreeMap<GroupResource, Arc<CustomKind>>>,
    shared: BTreeMap<GroupResource, Vec<Weak<CustomKind>>>,
}

impl DefinitionFacts {
    /// Notes that a policy of a logical cluster names a group. Returns true if its definitions have to be read.
    pub(crate) fn name_group(&mut self, cluster: LogicalClusterId, group: &str) -> bool {
        self.named.insert((cluster, group.into()))
    }

    /// Returns true if a policy of the lineage names the group, or has named it.
    pub(crate) fn is_named(&self, reach: &ClusterLineage, group: &str) -> bool {
        !self.named.is_empty() && reach.lineage.iter().any(|(id, _)| self.named.contains(&(*id, group.into())))
    }

    /// Stores the present state of a definition.
    pub(crate) fn put(&mut self, key: &ObjectKey, crd: &Value) -> DefinitionChange {
        let Some(kind) = CustomKind::of(crd) else {
            self.remove(key);
            return DefinitionChange::Nothing;
        };
        let resource = kind.resource.clone();
        let known = self.known.get(&key.cluster).and_then(|known| known.get(&resource));
        let change = match known {
            Some(known) if **known == kind => return DefinitionChange::Nothing,
            Some(_) => DefinitionChange::Different,
            None => DefinitionChange::New,
        };
        let kind = self.share(kind);
        self.known.entry(key.cluster).or_default().insert(resource, kind);
        change
    }

    /// Returns one kind for all logical clusters with an equal definition.
    fn share(&mut self, kind: CustomKind) -> Arc<CustomKind> {
        let variants = self.shared.entry(kind.resource.clone()).or_default();
        variants.retain(|variant| variant.strong_count() > 0);
        if let Some(same) = variants.iter().filter_map(Weak::upgrade).find(|known| **known == kind) {
            return same;
        }
        let kind = Arc::new(kind);
        if variants.len() < MAX_SHARED {
            variants.push(Arc::downgrade(&kind));
        }
        kind
    }

    /// Forgets a definition.
    pub(crate) fn remove(&mut self, key: &ObjectKey) {
        let Some(known) = self.known.get_mut(&key.cluster) else { return };
        known.retain(|resource, _| resource.to_string() != key.name.as_str());
        if known.is_empty() {
            self.known.remove(&key.cluster);
        }
    }

    /// Forgets all definitions, before they are listed.
    pub(crate) fn clear(&mut self) {
        self.known.clear();
        self.shared.clear();
    }

    /// Returns the kind of a resource in a logical cluster.
    pub(crate) fn get(&self, cluster: LogicalClusterId, resource: &GroupResource) -> Option<&Arc<CustomKind>> {
        self.known.get(&cluster)?.get(resource)
    }

    /// Returns the kinds of a logical cluster.
    pub(crate) fn of(&self, cluster: LogicalClusterId) -> impl Iterator<Item = &Arc<CustomKind>> {
        self.known.get(&cluster).into_iter().flat_map(BTreeMap::values)
    }

    /// Returns the resources of all logical clusters.
    pub(crate) fn resources(&self) -> BTreeSet<&GroupResource> {
        self.known.values().flat_map(BTreeMap::keys).collect()
    }
}

#[cfg(test)]
mod tests {
    use portolan_types::LogicalClusterPath;
    use serde_json::json;

    use super::*;

    fn crd(scope: &str, is_established: bool, references: &str) -> Value {
        let names = json!({"plural": "widgets", "kind": "Widget"});
        let scale = json!({"specReplicasPath": ".spec.size", "statusReplicasPath": ".status.size"});
        json!({"metadata": {"name": "widgets.example.com", "annotations": {"portolan.dev/references": references}},
            "spec": {"group": "example.com", "names": names, "scope": scope, "versions": [
                {"name": "v1alpha1"}, {"name": "v1", "storage": true, "subresources": {"scale": scale}}]},
            "status": {"acceptedNames": names,
                "conditions": [{"type": "Established", "status": if is_established { "True" } else { "False" }}]}})
    }

    fn key(cluster: u64) -> ObjectKey {
        let resource = GroupResource::new("apiextensions.k8s.io", "customresourcedefinitions");
        ObjectKey::cluster_scoped(LogicalClusterId::new(cluster), resource, "widgets.example.com".parse().unwrap())
    }

    #[test]
    fn definitions_become_kinds_and_equal_ones_are_shared() {
        let mut facts = DefinitionFacts::default();
        let declared = r#"{"spec.secret": "Secret"}"#;
        for (case, cluster, crd, expected) in [
            ("not served yet", 7, crd("Namespaced", false, declared), DefinitionChange::Nothing),
            ("cluster-scoped", 7, crd("Cluster", true, declared), DefinitionChange::Nothing),
            ("a kind", 7, crd("Namespaced", true, declared), DefinitionChange::New),
            ("the same again", 7, crd("Namespaced", true, declared), DefinitionChange::Nothing),
            ("the same in another logical cluster", 8, crd("Namespaced", true, declared), DefinitionChange::New),
            ("a faulty annotation names nothing", 8, crd("Namespaced", true, "x"), DefinitionChange::Different),
            ("as before", 8, crd("Namespaced", true, declared), DefinitionChange::Different),
        ] {
            assert_eq!(facts.put(&key(cluster), &crd), expected, "{case}");
        }
        let widgets = GroupResource::new("example.com", "widgets");
        let of = |cluster| facts.get(LogicalClusterId::new(cluster), &widgets).unwrap().clone();
        assert!(Arc::ptr_eq(&of(7), &of(8)));
        for (size, expected) in [(3, 3), (-1, 0), (i64::MAX, i64::from(i32::MAX))] {
            assert_eq!(of(7).replicas(&json!({"spec": {"size": size}})), Some(expected), "{size}");
        }
        facts.remove(&key(7));
        assert!(facts.get(LogicalClusterId::new(7), &widgets).is_none());
        assert_eq!(facts.resources().len(), 1);
    }

    #[test]
    fn a_policy_names_a_group_for_its_logical_cluster_and_descendants() {
        let mut facts = DefinitionFacts::default();
        let (shop, other) = (LogicalClusterId::new(7), LogicalClusterId::new(8));
        assert!(facts.name_group(shop, "example.com"));
        assert!(!facts.name_group(shop, "example.com"), "it is read once");
        let root = (LogicalClusterId::ROOT, LogicalClusterPath::root());
        let reach = |id, path: &str| ClusterLineage { lineage: vec![(id, path.parse().unwrap()), root.clone()] };
        assert!(facts.is_named(&reach(shop, "root:shop"), "example.com"));
        assert!(!facts.is_named(&reach(shop, "root:shop"), "other.com"));
        assert!(!facts.is_named(&reach(other, "root:other"), "example.com"));
    }
}
