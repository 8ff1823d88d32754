//! Directory of logical clusters: path ↔ id in memory, backed by records in the system's own logical cluster.

mod create;
mod deletion;
mod index;
mod lifecycle;
mod limits;
mod record;
mod template;

use std::{collections::HashSet, sync::Arc};

use parking_lot::{Mutex, RwLock};
use portolan_store::{
    ChangeKind, DynStore, Event, Expect, RangeRequest, RangeScope, StoreError, StoredObject, Transaction, WatchScope,
    Write,
};
use portolan_types::{BoxFuture, LogicalClusterId, LogicalClusterPath, ResourceVersion, Status, Uid};

use index::DirectoryIndex;

use crate::{
    errors::status_for,
    routing::path::RequestedCluster,
    sync::{Follower, follow},
};

pub use create::id_counter;
pub use lifecycle::ClusterLifecycle;
pub use limits::WorkspaceLimits;
pub use record::ClusterPhase;

pub(crate) use limits::{LIMIT_ANNOTATIONS, MAX_BYTES_ANNOTATION, MAX_OBJECTS_ANNOTATION};

pub(crate) use create::{ClusterOwner, IdAllocator, UncommittedCluster, found_root, prepare_cluster};
pub(crate) use record::{key_of, read as read_record, resource as records};
pub(crate) use template::ClusterTemplate;

/// Logical cluster, as the pipeline knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogicalCluster {
    /// Id, which prefixes its keys.
    pub id: LogicalClusterId,
    /// Path, which prefixes its URLs.
    pub path: LogicalClusterPath,
    /// Logical cluster of its workspace, root for a home workspace; `None` for root.
    pub parent: Option<LogicalClusterId>,
    /// Uid of its workspace; `None` for root and home workspaces.
    pub workspace: Option<Uid>,
    /// Creation time, RFC 3339.
    pub created: String,
    /// First revision. Earlier revisions may belong to another logical cluster of the same path.
    pub since: ResourceVersion,
    /// Lifecycle phase.
    pub phase: ClusterPhase,
    /// Its own limits, which few logical clusters have.
    pub limits: Option<Box<WorkspaceLimits>>,
    /// Its initializers and terminators, which few logical clusters have.
    pub lifecycle: Option<Box<ClusterLifecycle>>,
}

impl LogicalCluster {
    /// Returns true while it is being deleted.
    pub fn is_deleting(&self) -> bool {
        self.phase == ClusterPhase::Deleting
    }

    /// Checks that it existed at a revision.
    ///
    /// # Errors
    /// `Compacted` for an earlier one: it has no state to read, and the client's may be of another logical cluster.
    pub(crate) fn check_existed(&self, asked: ResourceVersion) -> Result<(), StoreError> {
        // Root has existed from the beginning.
        if self.parent.is_some() && asked < self.since {
            Err(StoreError::Compacted { asked, oldest: self.since })
        } else {
            Ok(())
        }
    }
}

/// Directory of all logical clusters. An idle one takes no other memory.
pub struct Directory {
    store: DynStore,
    index: RwLock<DirectoryIndex>,
    /// Revision loaded at the start, until a watch continues from it.
    loaded: Mutex<Option<ResourceVersion>>,
}

impl Directory {
    /// Loads the records.
    ///
    /// # Errors
    /// Failure of the store, or a damaged record.
    pub async fn load(store: DynStore) -> Result<Self, Status> {
        let directory = Self { store, index: RwLock::default(), loaded: Mutex::default() };
        let revision = directory.read_all().await?;
        *directory.loaded.lock() = Some(revision);
        Ok(directory)
    }

    /// Follows the records forever, because other servers on the same store may write them.
    pub(crate) async fn follow(self: Arc<Self>) {
        let scope = WatchScope::Resource(record::resource(), Some(LogicalClusterId::SYSTEM));
        follow(self.store.clone(), scope, self.clone()).await;
    }

    /// Loads all records, and removes entries without one. Returns the revision that was read.
    async fn read_all(&self) -> Result<ResourceVersion, Status> {
        // An entry inserted meanwhile may be newer than the list; its event follows.
        let mut gone: HashSet<LogicalClusterId> = self.index.read().ids().collect();
        let scope = RangeScope::Cluster(LogicalClusterId::SYSTEM, record::resource());
        // An entry whose record is damaged stays as it was, or unknown.
        let mut request = RangeRequest::slices(scope).skip_damaged();
        loop {
            let page = self.store.range(request.clone()).await.map_err(|e| status_for(&e))?;
            for stored in &page.objects {
                let cluster = record::read(stored)?;
                gone.remove(&cluster.id);
                self.insert(cluster);
            }
            for id in page.damaged.iter().filter_map(|found| found.key.name.parse().ok()) {
                gone.remove(&id);
            }
            let Some(next) = request.next(&page) else {
                gone.into_iter().for_each(|id| self.forget(id));
                return Ok(page.revision);
            };
            request = next;
        }
    }

    fn apply(&self, event: &Event) {
        let stored = StoredObject {
            key: event.key.clone(),
            revision: event.revision,
            created: event.revision,
            record: event.record.clone(),
        };
        let Ok(cluster) = record::read(&stored) else { return };
        match (event.change, self.by_id(cluster.id)) {
            (ChangeKind::Created, Some(_)) => {}
            // An update event does not carry the first revision.
            (ChangeKind::Updated, Some(known)) => self.insert(LogicalCluster { since: known.since, ..cluster }),
            (ChangeKind::Created | ChangeKind::Updated, None) => self.insert(cluster),
            (ChangeKind::Deleted, _) => self.forget(cluster.id),
        }
    }

    /// Returns the logical cluster of a path.
    pub fn by_path(&self, path: &LogicalClusterPath) -> Option<Arc<LogicalCluster>> {
        self.index.read().by_path(path).cloned()
    }

    /// Returns an entry as stored, with the precondition that it is unchanged at a later commit.
    ///
    /// # Errors
    /// Failure of the store, or a damaged entry.
    pub(crate) async fn stored(&self, id: LogicalClusterId) -> Result<Option<(LogicalCluster, Expect)>, Status> {
        let stored = self.store.get(&key_of(id)).await.map_err(|e| status_for(&e))?;
        stored.map(|stored| Ok((record::read(&stored)?, Expect::At(stored.revision)))).transpose()
    }

    /// Returns the logical cluster of an id.
    pub fn by_id(&self, id: LogicalClusterId) -> Option<Arc<LogicalCluster>> {
        self.index.read().by_id(id).cloned()
    }

    /// Returns a logical cluster and its ancestors, itself first, root last; empty if it is unknown.
    pub(crate) fn lineage(&self, cluster: LogicalClusterId) -> Vec<Arc<LogicalCluster>> {
        let index = self.index.read();
        let next = |of: &Arc<LogicalCluster>| of.parent.and_then(|parent| index.by_id(parent)).cloned();
        std::iter::successors(index.by_id(cluster).cloned(), next).collect()
    }

    /// Returns the workspace below `root` that contains a logical cluster, or is it; `root` for itself.
    pub(crate) fn tenant(&self, cluster: &LogicalCluster) -> LogicalClusterId {
        let index = self.index.read();
        let (mut tenant, mut parent) = (cluster.id, cluster.parent);
        while let Some(above) = parent.filter(|above| *above != LogicalClusterId::ROOT) {
            tenant = above;
            parent = index.by_id(above).and_then(|above| above.parent);
        }
        tenant
    }

    pub(crate) fn resolve(
        &self,
        named: &RequestedCluster,
        home: Option<LogicalClusterId>,
    ) -> Option<Arc<LogicalCluster>> {
        match named {
            RequestedCluster::Unspecified => self.by_id(home.unwrap_or(LogicalClusterId::ROOT)),
            RequestedCluster::Path(path) => self.by_path(path),
            RequestedCluster::Id(id) => self.by_id(*id),
            RequestedCluster::All | RequestedCluster::Invalid(_) => None,
        }
    }

    /// Returns the logical clusters whose workspaces are in `parent`.
    pub fn children(&self, parent: LogicalClusterId) -> Vec<Arc<LogicalCluster>> {
        self.index.read().children(parent).cloned().collect()
    }

    /// Returns the ids of a logical cluster and all below it, itself first, parents before their children.
    pub fn subtree(&self, top: LogicalClusterId) -> Vec<LogicalClusterId> {
        let (index, mut all, mut at) = (self.index.read(), vec![top], 0);
        while let Some(parent) = all.get(at).copied() {
            all.extend(index.children(parent).map(|child| child.id));
            at += 1;
        }
        all
    }

    /// Returns the ids of the first logical clusters after one, in order.
    pub(crate) fn following(&self, after: LogicalClusterId, limit: usize) -> Vec<LogicalClusterId> {
        self.index.read().ids_after(after).take(limit).collect()
    }

    /// Returns their number.
    pub fn len(&self) -> usize {
        self.index.read().ids().len()
    }

    /// Returns true if the directory is empty, as before the first start.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Inserts a logical cluster whose record has been committed.
    pub fn insert(&self, cluster: LogicalCluster) {
        if let Some(parent) = cluster.parent {
            self.store.record_parent(cluster.id, parent);
        }
        self.index.write().insert(cluster);
    }

    /// Returns the write that changes the limits of a logical cluster, and the entry to insert after it; `None` if it
    /// is gone.
    ///
    /// # Errors
    /// The errors of [`Directory::stored`].
    pub(crate) async fn limiting(
        &self,
        id: LogicalClusterId,
        limits: WorkspaceLimits,
    ) -> Result<Option<(LogicalCluster, Write)>, Status> {
        let Some((current, expect)) = self.stored(id).await? else { return Ok(None) };
        let limited = LogicalCluster { limits: (!limits.is_none()).then(|| Box::new(limits)), ..current };
        let write = Self::write_of(&limited, expect);
        Ok(Some((limited, write)))
    }

    /// Removes a logical cluster whose content is gone.
    ///
    /// # Errors
    /// Failure of the store.
    pub async fn remove(&self, id: LogicalClusterId) -> Result<(), StoreError> {
        match self.store.commit(Transaction::one(key_of(id), Expect::Present, None)).await {
            Ok(_) | Err(StoreError::NotFound { .. }) => {}
            Err(error) => return Err(error),
        }
        self.forget(id);
        Ok(())
    }

    fn forget(&self, id: LogicalClusterId) {
        self.index.write().remove(id);
    }
}

impl Follower for Directory {
    fn catch_up(&self) -> BoxFuture<'_, Result<ResourceVersion, Status>> {
        Box::pin(async move {
            let loaded = self.loaded.lock().take();
            match loaded {
                Some(revision) => Ok(revision),
                None => self.read_all().await,
            }
        })
    }

    fn take(&self, event: &Event) {
        self.apply(event);
    }
}
