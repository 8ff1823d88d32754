//! The checksums of blocks, as the file has them and as it will have them.
//!
//! Those of a commit are written together before its sync, one piece for each group. Blocks of checksums that were used of late are
//! kept: one is of 4 MiB of the store.
//!
//! A group is read from the disk while nobody is kept waiting, since a bad sector may take the disk half a minute. What was read counts
//! only if the group has not been changed, cut off or brought in by somebody else meanwhile.

use std::{collections::HashMap, io, ops::Range};

use ::redb::StorageBackend;
use parking_lot::Mutex;

use super::layout::{BLOCK, GROUP, sums_at};

/// Groups whose checksums are kept, at most twice as many in all: 2 MiB. Of those that are to be written there may be half as many more.
const KEPT: usize = 256;

/// Checksums by block.
#[derive(Debug, Default)]
pub(super) struct Sums(Mutex<Kept>);

/// What is in memory of them.
#[derive(Debug, Default)]
struct Kept {
    recent: HashMap<u64, Group>,
    /// What was recent before, and has not been used since.
    before: HashMap<u64, Group>,
    /// Groups with checksums that are to be written.
    unwritten: usize,
    /// How often each group was changed. A number for each 4 MiB of the store at most.
    changes: HashMap<u64, u64>,
    /// How often the file was made shorter.
    cuts: u64,
}

#[derive(Debug)]
struct Group {
    bytes: Box<[u8]>,
    /// Bytes that are to be written.
    unwritten: Range<usize>,
}

/// Up to when a group is as the file had it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stand {
    changes: u64,
    cuts: u64,
}

impl Sums {
    /// The checksum of a block.
    pub(super) fn get(&self, disk: &dyn StorageBackend, block: u64) -> io::Result<u32> {
        self.with(disk, block / GROUP, |kept| kept.get(block))
    }

    /// The checksums of blocks that follow each other.
    pub(super) fn all(&self, disk: &dyn StorageBackend, blocks: Range<u64>) -> io::Result<Vec<u32>> {
        blocks.map(|block| self.get(disk, block)).collect()
    }

    /// Notes the checksum of a block, which is written later, unless much waits already.
    pub(super) fn set(&self, disk: &dyn StorageBackend, block: u64, sum: u32) -> io::Result<()> {
        let at = place(block) * 4;
        self.with(disk, block / GROUP, |kept| {
            kept.change(block / GROUP, at..at + 4, &sum.to_le_bytes());
            if kept.unwritten >= KEPT / 2 { kept.write(disk) } else { Ok(()) }
        })?
    }

    /// Forgets the checksums of all blocks from one on: `shorten` makes the file end there.
    pub(super) fn cut(
        &self,
        disk: &dyn StorageBackend,
        block: u64,
        shorten: impl FnOnce() -> io::Result<()>,
    ) -> io::Result<()> {
        let cut = |kept: &mut Kept| {
            kept.cut(block);
            shorten()
        };
        match place(block) {
            0 => cut(&mut self.0.lock()),
            _ => self.with(disk, block / GROUP, cut)?,
        }
    }

    /// Writes all that is to be written.
    pub(super) fn write(&self, disk: &dyn StorageBackend) -> io::Result<()> {
        self.0.lock().write(disk)
    }

    /// Does `act` while a group is kept.
    fn with<T>(&self, disk: &dyn StorageBackend, number: u64, act: impl FnOnce(&mut Kept) -> T) -> io::Result<T> {
        loop {
            let stand = {
                let mut kept = self.0.lock();
                if kept.has(number) {
                    return Ok(act(&mut kept));
                }
                kept.stand(number)
            };
            let read = Group::read(disk, number)?;
            let mut kept = self.0.lock();
            if kept.add(number, read, stand) {
                return Ok(act(&mut kept));
            }
        }
    }
}

impl Kept {
    /// Whether a group is kept, which counts as a use of it.
    fn has(&mut self, number: u64) -> bool {
        if let Some(group) = self.before.remove(&number) {
            self.insert(number, group);
        }
        self.recent.contains_key(&number)
    }

    /// Keeps what was read of a group, unless it is kept already. `false` when it is neither kept nor as it was read.
    fn add(&mut self, number: u64, read: Group, since: Stand) -> bool {
        if self.has(number) {
            return true;
        }
        let is_fresh = self.stand(number) == since;
        if is_fresh {
            self.insert(number, read);
        }
        is_fresh
    }

    fn insert(&mut self, number: u64, group: Group) {
        if self.recent.len() >= KEPT + self.unwritten {
            self.age();
        }
        self.recent.insert(number, group);
    }

    fn stand(&self, number: u64) -> Stand {
        Stand { changes: self.changes.get(&number).copied().unwrap_or_default(), cuts: self.cuts }
    }

    /// The checksum of a block whose group is kept.
    fn get(&self, block: u64) -> u32 {
        let sums = self.recent.get(&(block / GROUP)).map_or(&[][..], |group| group.bytes.as_chunks::<4>().0);
        sums.get(place(block)).map_or(0, |sum| u32::from_le_bytes(*sum))
    }

    /// Changes a group that is kept.
    fn change(&mut self, number: u64, at: Range<usize>, to: &[u8]) {
        let group = self.recent.get_mut(&number).expect("only what is kept is changed");
        group.bytes[at.clone()].copy_from_slice(to);
        let is_first = group.unwritten.is_empty();
        group.unwritten = match is_first {
            true => at,
            false => group.unwritten.start.min(at.start)..group.unwritten.end.max(at.end),
        };
        self.unwritten += usize::from(is_first);
        *self.changes.entry(number).or_default() += 1;
    }

    /// The group of the block is kept, unless the block is its first.
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

    /// What was recent is no longer, but for what is to be written.
    fn age(&mut self) {
        let (recent, before) =
            std::mem::take(&mut self.recent).into_iter().partition(|(_, group)| !group.unwritten.is_empty());
        (self.recent, self.before) = (recent, before);
    }
}

impl Group {
    fn read(disk: &dyn StorageBackend, number: u64) -> io::Result<Self> {
        let mut bytes = vec![0; BLOCK].into_boxed_slice();
        disk.read(sums_at(number), &mut bytes)?;
        Ok(Self { bytes, unwritten: 0..0 })
    }
}

/// Which checksum of its group is that of a block.
fn place(block: u64) -> usize {
    (block % GROUP) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kv::redb::layout::file_len;

    /// A disk that keeps only the blocks that were written, and may do something between reading and giving what it read.
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
    fn what_was_noted_is_read_before_it_is_written_and_afterwards() {
        let (disk, sums) = (disk(2), Sums::default());
        let noted = [(0, 7), (3, 8), (1023, 9), (1024, 10)];
        noted.iter().for_each(|(block, sum)| sums.set(&disk, *block, *sum).unwrap());
        let found = |sums: &Sums| noted.map(|(block, _)| (block, sums.get(&disk, block).unwrap()));
        assert_eq!(found(&sums), noted);
        assert_eq!(found(&Sums::default()), noted.map(|(block, _)| (block, 0)), "nothing is written yet");
        sums.write(&disk).unwrap();
        assert_eq!(found(&Sums::default()), noted);
        assert_eq!(sums.get(&disk, 5).unwrap(), 0, "nobody else's was touched");
    }

    #[test]
    fn what_is_beyond_the_end_is_forgotten() {
        let (disk, sums) = (disk(3), Sums::default());
        let blocks = [10, 11, 1024, 1030, 2050];
        blocks.iter().for_each(|block| sums.set(&disk, *block, 1).unwrap());
        sums.write(&disk).unwrap();
        sums.set(&disk, 2051, 1).unwrap();
        let found = |sums: &Sums| blocks.map(|block| sums.get(&disk, block).unwrap());
        for (end, left) in [(1030, [1, 1, 1, 0]), (1024, [1, 1, 0, 0]), (11, [1, 0, 0, 0])] {
            sums.cut(&disk, end, || disk.set_len(file_len(end * BLOCK as u64))).unwrap();
            sums.write(&disk).unwrap();
            disk.set_len(file_len(3 * GROUP * BLOCK as u64)).unwrap();
            for sums in [&sums, &Sums::default()] {
                assert_eq!(found(sums)[..4], left, "cut at {end}");
                assert_eq!(found(sums)[4], 0);
            }
        }
    }

    #[test]
    fn few_groups_are_kept_and_none_is_lost() {
        const GROUPS: u64 = 5 * KEPT as u64;
        let (disk, sums) = (disk(GROUPS), Sums::default());
        let kept = || {
            let kept = sums.0.lock();
            kept.recent.len() + kept.before.len()
        };
        for group in 0..GROUPS {
            sums.set(&disk, group * GROUP + 1, group as u32).unwrap();
            assert!(kept() <= 3 * KEPT);
        }
        for group in (0..GROUPS).chain(0..GROUPS) {
            assert_eq!(sums.get(&disk, group * GROUP + 1).unwrap(), group as u32);
            assert!(kept() <= 3 * KEPT);
        }
    }

    /// Reads the checksum of block 7 while `meanwhile` happens, which would wait for ever if the lock was held.
    fn read_while(meanwhile: fn(&Sums, &Sparse)) -> u32 {
        let disk: &Sparse = Box::leak(Box::new(disk(5 * KEPT as u64)));
        let sums: &Sums = Box::leak(Box::default());
        disk.write(sums_at(0) + 7 * 4, &1_u32.to_le_bytes()).unwrap();
        *disk.meanwhile.lock() = Some(Box::new(move || meanwhile(sums, disk)));
        let found = sums.get(disk, 7).unwrap();
        assert_eq!(sums.get(disk, 7).unwrap(), found, "what is kept");
        sums.write(disk).unwrap();
        assert_eq!(Sums::default().get(disk, 7).unwrap(), found, "what is on the disk");
        found
    }

    #[test]
    fn what_changes_while_a_group_is_read_is_never_undone() {
        assert_eq!(read_while(|_, _| {}), 1);
        assert_eq!(read_while(|sums, disk| assert_eq!(sums.get(disk, 2000).unwrap(), 0)), 1, "another group");
        assert_eq!(read_while(|sums, disk| sums.set(disk, 7, 2).unwrap()), 2, "not yet written");
        assert_eq!(read_while(|sums, disk| sums.set(disk, 8, 2).unwrap()), 1, "its neighbour");
        let written_and_let_go = |sums: &Sums, disk: &Sparse| {
            sums.set(disk, 7, 3).unwrap();
            sums.write(disk).unwrap();
            (1..4 * KEPT as u64).for_each(|group| assert_eq!(sums.get(disk, group * GROUP).unwrap(), 0));
            assert!(!sums.0.lock().has(0), "it is not kept any more");
        };
        assert_eq!(read_while(written_and_let_go), 3);
        let cut = |sums: &Sums, disk: &Sparse| {
            let len = disk.len().unwrap();
            sums.cut(disk, 0, || disk.set_len(file_len(0))).unwrap();
            disk.set_len(len).unwrap();
        };
        assert_eq!(read_while(cut), 0);
    }
}
