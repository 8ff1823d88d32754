//! Sweeps of deleted logical clusters, in slices. A slice shares a batch with other writes, so that it does not delay
//! them for long.

use std::{
    collections::{HashMap, HashSet},
    ops::ControlFlow,
};

use bytes::Bytes;
use portolan_types::{LogicalClusterId, ObjectKey, record::RecordHeader};

use crate::{
    api::{Committed, StoreError, damage::Damage},
    layout::keys::{self, KeySuffix, meta},
    maintenance::SliceProgress,
    read::{
        history::object_key,
        resources::ResourceRegistry,
        state::{backend, damaged, revision},
    },
    write::{
        discard::{DiscardedObject, IndexEntry, IndexedHeaders},
        plan::{BatchPlan, State, StoredContent, WritePosition, two_numbers},
    },
};

/// Entry of a deleted logical cluster that is to be removed.
enum DoomedObject {
    Whole(ObjectKey, KeySuffix, State),
    Damaged(DiscardedObject),
    /// Key that names no object, so that no reader has seen one; or index entry without its object.
    Malformed(Vec<u8>),
}

/// Slice of a deleted logical cluster.
struct SweepSlice {
    stored: Vec<DoomedObject>,
    /// Index entries of the damaged objects in it.
    indexed: IndexedHeaders,
    progress: SliceProgress,
}

/// Objects that one slice of a sweep removes: fewer than the history can count in a transaction.
const SWEEP_OBJECTS: usize = 512;
/// Bytes of objects that one slice of a sweep removes, plus up to an object.
const SWEEP_BYTES: usize = 2 << 20;

impl BatchPlan<'_> {
    /// Marks a logical cluster as deleted, and removes the first slice of its objects. Needs a batch of its own.
    ///
    /// A repeated deletion returns the revisions of the first one.
    pub(crate) fn delete_cluster(
        &mut self,
        resources: &ResourceRegistry,
        cluster: LogicalClusterId,
    ) -> Result<(Committed, SliceProgress), StoreError> {
        let tombstone = meta::tombstone(cluster);
        if let Some(value) = self.get(&tombstone)? {
            let (first, last) = two_numbers(&value)?;
            let is_swept = self.get(&meta::sweep(cluster))?.is_none();
            let progress = if is_swept { SliceProgress::Done } else { SliceProgress::More };
            return Ok((Committed { first: revision(first)?, last: revision(last)? }, progress));
        }
        let SweepSlice { stored, indexed, progress } = self.slice(resources, cluster)?;
        let closed = self.close_account(cluster)?;
        let first = self.now.last + 1;
        let boundary = first + writes(&stored);
        self.record_cluster_gone(cluster, WritePosition { revision: first, boundary });
        self.delete_all(stored, indexed, boundary)?;
        self.accounts.apply(closed);
        self.put(tombstone, [first.to_le_bytes(), boundary.to_le_bytes()].concat());
        if progress == SliceProgress::More {
            self.put(meta::sweep(cluster), Vec::new());
        }
        Ok((Committed { first: revision(first)?, last: revision(boundary)? }, progress))
    }

    /// Removes the next slice of the objects of a deleted logical cluster.
    pub(crate) fn sweep(
        &mut self,
        resources: &ResourceRegistry,
        cluster: LogicalClusterId,
    ) -> Result<SliceProgress, StoreError> {
        let SweepSlice { stored, indexed, progress } = self.slice(resources, cluster)?;
        let boundary = self.now.last + writes(&stored);
        self.delete_all(stored, indexed, boundary)?;
        if progress == SliceProgress::Done {
            self.remove(meta::sweep(cluster));
        }
        Ok(progress)
    }

    /// Reads all that a slice needs, so that a failure plans nothing.
    fn slice(&self, resources: &ResourceRegistry, cluster: LogicalClusterId) -> Result<SweepSlice, StoreError> {
        let (stored, progress) = self.stored(resources, cluster)?;
        let indexed = self.indexed(cluster, stored.iter().filter_map(DoomedObject::damaged))?;
        Ok(SweepSlice { stored, indexed, progress })
    }

    fn stored(
        &self,
        resources: &ResourceRegistry,
        cluster: LogicalClusterId,
    ) -> Result<(Vec<DoomedObject>, SliceProgress), StoreError> {
        let prefix = keys::joined(b'o', &[&keys::cluster_prefix(cluster)]);
        let mut cursor = self.view.scan(&prefix, &keys::end_of(&prefix)).map_err(backend)?;
        let (mut found, mut bytes) = (Vec::new(), 0);
        while let Some(key) = cursor.key() {
            if found.len() >= SWEEP_OBJECTS || bytes >= SWEEP_BYTES {
                return Ok((found, SliceProgress::More));
            }
            let content = StoredContent::of(&key[1..], cursor.value_bytes());
            bytes += content.bytes();
            found.push(DoomedObject::of(resources, key, content));
            cursor.advance().map_err(backend)?;
        }
        drop(cursor);
        let strays = self.strays(resources, cluster, &found)?;
        let progress = if strays.len() < SWEEP_OBJECTS { SliceProgress::Done } else { SliceProgress::More };
        found.extend(strays);
        Ok((found, progress))
    }

    /// Returns the stray index entries of a logical cluster: those of missing objects, and those that their objects do
    /// not have. `last` is the last slice of objects.
    fn strays(
        &self,
        resources: &ResourceRegistry,
        cluster: LogicalClusterId,
        last: &[DoomedObject],
    ) -> Result<Vec<DoomedObject>, StoreError> {
        let last: HashMap<&KeySuffix, Option<&RecordHeader>> = last.iter().filter_map(DoomedObject::indexed).collect();
        let (mut strays, mut missing) = (Vec::new(), HashSet::new());
        self.each_entry(cluster, |IndexEntry { key, named, list }| {
            let stray = named.map(|(uid, suffix)| match last.get(&suffix) {
                // A damaged object is removed with all its index entries.
                Some(None) => None,
                Some(Some(header)) => (!list.of(header).contains(&uid)).then(|| DoomedObject::Malformed(key.to_vec())),
                None if missing.contains(&suffix) => None,
                None => Some(DoomedObject::missing(resources, key, suffix)),
            });
            let stray = stray.unwrap_or_else(|| Some(DoomedObject::Malformed(key.to_vec())));
            if let Some(DoomedObject::Damaged(DiscardedObject { suffix, .. })) = &stray {
                missing.insert(suffix.clone());
            }
            strays.extend(stray);
            if strays.len() < SWEEP_OBJECTS { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        Ok(strays)
    }

    /// Deletes objects as the last writes of the transaction that ends at `boundary`.
    fn delete_all(
        &mut self,
        stored: Vec<DoomedObject>,
        mut indexed: IndexedHeaders,
        boundary: u64,
    ) -> Result<(), StoreError> {
        let mut places =
            (boundary + 1 - writes(&stored)..=boundary).map(|revision| WritePosition { revision, boundary });
        let mut lost = Vec::new();
        for stored in stored {
            match stored {
                DoomedObject::Malformed(key) => self.remove(key),
                DoomedObject::Whole(key, suffix, state) => {
                    let place = places.next().ok_or(Damage::Key).map_err(damaged)?;
                    self.delete(key, &suffix, state, place)?;
                }
                DoomedObject::Damaged(one) => lost.push((one, places.next().ok_or(Damage::Key).map_err(damaged)?)),
            }
        }
        lost.into_iter().try_for_each(|(lost, place)| self.discard_unreadable(lost, place, &mut indexed))?;
        self.now.last = boundary;
        Ok(())
    }
}

impl DoomedObject {
    fn of(resources: &ResourceRegistry, key: &[u8], content: StoredContent) -> Self {
        let address = keys::parts(&key[1..]).map(|parts| object_key(resources, parts));
        let Some(Ok(address)) = address else { return Self::Malformed(key.to_vec()) };
        let suffix = KeySuffix::from_bytes(&key[1..]);
        match content {
            StoredContent::Whole(state) => Self::Whole(address, suffix, state),
            StoredContent::Damaged(value, why) => Self::Damaged(DiscardedObject { key: address, suffix, value, why }),
        }
    }

    /// Returns a missing object that only an index entry names.
    fn missing(resources: &ResourceRegistry, entry: &[u8], suffix: KeySuffix) -> Self {
        match keys::parts(suffix.as_bytes()).map(|parts| object_key(resources, parts)) {
            Some(Ok(key)) => Self::Damaged(DiscardedObject { key, suffix, value: Bytes::new(), why: Damage::Missing }),
            Some(Err(_)) | None => Self::Malformed(entry.to_vec()),
        }
    }

    /// Returns the suffix of a damaged object.
    fn damaged(&self) -> Option<&KeySuffix> {
        match self {
            Self::Damaged(lost) => Some(&lost.suffix),
            Self::Whole(..) | Self::Malformed(_) => None,
        }
    }

    /// Returns an object with its header, if that can be read; `None` for a malformed key.
    fn indexed(&self) -> Option<(&KeySuffix, Option<&RecordHeader>)> {
        match self {
            Self::Whole(_, suffix, state) => Some((suffix, Some(state.header()))),
            Self::Damaged(lost) => Some((&lost.suffix, None)),
            Self::Malformed(_) => None,
        }
    }
}

/// Counts the writes that delete these entries.
fn writes(stored: &[DoomedObject]) -> u64 {
    stored.iter().filter(|stored| !matches!(stored, DoomedObject::Malformed(_))).count() as u64
}
