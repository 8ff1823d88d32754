//! Names of physical clusters: a new one does not hide one that its workspace inherits. The other way round it may come to that, for
//! an ancestor does not know the names of its descendants: there the nearest one hides those of its name, for pins and policies, too.

use portolan_store::Expect;
use portolan_types::{ObjectKey, Status, object};
use serde_json::Value;

use crate::{
    ApiServer,
    errors::status_for,
    objects::{Commit, CommitError},
};

use super::Request;

/// Refuses a new physical cluster that has the name of one in an ancestor of its workspace.
///
/// # Errors
/// 409 for such a name.
pub(super) async fn check_name(
    api: &ApiServer,
    request: &Request<'_>,
    physical: &Value,
    commit: &mut Commit,
) -> Result<(), CommitError> {
    for ancestor in api.directory.lineage(request.cluster.id).iter().skip(1) {
        let key = ObjectKey { cluster: ancestor.id, ..commit.key.clone() };
        if api.store.get(&key).await.map_err(|error| status_for(&error))?.is_some() {
            let taken = Status::already_exists(&request.kind.group_resource(), object::name(physical));
            return Err(CommitError::Exists(taken));
        }
        commit.checks.push((key, Expect::Absent));
    }
    Ok(())
}
