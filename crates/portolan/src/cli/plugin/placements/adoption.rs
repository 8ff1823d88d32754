//! State of the adoption of an object by a physical cluster.

use portolan_types::placement::PlacementCopyStatus;
use serde_json::Value;

use super::{placed_condition, placement_of, preflight::PASSING, relocate::copies_of};
use crate::cli::plugin::{
    resources::ResourceType,
    session::{ApiSession, RequestError},
};

/// State of an adoption.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AdoptionState {
    /// The object has no decision of its own.
    Undecided,
    /// The copy is not synced yet.
    Waiting,
    /// The object fits nowhere or cannot be taken over, with the reason.
    Refused(String),
    /// The object on the physical cluster is the copy.
    Adopted,
}

/// Reads the state of an object that was created to adopt that of a physical cluster.
///
/// # Errors
/// A refusal.
pub(crate) async fn adoption_state(
    session: &ApiSession,
    of: &ResourceType,
    created: &Value,
    cluster: &str,
) -> Result<AdoptionState, RequestError> {
    Ok(state_of(&placement_of(session, of, created).await?, cluster))
}

fn state_of(placement: &Value, cluster: &str) -> AdoptionState {
    let copies = copies_of(placement);
    if let Some(copy) = copies.iter().find(|copy| copy.name == cluster) {
        return state_of_copy(copy);
    }
    let field = |name: &str| placed_condition(placement, name);
    match (field("status"), field("reason")) {
        ("", _) => AdoptionState::Undecided,
        ("False", reason) if !PASSING.contains(&reason) => {
            AdoptionState::Refused(format!("({reason}) {}", field("message")))
        }
        _ => AdoptionState::Waiting,
    }
}

fn state_of_copy(copy: &PlacementCopyStatus) -> AdoptionState {
    let is_seen = copy.desired.is_some() || copy.ready > 0;
    match copy.reason.as_str() {
        "" if copy.phase == "Active" && is_seen => AdoptionState::Adopted,
        "" => AdoptionState::Waiting,
        reason => AdoptionState::Refused(format!("({reason}) {}", copy.message)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_adoption_ends_with_the_copy_or_a_reason() {
        let placed = |status: &str, reason: &str| json!([{"type": "Placed", "status": status, "reason": reason, "message": "no"}]);
        let refused = |why: &str| AdoptionState::Refused(why.into());
        for (case, status, expected) in [
            ("no decision", json!({}), AdoptionState::Undecided),
            ("it is decided", json!({"conditions": placed("True", "Placed")}), AdoptionState::Waiting),
            ("it fits nowhere", json!({"conditions": placed("False", "NoClusterFits")}), refused("(NoClusterFits) no")),
            ("it waits", json!({"conditions": placed("False", "Held")}), AdoptionState::Waiting),
            (
                "the copy is not seen",
                json!({"clusters": [{"name": "east", "phase": "Active"}]}),
                AdoptionState::Waiting,
            ),
            (
                "it is the copy",
                json!({"clusters": [{"name": "east", "phase": "Active", "desired": 2, "ready": 0}]}),
                AdoptionState::Adopted,
            ),
            (
                "fields differ",
                json!({"clusters": [{"name": "east", "phase": "Active", "reason": "Conflict", "message": "differs"}]}),
                refused("(Conflict) differs"),
            ),
            (
                "another cluster",
                json!({"clusters": [{"name": "west", "phase": "Active", "ready": 1}]}),
                AdoptionState::Undecided,
            ),
        ] {
            assert_eq!(state_of(&json!({"status": status}), "east"), expected, "{case}");
        }
    }
}
