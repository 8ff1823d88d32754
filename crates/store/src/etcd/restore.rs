//! Making a store in etcd of a snapshot.
//!
//! The record of the store says first that it is being restored, so that no server takes the half of it for a store, and becomes
//! the record of a store with the last transaction.

use std::{io::Read, time::Duration};

use bytes::Bytes;
use portolan_types::{LogicalClusterId, ObjectKey, Record, ResourceVersion, Seams};
use serde_json::json;
use tokio::sync::mpsc;

use super::{
    client::{Client, Fault},
    commit::{delete_all, is_absent, is_at, nested, put},
    config::EtcdConfig,
    layout::{Layout, Numbering, PLACES},
    opening::{FORMAT, RESTORING},
    proto::{RangeRequest, RequestOp, TxnRequest},
};
use crate::{
    Counter, MAX_TRANSACTION_OBJECTS, OpenError, Snapshot, SnapshotError,
    history::object_key,
    keys::{self, end_of},
    resources::Resources,
    snapshot::{HIGHEST, Item, damaged, jump, read},
    value::{Damage, Prepared},
};

/// Items that are read ahead of what is written.
const AHEAD: usize = 64;
/// Bytes of a transaction, give or take an object: etcd takes 1.5 MiB.
const BYTES: usize = 512 << 10;
/// How long etcd may take for a transaction.
const PATIENCE: Duration = Duration::from_secs(30);

/// Makes a store of a snapshot under the configured prefix, where there is none. Its revision is raised as by
/// [`crate::restore`], and so is `counter`.
///
/// # Errors
/// As for [`crate::inspect`]; `OccupiedEtcd`; what etcd says. Nothing is left under the prefix then, as far as etcd can be
/// reached; else no server opens what is left.
pub async fn restore_etcd(
    etcd: &EtcdConfig,
    seams: &Seams,
    input: impl Read + Send + 'static,
    counter: Option<&Counter>,
) -> Result<Snapshot, SnapshotError> {
    let client = Client::new(etcd).map_err(OpenError::Etcd)?;
    let layout = Layout { prefix: etcd.prefix.clone().into_bytes(), numbering: Numbering { base: 0 } };
    let mut loader = Loader {
        client,
        layout,
        begun: 0,
        counter,
        resources: Resources::default(),
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

/// An object that is to be written.
struct Write {
    key: ObjectKey,
    record: Record,
    /// `None` for this write.
    created: Option<ResourceVersion>,
}

struct Loader<'a> {
    client: Client,
    layout: Layout,
    /// The revision of etcd's at which the restore began.
    begun: i64,
    counter: Option<&'a Counter>,
    /// By the snapshot's numbers.
    resources: Resources,
    /// The counter as the snapshot has it.
    counted: Option<Write>,
    writes: Vec<Write>,
    bytes: usize,
}

impl Loader<'_> {
    /// Sets the record, where nothing is.
    async fn begin(&mut self) -> Result<(), SnapshotError> {
        let prefix = self.layout.prefix.clone();
        let any =
            RangeRequest { range_end: end_of(&prefix).into(), key: prefix.into(), limit: 1, ..RangeRequest::default() };
        let occupied = || SnapshotError::OccupiedEtcd(String::from_utf8_lossy(&self.layout.prefix).into_owned());
        if !self.client.range(any, PATIENCE).await.map_err(failed)?.kvs.is_empty() {
            return Err(occupied());
        }
        let record = put(self.layout.meta(), json!({ RESTORING: true }).to_string().into());
        let request =
            TxnRequest { compare: vec![is_absent(self.layout.meta())], success: vec![record], failure: Vec::new() };
        let response = self.client.write(request, PATIENCE).await.map_err(failed)?;
        if !response.succeeded {
            return Err(occupied());
        }
        self.begun = super::commit::at(&response);
        Ok(())
    }

    async fn restore(&mut self, seams: &Seams, input: impl Read + Send + 'static) -> Result<Snapshot, SnapshotError> {
        let (send, mut items) = mpsc::channel(AHEAD);
        let reading = tokio::task::spawn_blocking(move || {
            read(input, &mut |item| {
                // Whoever does not listen any more has failed, and says so.
                send.blocking_send(item).map_err(|_| damaged("nobody reads on"))
            })
        });
        while let Some(item) = items.recv().await {
            self.add(item).await?;
        }
        let snapshot = reading.await.map_err(damaged)??;
        let raised = jump(seams);
        let last = snapshot.revision.checked_add(raised).filter(|last| *last <= HIGHEST);
        let last = last.ok_or_else(|| damaged("its revision leaves no room for a higher one"))?;
        self.count(raised)?;
        self.flush().await?;
        // Whatever etcd's own revisions are, ours are above.
        let base = last.div_ceil(PLACES).to_string();
        let record = json!({"format": FORMAT, "identity": seams.uid().to_string(), "base": base}).to_string();
        self.write(vec![put(self.layout.meta(), record.into())]).await?;
        Ok(snapshot)
    }

    async fn add(&mut self, item: Item) -> Result<(), SnapshotError> {
        match item {
            Item::Resource(id, resource) => self.resources.add(id, resource),
            Item::Gone(cluster, _) => self.gone(cluster).await?,
            Item::Object(suffix, _, version) => {
                let parts = keys::parts(suffix.as_bytes()).ok_or_else(|| damaged(Damage::Key))?;
                let key = object_key(&self.resources, parts)?;
                let write = Write { key, record: (*version.record).clone(), created: Some(version.created) };
                match self.counter {
                    Some(counter) if counter.key == write.key => self.counted = Some(write),
                    Some(_) | None => self.put(write),
                }
            }
        }
        if self.bytes >= BYTES || self.writes.len() >= MAX_TRANSACTION_OBJECTS { self.flush().await } else { Ok(()) }
    }

    fn put(&mut self, write: Write) {
        self.bytes += write.record.body().len();
        self.writes.push(write);
    }

    async fn gone(&self, cluster: LogicalClusterId) -> Result<(), SnapshotError> {
        // No object went with it.
        self.write(vec![put(self.layout.tombstone(cluster), Bytes::from_static(&[0]))]).await
    }

    /// Writes the counter, also where there was none yet.
    fn count(&mut self, raised: u64) -> Result<(), SnapshotError> {
        let Some(counter) = self.counter else { return Ok(()) };
        let (created, value) = match self.counted.take() {
            Some(counted) => (counted.created, Some(counted.record.to_value(ResourceVersion::FIRST).map_err(damaged)?)),
            None => (None, None),
        };
        let record =
            (counter.raise)(value, raised).ok_or_else(|| damaged(format!("{} cannot be raised", counter.key)))?;
        self.put(Write { key: counter.key.clone(), record, created });
        Ok(())
    }

    async fn flush(&mut self) -> Result<(), SnapshotError> {
        self.bytes = 0;
        let writes = std::mem::take(&mut self.writes);
        let (mut operations, mut indexes) = (Vec::new(), Vec::new());
        for (remaining, Write { key, record, created }) in (0..writes.len() as u64).rev().zip(writes) {
            indexes.extend(self.layout.indexes(&key, &record.header).into_iter().map(|key| put(key, Bytes::new())));
            operations.push(put(
                self.layout.object(&key),
                Numbering::sealed(&key, Prepared::new(record), remaining, created),
            ));
        }
        operations.append(&mut indexes);
        if operations.is_empty() { Ok(()) } else { self.write(operations).await }
    }

    /// Writes as long as nobody else has taken the place.
    async fn write(&self, operations: Vec<RequestOp>) -> Result<(), SnapshotError> {
        let compare = vec![is_at(self.layout.meta(), self.begun)];
        let request = TxnRequest { success: nested(compare.len(), operations), compare, failure: Vec::new() };
        let response = self.client.write(request, PATIENCE).await.map_err(failed)?;
        match response.succeeded {
            true => Ok(()),
            false => Err(SnapshotError::OccupiedEtcd(String::from_utf8_lossy(&self.layout.prefix).into_owned())),
        }
    }

    /// Removes what was written, the record included.
    async fn clear(&self) {
        let request = TxnRequest {
            compare: vec![is_at(self.layout.meta(), self.begun)],
            success: vec![delete_all(self.layout.prefix.clone())],
            failure: Vec::new(),
        };
        if let Err(fault) = self.client.write(request, PATIENCE).await {
            tracing::warn!(%fault, "what was restored by half is left in etcd");
        }
    }
}

fn failed(fault: Fault) -> SnapshotError {
    SnapshotError::Open(OpenError::Etcd(fault.told()))
}
