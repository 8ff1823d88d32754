//! Count of all accounts of a store whose format lacks them.

use std::collections::BTreeMap;

use bytes::Bytes;
use portolan_types::{LogicalClusterId, MonotonicInstant};

use super::{AccountEntry, ENTRIES_PER_BATCH, MAX_ANCESTORS, UsageDelta};
use crate::{
    api::{StoreError, StoredUsage},
    engine::{Batch, KvView},
    layout::keys::{self, meta},
    read::{
        bookkeeping::each,
        state::{backend, deleted_clusters},
    },
};

/// Usage of all logical clusters, counted from the objects of a store.
pub(crate) struct CountedUsage {
    entries: BTreeMap<LogicalClusterId, AccountEntry>,
    superseded: u64,
}

impl CountedUsage {
    /// Counts all objects and superseded objects. Links to parents are kept. A logical cluster that cannot be read
    /// completely gets no entry, and is counted at its next write.
    ///
    /// # Errors
    /// Fails if the bookkeeping cannot be read.
    pub(crate) fn of(view: &dyn KvView) -> Result<Self, StoreError> {
        let began = MonotonicInstant::now();
        let mut counted = Self { entries: BTreeMap::new(), superseded: 0 };
        each(view, meta::ACCOUNTS, |key, value| {
            let cluster = LogicalClusterId::new(u64::from_be_bytes(meta::number(key)?));
            let parent = AccountEntry::decode(value)?.parent;
            counted.entries.insert(cluster, AccountEntry { parent, ..AccountEntry::default() });
            Some(())
        })
        .map_err(backend)?;
        counted.count_objects(view);
        for cluster in deleted_clusters(view)? {
            counted.entries.remove(&cluster);
        }
        counted.entries.remove(&LogicalClusterId::SYSTEM);
        counted.add_up();
        tracing::info!(logical_clusters = counted.entries.len(), duration = ?began.elapsed(), "counted the objects of all logical clusters, once per upgrade");
        Ok(counted)
    }

    fn count_objects(&mut self, view: &dyn KvView) {
        let (mut last, entries, superseded) = (None, &mut self.entries, &mut self.superseded);
        let objects = each(view, b"o", |key, value| {
            let (cluster, _) = keys::beginning(key)?;
            let own = &mut entries.entry(cluster).or_default().own;
            *own = StoredUsage { objects: own.objects + 1, bytes: own.bytes + value.len() as u64 };
            last = Some(cluster);
            Some(())
        });
        let versions = each(view, b"v", |_, value| {
            *superseded += value.len() as u64;
            Some(())
        });
        if let Err(error) = objects {
            tracing::error!(%error, "the objects could not all be counted");
            // Those that were not read to their end are counted at their next write.
            self.entries.retain(|cluster, _| last.is_some_and(|last| *cluster < last));
        }
        if let Err(error) = versions {
            tracing::error!(%error, "the superseded objects could not all be counted");
        }
    }

    /// Computes the totals of all logical clusters.
    fn add_up(&mut self) {
        let own: Vec<_> = self.entries.iter().map(|(cluster, entry)| (*cluster, entry.own)).collect();
        for (cluster, own) in own {
            let (mut next, change) = (Some(cluster), UsageDelta::between(StoredUsage::default(), own));
            for _ in 0..MAX_ANCESTORS {
                let Some(entry) = next.and_then(|at| self.entries.get_mut(&at)) else { break };
                entry.total = entry.total.plus(change);
                next = entry.parent;
            }
        }
    }

    /// Returns the batches that store the entries.
    pub(crate) fn batches(self) -> impl Iterator<Item = Batch> {
        let superseded = Bytes::copy_from_slice(&self.superseded.to_le_bytes());
        let entries = self.entries.into_iter().map(|(of, entry)| (meta::account(of), Some(entry.encode())));
        let mut pairs = entries.chain([(meta::SUPERSEDED.to_vec(), Some(superseded))]);
        std::iter::from_fn(move || {
            Some(pairs.by_ref().take(ENTRIES_PER_BATCH).collect::<Batch>()).filter(|batch| !batch.is_empty())
        })
    }
}
