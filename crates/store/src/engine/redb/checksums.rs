//! Checksums of blocks: those in the file, and the pending ones.
//!
//! The checksums of a commit are written together before its sync, one piece per group. Recently used checksum blocks
//! are cached; one covers 4 MiB of the store.
//!
//! A group is read from disk without holding the lock, since a bad sector may stall the disk for half a minute. The
//! result is used only if the group was not changed, cut or read by another thread meanwhile.

use std::{collections::HashMap, io, ops::Range};

use ::redb::StorageBackend;
use parking_lot::Mutex;

use super::layout::{BLOCK, GROUP, sums_at};

/// Groups that are cached, at most twice as many in all: 2 MiB. Groups with pending writes may add half as many.
const CACHED_GROUPS: usize = 256;

/// Checksums by block.
#[derive(Debug, Default)]
pub(super) struct PageChecksums(Mutex<ChecksumCache>);

/// Cache of checksum groups.
#[derive(Debug, Default)]
struct ChecksumCache {
    recent: HashMap<u64, ChecksumGroup>,
    /// Groups that were recent before and have not been used since.
    before: HashMap<u64, ChecksumGroup>,
    /// Number of groups with pending writes.
    unwritten: usize,
    /// Number of changes of each group: at most one counter per 4 MiB of the store.
    changes: HashMap<u64, u64>,
    /// Number of times that the file was shortened.
    cuts: u64,
}

#[derive(Debug)]
struct ChecksumGroup {
    bytes: Box<[u8]>,
    /// Range of bytes with pending writes.
    unwritten: Range<usize>,
}

/// Version of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ChecksumGroupVersion {
    changes: u64,
    cuts: u64,
}

impl PageChecksums {
    /// Returns the checksum of a block.
    pub(super) fn get(&self, disk: &dyn StorageBackend, block: u64) -> io::Result<u32> {
        self.with_group(disk, block / GROUP, |kept| kept.get(block))
    }

    /// Returns the checksums of consecutive blocks.
    pub(super) fn all(&self, disk: &dyn StorageBackend, blocks: Range<u64>) -> io::Result<Vec<u32>> {
        blocks.map(|block| self.get(disk, block)).collect()
    }

    /// Sets the checksum of a block. It is written later, unless much is pending.
    pub(super) fn set(&self, disk: &dyn StorageBackend, block: u64, sum: u32) -> io::Result<()> {
        let at = place(block) * 4;
        self.with_group(disk, block / GROUP, |kept| {
            kept.change(block / GROUP, at..at + 4, &sum.to_le_bytes());
            if kept.unwritten >= CACHED_GROUPS / 2 { kept.write(disk) } else { Ok(()) }
        })?
    }

    /// Removes the checksums of all blocks from one on; `shorten` cuts the file there.
    pub(super) fn cut(
        &self,
        disk: &dyn StorageBackend,
        block: u64,
        shorten: impl FnOnce() -> io::Result<()>,
    ) -> io::Result<()> {
        let cut = |kept: &mut ChecksumCache| {
            kept.cut(block);
            shorten()
        };
        match place(block) {
            0 => cut(&mut self.0.lock()),
            _ => self.with_group(disk, block / GROUP, cut)?,
        }
    }

    /// Writes everything pending.
    pub(super) fn write(&self, disk: &dyn StorageBackend) -> io::Result<()> {
        self.0.lock().write(disk)
    }

    /// Runs `act` while a group is cached.
    fn with_group<T>(
        &self,
        disk: &dyn StorageBackend,
        number: u64,
        act: impl FnOnce(&mut ChecksumCache) -> T,
    ) -> io::Result<T> {
        loop {
            let stand = {
                let mut kept = self.0.lock();
                if kept.has(number) {
                    return Ok(act(&mut kept));
                }
                kept.version(number)
            };
            let read = ChecksumGroup::read(disk, number)?;
            let mut kept = self.0.lock();
            if kept.add(number, read, stand) {
                return Ok(act(&mut kept));
            }
        }
    }
}

impl ChecksumCache {
    /// Returns true if a group is cached, and marks it as used.
    fn has(&mut self, number: u64) -> bool {
        if let Some(group) = self.before.remove(&number) {
            self.insert(number, group);
        }
        self.recent.contains_key(&number)
    }

    /// Caches a group that was read, unless it is cached already. Returns false if the group was changed since it was
    /// read.
    fn add(&mut self, number: u64, read: ChecksumGroup, since: ChecksumGroupVersion) -> bool {
        if self.has(number) {
            return true;
        }
        let is_fresh = self.version(number) == since;
        if is_fresh {
            self.insert(number, read);
        }
        is_fresh
    }

    fn insert(&mut self, number: u64, group: ChecksumGroup) {
        if self.recent.len() >= CACHED_GROUPS + self.unwritten {
            self.demote_recent();
        }
        self.recent.insert(number, group);
    }

    fn version(&self, number: u64) -> ChecksumGroupVersion {
        ChecksumGroupVersion { changes: self.changes.get(&number).copied().unwrap_or_default(), cuts: self.cuts }
    }

    /// Returns the checksum of a block in a cached group.
    fn get(&self, block: u64) -> u32 {
        let sums = self.recent.get(&(block / GROUP)).map_or(&[][..], |group| group.bytes.as_chunks::<4>().0);
        sums.get(place(block)).map_or(0, |sum| u32::from_le_bytes(*sum))
    }

    /// Changes a cached group.
    fn change(&mut self, number: u64, at: Range<usize>, to: &[u8]) {
        let group = self.recent.get_mut(&number).expect("only what is kept is changed");
        group.bytes[at.clone()].copy_from_slice(to);
        let is_first = group.unwritten.is_empty();
        group.unwritten =
            if is_first { at } else { group.unwritten.start.min(at.start)..group.unwritten.end.max(at.end) };
        self.unwritten += usize::from(is_first);
        *self.changes.entry(number).or_default() += 1;
    }

    /// Cuts the cache at a block, whose group is cached unless the block is its first.
    fn cut(&mut self, block: u64) {
        let (last, at) = (block / GROUP, place(block) * 4);
        for kept in [&mut self.recent, &mut self.before] {
            kept.retain(|group, _| *group < last || *group == last && at > 0);
        }
        self.unwritten = self.recent.values().filter(|group| !group.unwritten.is_empty()).count();
        self.cuts += 1;
        if at > 0 {
            self.change(last, at..BLOCK, &vec![0; BLOCK - at]);
        }
    }

    fn write(&mut self, disk: &dyn StorageBackend) -> io::Result<()> {
        if self.unwritten == 0 {
            return Ok(());
        }
        for (number, group) in &mut self.recent {
            let Range { start, end } = group.unwritten.clone();
            if start < end {
                disk.write(sums_at(*number) + start as u64, &group.bytes[start..end])?;
                group.unwritten = 0..0;
            }
        }
        self.unwritten = 0;
        Ok(())
    }

    /// Demotes recent groups, except those with pending writes.
    fn demote_recent(&mut self) {
        let (recent, before) =
            std::mem::take(&mut self.recent).into_iter().partition(|(_, group)| !group.unwritten.is_empty());
        (self.recent, self.before) = (recent, before);
    }
}

impl ChecksumGroup {
    fn read(disk: &dyn StorageBackend, number: u64) -> io::Result<Self> {
        let mut bytes = vec![0; BLOCK].into_boxed_slice();
        disk.read(sums_at(number), &mut bytes)?;
        Ok(Self { bytes, unwritten: 0..0 })
    }
}

/// Returns the position of a block's checksum in its group.
fn place(block: u64) -> usize {
    (block % GROUP) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::redb::layout::file_len;

    /// Disk that keeps only the blocks that were written, and may call a function between reading and returning a
    /// block.
    #[derive(Default)]
    struct Sparse {
        len: Mutex<u64>,
        blocks: Mutex<HashMap<u64, Vec<u8>>>,
        meanwhile: Mutex<Option<Box<dyn FnOnce() + Send>>>,
    }

    impl std::fmt::Debug for Sparse {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("a sparse disk")
        }
    }

    impl StorageBackend for Sparse {
        fn len(&self) -> io::Result<u64> {
            Ok(*self.len.lock())
        }
        fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
            assert!(offset.is_multiple_of(BLOCK as u64) && out.len() == BLOCK, "a block of checksums");
            match self.blocks.lock().get(&offset) {
                Some(block) => out.copy_from_slice(block),
                None => out.fill(0),
            }
            let meanwhile = self.meanwhile.lock().take();
            meanwhile.into_iter().for_each(|act| act());
            Ok(())
        }
        fn set_len(&self, len: u64) -> io::Result<()> {
            self.blocks.lock().retain(|at, _| *at < len);
            *self.len.lock() = len;
            Ok(())
        }
        fn sync_data(&self) -> io::Result<()> {
            Ok(())
        }
        fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
            let within = (offset % BLOCK as u64) as usize;
            let mut blocks = self.blocks.lock();
            let block = blocks.entry(offset - within as u64).or_insert_with(|| vec![0; BLOCK]);
            block[within..within + data.len()].copy_from_slice(data);
            Ok(())
        }
    }

    fn disk(groups: u64) -> Sparse {
        let disk = Sparse::default();
        disk.set_len(file_len(groups * GROUP * BLOCK as u64)).unwrap();
        disk
    }

    #[test]
    fn pending_checksums_are_readable_before_and_after_the_write() {
        let (disk, sums) = (disk(2), PageChecksums::default());
        let noted = [(0, 7), (3, 8), (1023, 9), (1024, 10)];
        noted.iter().for_each(|(block, sum)| sums.set(&disk, *block, *sum).unwrap());
        let found = |sums: &PageChecksums| noted.map(|(block, _)| (block, sums.get(&disk, block).unwrap()));
        assert_eq!(found(&sums), noted);
        assert_eq!(found(&PageChecksums::default()), noted.map(|(block, _)| (block, 0)), "nothing is written yet");
        sums.write(&disk).unwrap();
        assert_eq!(found(&PageChecksums::default()), noted);
        assert_eq!(sums.get(&disk, 5).unwrap(), 0, "no other page was touched");
    }

    #[test]
    fn checksums_beyond_the_end_are_dropped() {
        let (disk, sums) = (disk(3), PageChecksums::default());
        let blocks = [10, 11, 1024, 1030, 2050];
        blocks.iter().for_each(|block| sums.set(&disk, *block, 1).unwrap());
        sums.write(&disk).unwrap();
        sums.set(&disk, 2051, 1).unwrap();
        let found = |sums: &PageChecksums| blocks.map(|block| sums.get(&disk, block).unwrap());
        for (end, left) in [(1030, [1, 1, 1, 0]), (1024, [1, 1, 0, 0]), (11, [1, 0, 0, 0])] {
            sums.cut(&disk, end, || disk.set_len(file_len(end * BLOCK as u64))).unwrap();
            sums.write(&disk).unwrap();
            disk.set_len(file_len(3 * GROUP * BLOCK as u64)).unwrap();
            for sums in [&sums, &PageChecksums::default()] {
                assert_eq!(found(sums)[..4], left, "cut at {end}");
                assert_eq!(found(sums)[4], 0);
            }
        }
    }

    #[test]
    fn few_groups_are_kept_and_none_is_lost() {
        const GROUPS: u64 = 5 * CACHED_GROUPS as u64;
        let (disk, sums) = (disk(GROUPS), PageChecksums::default());
        let kept = || {
            let kept = sums.0.lock();
            kept.recent.len() + kept.before.len()
        };
        for group in 0..GROUPS {
            sums.set(&disk, group * GROUP + 1, group as u32).unwrap();
            assert!(kept() <= 3 * CACHED_GROUPS);
        }
        for group in (0..GROUPS).chain(0..GROUPS) {
            assert_eq!(sums.get(&disk, group * GROUP + 1).unwrap(), group as u32);
            assert!(kept() <= 3 * CACHED_GROUPS);
        }
    }

    /// Reads the checksum of block 7 while `meanwhile` runs, which would deadlock if the lock was held.
    fn read_while(meanwhile: fn(&PageChecksums, &Sparse)) -> u32 {
        let disk: &Sparse = Box::leak(Box::new(disk(5 * CACHED_GROUPS as u64)));
        let sums: &PageChecksums = Box::leak(Box::default());
        disk.write(sums_at(0) + 7 * 4, &1_u32.to_le_bytes()).unwrap();
        *disk.meanwhile.lock() = Some(Box::new(move || meanwhile(sums, disk)));
        let found = sums.get(disk, 7).unwrap();
        assert_eq!(sums.get(disk, 7).unwrap(), found, "what is kept");
        sums.write(disk).unwrap();
        assert_eq!(PageChecksums::default().get(disk, 7).unwrap(), found, "what is on the disk");
        found
    }

    #[test]
    fn a_concurrent_change_of_a_group_is_kept() {
        assert_eq!(read_while(|_, _| {}), 1);
        assert_eq!(read_while(|sums, disk| assert_eq!(sums.get(disk, 2000).unwrap(), 0)), 1, "another group");
        assert_eq!(read_while(|sums, disk| sums.set(disk, 7, 2).unwrap()), 2, "not yet written");
        assert_eq!(read_while(|sums, disk| sums.set(disk, 8, 2).unwrap()), 1, "its neighbour");
        let written_and_let_go = |sums: &PageChecksums, disk: &Sparse| {
            sums.set(disk, 7, 3).unwrap();
            sums.write(disk).unwrap();
            (1..4 * CACHED_GROUPS as u64).for_each(|group| assert_eq!(sums.get(disk, group * GROUP).unwrap(), 0));
            assert!(!sums.0.lock().has(0), "it is not kept any more");
        };
        assert_eq!(read_while(written_and_let_go), 3);
        let cut = |sums: &PageChecksums, disk: &Sparse| {
            let len = disk.len().unwrap();
            sums.cut(disk, 0, || disk.set_len(file_len(0))).unwrap();
            disk.set_len(len).unwrap();
        };
        assert_eq!(read_while(cut), 0);
    }
}
