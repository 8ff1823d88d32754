//! Links of accounts to the parents of their logical clusters.

use parking_lot::Mutex;
use portolan_types::LogicalClusterId;

use super::{ENTRIES_PER_BATCH, stored_account};
use crate::{
    api::{AccountLimit, StoreError, StoredUsage},
    engine::KvView,
};

/// Queue of logical clusters to link to their parents, filled by callers of the store and emptied by the committer.
#[derive(Default)]
pub(crate) struct PendingLinks(Mutex<Vec<AccountLimit>>);

impl PendingLinks {
    /// Adds a link, and returns true if the queue was empty.
    pub(crate) fn add(&self, cluster: LogicalClusterId, parent: LogicalClusterId) -> bool {
        let most = StoredUsage { objects: u64::MAX, bytes: u64::MAX };
        let mut links = self.0.lock();
        links.push(AccountLimit { cluster, parent: Some(parent), most });
        links.len() == 1
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }

    /// Takes the links of one batch.
    pub(crate) fn take(&self) -> Vec<AccountLimit> {
        let mut links = self.0.lock();
        let rest = links.len().saturating_sub(ENTRIES_PER_BATCH);
        links.split_off(rest)
    }
}

/// Returns true if a logical cluster has an account without a parent.
pub(crate) fn lacks_parent(view: &dyn KvView, cluster: LogicalClusterId) -> Result<bool, StoreError> {
    Ok(stored_account(view, cluster)?.is_some_and(|entry| entry.parent.is_none()))
}
