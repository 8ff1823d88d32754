//! Events about placements, for `kubectl describe`: one object per reason, overwritten when it happens again.

use portolan_placement::placed_condition;
use portolan_store::{Expect, Write};
use portolan_types::{Record, Seams, note::Note};
use serde_json::Value;

use crate::commit::Change;

/// The Event of a change that a person should hear of: a place found, or none, a move, an end.
pub(crate) fn event(seams: &Seams, change: &Change, before: Option<&Value>, after: &Value) -> Option<Write> {
    change.decision?;
    let (reason, message) = placed_condition(after)?;
    if before.and_then(placed_condition).is_some_and(|(last, _)| last == reason) {
        return None;
    }
    let name = format!("placement-{}", reason.to_lowercase());
    let is_warning = !matches!(reason, "Placed" | "Moving" | "Stopped" | "Finished");
    let note = Note { component: "portolan-scheduler", name: &name, is_warning, reason, message };
    let (key, event) = note.about(seams, change.key, change.object)?;
    Some(Write { key, expect: Expect::Anything, record: Some(Record::of(&event)) })
}
