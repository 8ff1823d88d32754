//! File with a checksum per page of redb, verified whenever a page is read.
//!
//! redb verifies its own checksums only on repair or on request: a flipped bit in an inner page, or in a key, would
//! hide an object or show an older state. Here every read of such a page fails.
//!
//! Pages and their checksums are written before the same sync. That suffices: a page counts only after that sync, and
//! redb never overwrites a page that counts. The head of the file, which names the pages that count, is overwritten by
//! every commit; it shares a sector with its checksum, and a disk writes a sector entirely or not at all.
//!
//! Until the database is open, pages are returned even if their checksums fail. After a crash, redb reads the pages of
//! a commit that may have reached the disk in part, and verifies its own checksums. It then rolls the commit back, or
//! keeps it: in that case all pages are complete, but checksums of this layer may be missing and are written again. If
//! redb had no reason to verify, such a page is damage.

use std::{
    collections::BTreeMap,
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use ::redb::StorageBackend;
use parking_lot::Mutex;

use super::{
    checksums::PageChecksums,
    layout::{BLOCK, FileStart, SEALED, SECTOR, VERSION, at, file_len, is_sealed, pieces, redb_len, sealed},
    page::{block_sum, page_sum},
};

/// Seed of the checksum of redb's head.
const OF_HEAD: u32 = 0;

/// File with checksums that redb uses as its storage.
#[derive(Debug)]
pub(super) struct ChecksummedFile {
    disk: Arc<dyn StorageBackend>,
    sums: PageChecksums,
    /// True once the database is open: from then on a damaged page is a read error.
    is_open: AtomicBool,
    /// Pages that were returned although their checksum failed, by their first block, with the right checksum.
    passed: Mutex<BTreeMap<u64, u32>>,
    /// First block of the first damaged page.
    damaged: Mutex<Option<u64>>,
}

impl ChecksummedFile {
    /// Opens a file of this layout, or initializes an empty one.
    ///
    /// # Errors
    /// Returns the errors of the disk; `InvalidData` for any other file.
    pub(super) fn on(disk: Arc<dyn StorageBackend>) -> io::Result<Self> {
        let len = disk.len()?;
        if len == 0 {
            disk.set_len(file_len(0))?;
            disk.write(0, &FileStart::sector(VERSION))?;
        } else if len < SECTOR as u64 {
            return Err(invalid("the store's file is cut off"));
        } else {
            check_start(&*disk)?;
        }
        let (sums, is_open) = (PageChecksums::default(), AtomicBool::new(false));
        let checked = Self { disk, sums, is_open, passed: Mutex::default(), damaged: Mutex::default() };
        checked.len()?;
        Ok(checked)
    }

    /// Writes the pending checksums. Called before each sync.
    pub(super) fn write_checksums(&self) -> io::Result<()> {
        self.sums.write(&*self.disk)
    }

    /// Marks the database as open. If redb has verified everything that it keeps, the pages returned in spite of their
    /// checksum are right.
    ///
    /// # Errors
    /// `InvalidData` if such pages were returned and redb has not verified them; the errors of the disk.
    pub(super) fn opened(&self, has_looked: bool) -> io::Result<()> {
        let passed = std::mem::take(&mut *self.passed.lock());
        if let (Some((block, _)), false) = (passed.first_key_value(), has_looked) {
            return Err(invalid(&not_as_written(at(*block))));
        }
        passed.into_iter().try_for_each(|(block, sum)| self.note(block, sum))?;
        *self.damaged.lock() = None;
        self.is_open.store(true, Ordering::Release);
        Ok(())
    }

    /// Describes the first damaged page.
    pub(super) fn damage(&self) -> Option<String> {
        self.damaged.lock().map(|block| not_as_written(at(block)))
    }

    /// Writes a block whose page is unknown.
    pub(super) fn write_block(&self, block: u64, data: &[u8]) -> io::Result<()> {
        self.note(block, block_sum(block, data))?;
        self.disk.write(at(block), data)
    }

    fn note(&self, block: u64, sum: u32) -> io::Result<()> {
        self.sums.set(&*self.disk, block, sum)
    }

    /// Returns true if a page, or each of its blocks, matches its checksum.
    fn is_as_written(&self, block: u64, page: &[u8], of_page: u32) -> io::Result<bool> {
        if self.sums.get(&*self.disk, block)? == of_page {
            return Ok(true);
        }
        let blocks = page.chunks(BLOCK);
        let sums = self.sums.all(&*self.disk, block..block + blocks.len() as u64)?;
        let is_as_written = |((number, bytes), sum): ((u64, &[u8]), u32)| {
            let was_never_written = sum == 0 && bytes.iter().all(|byte| *byte == 0);
            was_never_written || sum == block_sum(number, bytes)
        };
        Ok((block..).zip(blocks).zip(sums).all(is_as_written))
    }

    fn read_head(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let mut sector = [0; SECTOR];
        self.disk.read(at(0), &mut sector)?;
        if sector != [0; SECTOR] && !is_sealed(&sector, OF_HEAD) {
            return Err(invalid(&not_as_written(at(0))));
        }
        let from = usize::try_from(offset).unwrap_or(SEALED);
        let found = sector[..SEALED].get(from..).and_then(|rest| rest.get(..out.len())).ok_or_else(not_whole)?;
        out.copy_from_slice(found);
        Ok(())
    }

    fn write_head(&self, data: &[u8]) -> io::Result<()> {
        if data.len() > SEALED {
            return Err(not_whole());
        }
        self.disk.write(at(0), &sealed(data, OF_HEAD))
    }
}

impl StorageBackend for ChecksummedFile {
    fn len(&self) -> io::Result<u64> {
        redb_len(self.disk.len()?).ok_or_else(|| invalid("the store's file is cut off"))
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        if offset < BLOCK as u64 {
            return self.read_head(offset, out);
        }
        let block = whole_blocks(offset, out.len())?;
        pieces(block, out.len()).try_for_each(|(at, piece)| self.disk.read(at, &mut out[piece]))?;
        let sum = page_sum(block, out);
        if self.is_as_written(block, out, sum)? {
            return Ok(());
        }
        self.damaged.lock().get_or_insert(block);
        if self.is_open.load(Ordering::Acquire) {
            return Err(invalid(&not_as_written(at(block))));
        }
        self.passed.lock().insert(block, sum);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        if len < self.len()? {
            let shorten = || self.disk.set_len(file_len(len));
            return self.sums.cut(&*self.disk, len.div_ceil(BLOCK as u64), shorten);
        }
        self.disk.set_len(file_len(len))
    }

    fn sync_data(&self) -> io::Result<()> {
        self.write_checksums()?;
        self.disk.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        if offset == 0 {
            return self.write_head(data);
        }
        let block = whole_blocks(offset, data.len())?;
        self.note(block, page_sum(block, data))?;
        pieces(block, data.len()).try_for_each(|(at, piece)| self.disk.write(at, &data[piece]))
    }
}

fn check_start(disk: &dyn StorageBackend) -> io::Result<()> {
    let mut sector = [0; SECTOR];
    disk.read(0, &mut sector)?;
    match FileStart::of(&sector) {
        FileStart::Version(VERSION) => Ok(()),
        FileStart::Version(other) => Err(invalid(&format!("the store's file has format {other}"))),
        FileStart::Redb => Err(invalid("the store's file is of a format before 4")),
        FileStart::Unknown => Err(invalid("the store's file does not begin as one, or its beginning is damaged")),
    }
}

/// Returns the first block of a range of whole blocks.
fn whole_blocks(offset: u64, len: usize) -> io::Result<u64> {
    if offset.is_multiple_of(BLOCK as u64) && len.is_multiple_of(BLOCK) {
        Ok(offset / BLOCK as u64)
    } else {
        Err(not_whole())
    }
}

/// Error of an access that is neither whole pages nor the start of redb's head.
fn not_whole() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "this is no page")
}

fn not_as_written(at: u64) -> String {
    format!("the store's file is not as it was written at byte {at}")
}

pub(super) fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests {
    use ::redb::backends::InMemoryBackend;

    use super::*;
    use crate::engine::redb::layout::{GROUP, sums_at};

    const PAGE: u64 = BLOCK as u64;

    fn disk() -> Arc<InMemoryBackend> {
        Arc::new(InMemoryBackend::new())
    }

    fn opened(disk: &Arc<InMemoryBackend>) -> ChecksummedFile {
        let checked = ChecksummedFile::on(disk.clone()).unwrap();
        checked.opened(false).unwrap();
        checked
    }

    /// Builds a page that differs from all others.
    fn page(blocks: usize, of: u64) -> Vec<u8> {
        (0..blocks * BLOCK).map(|at| (at as u64 * 31 + at as u64 / 7 + of) as u8).collect()
    }

    fn flip(disk: &InMemoryBackend, at: u64) {
        let mut byte = [0];
        disk.read(at, &mut byte).unwrap();
        disk.write(at, &[byte[0] ^ 0x20]).unwrap();
    }

    fn is_damaged(checked: &ChecksummedFile, block: u64, blocks: usize) -> bool {
        match checked.read(block * PAGE, &mut vec![0; blocks * BLOCK]) {
            Err(error) => {
                assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{error}");
                true
            }
            Ok(()) => false,
        }
    }

    #[test]
    fn pages_come_back_as_they_were_written_wherever_they_lie() {
        let disk = disk();
        let checked = opened(&disk);
        checked.set_len(3 * GROUP * PAGE).unwrap();
        let pages = [(1, 1), (2, 2), (GROUP - 1, 1), (GROUP, 4), (2 * GROUP - 3, 8)];
        for (block, blocks) in pages {
            checked.write(block * PAGE, &page(blocks, block)).unwrap();
        }
        checked.write(0, b"a head").unwrap();
        checked.sync_data().unwrap();
        for checked in [checked, opened(&disk)] {
            for (block, blocks) in pages {
                let mut out = vec![0; blocks * BLOCK];
                checked.read(block * PAGE, &mut out).unwrap();
                assert_eq!(out, page(blocks, block), "block {block}");
            }
            let (mut head, mut empty) = ([0; 8], vec![7; BLOCK]);
            checked.read(0, &mut head).unwrap();
            assert_eq!(&head, b"a head\0\0");
            checked.read(100 * PAGE, &mut empty).unwrap();
            assert!(empty.iter().all(|byte| *byte == 0), "never written");
            assert_eq!(checked.len().unwrap(), 3 * GROUP * PAGE);
        }
    }

    #[test]
    fn a_bit_anywhere_in_a_page_or_its_checksum_is_found() {
        let disk = disk();
        let checked = opened(&disk);
        checked.set_len(2 * GROUP * PAGE).unwrap();
        checked.write((GROUP - 1) * PAGE, &page(2, 1)).unwrap();
        checked.write(7 * PAGE, &page(1, 2)).unwrap();
        checked.write(0, b"a head").unwrap();
        checked.sync_data().unwrap();
        let places = (0..PAGE).step_by(61).flat_map(|byte| [at(GROUP - 1) + byte, at(GROUP) + byte]);
        for place in places.chain(sums_at(0) + 4 * (GROUP - 1)..sums_at(0) + 4 * GROUP) {
            flip(&disk, place);
            assert!(is_damaged(&opened(&disk), GROUP - 1, 2), "byte {place}");
            assert!(!is_damaged(&opened(&disk), 7, 1), "others are read");
            flip(&disk, place);
        }
        flip(&disk, at(9));
        assert!(is_damaged(&opened(&disk), 9, 1), "what was never written");
        for byte in 0..SECTOR as u64 {
            flip(&disk, at(0) + byte);
            assert!(opened(&disk).read(0, &mut [0; 320]).is_err(), "byte {byte} of the head");
            flip(&disk, at(0) + byte);
            flip(&disk, byte);
            assert!(ChecksummedFile::on(disk.clone()).is_err(), "byte {byte} of the start");
            flip(&disk, byte);
        }
        opened(&disk).read(0, &mut [0; 320]).unwrap();
    }

    #[test]
    fn a_page_in_the_place_of_another_is_found() {
        let disk = disk();
        let checked = opened(&disk);
        checked.set_len(GROUP * PAGE).unwrap();
        [3, 4].iter().for_each(|block| checked.write(block * PAGE, &page(1, *block)).unwrap());
        checked.sync_data().unwrap();
        for from in [at(3), sums_at(0) + 4 * 3] {
            let mut bytes = vec![0; if from == at(3) { BLOCK } else { 4 }];
            disk.read(from, &mut bytes).unwrap();
            disk.write(from + bytes.len() as u64, &bytes).unwrap();
        }
        assert!(is_damaged(&opened(&disk), 4, 1) && !is_damaged(&opened(&disk), 3, 1));
    }

    #[test]
    fn until_the_database_is_open_pages_are_given_and_then_they_are_right_or_damage() {
        let disk = disk();
        let checked = opened(&disk);
        checked.set_len(GROUP * PAGE).unwrap();
        checked.write(3 * PAGE, &page(1, 3)).unwrap();
        checked.sync_data().unwrap();
        flip(&disk, at(3) + 5);
        let open = |looked| {
            let checked = ChecksummedFile::on(disk.clone()).unwrap();
            assert!(!is_damaged(&checked, 3, 1) && checked.damage().is_some());
            checked.opened(looked).map(|()| checked)
        };
        let told = open(false).unwrap_err().to_string();
        assert_eq!(told, format!("the store's file is not as it was written at byte {}", at(3)));
        let checked = open(true).unwrap();
        assert!(!is_damaged(&checked, 3, 1) && is_damaged(&opened(&disk), 3, 1), "not yet on the disk");
        checked.sync_data().unwrap();
        assert!(!is_damaged(&opened(&disk), 3, 1));
    }

    #[test]
    fn a_truncated_and_extended_range_reads_as_zero() {
        let disk = disk();
        let checked = opened(&disk);
        checked.set_len(2 * GROUP * PAGE).unwrap();
        let blocks = [5, 6, GROUP, GROUP + 5];
        blocks.iter().for_each(|block| checked.write(block * PAGE, &page(1, *block)).unwrap());
        checked.sync_data().unwrap();
        for (end, empty) in [(GROUP + 1, &blocks[3..]), (6, &blocks[1..])] {
            checked.set_len(end * PAGE).unwrap();
            checked.set_len(2 * GROUP * PAGE).unwrap();
            checked.sync_data().unwrap();
            for block in empty {
                let mut out = vec![7; BLOCK];
                opened(&disk).read(block * PAGE, &mut out).unwrap();
                assert!(out.iter().all(|byte| *byte == 0), "block {block}, cut at {end}");
            }
            assert!(!is_damaged(&opened(&disk), 5, 1));
        }
    }

    #[test]
    fn blocks_of_unknown_pages_are_read_as_pages_and_found_out() {
        let disk = disk();
        let checked = opened(&disk);
        checked.set_len(GROUP * PAGE).unwrap();
        for (block, bytes) in (4..).zip(page(2, 4).chunks(BLOCK)) {
            checked.write_block(block, bytes).unwrap();
        }
        checked.sync_data().unwrap();
        assert!(!is_damaged(&opened(&disk), 4, 2));
        for block in [4, 5] {
            flip(&disk, at(block) + 4000);
            assert!(is_damaged(&opened(&disk), 4, 2));
            flip(&disk, at(block) + 4000);
        }
        opened(&disk).write(4 * PAGE, &page(2, 9)).unwrap();
    }

    #[test]
    fn a_partial_page_is_refused() {
        let checked = opened(&disk());
        checked.set_len(GROUP * PAGE).unwrap();
        for (offset, len) in [(PAGE, 100), (PAGE + 1, BLOCK), (0, BLOCK), (0, SECTOR), (5000, BLOCK)] {
            let refused = |done: io::Result<()>| done.unwrap_err().kind() == io::ErrorKind::InvalidInput;
            assert!(refused(checked.write(offset, &vec![1; len])), "{len} at {offset}");
            assert!(refused(checked.read(offset, &mut vec![1; len])), "{len} at {offset}");
        }
    }

    #[test]
    fn files_of_another_kind_or_length_are_refused() {
        for (case, bytes, words) in [
            ("redb's own", b"redb of before".to_vec(), "of a format before 4"),
            ("another program's", vec![7; 9000], "does not begin as one"),
            ("of a newer version", FileStart::sector(VERSION + 1).to_vec(), "has format 5"),
            ("cut off", FileStart::sector(VERSION)[..100].to_vec(), "cut off"),
            ("cut off within a block", [&FileStart::sector(VERSION)[..], &[0; 5000]].concat(), "cut off"),
        ] {
            let disk = disk();
            disk.set_len(bytes.len().max(if words == "cut off" { 0 } else { BLOCK }) as u64).unwrap();
            disk.write(0, &bytes).unwrap();
            let refused = ChecksummedFile::on(disk).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::InvalidData, "{case}");
            assert!(refused.to_string().contains(words), "{case}: {refused}");
        }
    }
}
