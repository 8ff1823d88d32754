//! How a logical cluster comes to be: all of it in the transaction of its workspace.

use std::ops::Range;

use portolan_machinery::{
    kinds::KindTable,
    lifecycle::{self, WriteContext},
};
use portolan_store::{DynStore, Expect, StoreError, Transaction, Write};
use portolan_types::{GroupResource, LogicalClusterId, LogicalClusterPath, ObjectKey, Record, Seams, Status, Uid};
use serde_json::{Value, json};

use crate::errors::{damaged, status_for};

use super::{LogicalCluster, Phase, record};

/// The namespaces that every logical cluster has from the start.
const NAMESPACES: [&str; 4] = ["default", "kube-node-lease", "kube-public", "kube-system"];
/// Ids that are reserved at once. A crash loses the rest of a block; ids are never given twice.
const BLOCK: u64 = 64;
const ATTEMPTS: usize = 16;

/// A logical cluster that is about to be.
pub(crate) struct Birth {
    /// Its entry, to be inserted into the directory after the commit.
    pub(crate) cluster: LogicalCluster,
    /// What is to be committed.
    pub(crate) writes: Vec<Write>,
}

/// Prepares the directory entry and the namespaces of a new logical cluster.
pub(crate) fn birth(
    id: LogicalClusterId,
    path: LogicalClusterPath,
    of: Option<(LogicalClusterId, Uid)>,
    seams: &Seams,
) -> Result<Birth, Status> {
    let (parent, workspace) = of.unzip();
    let created = seams.now_text();
    let cluster = LogicalCluster { id, path, parent, workspace, created, phase: Phase::Ready };
    let absent = |key, record| Write { key, expect: Expect::Absent, record: Some(record) };
    let mut writes = vec![absent(record::key_of(id), record::of(&cluster))];
    for name in NAMESPACES {
        writes.push(absent(namespace_key(id, name), Record::of(&namespace(name, seams)?)));
    }
    Ok(Birth { cluster, writes })
}

fn namespace_key(id: LogicalClusterId, name: &str) -> ObjectKey {
    let name = name.parse().expect("the names are constants");
    ObjectKey::cluster_scoped(id, GroupResource::new("", "namespaces"), name)
}

fn namespace(name: &str, seams: &Seams) -> Result<Value, Status> {
    let table = KindTable::builtin();
    let kind = table.kind_named("", "v1", "Namespace").ok_or_else(|| Status::internal("no kind Namespace"))?;
    let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
    lifecycle::prepare_create(&WriteContext { table, seams }, kind, object, None, Some(name))
}

/// Makes `root` at the first start of a store.
pub(crate) async fn found_root(store: &DynStore, seams: &Seams) -> Result<LogicalCluster, Status> {
    let birth = birth(LogicalClusterId::ROOT, LogicalClusterPath::root(), None, seams)?;
    let txn = Transaction { checks: Vec::new(), writes: birth.writes };
    store.commit(txn).await.map_err(|e| status_for(&e))?;
    Ok(birth.cluster)
}

/// More ids than a plane gives between two snapshots.
const SKIPPED: u64 = 1 << 32;

/// Hands out ids, a block at a time.
pub(crate) struct IdAllocator {
    block: tokio::sync::Mutex<Range<u64>>,
}

impl IdAllocator {
    pub(crate) fn new() -> Self {
        Self { block: tokio::sync::Mutex::new(0..0) }
    }

    /// An id that nobody has had.
    pub(crate) async fn next(&self, store: &DynStore) -> Result<LogicalClusterId, Status> {
        let mut block = self.block.lock().await;
        if block.is_empty() {
            *block = reserve(store, BLOCK).await?;
        }
        let id = block.next().ok_or_else(|| Status::internal("no ids are left"))?;
        Ok(LogicalClusterId::new(id))
    }
}

/// Takes ids out of use that may have been given after the snapshot that a store was restored from.
///
/// # Errors
/// When the store fails or the counter is damaged.
pub async fn skip_ids(store: &DynStore) -> Result<(), Status> {
    reserve(store, SKIPPED).await.map(drop)
}

async fn reserve(store: &DynStore, count: u64) -> Result<Range<u64>, Status> {
    let name = "logicalclusters".parse().expect("the name is a constant");
    let key = ObjectKey::cluster_scoped(LogicalClusterId::SYSTEM, GroupResource::new("portolan.dev", "counters"), name);
    for _ in 0..ATTEMPTS {
        let current = store.get(&key).await.map_err(|e| status_for(&e))?;
        let (first, expect) = match current {
            None => (LogicalClusterId::ROOT.get() + 1, Expect::Absent),
            Some(stored) => {
                let value = stored.record.to_value(stored.revision).map_err(|e| damaged(&key, &e))?;
                let next = value.get("next").and_then(Value::as_u64);
                (next.ok_or_else(|| Status::internal("the id counter is damaged"))?, Expect::At(stored.revision))
            }
        };
        let value = json!({"metadata": {"name": "logicalclusters"}, "next": first + count});
        match store.commit(Transaction::one(key.clone(), expect, Some(Record::of(&value)))).await {
            Ok(_) => return Ok(first..first + count),
            Err(StoreError::Conflict { .. } | StoreError::AlreadyExists { .. }) => {}
            Err(error) => return Err(status_for(&error)),
        }
    }
    Err(Status::too_many_requests("too many workspaces are being made at once", 1))
}
