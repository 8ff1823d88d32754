//! Moves as a policy sets them: their pace, the treatment of volumes, and the stages of a rollout.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::{labels::LabelSelectorSpec, names::Uid};

/// Pace of the moves of objects that may run twice. The deciding policy's counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MovePace {
    /// Seconds between the withdrawal of the addresses of a leaving copy and its end, from 0 to 86,400; 30 if absent.
    pub address_grace_period_seconds: u32,
    /// Seconds after which a move that does not get available is taken back, up to 604,800; 600 if absent, 0 is never.
    pub timeout_seconds: u32,
}

impl Default for MovePace {
    fn default() -> Self {
        Self { address_grace_period_seconds: 30, timeout_seconds: 600 }
    }
}

impl MovePace {
    /// Longest grace period of addresses, in seconds.
    pub const MAX_GRACE_SECONDS: u32 = 86_400;
    /// Longest time-out of a move, in seconds.
    pub const MAX_TIMEOUT_SECONDS: u32 = 604_800;

    pub(super) fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// Returns the pace within its bounds.
    #[must_use]
    pub fn bounded(self) -> Self {
        Self {
            address_grace_period_seconds: self.address_grace_period_seconds.min(Self::MAX_GRACE_SECONDS),
            timeout_seconds: self.timeout_seconds.min(Self::MAX_TIMEOUT_SECONDS),
        }
    }
}

/// Treatment of the data of objects on volumes that only one node can write. The deciding policy's counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeMoves {
    /// Strategy.
    pub strategy: VolumeStrategy,
}

impl VolumeMoves {
    pub(super) fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// Treatment of data on volumes when their object moves. A claim says its own by the annotation
/// `portolan.dev/volume-strategy`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum VolumeStrategy {
    /// The object does not move.
    #[default]
    Refuse,
    /// The data are abandoned: the object starts on new, empty volumes.
    Recreate,
    /// Claims of a StorageClass that is declared shared have their data everywhere. Others refuse the move.
    Shared,
}

impl VolumeStrategy {
    /// Reads the name of a strategy.
    pub fn parse(name: &str) -> Option<Self> {
        match name {
            "Refuse" => Some(Self::Refuse),
            "Recreate" => Some(Self::Recreate),
            "Shared" => Some(Self::Shared),
            _ => None,
        }
    }
}

/// Order in which physical clusters get a new template, or new overrides.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Rollout {
    /// Stages, in order; at most [`Rollout::MAX_STAGES`]. Physical clusters in no stage come last.
    pub stages: Vec<RolloutStage>,
    /// Seconds after which a stage that does not get available stops the rollout, up to
    /// [`MovePace::MAX_TIMEOUT_SECONDS`]; 600 if absent, 0 is never.
    pub timeout_seconds: u32,
}

impl Default for Rollout {
    fn default() -> Self {
        Self { stages: Vec::new(), timeout_seconds: 600 }
    }
}

impl Rollout {
    /// Most stages.
    pub const MAX_STAGES: usize = 16;
}

/// Stage of a rollout.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RolloutStage {
    /// Name, for approvals and conditions.
    pub name: String,
    /// Names of physical clusters.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub names: Vec<String>,
    /// Labels of physical clusters; all of them if neither this nor `names` is there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<LabelSelectorSpec>,
    /// Percentage of these, rounded up, the first by name; all if absent. 1 to 100.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub percent: Option<u32>,
    /// Seconds for which the stage has to stay available before the next one begins, up to
    /// [`MovePace::MAX_TIMEOUT_SECONDS`].
    #[serde(skip_serializing_if = "is_zero")]
    pub wait_seconds: u32,
    /// True if the next stage begins only after an approval.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub approval: bool,
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// Rollout of a template and its overrides, in the record of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RolloutState {
    /// Fingerprint of the template and the overrides.
    pub revision: String,
    /// Number of the stage; the number of stages once all others have it.
    #[serde(skip_serializing_if = "is_first")]
    pub stage: usize,
    /// Seconds since the epoch at which the stage began.
    pub since: i64,
    /// Seconds since the epoch since when all copies that have it are available.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub available_since: Option<i64>,
    /// Physical clusters that get no change yet.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub held: BTreeSet<Uid>,
    /// True once a stage did not get available in time. It continues only after an approval.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub stopped: bool,
}

fn is_first(stage: &usize) -> bool {
    *stage == 0
}
