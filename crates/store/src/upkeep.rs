//! Removing in slices what is no longer wanted: history that was compacted, and the objects of deleted logical clusters.
//! A slice rides in a batch with other writes, so that neither delays them for long.

use std::{
    collections::{HashMap, HashSet},
    ops::ControlFlow,
};

use bytes::Bytes;
use portolan_types::{LogicalClusterId, ObjectKey, record::RecordHeader};

use crate::{
    Change, Committed, StoreError,
    history::{Entry, What, object_key},
    keys::{self, Suffix, meta},
    lost::{IndexEntry, Indexed, Lost},
    plan::{Content, Place, Plan, State, two_numbers},
    read::{backend, damaged, revision},
    resources::Resources,
    value::Damage,
};

/// What there is in a logical cluster that is being deleted.
enum Stored {
    Whole(ObjectKey, Suffix, State),
    Damaged(Lost),
    /// A key that names no object: nobody can have seen one there. Or one of an index that names an object wrongly.
    Malformed(Vec<u8>),
}

/// A part of a logical cluster that is being deleted.
struct Slice {
    stored: Vec<Stored>,
    /// What the indexes say of what is damaged in it.
    indexed: Indexed,
    progress: Progress,
}

/// Entries of the history that one slice of a compaction removes.
const COMPACTION_SLICE: usize = 2048;
/// Objects that one slice removes of a deleted logical cluster: fewer than the history can count in a transaction.
const SWEEP_OBJECTS: usize = 512;
/// Bytes of objects that one slice removes, give or take an object.
const SWEEP_BYTES: usize = 2 << 20;

/// Whether there is more to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    Done,
    More,
}

impl Plan<'_> {
    /// Forgets a slice of the history up to the last boundary that is not after `upto`. The floor is raised in the same
    /// batch, so that a crash leaves either all of the slice or none.
    pub(crate) fn compact(&mut self, upto: u64) -> Result<Progress, StoreError> {
        // Nothing of this batch can be forgotten by it.
        let (from, upto) = (self.now.floor + 1, upto.min(self.before.last));
        if from > upto {
            return Ok(Progress::Done);
        }
        let (mut removals, mut transaction, mut floor) = (Vec::new(), Vec::new(), self.now.floor);
        let mut cursor = self.view.scan(&keys::history(from), &keys::history(upto + 1)).map_err(backend)?;
        while let Some(key) = cursor.key() {
            let at = keys::history_revision(key).ok_or(Damage::Key).map_err(damaged)?;
            // One that is damaged goes as well, or history would grow for ever. What it superseded stays, and nobody sees it.
            let entry = Entry::decode(at, cursor.value());
            let entry = entry.inspect_err(|error| tracing::error!(revision = at, %error, "history is damaged")).ok();
            transaction.push(key.to_vec());
            if let Some(Entry { what: What::Object(Change::Updated | Change::Deleted, suffix), .. }) = &entry {
                transaction.push(Suffix::from_bytes(suffix).version(at));
            }
            if entry.is_some_and(|entry| entry.remaining == 0) {
                floor = at;
                removals.append(&mut transaction);
                if removals.len() >= COMPACTION_SLICE {
                    break;
                }
            }
            cursor.advance().map_err(backend)?;
        }
        let more = cursor.key().is_some();
        drop(cursor);
        removals.into_iter().for_each(|key| self.remove(key));
        self.now.floor = floor;
        Ok(if more { Progress::More } else { Progress::Done })
    }

    /// Marks a logical cluster as gone, and removes the first slice of its objects with it. In a batch of its own.
    ///
    /// A cluster that is gone already answers as it did the first time.
    pub(crate) fn delete_cluster(
        &mut self,
        resources: &Resources,
        cluster: LogicalClusterId,
    ) -> Result<(Committed, Progress), StoreError> {
        let tombstone = meta::tombstone(cluster);
        if let Some(value) = self.get(&tombstone)? {
            let (first, last) = two_numbers(&value)?;
            let is_swept = self.get(&meta::sweep(cluster))?.is_none();
            let progress = if is_swept { Progress::Done } else { Progress::More };
            return Ok((Committed { first: revision(first)?, last: revision(last)? }, progress));
        }
        let Slice { stored, indexed, progress } = self.slice(resources, cluster)?;
        let closed = self.closed(cluster)?;
        let first = self.now.last + 1;
        let boundary = first + writes(&stored);
        self.record_cluster_gone(cluster, Place { revision: first, boundary });
        self.delete_all(stored, indexed, boundary)?;
        self.accounts.apply(closed);
        self.put(tombstone, [first.to_le_bytes(), boundary.to_le_bytes()].concat());
        if progress == Progress::More {
            self.put(meta::sweep(cluster), Vec::new());
        }
        Ok((Committed { first: revision(first)?, last: revision(boundary)? }, progress))
    }

    /// Removes a further slice of the objects of a logical cluster that is gone since an earlier batch.
    pub(crate) fn sweep(&mut self, resources: &Resources, cluster: LogicalClusterId) -> Result<Progress, StoreError> {
        let Slice { stored, indexed, progress } = self.slice(resources, cluster)?;
        let boundary = self.now.last + writes(&stored);
        self.delete_all(stored, indexed, boundary)?;
        if progress == Progress::Done {
            self.remove(meta::sweep(cluster));
        }
        Ok(progress)
    }

    /// Reads all that removing a slice takes: what fails then has planned nothing.
    fn slice(&self, resources: &Resources, cluster: LogicalClusterId) -> Result<Slice, StoreError> {
        let (stored, progress) = self.stored(resources, cluster)?;
        let indexed = self.indexed(cluster, stored.iter().filter_map(Stored::damaged))?;
        Ok(Slice { stored, indexed, progress })
    }

    fn stored(&self, resources: &Resources, cluster: LogicalClusterId) -> Result<(Vec<Stored>, Progress), StoreError> {
        let prefix = keys::joined(b'o', &[&keys::cluster_prefix(cluster)]);
        let mut cursor = self.view.scan(&prefix, &keys::end_of(&prefix)).map_err(backend)?;
        let (mut found, mut bytes) = (Vec::new(), 0);
        while let Some(key) = cursor.key() {
            if found.len() >= SWEEP_OBJECTS || bytes >= SWEEP_BYTES {
                return Ok((found, Progress::More));
            }
            let content = Content::of(&key[1..], cursor.value_bytes());
            bytes += content.bytes();
            found.push(Stored::of(resources, key, content));
            cursor.advance().map_err(backend)?;
        }
        drop(cursor);
        let strays = self.strays(resources, cluster, &found)?;
        let progress = if strays.len() < SWEEP_OBJECTS { Progress::Done } else { Progress::More };
        found.extend(strays);
        Ok((found, progress))
    }

    /// What the indexes name of a logical cluster beside its last objects, and would for ever: objects that are missing, and entries
    /// of which their objects do not know.
    fn strays(
        &self,
        resources: &Resources,
        cluster: LogicalClusterId,
        last: &[Stored],
    ) -> Result<Vec<Stored>, StoreError> {
        let last: HashMap<&Suffix, Option<&RecordHeader>> = last.iter().filter_map(Stored::indexed).collect();
        let (mut strays, mut missing) = (Vec::new(), HashSet::new());
        self.each_entry(cluster, |IndexEntry { key, named, list }| {
            let stray = named.map(|(uid, suffix)| match last.get(&suffix) {
                // What is damaged goes with all that names it.
                Some(None) => None,
                Some(Some(header)) => (!list.of(header).contains(&uid)).then(|| Stored::Malformed(key.to_vec())),
                None if missing.contains(&suffix) => None,
                None => Some(Stored::missing(resources, key, suffix)),
            });
            let stray = stray.unwrap_or_else(|| Some(Stored::Malformed(key.to_vec())));
            if let Some(Stored::Damaged(Lost { suffix, .. })) = &stray {
                missing.insert(suffix.clone());
            }
            strays.extend(stray);
            if strays.len() < SWEEP_OBJECTS { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        Ok(strays)
    }

    /// Deletes objects as the last writes of the transaction that ends at `boundary`.
    fn delete_all(&mut self, stored: Vec<Stored>, mut indexed: Indexed, boundary: u64) -> Result<(), StoreError> {
        let mut places = (boundary + 1 - writes(&stored)..=boundary).map(|revision| Place { revision, boundary });
        let mut lost = Vec::new();
        for stored in stored {
            match stored {
                Stored::Malformed(key) => self.remove(key),
                Stored::Whole(key, suffix, state) => {
                    let place = places.next().ok_or(Damage::Key).map_err(damaged)?;
                    self.delete(key, &suffix, state, place)?;
                }
                Stored::Damaged(one) => lost.push((one, places.next().ok_or(Damage::Key).map_err(damaged)?)),
            }
        }
        lost.into_iter().try_for_each(|(lost, place)| self.lose(lost, place, &mut indexed))?;
        self.now.last = boundary;
        Ok(())
    }
}

impl Stored {
    fn of(resources: &Resources, key: &[u8], content: Content) -> Self {
        let address = keys::parts(&key[1..]).map(|parts| object_key(resources, parts));
        let Some(Ok(address)) = address else { return Self::Malformed(key.to_vec()) };
        let suffix = Suffix::from_bytes(&key[1..]);
        match content {
            Content::Whole(state) => Self::Whole(address, suffix, state),
            Content::Damaged(value, why) => Self::Damaged(Lost { key: address, suffix, value, why }),
        }
    }

    /// An object of which there is nothing but an entry of an index.
    fn missing(resources: &Resources, entry: &[u8], suffix: Suffix) -> Self {
        match keys::parts(suffix.as_bytes()).map(|parts| object_key(resources, parts)) {
            Some(Ok(key)) => Self::Damaged(Lost { key, suffix, value: Bytes::new(), why: Damage::Missing }),
            Some(Err(_)) | None => Self::Malformed(entry.to_vec()),
        }
    }

    /// The suffix of a damaged object.
    fn damaged(&self) -> Option<&Suffix> {
        match self {
            Self::Damaged(lost) => Some(&lost.suffix),
            Self::Whole(..) | Self::Malformed(_) => None,
        }
    }

    /// An object and what says in which indexes it is, if that can be read; `None` for what is none.
    fn indexed(&self) -> Option<(&Suffix, Option<&RecordHeader>)> {
        match self {
            Self::Whole(_, suffix, state) => Some((suffix, Some(state.header()))),
            Self::Damaged(lost) => Some((&lost.suffix, None)),
            Self::Malformed(_) => None,
        }
    }
}

/// How many writes it takes to delete what was found.
fn writes(stored: &[Stored]) -> u64 {
    stored.iter().filter(|stored| !matches!(stored, Stored::Malformed(_))).count() as u64
}
