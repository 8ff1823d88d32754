//! Compiled policies, and those that hold for a workload.

mod applicable;
mod clusters;
mod resources;

use portolan_types::{
    LabelSelector,
    placement::{
        ClusterCount, DivideBy, Enforcement, FallbackMode, MAX_POLICY_BYTES, Override, PlacementPolicySpec,
        ReplicaMode, ResourceSelector, WorkloadTerm,
    },
};
use serde_json::{Value, json};

pub use self::applicable::LeveledPolicy;
pub(crate) use self::{
    applicable::{ApplicablePolicies, ConstraintVerdict},
    clusters::SelectorMatch,
    resources::ResourceMatch,
};
use self::{clusters::CompiledClusters, resources::CompiledResource};
use crate::{
    cluster_facts::ClusterInfo,
    expressions::CelVerdict,
    object_role::{Role, role_of},
    workload::Workload,
};

/// Policy with parsed selectors and compiled expressions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompiledPolicy {
    /// Spec as written.
    pub spec: PlacementPolicySpec,
    resources: Vec<CompiledResource>,
    clusters: CompiledClusters,
    weights: Vec<(LabelSelector, u32)>,
    limits: Vec<(LabelSelector, i64, Option<i64>)>,
    with: Vec<CompiledTerm>,
    apart_from: Vec<CompiledTerm>,
    /// Selectors of `spec.overrides`.
    overridden: Vec<CompiledClusters>,
    changes_bytes: usize,
    /// True if `spec` has only the readable parts.
    is_unreadable: bool,
    fault: Option<String>,
}

/// Compiled term about other workloads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CompiledTerm {
    pub(crate) spec: WorkloadTerm,
    pub(crate) labels: LabelSelector,
}

impl CompiledPolicy {
    /// Parses the selectors and compiles the expressions. A policy with a fault places nothing: as a proposal it is
    /// skipped, as a constraint it allows no physical cluster, because its intent is unknown.
    pub fn compile(spec: PlacementPolicySpec) -> Self {
        let bytes = json!(spec).to_string().len();
        let mut fault = (bytes > MAX_POLICY_BYTES).then(|| format!("the spec is larger than {MAX_POLICY_BYTES} bytes"));
        let resources = spec.resources.iter().map(|one| CompiledResource::compile(one, &mut fault)).collect();
        let clusters = CompiledClusters::compile(&spec.clusters, &mut fault);
        let overridden =
            spec.overrides.iter().map(|one| CompiledClusters::compile(&one.clusters, &mut fault)).collect();
        let mut labels = |selector: &_| match LabelSelector::try_from(selector) {
            Ok(labels) => labels,
            Err(error) => {
                fault.get_or_insert(error.to_string());
                LabelSelector::everything()
            }
        };
        let replicas = || spec.replicas.iter();
        let weights = replicas().flat_map(|r| &r.weights).map(|w| (labels(&w.selector), w.weight)).collect();
        let limits = replicas().flat_map(|r| &r.limits);
        let limits = limits.map(|l| (labels(&l.selector), i64::from(l.min), l.max.map(i64::from))).collect();
        let mut terms = |all: &[WorkloadTerm]| -> Vec<CompiledTerm> {
            all.iter().map(|term| CompiledTerm { labels: labels(&term.selector), spec: term.clone() }).collect()
        };
        let (with, apart_from) = (terms(&spec.with), terms(&spec.apart_from));
        let changes_bytes = json!([spec.overrides, spec.yields]).to_string().len();
        let is_unreadable = false;
        Self {
            resources,
            clusters,
            weights,
            limits,
            with,
            apart_from,
            overridden,
            changes_bytes,
            is_unreadable,
            fault,
            spec,
        }
    }

    /// Makes a policy with a fault from a spec that cannot be read, with its readable parts.
    pub fn unreadable(spec: &Value, error: &serde_json::Error) -> Self {
        let part = |field: &str| spec.get(field).cloned().unwrap_or_default();
        let any = || vec![ResourceSelector { api_group: "*".into(), ..ResourceSelector::default() }];
        let readable = PlacementPolicySpec {
            resources: serde_json::from_value(part("resources")).unwrap_or_else(|_| any()),
            enforcement: serde_json::from_value(part("enforcement")).unwrap_or_default(),
            ..PlacementPolicySpec::default()
        };
        let fault = Some(format!("the spec cannot be read: {error}"));
        Self { fault, is_unreadable: true, ..Self::compile(readable) }
    }

    /// Returns true if it is compiled of this spec, which could be read.
    pub fn is_of(&self, spec: &PlacementPolicySpec) -> bool {
        self.spec == *spec && !self.is_unreadable
    }

    /// Returns the reason why the policy cannot be used.
    pub fn fault(&self) -> Option<&str> {
        self.fault.as_deref()
    }

    /// Returns true for a constraint, false for a proposal.
    pub fn is_constraint(&self) -> bool {
        self.spec.enforcement == Enforcement::Constraint
    }

    /// Returns true if it is about objects of this kind: group and kind match, or are `*`. Without `resources` it is
    /// about nothing. Only a constraint is about custom kinds whose group it does not name.
    pub fn is_about_kind(&self, group: &str, kind: &str) -> bool {
        let is_explicit = !self.is_constraint() && role_of(group, kind, &Value::Null) == Role::Explicit;
        self.resources.iter().any(|r| r.has_kind(group, kind) && (!is_explicit || r.names_group(group)))
    }

    /// Returns true if an expression of it reads objects of this kind: [`Workload::with_object`] is needed then.
    pub fn reads_objects_of(&self, group: &str, kind: &str) -> bool {
        self.resources.iter().any(|r| r.reads_objects() && r.has_kind(group, kind))
    }

    /// Returns true if it depends on where other workloads of the namespace are.
    pub fn has_workload_terms(&self) -> bool {
        !(self.with.is_empty() && self.apart_from.is_empty())
    }

    /// Returns true with an expression over physical clusters or objects.
    pub fn has_expressions(&self) -> bool {
        let of_clusters =
            std::iter::once(&self.clusters).chain(&self.overridden).any(|at| at.expressions().count() > 0);
        of_clusters || self.resources.iter().any(CompiledResource::reads_objects)
    }

    /// Returns a sentence for each of its expressions over physical clusters that has no value for one.
    pub fn expression_failures(&self, cluster: &ClusterInfo) -> Vec<String> {
        let all = std::iter::once(&self.clusters).chain(&self.overridden).flat_map(CompiledClusters::expressions);
        let mut failures: Vec<String> = all
            .filter_map(|cel| match cluster.subject.verdict(cel) {
                CelVerdict::Failed(why) => Some(format!("physical cluster {}: {why}", cluster.name)),
                CelVerdict::Match | CelVerdict::Mismatch => None,
            })
            .collect();
        failures.dedup();
        failures
    }

    /// Returns true if it is about this object, or if that cannot be known because an expression has no value.
    pub fn is_about(&self, workload: &Workload) -> bool {
        self.selection(workload) != ResourceMatch::Others
    }

    /// Returns the sentence about an expression that has no value for this object.
    pub fn selection_failure(&self, workload: &Workload) -> Option<String> {
        match self.selection(workload) {
            ResourceMatch::Unknown(why) => Some(why.to_string()),
            ResourceMatch::About | ResourceMatch::Others => None,
        }
    }

    /// Matches an object. An entry that matches counts before one that is not known.
    pub(crate) fn selection(&self, workload: &Workload) -> ResourceMatch {
        let mut unknown = None;
        for resource in &self.resources {
            match resource.matches(workload, self.is_constraint()) {
                ResourceMatch::About => return ResourceMatch::About,
                ResourceMatch::Unknown(why) => {
                    unknown.get_or_insert(why);
                }
                ResourceMatch::Others => {}
            }
        }
        unknown.map_or(ResourceMatch::Others, ResourceMatch::Unknown)
    }

    /// Returns the kinds that it names, as (group, kind), `*` for any.
    pub fn kinds(&self) -> impl Iterator<Item = (&str, &str)> {
        self.resources.iter().flat_map(|r| {
            let any = r.spec.kinds.is_empty().then_some("*");
            r.spec.kinds.iter().map(String::as_str).chain(any).map(|kind| (r.spec.api_group.as_str(), kind))
        })
    }

    /// Matches a physical cluster. `exclude` at the top wins over every fallback.
    pub(crate) fn standing(&self, cluster: &ClusterInfo) -> SelectorMatch {
        self.clusters.standing(cluster)
    }

    /// Returns its overrides for any of these physical clusters, each with those that it is for.
    pub(crate) fn overrides<'c>(
        &self,
        clusters: &[&'c ClusterInfo],
    ) -> impl Iterator<Item = (&Override, Vec<&'c ClusterInfo>)> {
        let on = |at: &CompiledClusters| clusters.iter().copied().filter(|c| at.allows(c)).collect::<Vec<_>>();
        let all = self.spec.overrides.iter().zip(self.overridden.iter().map(on));
        all.filter(|(_, on)| !on.is_empty())
    }

    /// Returns true when it names further choices.
    pub(crate) fn has_fallback(&self) -> bool {
        !self.clusters.fallback.is_empty()
    }

    /// Returns true when all choices are filled in their order.
    pub(crate) fn overflows(&self) -> bool {
        self.spec.clusters.fallback_mode == FallbackMode::Overflow && self.divides_by().is_some()
    }

    /// Returns the bytes of its overrides and yielded fields.
    pub(crate) fn changes_bytes(&self) -> usize {
        self.changes_bytes
    }

    /// Returns true when it changes anything on objects, or leaves anything to their copies.
    pub fn changes_copies(&self) -> bool {
        !(self.spec.overrides.is_empty() && self.spec.yields.is_empty())
    }

    /// Returns the number of physical clusters that it wants.
    pub(crate) fn count(&self) -> ClusterCount {
        self.spec.count.unwrap_or(if self.clusters.names.is_empty() {
            ClusterCount::Exactly(1)
        } else {
            ClusterCount::All
        })
    }

    /// Returns the basis of division; `None` duplicates.
    pub(crate) fn divides_by(&self) -> Option<DivideBy> {
        let replicas = self.spec.replicas.as_ref().filter(|r| r.mode == ReplicaMode::Divide)?;
        Some(replicas.by)
    }

    /// Returns the weight of a physical cluster: of the first entry that matches, else 1.
    pub(crate) fn weight(&self, cluster: &ClusterInfo) -> u32 {
        let matching = self.weights.iter().find(|(labels, _)| labels.matches_map(&cluster.labels));
        matching.map_or(1, |(_, weight)| *weight)
    }

    /// Returns the least and most replicas of a copy: of the first entry that matches, else 0 and no limit.
    pub(crate) fn replica_limits(&self, cluster: &ClusterInfo) -> (i64, Option<i64>) {
        let matching = self.limits.iter().find(|(labels, ..)| labels.matches_map(&cluster.labels));
        matching.map_or((0, None), |(_, least, most)| (*least, *most))
    }
}

#[cfg(test)]
mod tests;
