//! Index of the directory in memory: about 300 bytes for each logical cluster, its entry included.

use std::{
    borrow::Borrow,
    collections::{BTreeMap, BTreeSet, HashSet},
    hash::{Hash, Hasher},
    ops::Bound,
    sync::Arc,
};

use portolan_types::{LogicalClusterId, LogicalClusterPath};

use super::LogicalCluster;

/// Logical clusters by path, by id and by parent.
#[derive(Default)]
pub(super) struct DirectoryIndex {
    by_path: HashSet<EntryByPath>,
    by_id: BTreeMap<LogicalClusterId, Arc<LogicalCluster>>,
    /// Parents, each with one child.
    children: BTreeSet<(LogicalClusterId, LogicalClusterId)>,
}

/// Entry that is found by its path, which is stored once.
struct EntryByPath(Arc<LogicalCluster>);

impl Borrow<LogicalClusterPath> for EntryByPath {
    fn borrow(&self) -> &LogicalClusterPath {
        &self.0.path
    }
}

impl Hash for EntryByPath {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.path.hash(state);
    }
}

impl PartialEq for EntryByPath {
    fn eq(&self, other: &Self) -> bool {
        self.0.path == other.0.path
    }
}

impl Eq for EntryByPath {}

impl DirectoryIndex {
    pub(super) fn by_path(&self, path: &LogicalClusterPath) -> Option<&Arc<LogicalCluster>> {
        self.by_path.get(path).map(|found| &found.0)
    }

    pub(super) fn by_id(&self, id: LogicalClusterId) -> Option<&Arc<LogicalCluster>> {
        self.by_id.get(&id)
    }

    /// Returns all ids in order.
    pub(super) fn ids(&self) -> impl ExactSizeIterator<Item = LogicalClusterId> {
        self.by_id.keys().copied()
    }

    /// Returns the ids after one, in order.
    pub(super) fn ids_after(&self, after: LogicalClusterId) -> impl Iterator<Item = LogicalClusterId> {
        self.by_id.range((Bound::Excluded(after), Bound::Unbounded)).map(|(id, _)| *id)
    }

    /// Returns the logical clusters whose workspaces are in `parent`, in the order of their ids.
    pub(super) fn children(&self, parent: LogicalClusterId) -> impl Iterator<Item = &Arc<LogicalCluster>> {
        let all = (parent, LogicalClusterId::new(0))..=(parent, LogicalClusterId::new(u64::MAX));
        self.children.range(all).filter_map(|(_, child)| self.by_id.get(child))
    }

    /// Inserts an entry, or replaces that of its id; it takes its path over from another.
    pub(super) fn insert(&mut self, cluster: LogicalCluster) {
        self.remove(cluster.id);
        let cluster = Arc::new(cluster);
        self.by_path.replace(EntryByPath(cluster.clone()));
        self.children.extend(cluster.parent.map(|parent| (parent, cluster.id)));
        self.by_id.insert(cluster.id, cluster);
    }

    pub(super) fn remove(&mut self, id: LogicalClusterId) {
        let Some(gone) = self.by_id.remove(&id) else { return };
        // A new workspace may have taken the path meanwhile.
        if self.by_path(&gone.path).is_some_and(|known| known.id == id) {
            self.by_path.remove(&gone.path);
        }
        if let Some(parent) = gone.parent {
            self.children.remove(&(parent, id));
        }
    }
}

#[cfg(test)]
mod tests {
    use portolan_types::ResourceVersion;

    use super::*;
    use crate::directory::ClusterPhase;

    const ROOT: LogicalClusterId = LogicalClusterId::ROOT;

    fn cluster(id: u64, path: &str, parent: LogicalClusterId) -> LogicalCluster {
        LogicalCluster {
            id: LogicalClusterId::new(id),
            path: path.parse().unwrap(),
            parent: Some(parent),
            workspace: None,
            created: String::new(),
            since: ResourceVersion::FIRST,
            phase: ClusterPhase::Ready,
            limits: None,
            lifecycle: None,
        }
    }

    fn children(index: &DirectoryIndex, of: LogicalClusterId) -> Vec<u64> {
        index.children(of).map(|child| child.id.get()).collect()
    }

    #[test]
    fn entries_are_found_by_path_id_and_parent_until_they_are_removed() {
        let (mut index, shop) = (DirectoryIndex::default(), LogicalClusterId::new(9));
        for (id, path, parent) in [(9, "root:shop", ROOT), (12, "root:shop:a", shop), (7, "root:lab", ROOT)] {
            index.insert(cluster(id, path, parent));
        }
        assert_eq!((children(&index, ROOT), children(&index, shop)), (vec![7, 9], vec![12]));
        assert_eq!(index.ids_after(LogicalClusterId::new(7)).map(LogicalClusterId::get).collect::<Vec<_>>(), [9, 12]);
        let deleting = LogicalCluster { phase: ClusterPhase::Deleting, ..cluster(9, "root:shop", ROOT) };
        index.insert(deleting.clone());
        assert_eq!(index.by_path(&deleting.path).map(|found| found.phase), Some(ClusterPhase::Deleting));
        index.remove(shop);
        assert!(index.by_path(&deleting.path).is_none() && index.by_id(shop).is_none());
        assert_eq!((children(&index, ROOT), index.ids().len()), (vec![7], 2));
    }

    #[test]
    fn a_path_that_another_has_taken_stays_its_own() {
        let mut index = DirectoryIndex::default();
        index.insert(cluster(5, "root:a", ROOT));
        index.insert(cluster(6, "root:a", ROOT));
        index.remove(LogicalClusterId::new(5));
        assert_eq!(index.by_path(&"root:a".parse().unwrap()).map(|found| found.id.get()), Some(6));
        // The event of an older entry comes late.
        index.insert(cluster(7, "root:a", ROOT));
        index.insert(cluster(6, "root:a", ROOT));
        index.remove(LogicalClusterId::new(6));
        assert_eq!(index.by_id(LogicalClusterId::new(7)).map(|found| found.id.get()), Some(7));
    }
}
