//! The checksums of blocks, as the file has them and as it will have them.
//!
//! Those of a commit are written together before its sync, one piece for each group. Blocks of checksums that were used of late are
//! kept: one is of 4 MiB of the store.

use std::{collections::HashMap, io, ops::Range};

use ::redb::StorageBackend;

use super::layout::{BLOCK, GROUP, sums_at};

/// Groups whose checksums are kept, at most twice as many in all: 2 MiB. Of those that are to be written there may be more within one
/// commit, until [`Sums::is_due`] is heeded.
const KEPT: usize = 256;

/// Checksums by block.
#[derive(Debug, Default)]
pub(super) struct Sums {
    recent: HashMap<u64, Group>,
    /// What was recent before, and has not been used since.
    before: HashMap<u64, Group>,
    /// Groups with checksums that are to be written.
    unwritten: usize,
}

#[derive(Debug)]
struct Group {
    bytes: Box<[u8]>,
    /// Bytes that are to be written.
    unwritten: Range<usize>,
}

impl Sums {
    /// The checksum of a block.
    pub(super) fn get(&mut self, disk: &dyn StorageBackend, block: u64) -> io::Result<u32> {
        let group = self.group(disk, block / GROUP)?;
        Ok(group.bytes.as_chunks::<4>().0.get(place(block)).map_or(0, |sum| u32::from_le_bytes(*sum)))
    }

    /// Notes the checksum of a block, which is not written yet.
    pub(super) fn set(&mut self, disk: &dyn StorageBackend, block: u64, sum: u32) -> io::Result<()> {
        let at = place(block) * 4;
        self.change(disk, block / GROUP, at..at + 4, &sum.to_le_bytes())
    }

    /// Forgets the checksums of all blocks from one on: the file ends there.
    pub(super) fn cut(&mut self, disk: &dyn StorageBackend, block: u64) -> io::Result<()> {
        let (last, at) = (block / GROUP, place(block) * 4);
        for kept in [&mut self.recent, &mut self.before] {
            kept.retain(|group, _| *group < last || *group == last && at > 0);
        }
        self.unwritten = self.recent.values().filter(|group| !group.unwritten.is_empty()).count();
        if at == 0 { Ok(()) } else { self.change(disk, last, at..BLOCK, &vec![0; BLOCK - at]) }
    }

    /// Whether so much is to be written that it should not wait.
    pub(super) fn is_due(&self) -> bool {
        self.unwritten >= KEPT / 2
    }

    /// Writes all that is to be written.
    pub(super) fn write(&mut self, disk: &dyn StorageBackend) -> io::Result<()> {
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

    fn change(&mut self, disk: &dyn StorageBackend, group: u64, at: Range<usize>, to: &[u8]) -> io::Result<()> {
        let group = self.group(disk, group)?;
        group.bytes[at.clone()].copy_from_slice(to);
        let is_first = group.unwritten.is_empty();
        group.unwritten = match is_first {
            true => at,
            false => group.unwritten.start.min(at.start)..group.unwritten.end.max(at.end),
        };
        self.unwritten += usize::from(is_first);
        Ok(())
    }

    /// A group that is kept, or as the file has it.
    fn group(&mut self, disk: &dyn StorageBackend, number: u64) -> io::Result<&mut Group> {
        if !self.recent.contains_key(&number) {
            let group = match self.before.remove(&number) {
                Some(group) => group,
                None => Group::read(disk, number)?,
            };
            if self.recent.len() >= KEPT + self.unwritten {
                self.age();
            }
            self.recent.insert(number, group);
        }
        Ok(self.recent.get_mut(&number).expect("it is there, or was put there just now"))
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
    use ::redb::backends::InMemoryBackend;

    use super::*;
    use crate::kv::redb::layout::file_len;

    fn disk(groups: u64) -> InMemoryBackend {
        let disk = InMemoryBackend::new();
        disk.set_len(file_len(groups * GROUP * BLOCK as u64)).unwrap();
        disk
    }

    #[test]
    fn what_was_noted_is_read_before_it_is_written_and_afterwards() {
        let (disk, mut sums) = (disk(2), Sums::default());
        let noted = [(0, 7), (3, 8), (1023, 9), (1024, 10)];
        noted.iter().for_each(|(block, sum)| sums.set(&disk, *block, *sum).unwrap());
        let found = |sums: &mut Sums| noted.map(|(block, _)| (block, sums.get(&disk, block).unwrap()));
        assert_eq!(found(&mut sums), noted);
        assert_eq!(found(&mut Sums::default()), noted.map(|(block, _)| (block, 0)), "nothing is written yet");
        sums.write(&disk).unwrap();
        assert_eq!(found(&mut Sums::default()), noted);
        assert_eq!(sums.get(&disk, 5).unwrap(), 0, "nobody else's was touched");
    }

    #[test]
    fn what_is_beyond_the_end_is_forgotten() {
        let (disk, mut sums) = (disk(3), Sums::default());
        let blocks = [10, 11, 1024, 1030, 2050];
        blocks.iter().for_each(|block| sums.set(&disk, *block, 1).unwrap());
        sums.write(&disk).unwrap();
        sums.set(&disk, 2051, 1).unwrap();
        let found = |sums: &mut Sums| blocks.map(|block| sums.get(&disk, block).unwrap());
        for (end, left) in [(1030, [1, 1, 1, 0]), (1024, [1, 1, 0, 0]), (11, [1, 0, 0, 0])] {
            sums.cut(&disk, end).unwrap();
            disk.set_len(file_len(end * BLOCK as u64)).unwrap();
            sums.write(&disk).unwrap();
            disk.set_len(file_len(3 * GROUP * BLOCK as u64)).unwrap();
            for sums in [&mut sums, &mut Sums::default()] {
                assert_eq!(found(sums)[..4], left, "cut at {end}");
                assert_eq!(found(sums)[4], 0);
            }
        }
    }

    #[test]
    fn few_groups_are_kept_and_none_is_lost() {
        const GROUPS: u64 = 5 * KEPT as u64;
        let (disk, mut sums) = (disk(GROUPS), Sums::default());
        for group in 0..GROUPS {
            sums.set(&disk, group * GROUP + 1, group as u32).unwrap();
            if sums.is_due() {
                sums.write(&disk).unwrap();
            }
            assert!(sums.recent.len() + sums.before.len() <= 3 * KEPT);
        }
        for group in (0..GROUPS).chain(0..GROUPS) {
            assert_eq!(sums.get(&disk, group * GROUP + 1).unwrap(), group as u32);
            assert!(sums.recent.len() + sums.before.len() <= 3 * KEPT);
        }
    }
}
