//! `PhysicalCluster`, `PlacementPolicy`, `ClusterPlacementPolicy`, `Placement`: the shapes of `spec` and `status`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{
    CustomKindStatus, DefinitionSync, DrainProgress, MemberAccess, MovePace, PodAccess, PodView, PolicyRef, Rollout,
    VolumeMoves,
};
use crate::{labels::LabelSelectorSpec, quantity::Quantity};

/// `spec` of a `PhysicalCluster`: a Kubernetes cluster that runs pods, usable in its workspace and the descendants.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PhysicalClusterSpec {
    /// Connection to the cluster.
    pub connection: Connection,
    /// Taints, as on nodes: keep workloads off unless they tolerate them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub taints: Vec<Taint>,
    /// True for a cordoned cluster: nothing new is placed here, and existing objects stay.
    pub unschedulable: bool,
    /// Most that Portolan may place here.
    #[serde(skip_serializing_if = "ResourceAmounts::is_empty")]
    pub bounds: ResourceAmounts,
    /// Mapping of upstream namespaces to downstream names.
    pub namespace_mapping: NamespaceMapping,
    /// Resources that may be synced downstream, as `deployments.apps`; a safe default when empty.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub synced_resources: Vec<String>,
    /// Identities of users who reach the cluster through its proxy; without them the proxy is refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub access: Option<MemberAccess>,
    /// Access of the pods there to their logical cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod_access: Option<PodAccess>,
}

/// Amounts by resource name: `cpu`, `memory`, `pods`, …
pub type ResourceAmounts = BTreeMap<String, Quantity>;

/// Connection to a physical cluster: exactly one is set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Connection {
    /// Direct connection from the server, by a kubeconfig.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub direct: Option<DirectConnection>,
    /// Connection by an agent that dials out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tunnel: Option<TunnelConnection>,
    /// Simulated cluster in this process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub simulated: Option<SimulatedConnection>,
}

/// Reached from the server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DirectConnection {
    /// Kubeconfig: inline data only, no files, no exec.
    pub kubeconfig_secret_ref: SecretKeyRef,
}

/// Reached through an agent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TunnelConnection {}

/// Simulated physical cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SimulatedConnection {
    /// Number of nodes; 2 when 0.
    pub nodes: u32,
}

/// Key of a Secret.
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

/// Mapping of upstream namespaces to downstream names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum NamespaceMapping {
    /// Hashed name, equal on every physical cluster.
    #[default]
    Hashed,
    /// Same name as upstream; only on a physical cluster of one logical cluster.
    Identity,
}

/// Taint, as in `core/v1`.
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

/// Toleration, as in `core/v1`.
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
    /// Seconds that a `NoExecute` taint is tolerated; unlimited if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub toleration_seconds: Option<i64>,
}

/// `status` of a `PhysicalCluster`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PhysicalClusterStatus {
    /// `Ready` among them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<StatusCondition>,
    /// Taints that the server sets, beside those of `spec`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub taints: Vec<ServerTaint>,
    /// Kubernetes version.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub version: String,
    /// Sum over its nodes.
    #[serde(skip_serializing_if = "ResourceAmounts::is_empty")]
    pub capacity: ResourceAmounts,
    /// Sum over its schedulable nodes.
    #[serde(skip_serializing_if = "ResourceAmounts::is_empty")]
    pub allocatable: ResourceAmounts,
    /// Requests of everything that Portolan has placed here, and the number of its pods.
    #[serde(skip_serializing_if = "ResourceAmounts::is_empty")]
    pub usage: ResourceAmounts,
    /// Bounds that `usage` is held to, as the scheduler last read them in `spec.bounds`.
    #[serde(skip_serializing_if = "ResourceAmounts::is_empty")]
    pub bounds: ResourceAmounts,
    /// Number of objects with a decision of their own that are placed here, without those that follow them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workloads: Option<i64>,
    /// RFC 3339 time of the last heartbeat, as of at most a minute ago; absent before the first one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub heartbeat_time: Option<String>,
    /// Progress of the `Drain` that names the cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drain: Option<DrainProgress>,
    /// Custom kinds that may go there, and the versions of them that it serves: at most [`super::MAX_CUSTOM_KINDS`].
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub custom_kinds: Vec<CustomKindStatus>,
    /// Address of its proxy, as kcp's mounts expect it.
    #[serde(rename = "URL", skip_serializing_if = "String::is_empty")]
    pub url: String,
    /// Phase of the cluster as a mount: one of kcp's.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub phase: String,
}

/// Taint that the server sets.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ServerTaint {
    /// Taint key.
    pub key: String,
    /// `NoSchedule` or `NoExecute`.
    pub effect: String,
    /// RFC 3339: tolerations with seconds count from then on.
    pub time_added: String,
}

impl ServerTaint {
    /// Returns the taint without its time.
    pub fn as_taint(&self) -> Taint {
        Taint { key: self.key.clone(), value: String::new(), effect: self.effect.clone() }
    }

    /// Returns the time at which it was set, in seconds since the epoch; `None` if it cannot be read.
    pub fn added_at(&self) -> Option<i64> {
        self.time_added.parse::<jiff::Timestamp>().ok().map(jiff::Timestamp::as_second)
    }
}

/// Condition, as `metav1.Condition`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StatusCondition {
    /// Condition type.
    #[serde(rename = "type")]
    pub kind: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// Reason: one word.
    pub reason: String,
    /// Message: one sentence.
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
    /// Objects that the policy is about; any of these.
    pub resources: Vec<ResourceSelector>,
    /// Physical clusters that the objects may go to; all must hold.
    pub clusters: ClusterSelector,
    /// Number of clusters; 1 if absent, or all named ones with `names`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub count: Option<ClusterCount>,
    /// Spread over values of a label of physical clusters.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub spread: Vec<TopologySpread>,
    /// Distribution of replicas.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replicas: Option<Replicas>,
    /// Workloads of the namespace beside which every copy has to run.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub with: Vec<WorkloadTerm>,
    /// Workloads of the namespace from which every copy has to stay apart.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub apart_from: Vec<WorkloadTerm>,
    /// Parts of placement that are suspended.
    #[serde(skip_serializing_if = "Suspension::is_empty")]
    pub suspend: Suspension,
    /// Taints it tolerates.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tolerations: Vec<Toleration>,
    /// Changes for the copies on certain clusters.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub overrides: Vec<Override>,
    /// Fields that the physical cluster may own, as `spec.replicas`: a copy starts with the upstream value, and keeps
    /// what is written to it there. Not inside lists.
    #[serde(rename = "yield", skip_serializing_if = "Vec::is_empty")]
    pub yields: Vec<String>,
    /// Pace of moves.
    #[serde(skip_serializing_if = "MovePace::is_default")]
    pub moves: MovePace,
    /// Treatment of data on volumes when objects move.
    #[serde(skip_serializing_if = "VolumeMoves::is_default")]
    pub volumes: VolumeMoves,
    /// Order in which physical clusters get a new template or new overrides; all at once if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rollout: Option<Rollout>,
    /// Place in which the HorizontalPodAutoscalers of the objects scale. The most specific policy that sets it decides.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub autoscaling: Option<AutoscalingMode>,
    /// Priority among policies of one level; the highest decides.
    pub priority: i64,
    /// Proposal or bound.
    pub enforcement: Enforcement,
}

/// Place in which a HorizontalPodAutoscaler scales its target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum AutoscalingMode {
    /// A copy on each physical cluster of the target scales the copy of the target there.
    #[default]
    Local,
    /// The autoscaler stays upstream, and scales the target by the usage on all physical clusters together.
    Global,
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
    /// CEL over `object`, without its status.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub cel: String,
    /// Sync of the definition of custom resources to the physical clusters that the policy allows.
    #[serde(skip_serializing_if = "DefinitionSync::is_none")]
    pub definition: DefinitionSync,
}

/// Physical clusters that a policy allows. `exclude` wins.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClusterSelector {
    /// Labels of the physical cluster.
    #[serde(skip_serializing_if = "LabelSelectorSpec::is_empty")]
    pub selector: LabelSelectorSpec,
    /// CEL over `physicalCluster`, without its connection.
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
    /// Use of the further choices; only of `spec.clusters` itself.
    #[serde(skip_serializing_if = "FallbackMode::is_failover")]
    pub fallback_mode: FallbackMode,
}

/// Use of the further choices of a policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum FallbackMode {
    /// One group at a time: a further one while no physical cluster of those before it fits.
    #[default]
    Failover,
    /// All groups at once, in their order: a further one gets the replicas for which those before it have no room.
    Overflow,
}

impl FallbackMode {
    fn is_failover(&self) -> bool {
        *self == Self::Failover
    }
}

impl ClusterSelector {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Number of physical clusters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClusterCount {
    /// All that fit.
    All,
    /// This many; 0 keeps it from running.
    Exactly(u32),
}

impl Serialize for ClusterCount {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::All => serializer.serialize_str("All"),
            Self::Exactly(n) => serializer.serialize_u32(*n),
        }
    }
}

impl<'de> Deserialize<'de> for ClusterCount {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum CountForm {
            Number(u32),
            Text(String),
        }
        match CountForm::deserialize(deserializer)? {
            CountForm::Number(n) => Ok(Self::Exactly(n)),
            CountForm::Text(text) if text == "All" => Ok(Self::All),
            CountForm::Text(text) => {
                Err(serde::de::Error::custom(format!("count is a number or \"All\", not {text:?}")))
            }
        }
    }
}

/// Spread over values of a label.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TopologySpread {
    /// Label of physical clusters, such as `region`.
    pub topology_key: String,
    /// Largest difference between the number of chosen clusters per value; 1 when 0.
    pub max_skew: u32,
    /// Least number of values with a copy; with fewer, no copy is made. No minimum when 0.
    #[serde(skip_serializing_if = "is_none_asked")]
    pub min_groups: u32,
    /// Largest number of values with a copy; no maximum when 0.
    #[serde(skip_serializing_if = "is_none_asked")]
    pub max_groups: u32,
}

fn is_none_asked(n: &u32) -> bool {
    *n == 0
}

/// Other workloads of the namespace, and the extent within which they count as near.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct WorkloadTerm {
    /// Labels of the other workloads.
    pub selector: LabelSelectorSpec,
    /// Label of physical clusters, such as `region`: those of one value count as one. If empty, each physical cluster
    /// counts by itself.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub topology_key: String,
}

/// Parts of placement that are suspended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Suspension {
    /// True while nothing is decided: objects stay as they are, and new ones are not placed.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub scheduling: bool,
    /// True while nothing is sent to any physical cluster but deletions.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub dispatch: bool,
    /// Names of physical clusters to which nothing is sent but deletions.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub dispatch_on: Vec<String>,
}

impl Suspension {
    /// Returns true when nothing rests.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Distribution of replicas.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Replicas {
    /// Mode: duplicate or divide.
    pub mode: ReplicaMode,
    /// Measure by which replicas are divided.
    pub by: DivideBy,
    /// Weights for `Weight`; clusters that none matches have weight 1.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub weights: Vec<ClusterWeight>,
    /// Bounds of the replicas of a copy, for `Divide`; the first entry that matches its physical cluster counts.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub limits: Vec<ReplicaLimits>,
}

/// Bounds of the replicas of a copy on matching clusters.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ReplicaLimits {
    /// Labels of the physical cluster.
    #[serde(skip_serializing_if = "LabelSelectorSpec::is_empty")]
    pub selector: LabelSelectorSpec,
    /// Least replicas of a copy; a physical cluster for which fewer are left is not used.
    #[serde(skip_serializing_if = "is_none_asked")]
    pub min: u32,
    /// Most replicas of a copy; no limit if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max: Option<u32>,
}

/// Mode of the distribution of replicas.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum ReplicaMode {
    /// Each copy has all replicas.
    #[default]
    Duplicate,
    /// The copies share the replicas.
    Divide,
}

/// Measure by which replicas are divided.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum DivideBy {
    /// Equal parts; the rest goes to the first by name.
    #[default]
    Equal,
    /// Parts in proportion to weights.
    Weight,
    /// Parts in proportion to free capacity.
    Capacity,
}

/// Weight for matching clusters.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClusterWeight {
    /// Labels of the physical cluster.
    pub selector: LabelSelectorSpec,
    /// Its weight, from 0.
    pub weight: u32,
}

/// Change of the copies on certain clusters.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Override {
    /// Clusters that it is for; all if empty.
    #[serde(skip_serializing_if = "ClusterSelector::is_empty")]
    pub clusters: ClusterSelector,
    /// Registry that replaces that of every image, or is added to an image without one:
    /// `mirror.example:5000/hub`.
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
    /// View that the pods of the copy have: of their logical cluster when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod_view: Option<PodView>,
    /// JSON patch (RFC 6902) of the copy: of its labels, its annotations and all outside its metadata.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub patch: Vec<serde_json::Value>,
}

/// Enforcement of a policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Enforcement {
    /// Proposal: the most specific one decides as a whole.
    #[default]
    Default,
    /// Bound: all of them hold. Cluster sets are intersected, and `count` is a maximum.
    Constraint,
}

/// `status` of a policy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PlacementPolicyStatus {
    /// `Accepted` among them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<StatusCondition>,
    /// Number of objects it decides.
    pub matched: u64,
}

/// `spec` of a `Placement`: the placed object. Written by the server, derived from the record in the same transaction.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PlacementSpec {
    /// Placed object.
    pub object: ObjectReference,
}

/// Object in the same logical cluster and namespace.
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
    /// Copies.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub clusters: Vec<PlacementCopyStatus>,
    /// Winning policy; absent for the namespace's default decision.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<PolicyRef>,
    /// Number of clusters that were left out, by reason.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub rejected: BTreeMap<String, u32>,
    /// `Placed` among them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<StatusCondition>,
    /// Last ten changes, newest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub transitions: Vec<Transition>,
    /// `metadata.generation` of the object whose pods were admitted last: later ones are not synced. Absent if the
    /// object has no template, or has not been checked yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub admitted_generation: Option<i64>,
    /// Pods that are charged to the quotas of the namespace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pods: Option<ChargedPods>,
    /// Claims that are charged to the quotas of the namespace until they exist.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub claims: Vec<ChargedClaims>,
    /// Hash of the template whose pods were admitted last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub admitted_template: Option<String>,
    /// Condition that the next step waits for, in words; empty if there is no next step.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub waiting_for: String,
}

/// Pods of one template, as quotas count them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ChargedPods {
    /// Number of pods.
    pub count: i64,
    /// Usage of each, by the names of quotas.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub each: ResourceAmounts,
    /// Their class.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub priority_class_name: String,
    /// True if they end by themselves.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub terminating: bool,
    /// True if they request nothing.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub best_effort: bool,
    /// True if they have affinity to pods in other namespaces.
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
    /// Number of claims.
    pub count: i64,
    /// Usage of each, by the names of quotas.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub each: ResourceAmounts,
    /// Their class of attributes.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub volume_attributes_class_name: String,
}

impl ChargedClaims {
    /// Returns the prefix of the names of a set's claims, before the ordinal.
    pub fn prefix(&self, set: &str) -> String {
        format!("{}-{set}-", self.template)
    }

    /// Returns the claims that do not exist yet. Those in `names`, the claims of the namespace, are counted by
    /// themselves.
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

/// Copy in the status of a `Placement`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PlacementCopyStatus {
    /// Name of the physical cluster, for people.
    pub name: String,
    /// Uid of the `PhysicalCluster`, which distinguishes it from a later one of the same name.
    pub uid: String,
    /// `Active` or `Leaving`.
    pub phase: String,
    /// Replicas given to this copy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i64>,
    /// Ready replicas, or 1 for a synced object without any.
    pub ready: i64,
    /// Replicas that have been ready for `minReadySeconds`, if the kind distinguishes that from ready.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub available: Option<i64>,
    /// Desired replicas, if the kind counts them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub desired: Option<i64>,
    /// Replicas that have the present template, of an object whose policy has a rollout; 0 until the physical cluster
    /// has acted on it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub updated: Option<i64>,
    /// Number of load balancer addresses that the copy of a Service or Ingress has.
    #[serde(skip_serializing_if = "is_zero")]
    pub addresses: i64,
    /// Reason of a problem of the copy, if any.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Message about the problem, if any.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
}

/// Change of a placement.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Transition {
    /// RFC 3339.
    pub time: String,
    /// Names before, joined by `,`.
    pub from: String,
    /// Names after, joined by `,`.
    pub to: String,
    /// Cause of the change, in words.
    pub cause: String,
    /// Cause of the change in one word, such as `Policy` or `Drain`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Object that caused the change: `ClusterPlacementPolicy root:web`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub actor: String,
    /// Revision at which the actor was last changed.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub revision: String,
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
