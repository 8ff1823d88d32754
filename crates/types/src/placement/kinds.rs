//! `PhysicalCluster`, `PlacementPolicy`, `ClusterPlacementPolicy`, `Placement`: the shapes of `spec` and `status`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::PolicyRef;
use crate::{labels::LabelSelectorSpec, quantity::Quantity};

/// `spec` of a `PhysicalCluster`: a Kubernetes cluster that runs pods. Usable in the workspace that has it and below.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PhysicalClusterSpec {
    /// How it is reached.
    pub connection: Connection,
    /// As on nodes: keep workloads off unless they tolerate it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub taints: Vec<Taint>,
    /// Cordoned: nothing new is placed here; what is here stays.
    pub unschedulable: bool,
    /// The most that Portolan may place here.
    #[serde(skip_serializing_if = "Resources::is_empty")]
    pub bounds: Resources,
    /// How upstream namespaces are named downstream.
    pub namespace_mapping: NamespaceMapping,
    /// Resources that may go down, as `deployments.apps`; a safe default when empty.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub synced_resources: Vec<String>,
}

/// Amounts by resource name: `cpu`, `memory`, `pods`, …
pub type Resources = BTreeMap<String, Quantity>;

/// How a physical cluster is reached: exactly one is set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Connection {
    /// From the server, by a kubeconfig.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub direct: Option<DirectConnection>,
    /// By an agent that dials out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tunnel: Option<TunnelConnection>,
    /// In this process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub simulated: Option<SimulatedConnection>,
}

/// Reached from the server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DirectConnection {
    /// The kubeconfig: inline data only, no files, no exec.
    pub kubeconfig_secret_ref: SecretKeyRef,
}

/// Reached through an agent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TunnelConnection {}

/// A simulated physical cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SimulatedConnection {
    /// Number of nodes; 2 when 0.
    pub nodes: u32,
}

/// One key of a Secret.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SecretKeyRef {
    /// Namespace of the Secret.
    pub namespace: String,
    /// Name of the Secret.
    pub name: String,
    /// Key within it; `kubeconfig` when empty.
    pub key: String,
}

/// How upstream namespaces are named downstream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum NamespaceMapping {
    /// A hashed name, equal on every physical cluster.
    #[default]
    Hashed,
    /// The same name; only on a physical cluster given to one logical cluster.
    Identity,
}

/// As `core/v1` `Taint`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Taint {
    /// Taint key.
    pub key: String,
    /// Taint value.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub value: String,
    /// `NoSchedule` or `NoExecute`.
    pub effect: String,
}

/// As `core/v1` `Toleration`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Toleration {
    /// Taint key; empty with `Exists` tolerates all.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub key: String,
    /// `Equal` (also when empty) or `Exists`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub operator: String,
    /// Taint value for `Equal`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub value: String,
    /// Taint effect; empty tolerates all.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub effect: String,
    /// How long a `NoExecute` taint is tolerated; for ever when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub toleration_seconds: Option<i64>,
}

/// `status` of a `PhysicalCluster`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PhysicalClusterStatus {
    /// `Ready` among them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    /// Kubernetes version.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub version: String,
    /// Sum over its nodes.
    #[serde(skip_serializing_if = "Resources::is_empty")]
    pub capacity: Resources,
    /// Sum over its schedulable nodes.
    #[serde(skip_serializing_if = "Resources::is_empty")]
    pub allocatable: Resources,
    /// Requests of everything that Portolan has placed here, and the number of its pods.
    #[serde(skip_serializing_if = "Resources::is_empty")]
    pub usage: Resources,
    /// The bounds that `usage` is held to, as the scheduler last read them in `spec.bounds`.
    #[serde(skip_serializing_if = "Resources::is_empty")]
    pub bounds: Resources,
}

/// As `metav1.Condition`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Condition {
    /// Condition type.
    #[serde(rename = "type")]
    pub kind: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// One word.
    pub reason: String,
    /// One sentence.
    pub message: String,
    /// RFC 3339.
    pub last_transition_time: String,
    /// Generation the condition was made for.
    #[serde(skip_serializing_if = "is_zero")]
    pub observed_generation: i64,
}

fn is_zero(n: &i64) -> bool {
    *n == 0
}

/// Most bytes of the `spec` of a policy as JSON. Every decision in its reach looks at all of it.
pub const MAX_POLICY_BYTES: usize = 128 * 1024;

/// `spec` of a `PlacementPolicy` and of a `ClusterPlacementPolicy`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PlacementPolicySpec {
    /// What it is about; any of them.
    pub resources: Vec<ResourceSelector>,
    /// Where it may go; all must hold.
    pub clusters: ClusterSelector,
    /// How many clusters; absent is 1, or all named ones with `names`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub count: Option<Count>,
    /// Spread over values of a label of physical clusters.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub spread: Vec<Spread>,
    /// How replicas are shared out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replicas: Option<Replicas>,
    /// Taints it tolerates.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tolerations: Vec<Toleration>,
    /// Changes for the copies on certain clusters.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub overrides: Vec<Override>,
    /// Fields that the physical cluster may own, as `spec.replicas`: a copy starts with the upstream value, and keeps what
    /// is written to it there. Not inside lists.
    #[serde(rename = "yield", skip_serializing_if = "Vec::is_empty")]
    pub yields: Vec<String>,
    /// The higher one decides among policies of one level.
    pub priority: i64,
    /// Whether it proposes or bounds.
    pub enforcement: Enforcement,
}

/// Objects that a policy is about; all of it must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ResourceSelector {
    /// API group, empty for core.
    pub api_group: String,
    /// Kinds; any when empty.
    pub kinds: Vec<String>,
    /// Object names; any when empty.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub names: Vec<String>,
    /// Labels of the object.
    #[serde(skip_serializing_if = "LabelSelectorSpec::is_empty")]
    pub selector: LabelSelectorSpec,
}

/// Physical clusters that a policy allows. `exclude` wins.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClusterSelector {
    /// Labels of the physical cluster.
    #[serde(skip_serializing_if = "LabelSelectorSpec::is_empty")]
    pub selector: LabelSelectorSpec,
    /// CEL over the physical cluster; not evaluated yet, and refused when set.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub cel: String,
    /// Names; any when empty.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub names: Vec<String>,
    /// Names that are never taken.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub exclude: Vec<String>,
    /// Further choices, in this order, when too few are left.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub fallback: Vec<ClusterSelector>,
}

impl ClusterSelector {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// How many physical clusters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Count {
    /// All that fit.
    All,
    /// This many; 0 keeps it from running.
    Exactly(u32),
}

impl Serialize for Count {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::All => serializer.serialize_str("All"),
            Self::Exactly(n) => serializer.serialize_u32(*n),
        }
    }
}

impl<'de> Deserialize<'de> for Count {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Form {
            Number(u32),
            Text(String),
        }
        match Form::deserialize(deserializer)? {
            Form::Number(n) => Ok(Self::Exactly(n)),
            Form::Text(text) if text == "All" => Ok(Self::All),
            Form::Text(text) => Err(serde::de::Error::custom(format!("count is a number or \"All\", not {text:?}"))),
        }
    }
}

/// Spread over values of a label.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Spread {
    /// Label of physical clusters, such as `region`.
    pub topology_key: String,
    /// Largest difference between the number of chosen clusters per value; 1 when 0.
    pub max_skew: u32,
}

/// How replicas are shared out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Replicas {
    /// Whether each copy has all of them.
    pub mode: ReplicaMode,
    /// By what they are divided.
    pub by: DivideBy,
    /// Weights for `Weight`; clusters that none matches have weight 1.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub weights: Vec<Weight>,
}

/// Whether each copy has all replicas.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum ReplicaMode {
    /// Each copy has all.
    #[default]
    Duplicate,
    /// The copies share them.
    Divide,
}

/// By what replicas are divided.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum DivideBy {
    /// The same for each, the rest to the first by name.
    #[default]
    Equal,
    /// In proportion to weights.
    Weight,
    /// In proportion to what is free.
    Capacity,
}

/// A weight for matching clusters.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Weight {
    /// Labels of the physical cluster.
    pub selector: LabelSelectorSpec,
    /// Its weight, from 0.
    pub weight: u32,
}

/// A change for the copies on certain clusters.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Override {
    /// Which clusters; all when it says nothing.
    #[serde(skip_serializing_if = "ClusterSelector::is_empty")]
    pub clusters: ClusterSelector,
    /// Registry that replaces the one of every image, or comes before an image that names none: `mirror.example:5000/hub`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image_registry: Option<String>,
    /// Labels to set on the copy.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Annotations to set on the copy.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// Environment variables to set in every container and init container.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// JSON patch (RFC 6902) of the copy: of its labels, its annotations and all outside its metadata.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub patch: Vec<serde_json::Value>,
}

/// Whether a policy proposes or bounds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Enforcement {
    /// The most specific one decides as a whole.
    #[default]
    Default,
    /// All of them hold: cluster sets are intersected, `count` is a maximum.
    Constraint,
}

/// `status` of a policy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PlacementPolicyStatus {
    /// `Accepted` among them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    /// Number of objects it decides.
    pub matched: u64,
}

/// `spec` of a `Placement`: what it is about. Written by the server, derived from the record in the same transaction.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PlacementSpec {
    /// The placed object.
    pub object: ObjectReference,
}

/// An object in the same logical cluster and namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ObjectReference {
    /// `apps/v1`.
    pub api_version: String,
    /// `Deployment`.
    pub kind: String,
    /// Name.
    pub name: String,
    /// Uid.
    pub uid: String,
}

/// `status` of a `Placement`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PlacementStatus {
    /// The copies.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub clusters: Vec<PlacementCopyStatus>,
    /// The winning policy; absent for the namespace's default decision.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<PolicyRef>,
    /// How many clusters were left out, by reason.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub rejected: BTreeMap<String, u32>,
    /// `Placed` among them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    /// The last ten changes, newest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub transitions: Vec<Transition>,
    /// `metadata.generation` of the object whose pods were let in last: later ones do not go down. Absent where none are made
    /// of a template, or nobody has looked yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub admitted_generation: Option<i64>,
    /// The pods that are charged to the quotas of the namespace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pods: Option<ChargedPods>,
    /// The claims that are charged to the quotas of the namespace as far as they are not there yet.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub claims: Vec<ChargedClaims>,
    /// Hash of the template whose pods were let in last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub admitted_template: Option<String>,
}

/// Pods of one template, as quotas count them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ChargedPods {
    /// How many.
    pub count: i64,
    /// What each uses, by the names of quotas.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub each: Resources,
    /// Their class.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub priority_class_name: String,
    /// They end by themselves.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub terminating: bool,
    /// They ask for nothing.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub best_effort: bool,
    /// They look for pods in other namespaces.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub cross_namespace_affinity: bool,
}

/// Volume claims that a StatefulSet makes of one template, as quotas count them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ChargedClaims {
    /// Name of the template.
    pub template: String,
    /// Ordinal of the first.
    pub start: i64,
    /// How many there are to be.
    pub count: i64,
    /// What each uses, by the names of quotas.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub each: Resources,
    /// Their class of attributes.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub volume_attributes_class_name: String,
}

impl ChargedClaims {
    /// What the claims of one template of a set are called up to the ordinal.
    pub fn prefix(&self, set: &str) -> String {
        format!("{}-{set}-", self.template)
    }

    /// Those that are not there: of `names`, the claims of the namespace, are counted by themselves.
    #[must_use]
    pub fn missing<'a>(&self, set: &str, names: impl IntoIterator<Item = &'a str>) -> Self {
        let prefix = self.prefix(set);
        let ordinal = |name: &str| {
            let text = name.strip_prefix(&prefix)?;
            text.parse::<i64>().ok().filter(|ordinal| ordinal.to_string() == text)
        };
        let is_one = |ordinal: i64| ordinal >= self.start && ordinal - self.start < self.count;
        let there = names.into_iter().filter_map(ordinal).filter(|ordinal| is_one(*ordinal)).count();
        let count = self.count - i64::try_from(there).unwrap_or(i64::MAX);
        Self { count: count.max(0), ..self.clone() }
    }
}

/// A copy, as a `Placement` shows it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PlacementCopyStatus {
    /// Name of the physical cluster, for people.
    pub name: String,
    /// Uid of the `PhysicalCluster`: what is known of another one of the same name says nothing about this copy.
    pub uid: String,
    /// `Active` or `Leaving`.
    pub phase: String,
    /// Replicas given to this copy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i64>,
    /// Ready replicas, or 1 for a synced object without any.
    pub ready: i64,
    /// Replicas that have been ready for `minReadySeconds`, where the kind tells that from ready.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub available: Option<i64>,
    /// Of how many, where the kind counts them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub desired: Option<i64>,
    /// One word for what is wrong there, if anything is.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// What is wrong there, if anything is.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
}

/// A change of a placement.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Transition {
    /// RFC 3339.
    pub time: String,
    /// Names before, joined by `,`.
    pub from: String,
    /// Names after, joined by `,`.
    pub to: String,
    /// What caused it.
    pub cause: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claims_that_are_there_are_not_missing() {
        let claims = ChargedClaims { template: "data".into(), start: 1, count: 3, ..ChargedClaims::default() };
        for (case, names, missing) in [
            ("none is there", vec![], 3),
            ("some are", vec!["data-db-1", "data-db-3"], 1),
            ("others are", vec!["data-db-0", "data-db-4", "data-db-01", "data-db-x", "logs-db-1", "data-dbs-1"], 3),
            ("all are", vec!["data-db-1", "data-db-2", "data-db-3"], 0),
        ] {
            assert_eq!(claims.missing("db", names).count, missing, "{case}");
        }
    }
}
