//! `PlacementPlan`: changes, and their exact effect on placements. It is computed on request and never stored.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{GROUP, ResourceAmounts, Taint, WhenBlocked};
use crate::{GroupResource, LogicalClusterId, ObjectKey};

/// Most changes of one plan.
pub const MAX_PLAN_CHANGES: usize = 100;
/// Most objects that a plan decides about. A plan of more is refused.
pub const MAX_PLANNED_OBJECTS: usize = 100_000;
/// Rows that the status of a plan lists, if the request sets no limit.
pub const DEFAULT_PLAN_ROWS: usize = 500;
/// Most rows that the status of a plan lists.
pub const MAX_PLAN_ROWS: usize = 10_000;

/// Returns true for policies and physical clusters: placements depend on them.
pub fn is_plan_input(resource: &GroupResource) -> bool {
    let plural = &*resource.resource;
    *resource.group == *GROUP && matches!(plural, "placementpolicies" | "clusterplacementpolicies" | "physicalclusters")
}

/// Most logical clusters whose fences a plan reads. A plan about more depends on the fence of all.
pub const MAX_PLAN_FENCES: usize = 64;

/// Returns the key of the plan fence of a logical cluster, an object of Portolan's own bookkeeping. Each write of an
/// input of plans there through the API writes it too, and the one of [`LogicalClusterId::SYSTEM`], which is the fence
/// of all. So its revision shows that an input was written or created since a plan.
pub fn plan_fence(of: LogicalClusterId) -> ObjectKey {
    ObjectKey::cluster_scoped(of, plan_fences(), "plans".parse().expect("the name is a constant"))
}

/// Returns the resource of plan fences.
pub fn plan_fences() -> GroupResource {
    GroupResource::new("internal.portolan.dev", "planfences")
}

/// `spec` of a `PlacementPlan`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PlacementPlanSpec {
    /// Changes that are planned together, as if they were written in one transaction: 1 to [`MAX_PLAN_CHANGES`].
    pub changes: Vec<PlanChange>,
    /// Most rows in the status: 1 to [`MAX_PLAN_ROWS`], by default [`DEFAULT_PLAN_ROWS`]. Counts and hash are those of
    /// all rows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
}

/// Change of a plan: exactly one field is set, besides `when_blocked`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PlanChange {
    /// Policy or `PhysicalCluster` as it would be written: its labels and `spec` replace those of the stored one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub apply: Option<Value>,
    /// Policy or `PhysicalCluster` that would be deleted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delete: Option<PlanTarget>,
    /// Taint that would be added to a physical cluster, or removed from it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub taint: Option<PlanTaint>,
    /// Physical cluster that would be cordoned or uncordoned.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cordon: Option<PlanCordon>,
    /// Bounds that would replace those of a physical cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bounds: Option<PlanBounds>,
    /// Pin of an object or a namespace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pin: Option<PlanPin>,
    /// Names of physical clusters that would be lost: they do not answer, and every toleration of that has run out.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub lose: Vec<String>,
    /// Names of physical clusters that would be drained.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub drain: Vec<String>,
    /// `whenBlocked` of the drain, `Wait` if absent. Only `Force` plans other moves. It is set beside `drain` alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub when_blocked: Option<WhenBlocked>,
}

/// Object in the workspace of a plan.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PlanTarget {
    /// `portolan.dev/v1alpha1`.
    pub api_version: String,
    /// `ClusterPlacementPolicy`.
    pub kind: String,
    /// Namespace; empty at cluster scope.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// Name.
    pub name: String,
}

/// Change of one taint of a physical cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PlanTaint {
    /// Name of the physical cluster.
    pub cluster: String,
    /// The taint. It replaces one of the same key and effect.
    #[serde(flatten)]
    pub taint: Taint,
    /// True removes the taint of this key and effect.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub remove: bool,
}

/// Change of `spec.unschedulable` of a physical cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PlanCordon {
    /// Name of the physical cluster.
    pub cluster: String,
    /// False ends a cordon; true if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unschedulable: Option<bool>,
}

/// Change of `spec.bounds` of a physical cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PlanBounds {
    /// Name of the physical cluster.
    pub cluster: String,
    /// Bounds; empty removes them.
    pub bounds: ResourceAmounts,
}

/// Change of the annotation `portolan.dev/pin`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PlanPin {
    /// Object, or a `Namespace`.
    pub object: PlanTarget,
    /// Names of physical clusters; empty removes the pin.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub clusters: Vec<String>,
}

/// `status` of a `PlacementPlan`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PlacementPlanStatus {
    /// The plan in one line: `3 objects would move, 1 would be refused; plan 6f3a…`.
    pub summary: String,
    /// Hash of all moves, splits and refusals, also of those that are not listed; not of capacity or time.
    pub hash: String,
    /// resourceVersion of the snapshot that was read.
    pub resource_version: String,
    /// Counts of all rows, listed or not.
    pub counts: PlanCounts,
    /// Objects that would run on other physical clusters.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub moves: Vec<PlannedMove>,
    /// Objects whose replicas would be divided again over the same physical clusters.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub splits: Vec<PlannedMove>,
    /// Objects that would not be placed as wanted.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub refused: Vec<PlannedRefusal>,
    /// Counts of objects that the caller may not get: per workspace that the caller may see, and of all others in one
    /// entry without a workspace.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hidden: Vec<HiddenObjects>,
    /// Counts of rows that the limit left out.
    #[serde(skip_serializing_if = "PlanCounts::is_zero")]
    pub omitted: PlanCounts,
    /// Requests per physical cluster, before and after.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub capacity: Vec<PlannedCapacity>,
    /// PodDisruptionBudgets that the moves would violate.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub disruption_budgets: Vec<BudgetConflict>,
}

/// Numbers of rows of a plan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PlanCounts {
    /// Objects that would move by a decision of their own.
    pub moves: u64,
    /// Objects that would follow others.
    pub followers: u64,
    /// Objects whose replicas would be divided again.
    pub splits: u64,
    /// Objects that would not be placed as wanted.
    pub refused: u64,
}

impl PlanCounts {
    /// Returns true if all numbers are zero.
    pub fn is_zero(&self) -> bool {
        *self == Self::default()
    }
}

/// Object in a row of a plan.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PlannedObject {
    /// Path of its workspace.
    pub workspace: String,
    /// `apps/v1`.
    pub api_version: String,
    /// `Deployment`.
    pub kind: String,
    /// Namespace.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// Name.
    pub name: String,
}

/// Copy of an object in a plan.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PlannedCopy {
    /// Name of the physical cluster.
    pub cluster: String,
    /// Replicas of this copy; absent for a kind without replicas.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i64>,
}

/// Object that would move, or whose replicas would be divided again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PlannedMove {
    /// The object.
    pub object: PlannedObject,
    /// Copies before, by the names of physical clusters; empty if it is not placed.
    pub from: Vec<PlannedCopy>,
    /// Copies after; empty if it would end.
    pub to: Vec<PlannedCopy>,
    /// Reason: `by policy web-everywhere`, `by pin`, `follows what needs it`.
    pub reason: String,
    /// True if it follows other objects, false if it moves by a decision of its own.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub follows: bool,
}

/// Object that would not be placed as wanted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PlannedRefusal {
    /// The object.
    pub object: PlannedObject,
    /// Copies that stay.
    pub stays: Vec<PlannedCopy>,
    /// Reason in one word: `NoClusterFits`, `PartlyPlaced`, `MoveRefused` for the sake of volumes, `Held` because two
    /// must not run at once, `NotProvenGone`, `SchedulingSuspended`, `ExpressionFailed`, `Unreadable`.
    pub reason: String,
    /// Reason in one sentence.
    pub message: String,
}

/// Numbers of objects that the caller may not get.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct HiddenObjects {
    /// Path of the workspace; absent for those that the caller may not see.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub workspace: String,
    /// The numbers.
    pub counts: PlanCounts,
}

/// Requests on a physical cluster before and after a plan.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PlannedCapacity {
    /// Name of the physical cluster.
    pub cluster: String,
    /// Path of the workspace in which it is registered.
    pub workspace: String,
    /// Requests of all that is placed there, and the number of pods.
    pub before: ResourceAmounts,
    /// The same after all moves.
    pub after: ResourceAmounts,
    /// Bounds after the changes.
    #[serde(skip_serializing_if = "ResourceAmounts::is_empty")]
    pub bounds: ResourceAmounts,
    /// Allocatable resources of its nodes.
    #[serde(skip_serializing_if = "ResourceAmounts::is_empty")]
    pub allocatable: ResourceAmounts,
}

/// PodDisruptionBudget that permits fewer disruptions than the moves would cause. Only workloads that stop before they
/// start elsewhere disrupt their pods.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BudgetConflict {
    /// The budget.
    pub budget: PlannedObject,
    /// Pods that the moves would stop.
    pub disrupted: i64,
    /// Pods that the budget permits to stop.
    pub allowed: i64,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn changes_are_read_as_users_write_them() {
        let spec = json!({"changes": [
            {"taint": {"cluster": "east", "key": "maintenance", "effect": "NoExecute"}},
            {"pin": {"object": {"apiVersion": "apps/v1", "kind": "Deployment", "namespace": "shop", "name": "web"}, "clusters": ["west"]}},
            {"lose": ["east"]},
        ]});
        let read: PlacementPlanSpec = serde_json::from_value(spec.clone()).unwrap();
        let taint = read.changes[0].taint.as_ref().unwrap();
        assert_eq!((&*taint.cluster, &*taint.taint.effect, taint.remove), ("east", "NoExecute", false));
        assert_eq!(read.changes[2].lose, ["east"]);
        assert_eq!(read.limit, None);
        let written = serde_json::to_value(&read).unwrap();
        assert_eq!(written["changes"][1], spec["changes"][1]);
    }
}
