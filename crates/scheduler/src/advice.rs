//! Warnings about names that a pin or a policy says and nobody knows.

use portolan_placement::{Pin, PinOn, Policy};
use portolan_types::{
    annotations, object,
    placement::{ClusterSelector, DivideBy, PlacementPolicySpec, ResourceSelector},
};
use serde_json::Value;

use crate::{facts::Reach, kinds::PLACEABLE, scheduler::Inner};

/// Edits that a name may be away from another to be meant.
const MAX_EDITS: usize = 2;
/// Warnings about one object.
const MAX_WARNINGS: usize = 3;

impl Inner {
    /// Names of a pin that are not in reach.
    pub(crate) fn warn_of_pins(&self, reach: &Reach, object: &Value) -> Vec<String> {
        let Some(pin) = Pin::of(object, PinOn::Object) else { return Vec::new() };
        let known = self.names_in_reach(reach);
        let unknown = pin.names.iter().filter(|name| !known.contains(name));
        unknown.map(|name| not_in_reach("portolan.dev/pin", name, &known)).take(2).collect()
    }

    /// What of a policy has no effect: kinds that are not served, physical clusters that are not in reach, weights that are
    /// not given. It may be on purpose, since they may come later.
    pub(crate) fn warn_of_policy(&self, reach: &Reach, policy: &Value) -> Vec<String> {
        let Ok(spec) = serde_json::from_value::<PlacementPolicySpec>(policy["spec"].clone()) else { return Vec::new() };
        let mut warnings = Vec::new();
        if spec.resources.is_empty() {
            warnings.push("spec.resources: there is none: the policy is about nothing".to_owned());
        }
        warnings.extend(spec.resources.iter().flat_map(|resource| self.warn_of_kinds(resource)));
        let known = self.names_in_reach(reach);
        warnings.extend(warn_of_clusters("spec.clusters", &spec.clusters, &known));
        warnings.extend(Policy::compile(spec.clone()).parts_without_effect());
        let weighs =
            spec.replicas.is_some_and(|replicas| replicas.by == DivideBy::Weight && replicas.weights.is_empty());
        if weighs {
            warnings.push("spec.replicas.weights: there is none: all physical clusters weigh the same".to_owned());
        }
        warnings.truncate(MAX_WARNINGS);
        warnings
    }

    /// Objects with volumes stay on a physical cluster that is drained.
    pub(crate) fn warn_of_drain(&self, physical: &Value) -> Vec<String> {
        let taints = physical.pointer("/spec/taints").and_then(Value::as_array).into_iter().flatten();
        let drains = taints.into_iter().any(|taint| taint["effect"] == "NoExecute");
        let Some(uid) = object::uid(physical).filter(|_| drains) else { return Vec::new() };
        let is_known = {
            let facts = self.facts();
            facts.usage.of(&uid).is_empty() || facts.physical(&uid).is_none_or(|known| known.info.is_drained())
        };
        if is_known {
            return Vec::new();
        }
        let key = annotations::ABANDON_VOLUMES;
        vec![format!(
            "StatefulSets and workloads with ReadWriteOnce claims stay here (MoveRefused) unless they have {key}: \"true\""
        )]
    }

    fn warn_of_kinds(&self, resource: &ResourceSelector) -> Vec<String> {
        let group = resource.api_group.as_str();
        let unknown = |kind: &&String| *kind != "*" && group != "*" && self.resource_of(group, kind).is_none();
        let is_custom = group.contains('.') && !group.ends_with(".k8s.io");
        let warn = |kind: &String| {
            if is_custom {
                return format!(
                    "spec.resources: {kind:?} of the group {group:?} is not placed: custom resources stay above"
                );
            }
            let hint = meant_kind(kind).map(|meant| format!("; did you mean {meant}?")).unwrap_or_default();
            format!("spec.resources: no namespaced kind {kind:?} is served in the group {group:?}{hint}")
        };
        resource.kinds.iter().filter(unknown).map(warn).collect()
    }

    fn names_in_reach(&self, reach: &Reach) -> Vec<String> {
        let facts = self.facts();
        facts.clusters(reach, &*self.rights, &Default::default()).iter().map(|c| c.info.name.clone()).collect()
    }
}

fn warn_of_clusters(field: &str, clusters: &ClusterSelector, known: &[String]) -> Vec<String> {
    let mut warnings = Vec::new();
    for (part, names) in [("names", &clusters.names), ("exclude", &clusters.exclude)] {
        let unknown = names.iter().filter(|name| !known.contains(name));
        warnings.extend(unknown.map(|name| not_in_reach(&format!("{field}.{part}"), name, known)));
    }
    let fallback = |choice| warn_of_clusters(&format!("{field}.fallback"), choice, known);
    warnings.extend(clusters.fallback.iter().flat_map(fallback));
    warnings
}

fn not_in_reach(field: &str, name: &str, known: &[String]) -> String {
    let near = known.iter().map(|k| (edits(k, name), k)).min().filter(|(n, _)| *n <= MAX_EDITS);
    let hint = near.map(|(_, k)| format!("; did you mean {k:?}?")).unwrap_or_default();
    format!("{field}: physical cluster {name:?} is not in reach{hint}")
}

/// A kind that is placed and named nearly so.
fn meant_kind(kind: &str) -> Option<String> {
    let wanted = kind.to_ascii_lowercase();
    let meant = PLACEABLE.iter().find(|p| edits(&p.kind.to_ascii_lowercase(), &wanted) <= MAX_EDITS)?;
    Some(format!("{} of the group {:?}", meant.kind, meant.group))
}

/// How many letters have to be changed, added or taken away (Levenshtein), over at most 64 letters of each.
fn edits(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().take(64).collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().take(64).enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, y) in b.iter().enumerate() {
            let cost = (diagonal + usize::from(x != *y)).min(row[j] + 1).min(row[j + 1] + 1);
            diagonal = std::mem::replace(&mut row[j + 1], cost);
        }
    }
    row[b.len()]
}
