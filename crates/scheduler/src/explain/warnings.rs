//! Warnings about names in a pin or policy that do not exist.

use portolan_placement::{ClusterPin, CompiledPolicy, PinScope, parts_without_effect};
use portolan_types::{
    GroupResource, annotations,
    declared_references::DeclaredReferences,
    object,
    placement::{ClusterSelector, DefinitionSync, PlacementPolicySpec, ResourceSelector, is_governing_group},
};
use serde_json::Value;

use crate::{
    context::SchedulerContext,
    explain::move_warnings::count_warning,
    facts::ClusterLineage,
    kinds::{PLACEABLE, placeable},
};

/// Largest distance of a name from the intended one.
const MAX_EDITS: usize = 2;
/// Most warnings about one object.
const MAX_WARNINGS: usize = 3;

/// Returns a warning for each name of a pin that is out of reach.
pub(crate) fn pin_warnings(ctx: &SchedulerContext, reach: &ClusterLineage, object: &Value) -> Vec<String> {
    let Some(pin) = ClusterPin::of(object, PinScope::Object) else { return Vec::new() };
    let known = names_in_reach(ctx, reach);
    let unknown = pin.names.iter().filter(|name| !known.contains(name));
    unknown.map(|name| not_in_reach("portolan.dev/pin", name, &known)).take(2).collect()
}

/// Returns warnings about parts of a policy without effect: kinds that are not served, physical clusters out of reach,
/// missing weights. They may be intended, because objects may come later.
pub(crate) fn policy_warnings(
    ctx: &SchedulerContext,
    reach: &ClusterLineage,
    policy: &Value,
    is_namespaced: bool,
) -> Vec<String> {
    let Ok(spec) = serde_json::from_value::<PlacementPolicySpec>(policy["spec"].clone()) else { return Vec::new() };
    let mut warnings = Vec::new();
    if spec.resources.is_empty() {
        warnings.push("spec.resources: there is none: the policy is about nothing".to_owned());
    }
    warnings.extend(count_warning(&spec));
    warnings.extend(spec.resources.iter().flat_map(|resource| kind_warnings(ctx, resource)));
    warnings.extend(definition_warning(&spec, is_namespaced));
    let known = names_in_reach(ctx, reach);
    warnings.extend(warn_of_clusters("spec.clusters", &spec.clusters, &known));
    let unknown = spec.suspend.dispatch_on.iter().filter(|name| !known.contains(name));
    warnings.extend(unknown.map(|name| not_in_reach("spec.suspend.dispatchOn", name, &known)));
    warnings.extend(parts_without_effect(&CompiledPolicy::compile(spec.clone())));
    warnings.truncate(MAX_WARNINGS);
    warnings
}

/// Returns a warning when a drain begins: objects with volumes stay.
pub(crate) fn drain_warnings(ctx: &SchedulerContext, physical: &Value) -> Vec<String> {
    let taints = physical.pointer("/spec/taints").and_then(Value::as_array).into_iter().flatten();
    let drains = taints.into_iter().any(|taint| taint["effect"] == "NoExecute");
    let Some(uid) = object::uid(physical).filter(|_| drains) else { return Vec::new() };
    let is_known = {
        let facts = ctx.facts();
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

/// Returns a warning for each resource of `spec.syncedResources` that no kind has: a physical cluster that lists
/// resources takes no others.
pub(crate) fn synced_resource_warnings(ctx: &SchedulerContext, physical: &Value) -> Vec<String> {
    let named = physical.pointer("/spec/syncedResources").and_then(Value::as_array).into_iter().flatten();
    let resource = |text: &str| {
        let (resource, group) = text.split_once('.').unwrap_or((text, ""));
        GroupResource::new(group, resource)
    };
    let is_unknown = |text: &&str| {
        let resource = resource(text);
        placeable(&resource).is_none() && !is_custom(&resource.group) && !ctx.kinds.has_resource(&resource)
    };
    let warn = |text: &str| {
        let near = PLACEABLE.iter().map(|p| p.resource().to_string()).find(|known| edits(known, text) <= MAX_EDITS);
        let hint = near.map(|known| format!("; did you mean {known:?}?")).unwrap_or_default();
        format!("spec.syncedResources: no namespaced resource {text:?} is served{hint}")
    };
    named.filter_map(Value::as_str).filter(is_unknown).map(warn).take(MAX_WARNINGS).collect()
}

/// Returns a warning for each kind that a policy names and nothing serves.
pub(crate) fn kind_warnings(ctx: &SchedulerContext, resource: &ResourceSelector) -> Vec<String> {
    let group = resource.api_group.as_str();
    // Definitions may come later, and be in any workspace below.
    let unknown =
        |kind: &&String| *kind != "*" && group != "*" && !is_custom(group) && ctx.resource_of(group, kind).is_none();
    let warn = |kind: &String| {
        let hint = meant_kind(kind).map(|meant| format!("; did you mean {meant}?")).unwrap_or_default();
        format!("spec.resources: no namespaced kind {kind:?} is served in the group {group:?}{hint}")
    };
    resource.kinds.iter().filter(unknown).map(warn).collect()
}

/// Groups of Kubernetes whose names end as those of some custom kinds, such as `gateway.networking.k8s.io`, do.
const KUBERNETES_GROUPS: [&str; 17] = [
    "admissionregistration.k8s.io",
    "apiextensions.k8s.io",
    "apiregistration.k8s.io",
    "authentication.k8s.io",
    "authorization.k8s.io",
    "certificates.k8s.io",
    "coordination.k8s.io",
    "discovery.k8s.io",
    "events.k8s.io",
    "flowcontrol.apiserver.k8s.io",
    "internal.apiserver.k8s.io",
    "networking.k8s.io",
    "node.k8s.io",
    "rbac.authorization.k8s.io",
    "resource.k8s.io",
    "scheduling.k8s.io",
    "storage.k8s.io",
];

/// Returns true for a group that does not belong to Kubernetes.
fn is_custom(group: &str) -> bool {
    group.contains('.') && !KUBERNETES_GROUPS.contains(&group)
}

/// Returns a sentence about definitions that a policy cannot send anywhere.
pub(crate) fn definition_warning(spec: &PlacementPolicySpec, is_namespaced: bool) -> Option<String> {
    let sent = spec.resources.iter().find(|resource| resource.definition == DefinitionSync::Sync)?;
    if is_namespaced {
        return Some(
            "spec.resources: definition: Sync has no effect in a PlacementPolicy, only in a ClusterPlacementPolicy"
                .into(),
        );
    }
    let group = &sent.api_group;
    let is_any = sent.kinds.is_empty() || sent.kinds.iter().any(|kind| kind == "*");
    if !group.contains('.') || is_governing_group(group) {
        Some(format!("spec.resources: definition: Sync has no effect on the group {group:?}: it has no custom kinds"))
    } else if is_any {
        Some(format!("spec.resources: definition: Sync has no effect on any kind of {group:?}: kinds have to be named"))
    } else {
        None
    }
}

/// Returns a warning about a definition whose references cannot be read.
pub(crate) fn reference_warning(definition: &Value) -> Option<String> {
    let text = object::annotation(definition, annotations::REFERENCES)?;
    let fault = DeclaredReferences::parse(text).err()?;
    Some(format!("the annotation {} is ignored: {fault}", annotations::REFERENCES))
}

/// Returns the names of the physical clusters within reach.
pub(crate) fn names_in_reach(ctx: &SchedulerContext, reach: &ClusterLineage) -> Vec<String> {
    let facts = ctx.facts();
    facts.clusters(reach, &*ctx.rights, &Default::default()).iter().map(|c| c.info.name.clone()).collect()
}

/// Returns a sentence for each name of a selector that is not known.
pub(crate) fn warn_of_clusters(field: &str, clusters: &ClusterSelector, known: &[String]) -> Vec<String> {
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

/// Returns the placeable kind with a similar name.
fn meant_kind(kind: &str) -> Option<String> {
    let wanted = kind.to_ascii_lowercase();
    let meant = PLACEABLE.iter().find(|p| edits(&p.kind.to_ascii_lowercase(), &wanted) <= MAX_EDITS)?;
    Some(format!("{} of the group {:?}", meant.kind, meant.group))
}

/// Returns the Levenshtein distance over the first 64 letters of each.
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
