//! Removing in slices what is no longer wanted: history that was compacted, and the objects of deleted logical clusters.
//! A slice rides in a batch with other writes, so that neither delays them for long.

use bytes::Bytes;
use portolan_types::{LogicalClusterId, ObjectKey};

use crate::{
    Change, Committed, StoreError,
    history::{Entry, What, object_key},
    keys::{self, Suffix, meta},
    plan::{Place, Plan, State, two_numbers},
    read::{backend, damaged, revision},
    resources::Resources,
    value::Damage,
};

/// An object of a logical cluster that is being deleted, as it is read.
type Stored = (ObjectKey, Suffix, State);

/// Entries of the history that one slice of a compaction removes.
const COMPACTION_SLICE: usize = 2048;
/// Objects that one slice removes of a deleted logical cluster: fewer than the history can count in a transaction.
const SWEEP_OBJECTS: usize = 512;
/// Bytes of objects that one slice removes, give or take an object.
const SWEEP_BYTES: usize = 2 << 20;

/// Some objects of a logical cluster.
struct Slice {
    objects: Vec<Stored>,
    progress: Progress,
    /// Of an object that is not among them, because it cannot be read.
    damage: Option<StoreError>,
}

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
            let entry = Entry::decode(cursor.value()).map_err(damaged)?;
            transaction.push(key.to_vec());
            if let What::Object(Change::Updated | Change::Deleted, suffix) = entry.what {
                transaction.push(Suffix::from_bytes(suffix).version(at));
            }
            if entry.remaining == 0 {
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
            return Ok((Committed { first: revision(first)?, last: revision(last)? }, Progress::Done));
        }
        let Slice { objects, progress, .. } = self.slice(resources, cluster)?;
        let first = self.now.last + 1;
        let boundary = first + objects.len() as u64;
        self.record_cluster_gone(cluster, Place { revision: first, boundary });
        self.delete_all(objects, boundary)?;
        self.put(tombstone, [first.to_le_bytes(), boundary.to_le_bytes()].concat());
        if progress == Progress::More {
            self.put(meta::sweep(cluster), Vec::new());
        }
        Ok((Committed { first: revision(first)?, last: revision(boundary)? }, progress))
    }

    /// Removes a further slice of the objects of a logical cluster that is gone since an earlier batch. Damaged ones are left as
    /// they are, and are an error once nothing else is left.
    pub(crate) fn sweep(&mut self, resources: &Resources, cluster: LogicalClusterId) -> Result<Progress, StoreError> {
        let Slice { objects, progress, damage } = self.slice(resources, cluster)?;
        if let Some(damage) = damage
            && objects.is_empty()
        {
            return Err(damage);
        }
        let boundary = self.now.last + objects.len() as u64;
        self.delete_all(objects, boundary)?;
        if progress == Progress::Done {
            self.remove(meta::sweep(cluster));
        }
        Ok(progress)
    }

    fn slice(&self, resources: &Resources, cluster: LogicalClusterId) -> Result<Slice, StoreError> {
        let prefix = keys::joined(b'o', &[&keys::cluster_prefix(cluster)]);
        let mut cursor = self.view.scan(&prefix, &keys::end_of(&prefix)).map_err(backend)?;
        let (mut objects, mut bytes, mut damage) = (Vec::new(), 0, None);
        while let Some(key) = cursor.key() {
            if objects.len() >= SWEEP_OBJECTS || bytes >= SWEEP_BYTES {
                return Ok(Slice { objects, progress: Progress::More, damage });
            }
            match stored(resources, &key[1..], cursor.value_bytes()) {
                Ok(object) => {
                    bytes += object.2.bytes();
                    objects.push(object);
                }
                Err(error) => damage = Some(error),
            }
            cursor.advance().map_err(backend)?;
        }
        let progress = if damage.is_none() { Progress::Done } else { Progress::More };
        Ok(Slice { objects, progress, damage })
    }

    /// Deletes objects as the last writes of the transaction that ends at `boundary`.
    fn delete_all(&mut self, objects: Vec<Stored>, boundary: u64) -> Result<(), StoreError> {
        let first = boundary + 1 - objects.len() as u64;
        for (at, (key, suffix, state)) in (first..).zip(objects) {
            self.delete(key, &suffix, state, Place { revision: at, boundary })?;
        }
        self.now.last = boundary;
        Ok(())
    }
}

fn stored(resources: &Resources, suffix: &[u8], value: Bytes) -> Result<Stored, StoreError> {
    let state = State::decode(suffix, value)?;
    let parts = keys::parts(suffix).ok_or(Damage::Key).map_err(damaged)?;
    Ok((object_key(resources, parts)?, Suffix::from_bytes(suffix), state))
}
