//! `Drain`: physical clusters that are emptied in small groups, with a row per object; and the mark that it leaves on
//! the record of each object that it moves.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{DivisionBasis, StatusCondition};
use crate::names::Uid;

/// Most physical clusters of one `Drain`.
pub const MAX_DRAINED_CLUSTERS: usize = 16;
/// Most objects that a `Drain` may move at once.
pub const MAX_MOVING: u32 = 1_000;
/// Default number of objects that a `Drain` moves at once.
pub const DEFAULT_MAX_MOVING: u32 = 5;
/// Replicas that a `Drain` may make unavailable if its budget does not say.
pub const DEFAULT_MAX_UNAVAILABLE: u32 = 1;
/// Most rows in the status of a `Drain`. [`DrainCounts`] has the numbers of all objects.
pub const MAX_DRAIN_ROWS: usize = 100;
/// Most objects that the report of a `Drain` names in each of its lists.
pub const MAX_REPORTED: usize = 100;

/// Most marks of earlier `Drain`s that an object keeps.
pub const MAX_EARLIER_MARKS: usize = 4;

/// `spec` of a `Drain`. Cluster-scoped, in the workspace where the physical clusters are registered.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DrainSpec {
    /// Names of the physical clusters; immutable, 1 to [`MAX_DRAINED_CLUSTERS`].
    pub physical_clusters: Vec<String>,
    /// Limits on concurrent moves.
    #[serde(skip_serializing_if = "DrainBudget::is_default")]
    pub budget: DrainBudget,
    /// Treatment of objects that cannot move.
    pub when_blocked: WhenBlocked,
    /// True to start no further move. A `Drain` that is created paused shows its plan and starts nothing.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub paused: bool,
    /// True to end it: moves under way finish, and nothing else moves. Stays true.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub abort: bool,
    /// True to return all objects that it moved to the splits of before. Stays true.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub undo: bool,
    /// Hash of the plan that it must start with; any if empty.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub expect_plan: String,
}

/// Limits on the concurrent moves of a `Drain`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DrainBudget {
    /// Most replicas that were available when their object began to move, and are not now, over all moving objects;
    /// [`DEFAULT_MAX_UNAVAILABLE`] if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_unavailable: Option<u32>,
    /// Most objects that move at once, 1 to [`MAX_MOVING`]; [`DEFAULT_MAX_MOVING`] if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_moving: Option<u32>,
}

impl DrainBudget {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// Returns the limit of unavailable replicas.
    pub fn max_unavailable(&self) -> u32 {
        self.max_unavailable.unwrap_or(DEFAULT_MAX_UNAVAILABLE)
    }

    /// Returns the limit of moving objects.
    pub fn max_moving(&self) -> u32 {
        self.max_moving.unwrap_or(DEFAULT_MAX_MOVING).clamp(1, MAX_MOVING)
    }
}

/// Treatment of objects that cannot move.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum WhenBlocked {
    /// The drain waits for them: it does not complete while one is left.
    #[default]
    Wait,
    /// They stay, and the drain completes without them.
    Skip,
    /// Objects with volumes start on new, empty ones; started Jobs start again; objects that must not run twice move
    /// although the budget does not allow it. Objects that have no other place stay.
    Force,
}

/// `status` of a `Drain`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DrainStatus {
    /// Phase.
    pub phase: DrainPhase,
    /// `metadata.generation` that it was written for.
    #[serde(skip_serializing_if = "is_zero")]
    pub observed_generation: i64,
    /// `Accepted`, and `Blocked` once it has started.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<StatusCondition>,
    /// Physical clusters as they were when it started.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub clusters: Vec<DrainedCluster>,
    /// Plan that it started with, or would start with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub plan: Option<DrainPlan>,
    /// RFC 3339; absent until it starts. From then on its physical clusters take nothing new, unless it is aborted or
    /// undone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_time: Option<String>,
    /// RFC 3339; absent until it is completed, aborted or undone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completion_time: Option<String>,
    /// RFC 3339, estimated from the moves so far; absent while nothing is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub estimated_completion_time: Option<String>,
    /// Numbers of all objects by state.
    pub counts: DrainCounts,
    /// Replicas that were available when their object began to move, and are not now.
    pub unavailable_replicas: i64,
    /// Objects, those that need attention first; at most [`MAX_DRAIN_ROWS`].
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub objects: Vec<DrainRow>,
    /// Number of objects without a row.
    #[serde(skip_serializing_if = "is_zero")]
    pub objects_omitted: i64,
    /// Report, complete at its end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub report: Option<DrainReport>,
}

/// Phase of a `Drain`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum DrainPhase {
    /// It has not started: it is paused, refused, or new.
    #[default]
    Planned,
    /// Objects move, back if it is undone.
    Running,
    /// It starts no move.
    Paused,
    /// All objects that are left cannot move.
    Blocked,
    /// Nothing is left to be moved. Its physical clusters take nothing new while it exists.
    Completed,
    /// It was ended before it completed.
    Aborted,
    /// All objects that could be returned are back.
    Undone,
}

impl DrainPhase {
    /// All phases.
    pub const ALL: [Self; 7] =
        [Self::Planned, Self::Running, Self::Paused, Self::Blocked, Self::Completed, Self::Aborted, Self::Undone];

    /// Returns true for a drain that has started and not ended.
    pub fn is_active(self) -> bool {
        matches!(self, Self::Running | Self::Paused | Self::Blocked)
    }

    /// Returns the word of the phase.
    pub fn word(self) -> &'static str {
        match self {
            Self::Planned => "Planned",
            Self::Running => "Running",
            Self::Paused => "Paused",
            Self::Blocked => "Blocked",
            Self::Completed => "Completed",
            Self::Aborted => "Aborted",
            Self::Undone => "Undone",
        }
    }
}

/// Physical cluster of a `Drain`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DrainedCluster {
    /// Name.
    pub name: String,
    /// Uid: another physical cluster of the same name is not drained.
    pub uid: Uid,
}

/// Plan of a `Drain`, in numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DrainPlan {
    /// Hash of the moves, splits and refusals, for `spec.expectPlan`.
    pub hash: String,
    /// Objects that would move.
    pub moves: i64,
    /// Objects that cannot move.
    pub refused: i64,
    /// RFC 3339 time at which it was computed.
    pub time: String,
}

/// Numbers of the objects of a `Drain` by state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DrainCounts {
    /// All of them.
    pub total: i64,
    /// Those that wait for the budget.
    pub pending: i64,
    /// Those under way, to another physical cluster or back.
    pub moving: i64,
    /// Those that have left.
    pub moved: i64,
    /// Those that cannot move.
    pub blocked: i64,
    /// Those that cannot move and are left there.
    pub skipped: i64,
    /// Those that are back where they were before.
    pub restored: i64,
    /// Those that cannot go back, because something has changed since.
    pub changed: i64,
}

/// State of an object in a `Drain`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum DrainRowState {
    /// Cannot move.
    Blocked,
    /// Cannot go back.
    Changed,
    /// On its way to other physical clusters.
    Moving,
    /// On its way back.
    Returning,
    /// Waits for the budget.
    #[default]
    Pending,
    /// Cannot move, and is left where it is.
    Skipped,
    /// Has left.
    Moved,
    /// Is back where it was before.
    Restored,
}

/// Object of a `Drain`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DrainRow {
    /// Path of its workspace.
    pub workspace: String,
    /// Its namespace.
    pub namespace: String,
    /// Its resource: `deployments.apps`.
    pub resource: String,
    /// Its name.
    pub name: String,
    /// State.
    pub state: DrainRowState,
    /// Split before, as `east=3,west=2`; names only where the replicas are not divided.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub from: String,
    /// Present split.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub to: String,
    /// Reason in one word, where it is blocked, changed or skipped.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Sentence about the condition that it waits for.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// RFC 3339 time at which its move began.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub since: String,
}

/// Report of a `Drain`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DrainReport {
    /// One sentence; empty until it ends.
    pub summary: String,
    /// Seconds from start to end.
    pub seconds: i64,
    /// Most unavailable replicas that were seen at once.
    pub most_unavailable: i64,
    /// Objects that stay on the physical clusters, by resource, those that follow others included.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub left: BTreeMap<String, i64>,
    /// Revision at which `left` was read.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub revision: String,
    /// Objects that were not moved or not returned; at most [`MAX_REPORTED`].
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub exceptions: Vec<DrainRow>,
}

/// Progress of the drain of a physical cluster, in its status.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DrainProgress {
    /// Name of the `Drain`.
    pub name: String,
    /// Its phase.
    pub phase: DrainPhase,
    /// Objects that have left.
    pub done: i64,
    /// All of its objects.
    pub total: i64,
}

/// Mark of a `Drain` on the record of an object that it moves or has moved. The server keeps it until the `Drain` is
/// undone or deleted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DrainMark {
    /// Text form of the id of the logical cluster that has the `Drain`.
    pub cluster: String,
    /// Path of that logical cluster, for people.
    pub home: String,
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: Uid,
    /// Stage of the move.
    pub stage: DrainStage,
    /// Physical clusters that the object leaves.
    pub from: Vec<Uid>,
    /// True if the object moves although it would be held.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub force: bool,
    /// Seconds since the epoch at which the stage began.
    pub since: i64,
    /// Available replicas when the move began.
    pub available: i64,
    /// Replicas that the move makes unavailable for a while, because the object must not run twice.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub downtime: i64,
    /// Split before the move.
    pub before: Vec<RecordedCopy>,
    /// Basis of the division before the move.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub divided_by: Option<DivisionBasis>,
    /// Split after the move, once it has ended.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub after: Vec<RecordedCopy>,
    /// Mark of the `Drain` that had moved the object before, which this one replaces. The chain has at most
    /// [`MAX_EARLIER_MARKS`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub earlier: Option<Box<DrainMark>>,
}

/// Stage of the move of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum DrainStage {
    /// It leaves the drained physical clusters.
    Leaving,
    /// It has left them.
    Left,
    /// It returns to the split of before.
    Returning,
    /// It is back.
    Returned,
}

impl DrainMark {
    /// Returns the mark, followed by the mark of an earlier `Drain`. An earlier mark of the same `Drain` is replaced,
    /// and the marks behind it stay. Marks beyond [`MAX_EARLIER_MARKS`] are dropped.
    #[must_use]
    pub fn replacing(mut self, earlier: Option<Box<Self>>) -> Self {
        self.earlier = match earlier {
            Some(own) if own.uid == self.uid => own.earlier,
            earlier => earlier,
        };
        let mut last = &mut self.earlier;
        for _ in 0..MAX_EARLIER_MARKS {
            let Some(mark) = last else { break };
            last = &mut mark.earlier;
        }
        *last = None;
        self
    }

    /// Returns the marks of earlier `Drain`s, the latest first.
    pub fn all_earlier(&self) -> impl Iterator<Item = &Self> {
        std::iter::successors(self.earlier.as_deref(), |mark| mark.earlier.as_deref())
    }

    /// Returns true if the object leaves a physical cluster now.
    pub fn leaves(&self, physical: &Uid) -> bool {
        self.stage == DrainStage::Leaving && self.from.contains(physical)
    }

    /// Returns true while the object is under way, to other physical clusters or back.
    pub fn is_moving(&self) -> bool {
        matches!(self.stage, DrainStage::Leaving | DrainStage::Returning)
    }

    /// Returns the title of the `Drain`, as in `Drain root:west`.
    pub fn title(&self) -> String {
        format!("Drain {}:{}", self.home, self.name)
    }
}

/// Copy in a recorded split.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct RecordedCopy {
    /// Name of the physical cluster, for people.
    pub name: String,
    /// Its uid.
    pub uid: Uid,
    /// Replicas, if they are divided.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i64>,
}

fn is_zero(n: &i64) -> bool {
    *n == 0
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_empty_budget_has_defaults() {
        for (case, budget, unavailable, moving) in [
            ("none", json!({}), 1, 5),
            ("nothing at once is one at a time", json!({"maxMoving": 0, "maxUnavailable": 0}), 0, 1),
            ("numbers", json!({"maxMoving": 7, "maxUnavailable": 3}), 3, 7),
            ("absurd ones are bounded", json!({"maxMoving": 4_000_000_000_u32}), 1, MAX_MOVING),
        ] {
            let budget: DrainBudget = serde_json::from_value(budget).unwrap();
            assert_eq!((budget.max_unavailable(), budget.max_moving()), (unavailable, moving), "{case}");
        }
    }

    #[test]
    fn a_drain_that_marks_again_keeps_the_marks_of_earlier_ones() {
        let mark = |uid: &str| -> DrainMark {
            serde_json::from_value(json!({
                "cluster": "1", "uid": uid, "home": "root", "name": uid, "stage": "Left", "from": [], "since": 0, "available": 0, "before": [],
            }))
            .unwrap()
        };
        let second = mark("second").replacing(Some(Box::new(mark("first"))));
        let again = mark("second").replacing(Some(Box::new(second)));
        let earlier: Vec<&str> = again.all_earlier().map(|mark| mark.name.as_str()).collect();
        assert_eq!(earlier, ["first"]);
    }

    #[test]
    fn the_words_of_phases_are_those_of_the_api() {
        for phase in DrainPhase::ALL {
            assert_eq!(json!(phase), phase.word());
        }
    }
}
