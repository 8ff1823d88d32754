//! How much logical clusters may define.

use portolan_machinery::custom;
use portolan_store::RangeScope;
use portolan_types::{GroupResource, Status, object};
use serde_json::Value;

use crate::{
    ApiServer,
    config::Limits,
    objects::{Commit, CommitError},
};

use super::{
    Request, defined_names,
    room::{self, Growth, Room},
};

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
    let growth = Growth::of(definition, old);
    if !growth.is_any() {
        return Ok(());
    }
    Room::Definitions.enter(api, api.directory.tenant(request.cluster), commit).await?;
    let Limits { definitions: most, definition_bytes: room, .. } = api.config.limits;
    // What this server knows may be older than what another one on the same store has written.
    let all = RangeScope::Cluster(request.cluster.id, GroupResource::new(custom::GROUP, custom::RESOURCE));
    let (defined, stored) = room::stored(api, all).await?;
    let why = match old {
        None if defined >= most => Some(format!("a logical cluster has at most {most} definitions")),
        _ if growth.exceeds(stored, room) => {
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
