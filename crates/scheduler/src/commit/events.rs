//! Events about placements, for `kubectl describe`: one object per reason, overwritten when it happens again.

use portolan_placement::{DecisionOutcome, PodRefusal, placed_condition};
use portolan_store::{Expect, Write};
use portolan_types::{Record, Seams, event_draft::EventDraft, object};
use serde_json::Value;

use crate::{commit::StepCommit, decide::scheduling_gates::SCHEDULING_GATED};

/// Returns the Event of a step that a user should know of: a placement, a failure, a move, an end.
pub(crate) fn placement_event(
    seams: &Seams,
    change: &StepCommit,
    before: Option<&Value>,
    after: &Value,
) -> Option<Write> {
    let outcome = &change.decision?.outcome;
    let (mut reason, message) = placed_condition(after)?;
    let mut message = message.to_owned();
    let is_refused = matches!(outcome, DecisionOutcome::Refused(_));
    let is_known =
        |(last, told): (&str, &str)| last == reason && (!is_refused || PodRefusal::is_same_message(told, &message));
    if before.and_then(placed_condition).is_some_and(is_known) {
        return None;
    }
    if let DecisionOutcome::Refused(refusal) = outcome {
        if refusal.reason == SCHEDULING_GATED && change.object["kind"] == "Pod" {
            // The owner of the gate knows why the Pod waits.
            return None;
        }
        (reason, message) = ("FailedCreate", failed_create(change.object, &refusal.message));
    }
    let name = format!("placement-{}", reason.to_lowercase());
    let is_warning = !matches!(reason, "Placed" | "Moving" | "RollingOut" | "Stopped" | "Finished");
    let note = EventDraft { component: "portolan-scheduler", name: &name, is_warning, reason, message: &message };
    let (key, event) = note.about(seams, change.key, change.object)?;
    Some(Write { key, expect: Expect::Anything, record: Some(Record::of(&event)) })
}

/// Returns the message of the Event `FailedCreate`, as the controller of the kind words it.
fn failed_create(owner: &Value, refusal: &str) -> String {
    let name = object::name(owner);
    match owner["kind"].as_str() {
        Some("StatefulSet") => format!("create Pod {name}-0 in StatefulSet {name} failed error: {refusal}"),
        _ => format!("Error creating: {refusal}"),
    }
}
