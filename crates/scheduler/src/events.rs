//! Events about placements, for `kubectl describe`: one object per reason, overwritten when it happens again.

use portolan_store::{Expect, Write};
use portolan_types::{Record, Seams, note::Note};
use serde_json::Value;

use crate::commit::Change;

/// The Event of a change that a person should hear of: a place found, or none, a move, an end.
pub(crate) fn event(seams: &Seams, change: &Change, before: Option<&Value>, after: &Value) -> Option<Write> {
    change.decision?;
    let placed = |placement: Option<&Value>| {
        let conditions = placement?.pointer("/status/conditions")?.as_array()?;
        let placed = conditions.iter().find(|c| c["type"] == "Placed")?;
        Some((placed["reason"].as_str()?.to_owned(), placed["message"].as_str()?.to_owned()))
    };
    let (reason, message) = placed(Some(after))?;
    if placed(before).is_some_and(|(last, _)| last == reason) {
        return None;
    }
    let name = format!("placement-{}", reason.to_lowercase());
    let is_warning = !matches!(reason.as_str(), "Placed" | "Moving" | "Stopped" | "Finished");
    let note = Note { component: "portolan-scheduler", name: &name, is_warning, reason: &reason, message: &message };
    let (key, event) = note.about(seams, change.key, change.object)?;
    Some(Write { key, expect: Expect::Anything, record: Some(Record::of(&event)) })
}
