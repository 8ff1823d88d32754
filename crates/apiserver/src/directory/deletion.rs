//! Deletion of a logical cluster: it ends when its Workspace is deleted, after its terminators.

use std::sync::Arc;

use portolan_store::{Expect, StoreError, Transaction, Write};
use portolan_types::{LogicalClusterId, object};
use serde_json::Value;

use super::{ClusterPhase, Directory, LogicalCluster, key_of, record};

impl Directory {
    /// Begins the deletion of a logical cluster. Returns true once its content may be deleted: all its terminators have
    /// ended, or it is gone.
    ///
    /// # Errors
    /// Failure of the store.
    pub async fn begin_deletion(&self, id: LogicalClusterId, now: &str) -> Result<bool, StoreError> {
        let Some((current, expect)) = self.latest(id).await? else { return Ok(true) };
        let Some(ended) = current.begun_deletion(now) else { return Ok(current.is_deleting()) };
        self.change(&ended, expect).await?;
        Ok(ended.is_deleting())
    }

    /// Marks a logical cluster whose Workspace is missing as being deleted: its terminators are skipped.
    ///
    /// # Errors
    /// Failure of the store.
    pub async fn mark_deleting(&self, id: LogicalClusterId) -> Result<(), StoreError> {
        let Some((current, expect)) = self.latest(id).await? else { return Ok(()) };
        if current.is_deleting() {
            return Ok(());
        }
        let marked = LogicalCluster { phase: ClusterPhase::Deleting, ..current };
        self.change(&marked, expect).await
    }

    /// Returns an entry as stored. A damaged one is replaced by that in memory, so that damage holds no deletion.
    pub(crate) async fn latest(&self, id: LogicalClusterId) -> Result<Option<(LogicalCluster, Expect)>, StoreError> {
        let in_memory = || self.by_id(id).map(|known| (LogicalCluster::clone(&known), Expect::Present));
        match self.store.get(&key_of(id)).await {
            Ok(None) => Ok(None),
            Ok(Some(stored)) => match record::read(&stored) {
                Ok(current) => Ok(Some((current, Expect::At(stored.revision)))),
                Err(_) => Ok(in_memory()),
            },
            Err(StoreError::Damaged { .. }) => Ok(in_memory()),
            Err(error) => Err(error),
        }
    }

    async fn change(&self, changed: &LogicalCluster, expect: Expect) -> Result<(), StoreError> {
        let write = Self::write_of(changed, expect);
        self.store.commit(Transaction { writes: vec![write], ..Transaction::default() }).await?;
        self.insert(changed.clone());
        Ok(())
    }

    /// Returns the logical cluster of a Workspace in `parent`, as this server knows it; `None` if it is of another
    /// Workspace.
    pub(crate) fn child(&self, parent: LogicalClusterId, workspace: &Value) -> Option<Arc<LogicalCluster>> {
        self.by_id(cluster_of(workspace)?).filter(|found| found.is_of(parent, workspace))
    }

    /// Returns the logical cluster of a Workspace in `parent`, as stored; `None` if it is gone, or of another
    /// Workspace. A damaged entry is taken for the Workspace's own.
    ///
    /// # Errors
    /// Failure of the store.
    pub async fn stored_child(
        &self,
        parent: LogicalClusterId,
        workspace: &Value,
    ) -> Result<Option<LogicalClusterId>, StoreError> {
        let Some(id) = cluster_of(workspace) else { return Ok(None) };
        match self.store.get(&key_of(id)).await {
            Ok(None) => Ok(None),
            Ok(Some(stored)) => {
                let is_own = record::read(&stored).map_or(true, |found| found.is_of(parent, workspace));
                Ok(is_own.then_some(id))
            }
            Err(StoreError::Damaged { .. }) => Ok(Some(id)),
            Err(error) => Err(error),
        }
    }

    /// Returns the write that begins the deletion of a logical cluster, and the entry to insert after it; `None` if it
    /// has begun.
    pub(crate) fn marking(&self, id: LogicalClusterId, now: &str) -> Option<(LogicalCluster, Write)> {
        let marked = self.by_id(id)?.begun_deletion(now)?;
        let write = Self::write_of(&marked, Expect::Present);
        Some((marked, write))
    }

    /// Returns the write of a changed entry.
    pub(crate) fn write_of(changed: &LogicalCluster, expect: Expect) -> Write {
        Write { key: key_of(changed.id), expect, record: Some(record::of(changed)) }
    }
}

impl LogicalCluster {
    /// Returns true if the logical cluster belongs to a Workspace in `parent`: `spec.cluster` alone could name another
    /// tenant's.
    pub(crate) fn is_of(&self, parent: LogicalClusterId, workspace: &Value) -> bool {
        self.parent == Some(parent) && self.workspace.is_some() && self.workspace == object::uid(workspace)
    }
}

fn cluster_of(workspace: &Value) -> Option<LogicalClusterId> {
    workspace.pointer("/spec/cluster")?.as_str()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use portolan_types::{Seams, Uid};
    use serde_json::json;

    use crate::directory::{ClusterLifecycle, ClusterOwner, ClusterTemplate, WorkspaceLimits, prepare_cluster};

    use super::*;

    const OWN: LogicalClusterId = LogicalClusterId::new(7);

    /// Directory with the logical cluster [`OWN`] of the Workspace `u-1` in root.
    async fn directory() -> Directory {
        let store = portolan_store::memory();
        let owner = ClusterOwner {
            parent: LogicalClusterId::ROOT,
            workspace: Some("u-1".parse::<Uid>().unwrap()),
            limits: WorkspaceLimits::default(),
            lifecycle: ClusterLifecycle::default(),
        };
        let template = ClusterTemplate::new(&Seams::system(), None).unwrap();
        let born = prepare_cluster(OWN, "root:a".parse().unwrap(), Some(owner), &template);
        store.commit(Transaction { writes: born.writes, ..Transaction::default() }).await.unwrap();
        Directory::load(store).await.unwrap()
    }

    #[tokio::test]
    async fn a_workspace_has_no_logical_cluster_but_its_own() {
        let directory = directory().await;
        let workspace =
            |uid: &str, id: LogicalClusterId| json!({"metadata": {"uid": uid}, "spec": {"cluster": id.to_string()}});
        let (root, other) = (LogicalClusterId::ROOT, LogicalClusterId::new(8));
        for (case, parent, workspace, expected) in [
            ("its own", root, workspace("u-1", OWN), Some(OWN)),
            ("that of another Workspace", root, workspace("u-2", OWN), None),
            ("that of a Workspace elsewhere", other, workspace("u-1", OWN), None),
            ("root", root, workspace("u-1", root), None),
            ("one that is gone", root, workspace("u-1", other), None),
            ("none", root, json!({"metadata": {"uid": "u-1"}, "spec": {}}), None),
        ] {
            assert_eq!(directory.child(parent, &workspace).map(|found| found.id), expected, "{case}");
            assert_eq!(directory.stored_child(parent, &workspace).await.unwrap(), expected, "{case}");
        }
    }

    #[tokio::test]
    async fn a_deletion_begins_once() {
        let directory = directory().await;
        assert!(directory.marking(OWN, "now").is_some());
        assert!(directory.begin_deletion(OWN, "now").await.unwrap(), "nothing holds the content");
        assert!(directory.by_id(OWN).unwrap().is_deleting());
        assert!(directory.marking(OWN, "now").is_none());
        assert!(directory.begin_deletion(OWN, "later").await.unwrap());
        assert!(directory.begin_deletion(LogicalClusterId::new(8), "now").await.unwrap(), "one that is gone");
    }
}
