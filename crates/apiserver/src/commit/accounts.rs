//! Storage limits of workspaces, enforced by each commit.

use portolan_store::{AccountLimit, LimitExcess, StoredUsage, Transaction};
use portolan_types::{LogicalClusterId, ObjectKey, Status};

use crate::{
    directory::{Directory, MAX_BYTES_ANNOTATION, MAX_OBJECTS_ANNOTATION},
    limits::Limits,
};

use super::{CommitContext, DirectoryEntry};

/// Returns the default limits of a workspace.
pub(crate) fn default_limits(limits: &Limits) -> StoredUsage {
    StoredUsage { objects: limits.workspace_objects, bytes: limits.workspace_bytes }
}

/// Returns the accounts of all logical clusters that a transaction writes to, with their ancestors.
pub(super) fn accounts(
    context: &CommitContext,
    transaction: &Transaction,
    entry: Option<&DirectoryEntry>,
) -> Vec<AccountLimit> {
    let most = context.default_limits;
    let mut accounts: Vec<AccountLimit> = entry.and_then(|entry| entry.new_cluster_account(most)).into_iter().collect();
    for write in &transaction.writes {
        let cluster = write.key.cluster;
        if cluster != LogicalClusterId::SYSTEM && !accounts.iter().any(|known| known.cluster == cluster) {
            let more = context.storage.directory.accounts(cluster, most);
            accounts.extend(more);
        }
    }
    accounts.dedup_by_key(|account| account.cluster);
    accounts
}

/// Returns the 403 for a write that exceeds the storage limits of a workspace.
pub(crate) fn over_limit(
    directory: &Directory,
    key: &ObjectKey,
    cluster: LogicalClusterId,
    excess: LimitExcess,
) -> Status {
    let path = directory.by_id(cluster).map_or_else(|| cluster.to_string(), |found| found.path.to_string());
    let why = match excess {
        LimitExcess::Objects { held, most } => format!(
            "workspace {path:?} may store {most} objects with all workspaces below it ({MAX_OBJECTS_ANNOTATION}), and stores {held}"
        ),
        LimitExcess::Bytes { held, wanted, most } => format!(
            "workspace {path:?} may store {most} bytes with all workspaces below it ({MAX_BYTES_ANNOTATION}), stores {held}, and would store {wanted}"
        ),
        LimitExcess::Share { held, all } => format!(
            "the disk is nearly full, and workspace {path:?} stores {held} of the {all} bytes on it with all workspaces below it: what is \
             left is for others"
        ),
    };
    Status::forbidden(&key.resource, &key.name, why)
}
