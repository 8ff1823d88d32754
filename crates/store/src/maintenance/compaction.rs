//! Compaction of history, in slices. A slice shares a batch with other writes, so that it does not delay them for long.

use crate::{
    api::{ChangeKind, StoreError, damage::Damage},
    layout::{
        history_entry::{HistoryChange, HistoryEntry},
        keys::{self, KeySuffix},
    },
    maintenance::SliceProgress,
    read::state::{backend, damaged},
    write::{disk_space, plan::BatchPlan},
};

/// Limits of one slice of a compaction: history entries, and bytes of superseded objects. A slice ends with a whole
/// transaction, so it can exceed them by one. One batch of writes supersedes fewer bytes than a slice removes: a
/// compaction ends under any load.
const COMPACTION_SLICE: (usize, u64) = (2048, 64 << 20);

impl BatchPlan<'_> {
    /// Compacts a slice of the history, up to the last transaction boundary that is not after `upto`. The floor is
    /// raised in the same batch, so that a crash leaves all of the slice or none.
    pub(crate) fn compact(&mut self, upto: u64) -> Result<SliceProgress, StoreError> {
        self.compact_while(upto, |_| true)
    }

    /// Compacts a slice of the history. Stops at the revision `upto`, or when at most `most` bytes of superseded
    /// objects are left.
    pub(crate) fn compact_to(&mut self, most: u64, upto: u64) -> Result<SliceProgress, StoreError> {
        if self.superseded > most {
            self.compact_while(upto, |superseded| superseded > most)
        } else {
            Ok(SliceProgress::Done)
        }
    }

    /// Compacts a slice as [`BatchPlan::compact`] does. Stops when `goes_on` returns false for the bytes of superseded
    /// objects that are left.
    fn compact_while(&mut self, upto: u64, goes_on: impl Fn(u64) -> bool) -> Result<SliceProgress, StoreError> {
        if self.now.floor == self.before.last {
            // Versions whose history entry was damaged remain, and are not counted.
            self.superseded = self.replaced();
        }
        // A batch cannot compact its own writes.
        let (from, upto) = (self.now.floor + 1, upto.min(self.before.last));
        if from > upto {
            return Ok(SliceProgress::Done);
        }
        let (mut removals, mut transaction, mut floor) = (Vec::new(), Vec::new(), self.now.floor);
        let (mut forgotten, mut freed, mut is_over) = (0, 0, false);
        let mut left = (self.superseded, self.freed);
        let mut cursor = self.view.scan(&keys::history(from), &keys::history(upto + 1)).map_err(backend)?;
        while let Some(key) = cursor.key() {
            let at = keys::history_revision(key).ok_or(Damage::Key).map_err(damaged)?;
            // A damaged entry is removed as well, or history would grow without limit. Its superseded version remains,
            // invisible.
            let entry = HistoryEntry::decode(at, cursor.value());
            let entry = entry
                .inspect_err(|error| tracing::error!(revision = at, %error, "an entry of the history is damaged"))
                .ok();
            transaction.push(key.to_vec());
            if let Some(HistoryEntry {
                what: HistoryChange::Object(ChangeKind::Updated | ChangeKind::Deleted, suffix),
                ..
            }) = &entry
            {
                let version = KeySuffix::from_bytes(suffix).version(at);
                let bytes = self.view.len_of(&version).map_err(backend)?.unwrap_or(0);
                forgotten += bytes;
                freed += disk_space::estimated_freed(&version, bytes);
                transaction.push(version);
            }
            if entry.is_some_and(|entry| entry.remaining == 0) {
                floor = at;
                removals.append(&mut transaction);
                left = (self.superseded.saturating_sub(forgotten), self.freed + freed);
                is_over = !goes_on(left.0);
                if is_over || removals.len() >= COMPACTION_SLICE.0 || forgotten >= COMPACTION_SLICE.1 {
                    break;
                }
            }
            cursor.advance().map_err(backend)?;
        }
        let more = cursor.key().is_some() && !is_over;
        drop(cursor);
        removals.into_iter().for_each(|key| self.remove(key));
        self.now.floor = floor;
        (self.superseded, self.freed) = left;
        Ok(if more { SliceProgress::More } else { SliceProgress::Done })
    }
}
