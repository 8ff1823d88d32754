//! Deletion of objects that cannot be read. Their content is lost: watchers list again.

use std::{cmp::Ordering, collections::BTreeMap, ops::ControlFlow, sync::Arc};

use bytes::Bytes;
use portolan_types::{LogicalClusterId, ObjectKey, Record, record::RecordHeader};
use serde_json::json;

use crate::{
    api::{ChangeKind, Event, StoreError, damage::Damage},
    layout::keys::{self, KeySuffix},
    read::state::{backend, revision},
    write::plan::{BatchPlan, WritePosition},
};

/// Damaged object that is to be deleted.
pub(crate) struct DiscardedObject {
    pub(crate) key: ObjectKey,
    pub(crate) suffix: KeySuffix,
    /// Damaged bytes of the object. History keeps them, so that an older state is not taken for undamaged.
    pub(crate) value: Bytes,
    pub(crate) why: Damage,
}

/// Entry of an index.
pub(crate) struct IndexEntry<'a> {
    pub(crate) key: &'a [u8],
    /// UID and object that the entry names; `None` for a malformed entry.
    pub(crate) named: Option<(String, KeySuffix)>,
    pub(crate) list: IndexedList,
}

/// List in a header that an index is built from.
#[derive(Clone, Copy)]
pub(crate) enum IndexedList {
    Owners,
    PlacedOn,
}

impl IndexedList {
    pub(crate) fn of(self, header: &RecordHeader) -> &Vec<String> {
        match self {
            Self::Owners => &header.owners,
            Self::PlacedOn => &header.placed_on,
        }
    }

    fn of_mut(self, header: &mut RecordHeader) -> &mut Vec<String> {
        match self {
            Self::Owners => &mut header.owners,
            Self::PlacedOn => &mut header.placed_on,
        }
    }
}

/// Index entries of damaged objects.
#[derive(Default)]
pub(crate) struct IndexedHeaders {
    /// Headers rebuilt from the index entries.
    headers: BTreeMap<KeySuffix, RecordHeader>,
    /// Keys of these entries.
    entries: Vec<Vec<u8>>,
}

impl BatchPlan<'_> {
    /// Deletes a damaged object as the write at this revision. `indexed` was read from the indexes before the
    /// transaction was planned.
    pub(crate) fn discard_unreadable(
        &mut self,
        lost: DiscardedObject,
        place: WritePosition,
        indexed: &mut IndexedHeaders,
    ) -> Result<(), StoreError> {
        let DiscardedObject { key, suffix, value, why } = lost;
        std::mem::take(&mut indexed.entries).into_iter().for_each(|entry| self.remove(entry));
        self.remove(suffix.object());
        self.keep(&suffix, value, place);
        let mut record = Record::of(&json!({}));
        record.header = indexed.headers.remove(&suffix).unwrap_or_default();
        let (revision, record) = (revision(place.revision)?, Arc::new(record));
        let event = Event { revision, change: ChangeKind::Deleted, key, record, previous: None };
        self.record(&suffix, place, event, Some(why));
        Ok(())
    }

    /// Returns true if an index names an object.
    pub(crate) fn is_indexed(&self, cluster: LogicalClusterId, suffix: &KeySuffix) -> Result<bool, StoreError> {
        let mut is_indexed = false;
        self.each_entry(cluster, |entry| {
            is_indexed = entry.named.is_some_and(|(_, of)| of == *suffix);
            if is_indexed { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        Ok(is_indexed)
    }

    /// Reads the index entries of damaged objects of one logical cluster, whose own lists cannot be read.
    pub(crate) fn indexed<'s>(
        &self,
        cluster: LogicalClusterId,
        damaged: impl Iterator<Item = &'s KeySuffix>,
    ) -> Result<IndexedHeaders, StoreError> {
        let headers = damaged.map(|suffix| (suffix.clone(), RecordHeader::default())).collect();
        let mut indexed = IndexedHeaders { headers, entries: Vec::new() };
        if !indexed.headers.is_empty() {
            self.each_entry(cluster, |IndexEntry { key, named, list }| {
                if let Some((uid, suffix)) = named
                    && let Some(header) = indexed.headers.get_mut(&suffix)
                {
                    list.of_mut(header).push(uid);
                    indexed.entries.push(key.to_vec());
                }
                ControlFlow::Continue(())
            })?;
        }
        Ok(indexed)
    }

    /// Calls `look` with each index entry of a logical cluster until it breaks. Entries of other logical clusters on
    /// the same physical clusters are skipped by seeking.
    pub(crate) fn each_entry(
        &self,
        cluster: LogicalClusterId,
        mut look: impl FnMut(IndexEntry<'_>) -> ControlFlow<()>,
    ) -> Result<(), StoreError> {
        let owned = keys::joined(b'x', &[&keys::cluster_prefix(cluster)]);
        let mut cursor = self.view.scan(&owned, &keys::end_of(&owned)).map_err(backend)?;
        while let Some(key) = cursor.key() {
            if look(IndexEntry { key, named: keys::owner_parts(key), list: IndexedList::Owners }).is_break() {
                return Ok(());
            }
            cursor.advance().map_err(backend)?;
        }
        drop(cursor);
        let mut next = Some(vec![b'p']);
        while let Some(from) = next {
            next = self.placed_entries(&from, cluster, &mut look)?;
        }
        Ok(())
    }

    /// Does the work of [`BatchPlan::each_entry`] on the placement index up to the next seek position, which is
    /// returned; `None` at the end.
    fn placed_entries(
        &self,
        from: &[u8],
        cluster: LogicalClusterId,
        look: &mut impl FnMut(IndexEntry<'_>) -> ControlFlow<()>,
    ) -> Result<Option<Vec<u8>>, StoreError> {
        let mut cursor = self.view.scan(from, &keys::end_of(b"p")).map_err(backend)?;
        while let Some(key) = cursor.key() {
            let named = keys::placed_parts(key);
            let place = named.as_ref().and_then(|(uid, suffix)| Some((keys::placed_prefix(uid)?, suffix.cluster()?)));
            let is_over = match place.map(|(prefix, of)| (of.cmp(&cluster), prefix)) {
                Some((Ordering::Less, prefix)) => {
                    return Ok(Some([prefix, keys::cluster_prefix(cluster)].concat()));
                }
                Some((Ordering::Greater, prefix)) => return Ok(Some(keys::end_of(&prefix))),
                Some((Ordering::Equal, _)) => look(IndexEntry { key, named, list: IndexedList::PlacedOn }).is_break(),
                // A malformed key belongs to no logical cluster.
                None => false,
            };
            if is_over {
                return Ok(None);
            }
            cursor.advance().map_err(backend)?;
        }
        Ok(None)
    }
}
