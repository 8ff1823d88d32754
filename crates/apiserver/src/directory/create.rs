//! Creation of a logical cluster in the transaction of its workspace.

use std::ops::Range;

use portolan_store::{AccountLimit, DynStore, Expect, SnapshotCounter, StoreError, StoredUsage, Transaction, Write};
use portolan_types::{
    GroupResource, LogicalClusterId, LogicalClusterPath, ObjectKey, Record, ResourceVersion, Seams, Status, Uid,
};
use serde_json::{Value, json};

use crate::errors::{damaged, status_for};

use super::{ClusterLifecycle, ClusterPhase, ClusterTemplate, LogicalCluster, WorkspaceLimits, record};

/// Number of ids reserved at once. A crash loses the rest of a block; ids are never reused.
const BLOCK: u64 = 64;
const ATTEMPTS: usize = 16;
/// Name of the id counter.
const COUNTER: &str = "logicalclusters";

/// Logical cluster about to be committed.
pub(crate) struct PreparedCluster {
    /// Entry to insert into the directory after the commit.
    pub(crate) cluster: UncommittedCluster,
    /// Writes to commit.
    pub(crate) writes: Vec<Write>,
}

/// Directory entry before its commit, when its first revision is unknown.
#[derive(Clone, Debug)]
pub(crate) struct UncommittedCluster(LogicalCluster);

impl UncommittedCluster {
    /// Returns the entry, whose first revision is unknown.
    pub(crate) fn entry(&self) -> &LogicalCluster {
        &self.0
    }

    /// Returns the key of the entry.
    pub(crate) fn key(&self) -> ObjectKey {
        record::key_of(self.0.id)
    }

    /// Returns the account that limits it; `most` is the server's default.
    pub(crate) fn account(&self, most: StoredUsage) -> Option<AccountLimit> {
        self.0.account(most)
    }

    /// Returns the entry as committed with this revision.
    pub(crate) fn since(self, revision: ResourceVersion) -> LogicalCluster {
        LogicalCluster { since: revision, ..self.0 }
    }
}

/// Owner of a new logical cluster.
pub(crate) struct ClusterOwner {
    /// Logical cluster above it.
    pub(crate) parent: LogicalClusterId,
    /// Uid of its Workspace; a home workspace has none.
    pub(crate) workspace: Option<Uid>,
    /// Its own limits.
    pub(crate) limits: WorkspaceLimits,
    /// Steps that its types ask for.
    pub(crate) lifecycle: ClusterLifecycle,
}

/// Prepares the directory entry and the initial objects of a new logical cluster.
pub(crate) fn prepare_cluster(
    id: LogicalClusterId,
    path: LogicalClusterPath,
    owner: Option<ClusterOwner>,
    template: &ClusterTemplate,
) -> PreparedCluster {
    let limits = owner.as_ref().map(|owner| owner.limits.clone()).filter(|limits| !limits.is_none()).map(Box::new);
    let parent = owner.as_ref().map(|owner| owner.parent);
    let (workspace, lifecycle) = owner.map(|owner| (owner.workspace, owner.lifecycle)).unzip();
    let (workspace, lifecycle) = (workspace.flatten(), lifecycle.filter(|own| !own.is_empty()).map(Box::new));
    let initializes = lifecycle.as_ref().is_some_and(|lifecycle| !lifecycle.pending.is_empty());
    let phase = if initializes { ClusterPhase::Initializing } else { ClusterPhase::Ready };
    let created = template.seams.now_text();
    let since = ResourceVersion::FIRST;
    let cluster = LogicalCluster { id, path, parent, workspace, created, since, phase, limits, lifecycle };
    let entry = Write { key: record::key_of(id), expect: Expect::Absent, record: Some(record::of(&cluster)) };
    let writes = std::iter::once(entry).chain(template.writes(id)).collect();
    PreparedCluster { cluster: UncommittedCluster(cluster), writes }
}

/// Creates `root` in a new store.
pub(crate) async fn found_root(store: &DynStore, seams: &Seams) -> Result<LogicalCluster, Status> {
    let template = ClusterTemplate::new(seams, None)?;
    let born = prepare_cluster(LogicalClusterId::ROOT, LogicalClusterPath::root(), None, &template);
    let txn = Transaction { writes: born.writes, ..Transaction::default() };
    match store.commit(txn).await {
        Ok(committed) => Ok(born.cluster.since(committed.into_inner().first)),
        // Another server on the same store created it first.
        Err(StoreError::AlreadyExists { key }) => {
            let stored = store.get(&record::key_of(LogicalClusterId::ROOT)).await.map_err(|e| status_for(&e))?;
            record::read(&stored.ok_or_else(|| Status::internal(format!("{key} is half there")))?)
        }
        Err(error) => Err(status_for(&error)),
    }
}

/// Allocator of ids, which reserves them in blocks.
pub(crate) struct IdAllocator {
    block: tokio::sync::Mutex<Range<u64>>,
}

impl IdAllocator {
    pub(crate) fn new() -> Self {
        Self { block: tokio::sync::Mutex::new(0..0) }
    }

    /// Returns an id that was never used.
    pub(crate) async fn next(&self, store: &DynStore) -> Result<LogicalClusterId, Status> {
        let mut block = self.block.lock().await;
        if block.is_empty() {
            *block = reserve(store).await?;
        }
        let id = block.next().ok_or_else(|| Status::internal("no ids are left"))?;
        Ok(LogicalClusterId::new(id))
    }
}

/// Returns the counter of used ids. A restore raises it, so that no logical cluster gets the id of one created after
/// the snapshot, whose remains on physical clusters would be taken for its own.
pub fn id_counter() -> SnapshotCounter {
    SnapshotCounter { key: counter_key(), raise }
}

fn counter_key() -> ObjectKey {
    let name = COUNTER.parse().expect("the name is a constant");
    ObjectKey::cluster_scoped(LogicalClusterId::SYSTEM, GroupResource::new("portolan.dev", "counters"), name)
}

fn counted(next: u64) -> Record {
    Record::of(&json!({"metadata": {"name": COUNTER}, "next": next}))
}

fn raise(found: Option<Value>, by: u64) -> Option<Record> {
    next_of(found.as_ref())?.checked_add(by).map(counted)
}

/// Returns the first unused id; `None` if the counter is damaged.
fn next_of(counter: Option<&Value>) -> Option<u64> {
    match counter {
        None => Some(LogicalClusterId::ROOT.get() + 1),
        Some(value) => value.get("next").and_then(Value::as_u64),
    }
}

async fn reserve(store: &DynStore) -> Result<Range<u64>, Status> {
    let key = counter_key();
    for _ in 0..ATTEMPTS {
        let current = store.get(&key).await.map_err(|e| status_for(&e))?;
        let expect = current.as_ref().map_or(Expect::Absent, |stored| Expect::At(stored.revision));
        let value = current.map(|stored| stored.record.to_value(stored.revision));
        let value = value.transpose().map_err(|e| damaged(&key, &e))?;
        let block = next_of(value.as_ref()).and_then(|first| Some(first..first.checked_add(BLOCK)?));
        let block = block.ok_or_else(|| Status::internal("the id counter is damaged"))?;
        match store.commit(Transaction::one(key.clone(), expect, Some(counted(block.end)))).await {
            Ok(_) => return Ok(block),
            Err(StoreError::Conflict { .. } | StoreError::AlreadyExists { .. }) => {}
            Err(error) => return Err(status_for(&error)),
        }
    }
    Err(Status::too_many_requests("too many workspaces are being made at once", 1))
}

#[cfg(test)]
mod tests {
    use portolan_store::{Engine, StoreConfig, memory, open, restore, save};

    use super::*;

    #[tokio::test]
    async fn restored_stores_never_reuse_ids() {
        let store = memory();
        let mut highest = IdAllocator::new().next(&store).await.unwrap().get();
        let mut bytes = Vec::new();
        save(&*store, &Seams::system(), portolan_store::OnDamage::Fail, &mut bytes).await.unwrap();
        for now in ["2026-01-01T00:00:00Z", "2026-01-01T00:00:01Z"] {
            let seams = Seams::seeded(1, now.parse().unwrap());
            let dir = tempfile::tempdir().unwrap();
            let config = StoreConfig::new(Engine::Redb, Some(dir.path().join("store")));
            restore(&config, &seams, &*bytes, Some(&id_counter())).unwrap();
            let restored = open(config, seams).unwrap();
            let first = IdAllocator::new().next(&restored).await.unwrap().get();
            assert!(first > highest, "{now}: {first}");
            highest = first + 100_000;
            restored.close().await;
        }
    }
}
