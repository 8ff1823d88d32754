//! Which logical clusters there are: path ↔ id, in memory, backed by records of the system's own logical cluster.

mod create;
mod limits;
mod record;

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use parking_lot::{Mutex, RwLock};
use portolan_store::{
    Change, DynStore, Event, Expect, RangeRequest, RangeScope, StoreError, StoredObject, Transaction, WatchScope, Write,
};
use portolan_types::{BoxFuture, LogicalClusterId, LogicalClusterPath, ResourceVersion, Status, Uid};

use crate::{
    errors::status_for,
    follow::{Follower, follow},
    path::Named,
};

pub use create::id_counter;
pub use limits::WorkspaceLimits;
pub use record::Phase;

pub(crate) use limits::{MAX_BYTES, MAX_OBJECTS};

pub(crate) use create::{IdAllocator, Newborn, birth, found_root};
pub(crate) use record::key_of;

/// A logical cluster, as the door knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogicalCluster {
    /// What its keys are under.
    pub id: LogicalClusterId,
    /// What its URLs are under.
    pub path: LogicalClusterPath,
    /// The logical cluster that holds its workspace; `None` for root.
    pub parent: Option<LogicalClusterId>,
    /// Uid of its workspace; `None` for root.
    pub workspace: Option<Uid>,
    /// When it was made, RFC 3339.
    pub created: String,
    /// The state that it came with: what was before is not its own, also where another one had its path.
    pub since: ResourceVersion,
    /// Whether it is being deleted.
    pub phase: Phase,
    /// Limits of its own, as few have.
    pub limits: Option<Box<WorkspaceLimits>>,
}

impl LogicalCluster {
    /// Whether it is being deleted.
    pub fn is_deleting(&self) -> bool {
        self.phase == Phase::Deleting
    }

    /// Whether it was there at a state.
    ///
    /// # Errors
    /// `Compacted` for a state before it: there is nothing of it to be read, and what a client remembers is another one's.
    pub(crate) fn was_there(&self, asked: ResourceVersion) -> Result<(), StoreError> {
        // Before root nothing was.
        match self.parent.is_some() && asked < self.since {
            true => Err(StoreError::Compacted { asked, oldest: self.since }),
            false => Ok(()),
        }
    }
}

/// All logical clusters. Of an idle one, this is all that is in memory.
pub struct Directory {
    store: DynStore,
    known: RwLock<Known>,
    /// The state that was loaded at the start, until it is followed from there.
    loaded: Mutex<Option<ResourceVersion>>,
}

#[derive(Default)]
struct Known {
    by_path: HashMap<LogicalClusterPath, LogicalClusterId>,
    by_id: HashMap<LogicalClusterId, Arc<LogicalCluster>>,
}

impl Directory {
    /// Reads the records.
    ///
    /// # Errors
    /// When the store fails or a record is damaged.
    pub async fn load(store: DynStore) -> Result<Self, Status> {
        let directory = Self { store, known: RwLock::default(), loaded: Mutex::default() };
        let revision = directory.read_all().await?;
        *directory.loaded.lock() = Some(revision);
        Ok(directory)
    }

    /// Follows the records, which other servers on the same store write too, for ever.
    pub(crate) async fn follow(self: Arc<Self>) {
        let scope = WatchScope::Resource(record::resource(), Some(LogicalClusterId::SYSTEM));
        follow(self.store.clone(), scope, self.clone()).await;
    }

    /// Takes in all records, and forgets what has none any more. The state that was read.
    async fn read_all(&self) -> Result<ResourceVersion, Status> {
        // What is inserted meanwhile may be younger than the list, and comes as an event after it.
        let mut gone: HashSet<LogicalClusterId> = self.known.read().by_id.keys().copied().collect();
        let scope = RangeScope::Cluster(LogicalClusterId::SYSTEM, record::resource());
        // A logical cluster whose entry is damaged is not known, or stays as it was.
        let mut request = RangeRequest::slices(scope).past_damage();
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
            (Change::Created, Some(_)) => {}
            // The event of a change does not tell when the entry was new.
            (Change::Updated, Some(known)) => self.insert(LogicalCluster { since: known.since, ..cluster }),
            (Change::Created | Change::Updated, None) => self.insert(cluster),
            (Change::Deleted, _) => self.forget(cluster.id),
        }
    }

    /// The logical cluster of a path.
    pub fn by_path(&self, path: &LogicalClusterPath) -> Option<Arc<LogicalCluster>> {
        let known = self.known.read();
        known.by_path.get(path).and_then(|id| known.by_id.get(id)).cloned()
    }

    /// An entry as it is stored now, and what must hold for it to be so still when something is committed that depends on it.
    ///
    /// # Errors
    /// When the store fails or the entry is damaged.
    pub(crate) async fn stored(&self, id: LogicalClusterId) -> Result<Option<(LogicalCluster, Expect)>, Status> {
        let stored = self.store.get(&key_of(id)).await.map_err(|e| status_for(&e))?;
        stored.map(|stored| Ok((record::read(&stored)?, Expect::At(stored.revision)))).transpose()
    }

    /// The logical cluster of an id.
    pub fn by_id(&self, id: LogicalClusterId) -> Option<Arc<LogicalCluster>> {
        self.known.read().by_id.get(&id).cloned()
    }

    /// A logical cluster and its ancestors, itself first, root last. Empty when it is not known.
    pub(crate) fn lineage(&self, cluster: LogicalClusterId) -> Vec<Arc<LogicalCluster>> {
        let known = self.known.read();
        let next = |of: &Arc<LogicalCluster>| of.parent.and_then(|parent| known.by_id.get(&parent)).cloned();
        std::iter::successors(known.by_id.get(&cluster).cloned(), next).collect()
    }

    /// The workspace below `root` that a logical cluster is, or is in; `root` for itself.
    pub(crate) fn tenant(&self, cluster: &LogicalCluster) -> LogicalClusterId {
        let known = self.known.read();
        let (mut tenant, mut parent) = (cluster.id, cluster.parent);
        while let Some(above) = parent.filter(|above| *above != LogicalClusterId::ROOT) {
            tenant = above;
            parent = known.by_id.get(&above).and_then(|above| above.parent);
        }
        tenant
    }

    pub(crate) fn resolve(&self, named: &Named, home: Option<LogicalClusterId>) -> Option<Arc<LogicalCluster>> {
        match named {
            Named::Nothing => self.by_id(home.unwrap_or(LogicalClusterId::ROOT)),
            Named::Path(path) => self.by_path(path),
            Named::Id(id) => self.by_id(*id),
            Named::Every => None,
        }
    }

    /// The logical clusters whose workspaces lie in `parent`.
    pub fn children(&self, parent: LogicalClusterId) -> Vec<Arc<LogicalCluster>> {
        self.known.read().by_id.values().filter(|c| c.parent == Some(parent)).cloned().collect()
    }

    /// All logical clusters, in no order.
    pub fn all(&self) -> Vec<Arc<LogicalCluster>> {
        self.known.read().by_id.values().cloned().collect()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.known.read().by_id.len()
    }

    /// Whether there is none; only before the first start.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Makes a logical cluster known whose record has been committed.
    pub fn insert(&self, cluster: LogicalCluster) {
        if let Some(parent) = cluster.parent {
            self.store.know_parent(cluster.id, parent);
        }
        let mut known = self.known.write();
        known.by_path.insert(cluster.path.clone(), cluster.id);
        known.by_id.insert(cluster.id, Arc::new(cluster));
    }

    /// Marks a logical cluster as being deleted: no workspace is made in it any more.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn mark_deleting(&self, id: LogicalClusterId) -> Result<(), StoreError> {
        let Some((marked, write)) = self.marking(id) else { return Ok(()) };
        self.store.commit(Transaction { writes: vec![write], ..Transaction::default() }).await?;
        self.insert(marked);
        Ok(())
    }

    /// The write that gives a logical cluster other limits, and the entry to insert after it. `None` where it is gone.
    ///
    /// # Errors
    /// As [`Directory::stored`].
    pub(crate) async fn limiting(
        &self,
        id: LogicalClusterId,
        limits: WorkspaceLimits,
    ) -> Result<Option<(LogicalCluster, Write)>, Status> {
        let Some((current, expect)) = self.stored(id).await? else { return Ok(None) };
        let limited = LogicalCluster { limits: (!limits.is_none()).then(|| Box::new(limits)), ..current };
        let write = Write { key: key_of(id), expect, record: Some(record::of(&limited)) };
        Ok(Some((limited, write)))
    }

    /// The write that marks a logical cluster as being deleted, and the entry to insert after it. `None` when it is marked.
    pub(crate) fn marking(&self, id: LogicalClusterId) -> Option<(LogicalCluster, Write)> {
        let current = self.by_id(id).filter(|c| c.phase != Phase::Deleting)?;
        let marked = LogicalCluster { phase: Phase::Deleting, ..LogicalCluster::clone(&current) };
        let write = Write { key: key_of(id), expect: Expect::Present, record: Some(record::of(&marked)) };
        Some((marked, write))
    }

    /// Forgets a logical cluster whose content is gone: from now on it is as if it had never been.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn remove(&self, id: LogicalClusterId) -> Result<(), StoreError> {
        match self.store.commit(Transaction::one(key_of(id), Expect::Present, None)).await {
            Ok(_) | Err(StoreError::NotFound { .. }) => {}
            Err(error) => return Err(error),
        }
        self.forget(id);
        Ok(())
    }

    fn forget(&self, id: LogicalClusterId) {
        let mut known = self.known.write();
        if let Some(gone) = known.by_id.remove(&id) {
            // A new workspace may have taken the path since.
            if known.by_path.get(&gone.path) == Some(&id) {
                known.by_path.remove(&gone.path);
            }
        }
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
