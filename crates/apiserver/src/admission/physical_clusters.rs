//! Names of physical clusters: a new one must not hide one that its workspace inherits. An ancestor may still
//! register a name that a descendant already uses; then the nearest one hides the other, also for pins and policies.

use portolan_store::Expect;
use portolan_types::{ObjectKey, Status, object};

use crate::{commit::CommitError, errors::status_for, storage::StorageContext};

use super::pending_write::PendingWrite;

/// Refuses a new physical cluster whose name is used in an ancestor of its workspace.
///
/// # Errors 409 for such a name.
pub(super) async fn check_name(storage: &StorageContext, write: &mut PendingWrite<'_>) -> Result<(), CommitError> {
    let (request, commit) = (write.request, &mut *write.commit);
    for ancestor in storage.directory.lineage(request.cluster.id).iter().skip(1) {
        let key = ObjectKey { cluster: ancestor.id, ..commit.key.clone() };
        if storage.store.get(&key).await.map_err(|error| status_for(&error))?.is_some() {
            let taken = Status::already_exists(&request.kind.group_resource(), object::name(write.object));
            return Err(CommitError::Exists(taken));
        }
        commit.checks.push((key, Expect::Absent));
    }
    Ok(())
}
