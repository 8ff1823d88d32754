//! Drains: physical clusters are emptied in small groups, within a budget.
//!
//! A [`Drain`](portolan_types::placement::DrainSpec) is reconciled in passes. A pass reads the objects on its physical
//! clusters and those that it has marked, and writes only marks and the status:
//!
//! 1. `registry` keeps the drains and their marks in memory; both follow from events.
//! 2. `preview` asks the planner if an object that is still there can leave.
//! 3. `budget` admits as many as may move. A [`DrainMark`] on the record of an object admits it; its own reconcile then
//!    takes the legal steps, as for any other move.
//! 4. `progress` detects when the move is complete: the copies are gone, and as many replicas are available as before.
//! 5. `status` writes phase, counts and rows.
//!
//! The mark records the split before the drain. An undo restores it (`returns`) if the planner would keep it, and
//! reports the other objects. All state is in marks and status, so a new leader can continue.

mod budget;
pub(crate) mod deletion;
mod objects;
mod outcome;
mod pass;
mod preview;
mod progress;
mod reconcile;
mod returns;
mod rows;
mod scan;
mod status;
mod tally;
mod undo;

pub(crate) mod events;
pub(crate) mod marks;
pub(crate) mod registry;
pub(crate) mod warnings;

use portolan_types::{ObjectKey, placement::DrainMark};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::kinds;

pub(crate) use self::{
    preview::{NO_ROOM, VerdictCache, lacks_room},
    reconcile::reconcile_drain,
    returns::{adjust_to_mark, workload_under_mark},
    scan::DrainScans,
    status::{seconds_of, set_progress, time_text},
};

/// Returns the key of the drain that made a mark; `None` if the mark names none.
pub(crate) fn drain_key(mark: &DrainMark) -> Option<ObjectKey> {
    Some(ObjectKey::cluster_scoped(mark.cluster.parse().ok()?, kinds::drains(), mark.name.parse().ok()?))
}

/// Returns a part of an object; its default if it cannot be read.
fn part<T: DeserializeOwned + Default>(object: &Value, key: &str) -> T {
    object.get(key).cloned().and_then(|value| serde_json::from_value(value).ok()).unwrap_or_default()
}
