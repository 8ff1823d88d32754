//! Deletion of logical clusters: a tombstone that every write checks, then the objects in slices.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use portolan_types::{LogicalClusterId, ObjectKey};

use super::{
    EtcdCore, READ_TIMEOUT,
    commit::{at, delete as delete_key, delete_all, encode_places, is_absent, is_at, is_there, nested, put},
    proto::{KeyValue, RangeRequest, TxnRequest},
};
use crate::{
    api::{Committed, RangePage, RangeRequest as Range, RangeScope, StoreError, StoredObject, damage::Damage},
    read::state::damaged,
    reader_pool::ReadTenant,
};

/// Limits of a slice: objects per transaction, and bytes that are read for it.
const SLICE: (usize, usize) = (100, 4 << 20);
/// Attempts at the first slice before the tombstone is written alone, which stops all conflicting writes.
const MAX_ATTEMPTS: usize = 4;
/// Interval at which servers look for unfinished deletions of other servers.
const SWEEP_INTERVAL: Duration = Duration::from_secs(10);

/// Writes the tombstone with the first slice of deletions, and deletes the rest in the background.
pub(super) async fn delete(inner: &Arc<EtcdCore>, cluster: LogicalClusterId) -> Result<Committed, StoreError> {
    let mut attempt = 0;
    loop {
        if let Some(done) = inner.tombstone(cluster).await? {
            return Ok(done);
        }
        // Damaged objects are left to the sweep, when nothing writes to the logical cluster.
        let slice = match attempt {
            ..MAX_ATTEMPTS => inner.slice(cluster, ReadTenant::Cluster(cluster)).await?.objects,
            _ => Vec::new(),
        };
        let tombstone = inner.layout.tombstone(cluster);
        let mut request = inner.removal(&slice, &[], 1);
        request.compare.push(is_absent(tombstone.clone()));
        request.success.push(put(tombstone, vec![u8::try_from(slice.len()).unwrap_or(u8::MAX)].into()));
        request.success.push(put(inner.layout.sweep(cluster), Bytes::new()));
        let request = TxnRequest { success: nested(request.compare.len(), request.success), ..request };
        let written = inner.metrics.time_commit(slice.len(), inner.client.write(request, inner.patience)).await;
        let response = written.map_err(|fault| inner.write_fault(fault))?;
        if response.succeeded {
            let at = at(&response);
            inner.reach(at).await.map_err(|_| StoreError::Unknown)?;
            let sweeping = inner.clone();
            tokio::spawn(async move { sweep(&sweeping, cluster).await });
            return inner.committed(at, slice.len() + 1);
        }
        inner.check_same_store(inner.at(inner.layout.meta(), 0).await?.as_ref())?;
        attempt += 1;
    }
}

impl EtcdCore {
    /// Returns the result of an earlier deletion of the logical cluster.
    async fn tombstone(&self, cluster: LogicalClusterId) -> Result<Option<Committed>, StoreError> {
        let request = RangeRequest { key: self.layout.tombstone(cluster).into(), ..RangeRequest::default() };
        let found = self.client.range(request, READ_TIMEOUT).await.map_err(|fault| self.read_fault(fault))?;
        let Some(kv) = found.kvs.first() else { return Ok(None) };
        let count = kv.value.first().copied().ok_or_else(|| damaged(Damage::Key))?;
        Ok(Some(self.committed(kv.mod_revision, usize::from(count) + 1)?))
    }

    async fn slice(&self, cluster: LogicalClusterId, party: ReadTenant) -> Result<RangePage, StoreError> {
        let all = Range::all(RangeScope::Everything(cluster)).skip_damaged();
        self.range_for(party, &Range { limit: Some(SLICE.0), bytes: Some(SLICE.1), ..all }).await
    }

    /// Builds the removal of objects at the revisions that were read, which fails if one has changed, and of damaged
    /// objects in any state. `others` is the number of writes before them.
    fn removal(&self, objects: &[StoredObject], damaged: &[ObjectKey], others: usize) -> TxnRequest {
        let layout = &self.layout;
        let unchanged = |object: &StoredObject| {
            is_at(layout.object(&object.key), layout.numbering.transaction(object.revision.get()))
        };
        let there = damaged.iter().map(|key| is_there(layout.object(key)));
        let compare = objects.iter().map(unchanged).chain(there).chain([self.is_same_store()]).collect();
        let keys = objects.iter().map(|object| &object.key).chain(damaged);
        let keys: Vec<Vec<u8>> = keys.map(|key| layout.object(key)).collect();
        let indexes = objects.iter().flat_map(|object| layout.indexes(&object.key, &object.record.header));
        let mut success: Vec<_> = keys.iter().cloned().chain(indexes).map(delete_key).collect();
        if keys.len() + others > 1 && !keys.is_empty() {
            let places = (0..keys.len() as u64).rev().zip(&keys).map(|(remaining, key)| (remaining, key.as_slice()));
            success.push(put(layout.deletions(), encode_places(places)));
        }
        TxnRequest { compare, success, failure: Vec::new() }
    }

    /// Removes the rest of a deleted logical cluster. Several servers may do so at once.
    async fn sweep(&self, cluster: LogicalClusterId) -> Result<(), StoreError> {
        loop {
            let RangePage { objects, damaged, .. } = self.slice(cluster, ReadTenant::Sweeps).await?;
            // Malformed keys do not belong to the logical cluster.
            let damaged = damaged.into_iter().filter(|found| found.why != Damage::Key);
            let damaged: Vec<ObjectKey> = damaged.map(|found| found.key).collect();
            let mut request = self.removal(&objects, &damaged, 0);
            request.success.extend(self.index_keys_of(cluster, &damaged).await?.into_iter().map(delete_key));
            let is_empty = objects.is_empty() && damaged.is_empty();
            if is_empty {
                // The remaining owner entries name missing objects. The placement index is not ordered by logical
                // cluster: its leftovers are removed by reads that find them.
                request.success.push(delete_all(self.layout.owned_in(cluster)));
                request.success.push(delete_key(self.layout.sweep(cluster)));
            }
            let request = TxnRequest { success: nested(request.compare.len(), request.success), ..request };
            let written = self.client.write(request, self.patience).await.map_err(|fault| self.write_fault(fault))?;
            if !written.succeeded {
                // A conflicting write is retried; in another store no retry would succeed.
                self.check_same_store(self.at(self.layout.meta(), 0).await?.as_ref())?;
            } else if is_empty {
                return Ok(());
            }
        }
    }
}

async fn sweep(inner: &EtcdCore, cluster: LogicalClusterId) {
    if let Some(Err(error)) = inner.stopped.run_until_cancelled(inner.sweep(cluster)).await {
        // The periodic look repeats it.
        tracing::warn!(cluster = %cluster, %error, "some objects of a deleted logical cluster could not be removed yet");
    }
}

/// Continues unfinished deletions of all servers until the store is closed.
pub(super) async fn sweep_all(inner: Arc<EtcdCore>) {
    let look = async {
        loop {
            let left = inner.keys(inner.layout.under(b'w', &[])).await.unwrap_or_default();
            let cluster = |kv: &KeyValue| inner.layout.cluster_of(&kv.key);
            for cluster in left.iter().filter_map(cluster) {
                sweep(&inner, cluster).await;
            }
            tokio::time::sleep(SWEEP_INTERVAL).await;
        }
    };
    inner.stopped.run_until_cancelled(look).await;
}
