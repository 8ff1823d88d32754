//! Restore of a snapshot into etcd.
//!
//! At first the store's record says that a restore is in progress, so that no server opens half a store. The last
//! transaction turns it into the record of a complete store.

use std::{io::Read, time::Duration};

use bytes::Bytes;
use portolan_types::{LogicalClusterId, ObjectKey, Record, ResourceVersion, Seams};
use serde_json::json;
use tokio::sync::mpsc;

use super::{
    client::{EtcdClient, EtcdFault},
    commit::{delete_all, is_absent, is_at, nested, put},
    config::EtcdConfig,
    layout::{EtcdLayout, REVISIONS_PER_TRANSACTION, RevisionMapping},
    open::{FORMAT, RESTORING},
    proto::{RangeRequest, RequestOp, TxnRequest},
};
use crate::{
    api::{MAX_TRANSACTION_OBJECTS, damage::Damage},
    layout::{
        MAX_REVISION,
        keys::{self, end_of},
        record::EncodedObject,
    },
    open::OpenError,
    read::{history::object_key, resources::ResourceRegistry},
    snapshot::{SnapshotCounter, SnapshotError, SnapshotItem, SnapshotSummary, damaged, jump, read},
};

/// Items that are read ahead of the writes.
const READ_AHEAD: usize = 64;
/// Target size of a transaction in bytes: etcd takes 1.5 MiB.
const BYTES: usize = 512 << 10;
/// Time limit for a transaction.
const TRANSACTION_TIMEOUT: Duration = Duration::from_secs(30);

/// Restores a snapshot under the configured prefix, which must be empty. Its revision is raised as by
/// [`crate::snapshot::restore`], and so is `counter`.
///
/// # Errors
/// Returns the errors of [`crate::snapshot::inspect`]; `OccupiedEtcd`; the errors of etcd. The prefix is emptied then,
/// as far as etcd is reachable; otherwise no server opens the leftovers.
pub async fn restore_etcd(
    etcd: &EtcdConfig,
    seams: &Seams,
    input: impl Read + Send + 'static,
    counter: Option<&SnapshotCounter>,
) -> Result<SnapshotSummary, SnapshotError> {
    let client = EtcdClient::new(etcd).map_err(OpenError::Etcd)?;
    let layout = EtcdLayout { prefix: etcd.prefix.clone().into_bytes(), numbering: RevisionMapping { base: 0 } };
    let mut loader = EtcdRestorer {
        client,
        layout,
        begun: 0,
        counter,
        resources: ResourceRegistry::default(),
        counted: None,
        writes: Vec::new(),
        bytes: 0,
    };
    loader.begin().await?;
    let restored = loader.restore(seams, input).await;
    if restored.is_err() {
        loader.clear().await;
    }
    restored
}

/// Object to be written.
struct RestoredObject {
    key: ObjectKey,
    record: Record,
    /// Revision of its creation; `None` for this write.
    created: Option<ResourceVersion>,
}

struct EtcdRestorer<'a> {
    client: EtcdClient,
    layout: EtcdLayout,
    /// etcd revision at which the restore began.
    begun: i64,
    counter: Option<&'a SnapshotCounter>,
    /// Resources by their numbers in the snapshot.
    resources: ResourceRegistry,
    /// Counter object of the snapshot.
    counted: Option<RestoredObject>,
    writes: Vec<RestoredObject>,
    bytes: usize,
}

impl EtcdRestorer<'_> {
    /// Writes the record if the prefix is empty.
    async fn begin(&mut self) -> Result<(), SnapshotError> {
        let prefix = self.layout.prefix.clone();
        let any =
            RangeRequest { range_end: end_of(&prefix).into(), key: prefix.into(), limit: 1, ..RangeRequest::default() };
        let occupied = || SnapshotError::OccupiedEtcd(String::from_utf8_lossy(&self.layout.prefix).into_owned());
        if !self.client.range(any, TRANSACTION_TIMEOUT).await.map_err(failed)?.kvs.is_empty() {
            return Err(occupied());
        }
        let record = put(self.layout.meta(), json!({ RESTORING: true }).to_string().into());
        let request =
            TxnRequest { compare: vec![is_absent(self.layout.meta())], success: vec![record], failure: Vec::new() };
        let response = self.client.write(request, TRANSACTION_TIMEOUT).await.map_err(failed)?;
        if !response.succeeded {
            return Err(occupied());
        }
        self.begun = super::commit::at(&response);
        Ok(())
    }

    async fn restore(
        &mut self,
        seams: &Seams,
        input: impl Read + Send + 'static,
    ) -> Result<SnapshotSummary, SnapshotError> {
        let (send, mut items) = mpsc::channel(READ_AHEAD);
        let reading = tokio::task::spawn_blocking(move || {
            read(input, &mut |item| {
                // A receiver that was dropped has failed, and reports its own failure.
                send.blocking_send(item).map_err(|_| damaged("the reader has stopped"))
            })
        });
        while let Some(item) = items.recv().await {
            self.add(item).await?;
        }
        let snapshot = reading.await.map_err(damaged)??;
        let raised = jump(seams);
        let last = snapshot.revision.checked_add(raised).filter(|last| *last <= MAX_REVISION);
        let last = last.ok_or_else(|| damaged("its revision leaves no room for a higher one"))?;
        self.count(raised)?;
        self.flush().await?;
        // The base raises the store's revisions above those of the snapshot, independently of etcd's revisions.
        let base = last.div_ceil(REVISIONS_PER_TRANSACTION).to_string();
        let record = json!({"format": FORMAT, "identity": seams.uid().to_string(), "base": base}).to_string();
        self.write(vec![put(self.layout.meta(), record.into())]).await?;
        Ok(snapshot)
    }

    async fn add(&mut self, item: SnapshotItem) -> Result<(), SnapshotError> {
        match item {
            SnapshotItem::Resource(id, resource) => self.resources.add(id, resource),
            SnapshotItem::Gone(cluster, _) => self.write_tombstone(cluster).await?,
            SnapshotItem::Object(suffix, _, version) => {
                let parts = keys::parts(suffix.as_bytes()).ok_or_else(|| damaged(Damage::Key))?;
                let key = object_key(&self.resources, parts)?;
                let write = RestoredObject { key, record: (*version.record).clone(), created: Some(version.created) };
                match self.counter {
                    Some(counter) if counter.key == write.key => self.counted = Some(write),
                    Some(_) | None => self.put(write),
                }
            }
        }
        if self.bytes >= BYTES || self.writes.len() >= MAX_TRANSACTION_OBJECTS { self.flush().await } else { Ok(()) }
    }

    fn put(&mut self, write: RestoredObject) {
        self.bytes += write.record.body().len();
        self.writes.push(write);
    }

    async fn write_tombstone(&self, cluster: LogicalClusterId) -> Result<(), SnapshotError> {
        // No object was deleted with it.
        self.write(vec![put(self.layout.tombstone(cluster), Bytes::from_static(&[0]))]).await
    }

    /// Writes the raised counter object, also if the snapshot has none.
    fn count(&mut self, raised: u64) -> Result<(), SnapshotError> {
        let Some(counter) = self.counter else { return Ok(()) };
        let (created, value) = match self.counted.take() {
            Some(counted) => (counted.created, Some(counted.record.to_value(ResourceVersion::FIRST).map_err(damaged)?)),
            None => (None, None),
        };
        let record =
            (counter.raise)(value, raised).ok_or_else(|| damaged(format!("{} cannot be raised", counter.key)))?;
        self.put(RestoredObject { key: counter.key.clone(), record, created });
        Ok(())
    }

    async fn flush(&mut self) -> Result<(), SnapshotError> {
        self.bytes = 0;
        let writes = std::mem::take(&mut self.writes);
        let (mut operations, mut indexes) = (Vec::new(), Vec::new());
        for (remaining, RestoredObject { key, record, created }) in (0..writes.len() as u64).rev().zip(writes) {
            indexes.extend(self.layout.indexes(&key, &record.header).into_iter().map(|key| put(key, Bytes::new())));
            operations.push(put(
                self.layout.object(&key),
                RevisionMapping::sealed(&key, EncodedObject::new(record), remaining, created),
            ));
        }
        operations.append(&mut indexes);
        if operations.is_empty() { Ok(()) } else { self.write(operations).await }
    }

    /// Writes a transaction while the record is still that of this restore.
    async fn write(&self, operations: Vec<RequestOp>) -> Result<(), SnapshotError> {
        let compare = vec![is_at(self.layout.meta(), self.begun)];
        let request = TxnRequest { success: nested(compare.len(), operations), compare, failure: Vec::new() };
        let response = self.client.write(request, TRANSACTION_TIMEOUT).await.map_err(failed)?;
        if response.succeeded {
            Ok(())
        } else {
            Err(SnapshotError::OccupiedEtcd(String::from_utf8_lossy(&self.layout.prefix).into_owned()))
        }
    }

    /// Removes everything written, including the record.
    async fn clear(&self) {
        let request = TxnRequest {
            compare: vec![is_at(self.layout.meta(), self.begun)],
            success: vec![delete_all(self.layout.prefix.clone())],
            failure: Vec::new(),
        };
        if let Err(fault) = self.client.write(request, TRANSACTION_TIMEOUT).await {
            tracing::warn!(%fault, "an incomplete restore is left in etcd");
        }
    }
}

fn failed(fault: EtcdFault) -> SnapshotError {
    SnapshotError::Open(OpenError::Etcd(fault.with_hint()))
}
