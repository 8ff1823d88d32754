//! How much logical clusters may define, and that what is being undefined takes no new objects.

use portolan_types::{Status, object};
use serde_json::Value;

use crate::{
    ApiServer,
    config::Limits,
    objects::{Commit, CommitError},
};

use super::{Operation, Request, defined_names};

/// # Errors
/// 403 for new objects of a kind whose definition is being deleted.
pub(super) fn check_not_ending(request: &Request<'_>, object: &Value) -> Result<(), Status> {
    if !request.kind.is_ending || request.operation != Operation::Create {
        return Ok(());
    }
    let why = "create not allowed while custom resource definition is terminating";
    Err(Status::forbidden(&request.kind.group_resource(), object::name(object), why))
}

/// Remembers the name of a new definition in the same transaction.
///
/// # Errors
/// 403 when the logical cluster has too many definitions or too large ones, or its tenant had too many names.
pub(super) async fn furnish(
    api: &ApiServer,
    request: &Request<'_>,
    definition: &Value,
    old: Option<&Value>,
    commit: &mut Commit,
) -> Result<(), CommitError> {
    let Limits { definitions: most, definition_bytes: room, .. } = api.config.limits;
    let (defined, stored) = api.kinds.defined(request.cluster.id).await?;
    let why = match old {
        None if defined >= most => Some(format!("a logical cluster has at most {most} definitions")),
        _ if is_too_much(stored, definition, old, room) => {
            Some(format!("the definitions of a logical cluster have at most {room} bytes"))
        }
        None => defined_names::remember(api, request, object::name(definition), commit).await?,
        Some(_) => None,
    };
    match why {
        None => Ok(()),
        Some(why) => Err(Status::forbidden(&request.kind.group_resource(), object::name(definition), why).into()),
    }
}

/// Whether a definition grows beyond what there is room for. What is larger already may shrink.
fn is_too_much(stored: usize, definition: &Value, old: Option<&Value>, room: usize) -> bool {
    let (new, old) = (bytes(definition), old.map_or(0, bytes));
    new > old && stored.saturating_sub(old) + new > room
}

fn bytes(definition: &Value) -> usize {
    serde_json::to_vec(definition).map_or(0, |text| text.len())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn definitions_have_room_in_common() {
        const ROOM: usize = 100_000;
        let of = |bytes: usize| json!({"metadata": {"name": "x".repeat(bytes)}});
        let (small, large) = (of(1000), of(2000));
        for (case, stored, new, old, expected) in [
            ("there is room", 0, &large, None, false),
            ("there is none left", ROOM - 500, &small, None, true),
            ("one that grows may take all there is", ROOM - 1100, &large, Some(&small), false),
            ("but no more", ROOM - 500, &large, Some(&small), true),
            ("one that shrinks always may", 2 * ROOM, &small, Some(&large), false),
        ] {
            assert_eq!(is_too_much(stored, new, old, ROOM), expected, "{case}");
        }
    }
}
