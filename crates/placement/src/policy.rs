//! Policies, compiled once, and which of them hold for a workload.

use std::sync::Arc;

use portolan_types::{
    LabelSelector,
    placement::{
        ClusterSelector, Count, DivideBy, Enforcement, MAX_POLICY_BYTES, Override, PlacementPolicySpec, PolicyRef,
        ReplicaMode, ResourceSelector, Toleration,
    },
};

use serde_json::{Value, json};

use crate::{facts::ClusterInfo, workload::Workload};

/// A policy whose selectors have been parsed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// As it was written.
    pub spec: PlacementPolicySpec,
    resources: Vec<CompiledResource>,
    clusters: CompiledClusters,
    weights: Vec<(LabelSelector, u32)>,
    /// One for each of `spec.overrides`.
    overridden: Vec<CompiledClusters>,
    changes_bytes: usize,
    fault: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct CompiledResource {
    spec: ResourceSelector,
    labels: Option<LabelSelector>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct CompiledClusters {
    labels: LabelSelector,
    names: Vec<String>,
    exclude: Vec<String>,
    fallback: Vec<CompiledClusters>,
}

/// How a physical cluster stands to a cluster selector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// Allowed: 0 is the first choice, n the n-th fallback.
    Tier(usize),
    /// Excluded by name.
    Excluded,
    /// Others are named.
    NotNamed,
    /// Its labels do not match.
    NotSelected,
}

impl Policy {
    /// Parses the selectors. A policy with a fault places nothing: as a proposal it is passed over, as a constraint it allows
    /// no physical cluster, because what it meant to forbid is not known.
    pub fn compile(spec: PlacementPolicySpec) -> Self {
        let bytes = json!(spec).to_string().len();
        let mut fault = (bytes > MAX_POLICY_BYTES).then(|| format!("the spec is larger than {MAX_POLICY_BYTES} bytes"));
        let mut labels = |selector: &_| match LabelSelector::try_from(selector) {
            Ok(labels) => Some(labels),
            Err(error) => {
                fault.get_or_insert(error.to_string());
                None
            }
        };
        let resources = spec.resources.iter();
        let resources =
            resources.map(|spec| CompiledResource { spec: spec.clone(), labels: labels(&spec.selector) }).collect();
        let weights = spec.replicas.iter().flat_map(|r| &r.weights);
        let weights = weights.map(|w| (labels(&w.selector).unwrap_or_default(), w.weight)).collect();
        let clusters = compile_clusters(&spec.clusters, &mut fault);
        let overridden = spec.overrides.iter().map(|one| compile_clusters(&one.clusters, &mut fault)).collect();
        let changes_bytes = json!([spec.overrides, spec.yields]).to_string().len();
        Self { resources, clusters, weights, overridden, changes_bytes, fault, spec }
    }

    /// Sets a policy aside whose spec cannot be read: it has a fault, and the rest of it that can be read.
    pub fn unreadable(spec: &Value, error: &serde_json::Error) -> Self {
        let part = |field: &str| spec.get(field).cloned().unwrap_or_default();
        let any = || vec![ResourceSelector { api_group: "*".into(), ..ResourceSelector::default() }];
        let readable = PlacementPolicySpec {
            resources: serde_json::from_value(part("resources")).unwrap_or_else(|_| any()),
            enforcement: serde_json::from_value(part("enforcement")).unwrap_or_default(),
            ..PlacementPolicySpec::default()
        };
        Self { fault: Some(format!("the spec cannot be read: {error}")), ..Self::compile(readable) }
    }

    /// Why nothing can be placed by it.
    pub fn fault(&self) -> Option<&str> {
        self.fault.as_deref()
    }

    /// Whether it constrains rather than proposes.
    pub fn is_constraint(&self) -> bool {
        self.spec.enforcement == Enforcement::Constraint
    }

    /// Whether it is about any object of this kind: group and kind match, or are `*`. No `resources` is about nothing.
    pub fn is_about_kind(&self, group: &str, kind: &str) -> bool {
        self.resources.iter().any(|r| r.has_kind(group, kind))
    }

    /// Whether it is about this object.
    pub fn is_about(&self, workload: &Workload) -> bool {
        self.resources.iter().any(|r| r.matches(workload, self.is_constraint()))
    }

    /// The kinds it names, as (group, kind), `*` for any.
    pub fn kinds(&self) -> impl Iterator<Item = (&str, &str)> {
        self.resources.iter().flat_map(|r| {
            let any = r.spec.kinds.is_empty().then_some("*");
            r.spec.kinds.iter().map(String::as_str).chain(any).map(|kind| (r.spec.api_group.as_str(), kind))
        })
    }

    /// How a physical cluster stands to it. `exclude` at the top wins over every fallback.
    pub(crate) fn standing(&self, cluster: &ClusterInfo) -> Standing {
        let top = &self.clusters;
        if top.exclude.contains(&cluster.name) {
            return Standing::Excluded;
        }
        let first = top.standing(cluster);
        if first.is_ok() {
            return Standing::Tier(0);
        }
        let fallback = top.choices().skip(1).position(|choice| choice.standing(cluster).is_ok());
        match (fallback, first) {
            (Some(at), _) => Standing::Tier(at + 1),
            (None, Err(standing)) => standing,
            (None, Ok(())) => Standing::Tier(0),
        }
    }

    /// Of what it changes on copies, that which is for any of these physical clusters, and which of them it is for.
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

    /// Bytes of what it changes on an object, and leaves to the copies.
    pub(crate) fn changes_bytes(&self) -> usize {
        self.changes_bytes
    }

    /// Returns true when it changes anything on objects, or leaves anything to their copies.
    pub fn changes_copies(&self) -> bool {
        !(self.spec.overrides.is_empty() && self.spec.yields.is_empty())
    }

    /// How many physical clusters it wants.
    pub(crate) fn count(&self) -> Count {
        self.spec.count.unwrap_or(match self.clusters.names.is_empty() {
            true => Count::Exactly(1),
            false => Count::All,
        })
    }

    /// By what it divides replicas; `None` duplicates.
    pub(crate) fn divides_by(&self) -> Option<DivideBy> {
        let replicas = self.spec.replicas.as_ref().filter(|r| r.mode == ReplicaMode::Divide)?;
        Some(replicas.by)
    }

    /// The weight it gives a physical cluster: of the first entry that matches, else 1.
    pub(crate) fn weight(&self, cluster: &ClusterInfo) -> u32 {
        let matching = self.weights.iter().find(|(labels, _)| labels.matches_map(&cluster.labels));
        matching.map_or(1, |(_, weight)| *weight)
    }
}

impl CompiledResource {
    fn has_kind(&self, group: &str, kind: &str) -> bool {
        let any_kind = self.spec.kinds.is_empty() || self.spec.kinds.iter().any(|k| k == kind || k == "*");
        any_kind && (self.spec.api_group == group || self.spec.api_group == "*")
    }

    fn matches(&self, workload: &Workload, without_selector: bool) -> bool {
        self.has_kind(&workload.kind.group, &workload.kind.kind)
            && (self.spec.names.is_empty() || self.spec.names.contains(&workload.name))
            && self.labels.as_ref().map_or(without_selector, |labels| labels.matches_map(&workload.labels))
    }
}

impl CompiledClusters {
    /// Itself and its fallbacks, each with its own before the next one.
    fn choices(&self) -> Box<dyn Iterator<Item = &Self> + '_> {
        Box::new(std::iter::once(self).chain(self.fallback.iter().flat_map(Self::choices)))
    }

    /// As a set: a fallback is one more way in.
    fn allows(&self, cluster: &ClusterInfo) -> bool {
        !self.exclude.contains(&cluster.name)
            && (self.standing(cluster).is_ok() || self.fallback.iter().any(|choice| choice.allows(cluster)))
    }

    fn standing(&self, cluster: &ClusterInfo) -> Result<(), Standing> {
        if self.exclude.contains(&cluster.name) {
            return Err(Standing::Excluded);
        }
        if !self.names.is_empty() && !self.names.contains(&cluster.name) {
            return Err(Standing::NotNamed);
        }
        if !self.labels.matches_map(&cluster.labels) {
            return Err(Standing::NotSelected);
        }
        Ok(())
    }
}

fn compile_clusters(spec: &ClusterSelector, fault: &mut Option<String>) -> CompiledClusters {
    if !spec.cel.is_empty() {
        fault.get_or_insert("clusters.cel is not evaluated".to_owned());
    }
    let labels = LabelSelector::try_from(&spec.selector).unwrap_or_else(|error| {
        fault.get_or_insert(error.to_string());
        LabelSelector::everything()
    });
    let fallback = spec.fallback.iter().map(|choice| compile_clusters(choice, fault)).collect();
    CompiledClusters { labels, names: spec.names.clone(), exclude: spec.exclude.clone(), fallback }
}

/// A policy and where it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeveledPolicy {
    /// 0 is the workload's namespace, 1 its logical cluster, n + 1 the n-th ancestor: the least is the most specific.
    pub level: u32,
    /// Which it is.
    pub reference: PolicyRef,
    /// `metadata.creationTimestamp`: among equals the oldest decides.
    pub created: String,
    /// What it says.
    pub policy: Arc<Policy>,
}

impl LeveledPolicy {
    /// The order in which proposals are asked, whatever order they came in.
    pub(crate) fn rank(&self) -> (u32, std::cmp::Reverse<i64>, &str, &str, &str, &str) {
        let r = &self.reference;
        let namespace = r.namespace.as_deref().unwrap_or_default();
        (self.level, std::cmp::Reverse(self.policy.spec.priority), &self.created, &r.workspace, namespace, &r.name)
    }

    /// `policy web-everywhere` or, from an ancestor, `policy web-everywhere of root`.
    pub fn title(&self) -> String {
        match self.level {
            0 | 1 => format!("policy {}", self.reference.name),
            _ => format!("policy {} of {}", self.reference.name, self.reference.workspace),
        }
    }
}

/// The policies that hold for one workload.
pub(crate) struct Rules<'a> {
    /// The one proposal that decides.
    pub(crate) winner: Option<&'a LeveledPolicy>,
    /// All constraints, in a fixed order.
    pub(crate) constraints: Vec<&'a LeveledPolicy>,
}

impl<'a> Rules<'a> {
    /// Of the policies of all levels those that hold.
    pub(crate) fn of(workload: &Workload, policies: &'a [LeveledPolicy]) -> Self {
        let about = || policies.iter().filter(|p| p.policy.is_about(workload));
        let proposals = about().filter(|p| !p.policy.is_constraint() && p.policy.fault().is_none());
        let mut constraints: Vec<_> = about().filter(|p| p.policy.is_constraint()).collect();
        constraints.sort_by(|a, b| a.rank().cmp(&b.rank()));
        Self { winner: proposals.min_by(|a, b| a.rank().cmp(&b.rank())), constraints }
    }

    /// With a constraint only the constraints' tolerations count; otherwise the winner's.
    pub(crate) fn tolerations(&self) -> impl Iterator<Item = &'a Toleration> {
        let own = self.winner.filter(|_| self.constraints.is_empty());
        own.into_iter().chain(self.constraints.iter().copied()).flat_map(|p| &p.policy.spec.tolerations)
    }

    /// The most physical clusters that every constraint allows.
    pub(crate) fn most(&self) -> usize {
        let counts = self.constraints.iter().filter_map(|p| match p.policy.spec.count {
            Some(Count::Exactly(n)) => Some(n as usize),
            Some(Count::All) | None => None,
        });
        counts.min().unwrap_or(usize::MAX)
    }

    /// The first constraint that does not allow a physical cluster.
    pub(crate) fn forbidding(&self, cluster: &ClusterInfo) -> Option<&'a LeveledPolicy> {
        let allows =
            |p: &LeveledPolicy| p.policy.fault().is_none() && matches!(p.policy.standing(cluster), Standing::Tier(_));
        self.constraints.iter().copied().find(|p| !allows(p))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{constraint, deployment, policy};

    #[test]
    fn what_a_policy_is_about() {
        // A Deployment of apps named web, with the label tier=web.
        let web = deployment(1);
        let one = |spec| policy(1, "p", json!({"resources": [spec]})).policy.is_about(&web);
        for (case, spec, expected) in [
            ("its group and kind", json!({"apiGroup": "apps", "kinds": ["Deployment"]}), true),
            ("any kind of its group", json!({"apiGroup": "apps"}), true),
            ("any kind of any group", json!({"apiGroup": "*", "kinds": ["*"]}), true),
            ("another group", json!({"apiGroup": "batch"}), false),
            ("the core group, which is named by nothing", json!({"kinds": ["Deployment"]}), false),
            ("another kind", json!({"apiGroup": "apps", "kinds": ["StatefulSet"]}), false),
            ("its name among others", json!({"apiGroup": "apps", "names": ["api", "web"]}), true),
            ("other names", json!({"apiGroup": "apps", "names": ["api"]}), false),
            ("its label", json!({"apiGroup": "apps", "selector": {"matchLabels": {"tier": "web"}}}), true),
            ("another label", json!({"apiGroup": "apps", "selector": {"matchLabels": {"tier": "db"}}}), false),
            (
                "its name, but another label",
                json!({"apiGroup": "apps", "names": ["web"], "selector": {"matchExpressions": [{"key": "tier", "operator": "DoesNotExist"}]}}),
                false,
            ),
        ] {
            assert_eq!(one(spec), expected, "{case}");
        }
        let either = json!({"resources": [{"apiGroup": "batch"}, {"apiGroup": "apps"}]});
        assert!(policy(1, "p", either).policy.is_about(&web), "any entry is enough");
        assert!(!Policy::compile(PlacementPolicySpec::default()).is_about(&web), "none is about nothing");
    }

    #[test]
    fn a_policy_that_is_too_large_to_be_looked_at_each_time_is_set_aside() {
        let names: Vec<String> = (0..20_000).map(|n| format!("cluster-{n}")).collect();
        let large = policy(1, "p", json!({"clusters": {"names": names}}));
        assert_eq!(large.policy.fault(), Some("the spec is larger than 131072 bytes"));
    }

    #[test]
    fn a_policy_that_cannot_be_read_is_set_aside() {
        for (enforcement, is_constraint) in [("Default", false), ("Constraint", true)] {
            let spec =
                json!({"resources": [{"apiGroup": "apps"}], "count": 5_000_000_000_u64, "enforcement": enforcement});
            let error = serde_json::from_value::<PlacementPolicySpec>(spec.clone()).unwrap_err();
            let found = Policy::unreadable(&spec, &error);
            assert!(found.fault().is_some_and(|fault| fault.starts_with("the spec cannot be read: ")));
            assert!(found.is_about(&deployment(1)));
            assert_eq!(found.is_constraint(), is_constraint);
        }
    }

    #[test]
    fn a_selector_that_cannot_be_read_proposes_nothing_and_forbids_everything() {
        let broken = json!({"resources": [{"apiGroup": "apps", "selector": {"matchExpressions": [{"key": "a", "operator": "Near"}]}}]});
        let web = deployment(1);
        let proposal = policy(1, "p", broken.clone());
        assert!(proposal.policy.fault().is_some() && !proposal.policy.is_about(&web));
        assert!(constraint(1, "c", broken).policy.is_about(&web), "what it meant to forbid is not known");
    }
}
