//! Rows of a plan.

use std::sync::Arc;

use portolan_types::{
    GroupVersionKind, ObjectKey, ResourceVersion, Uid,
    placement::{PlanCounts, ResourceAmounts},
};

/// Effect of changes on placements.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// Revision of the snapshot; `None` in a plan without a snapshot.
    pub revision: Option<ResourceVersion>,
    /// Hash of all moves, splits and refusals, in 20 hexadecimal digits.
    pub hash: String,
    /// Objects that would run on other physical clusters, by key.
    pub moves: Vec<PlanRow>,
    /// Objects whose replicas would be divided again over the same physical clusters, by key.
    pub splits: Vec<PlanRow>,
    /// Objects that would not be placed as wanted, by key. Those that are not now either, in the same way, are left
    /// out.
    pub refused: Vec<RefusedRow>,
    /// Physical clusters within reach of the changes.
    pub capacity: Vec<CapacityRow>,
    /// PodDisruptionBudgets that the moves would violate.
    pub budgets: Vec<BudgetRow>,
    /// Plan fences with their revisions in the snapshot; `None` where there is none yet. They reveal policies and
    /// physical clusters that were written, created or deleted since.
    pub fences: Vec<(ObjectKey, Option<ResourceVersion>)>,
}

impl Plan {
    /// Returns the numbers of rows.
    pub fn counts(&self) -> PlanCounts {
        let followers = self.moves.iter().filter(|row| row.follows).count() as u64;
        PlanCounts {
            moves: self.moves.len() as u64 - followers,
            followers,
            splits: self.splits.len() as u64,
            refused: self.refused.len() as u64,
        }
    }

    /// Returns the plan in one line: `3 objects would move, 1 would be refused; plan 6f3a…`.
    pub fn summary(&self) -> String {
        let PlanCounts { moves, followers, splits, refused } = self.counts();
        let mut parts = vec![match moves {
            1 => "1 object would move".to_owned(),
            moves => format!("{moves} objects would move"),
        }];
        let others = [(followers, "would follow"), (splits, "would be divided anew")];
        parts.extend(others.iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count} {what}")));
        parts.push(format!("{refused} would be refused"));
        format!("{}; plan {}", parts.join(", "), self.hash)
    }
}

/// Copy of an object in a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedPlace {
    /// Name of the physical cluster.
    pub name: String,
    /// Uid of the physical cluster.
    pub uid: Uid,
    /// Replicas of the copy; `None` for a kind without replicas.
    pub replicas: Option<i64>,
}

/// Object that would move, or whose replicas would be divided again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanRow {
    /// Key of the object.
    pub key: ObjectKey,
    /// Stored kind.
    pub kind: Arc<GroupVersionKind>,
    /// Copies before, by name.
    pub from: Vec<PlannedPlace>,
    /// Copies after, by name.
    pub to: Vec<PlannedPlace>,
    /// Reason in a few words.
    pub reason: String,
    /// True if it follows other objects.
    pub follows: bool,
}

impl PlanRow {
    /// Returns true if the physical clusters stay the same.
    pub(super) fn is_split(&self) -> bool {
        self.from.len() == self.to.len() && self.from.iter().zip(&self.to).all(|(from, to)| from.uid == to.uid)
    }

    /// Returns true if nothing changes.
    pub(super) fn is_nothing(&self) -> bool {
        self.from == self.to
    }
}

/// Object that would not be placed as wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedRow {
    /// Key of the object.
    pub key: ObjectKey,
    /// Stored kind.
    pub kind: Arc<GroupVersionKind>,
    /// Copies that stay, by name.
    pub stays: Vec<PlannedPlace>,
    /// Reason in one word.
    pub reason: &'static str,
    /// Reason in one sentence.
    pub message: String,
}

/// Requests on a physical cluster before and after.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CapacityRow {
    /// Key of the physical cluster.
    pub key: ObjectKey,
    /// Requests before.
    pub before: ResourceAmounts,
    /// Requests after.
    pub after: ResourceAmounts,
    /// Bounds after the changes.
    pub bounds: ResourceAmounts,
    /// Allocatable resources of its nodes.
    pub allocatable: ResourceAmounts,
}

/// PodDisruptionBudget that the moves would violate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BudgetRow {
    /// Key of the budget.
    pub key: ObjectKey,
    /// Pods that the moves would stop.
    pub disrupted: i64,
    /// Pods that the budget permits to stop.
    pub allowed: i64,
}
