//! Events about placements, for `kubectl describe`: one object per reason, overwritten when it happens again.

use portolan_placement::{Outcome, Refusal, placed_condition};
use portolan_store::{Expect, Write};
use portolan_types::{Record, Seams, note::Note, object};
use serde_json::Value;

use crate::{commit::Change, gates::SCHEDULING_GATED};

/// The Event of a change that a person should hear of: a place found, or none, a move, an end.
pub(crate) fn event(seams: &Seams, change: &Change, before: Option<&Value>, after: &Value) -> Option<Write> {
    let outcome = &change.decision?.outcome;
    let (mut reason, message) = placed_condition(after)?;
    let mut message = message.to_owned();
    let is_refused = matches!(outcome, Outcome::Refused(_));
    let is_known =
        |(last, told): (&str, &str)| last == reason && (!is_refused || Refusal::says_the_same(told, &message));
    if before.and_then(placed_condition).is_some_and(is_known) {
        return None;
    }
    if let Outcome::Refused(refusal) = outcome {
        if refusal.reason == SCHEDULING_GATED && change.object["kind"] == "Pod" {
            // It waits for somebody who knows why.
            return None;
        }
        (reason, message) = ("FailedCreate", failed_create(change.object, &refusal.message));
    }
    let name = format!("placement-{}", reason.to_lowercase());
    let is_warning = !matches!(reason, "Placed" | "Moving" | "Stopped" | "Finished");
    let note = Note { component: "portolan-scheduler", name: &name, is_warning, reason, message: &message };
    let (key, event) = note.about(seams, change.key, change.object)?;
    Some(Write { key, expect: Expect::Anything, record: Some(Record::of(&event)) })
}

/// As the controller of its kind says that it cannot make a pod.
fn failed_create(owner: &Value, refusal: &str) -> String {
    let name = object::name(owner);
    match owner["kind"].as_str() {
        Some("StatefulSet") => format!("create Pod {name}-0 in StatefulSet {name} failed error: {refusal}"),
        _ => format!("Error creating: {refusal}"),
    }
}
