//! The limits of workspaces, as a commit is held to them.

use portolan_store::{Account, Excess, Transaction, Usage};
use portolan_types::{LogicalClusterId, ObjectKey, Status};

use crate::{
    ApiServer,
    directory::{MAX_BYTES, MAX_OBJECTS},
};

use super::commit::Entry;

/// Most that a workspace may store where neither it nor the command line says otherwise.
fn most(api: &ApiServer) -> Usage {
    let limits = &api.config.limits;
    Usage { objects: limits.workspace_objects, bytes: limits.workspace_bytes }
}

impl ApiServer {
    /// Returns the accounts of a logical cluster and its ancestors, which what is stored there counts for.
    pub fn accounts(&self, cluster: LogicalClusterId) -> Vec<Account> {
        self.directory.accounts(cluster, most(self))
    }
}

/// The accounts of all logical clusters that a transaction writes to, and of their ancestors.
pub(super) fn accounts(api: &ApiServer, transaction: &Transaction, entry: Option<&Entry>) -> Vec<Account> {
    let most = most(api);
    let mut accounts: Vec<Account> = entry.and_then(|entry| entry.newborn_account(most)).into_iter().collect();
    for write in &transaction.writes {
        let cluster = write.key.cluster;
        if cluster != LogicalClusterId::SYSTEM && !accounts.iter().any(|known| known.cluster == cluster) {
            let more = api.directory.accounts(cluster, most);
            accounts.extend(more);
        }
    }
    accounts.dedup_by_key(|account| account.cluster);
    accounts
}

/// 403 of a write that would have a workspace store more than it may.
pub(crate) fn over_limit(api: &ApiServer, key: &ObjectKey, cluster: LogicalClusterId, excess: Excess) -> Status {
    let path = api.directory.by_id(cluster).map_or_else(|| cluster.to_string(), |found| found.path.to_string());
    let why = match excess {
        Excess::Objects { held, most } => format!(
            "workspace {path:?} may store {most} objects with all workspaces below it ({MAX_OBJECTS}), and stores {held}"
        ),
        Excess::Bytes { held, wanted, most } => format!(
            "workspace {path:?} may store {most} bytes with all workspaces below it ({MAX_BYTES}), stores {held}, and would store {wanted}"
        ),
        Excess::Share { held, all } => format!(
            "the disk is nearly full, and workspace {path:?} stores {held} of the {all} bytes on it with all workspaces below it: what is \
             left is for others"
        ),
    };
    Status::forbidden(&key.resource, &key.name, why)
}
