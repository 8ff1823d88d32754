//! Layout of a file with page checksums around redb's own.
//!
//! `start | (checksums | 1024 blocks of redb) ...`: all are blocks of 4 KiB, the last group is shorter. The start names
//! the version of the layout. A checksum block has one little-endian checksum of four bytes per block of its group.

use crc32fast::Hasher;

/// Bytes of a block, and of redb's smallest page.
pub(super) const BLOCK: usize = 4096;
/// Blocks of redb that share a checksum block.
pub(super) const GROUP: u64 = BLOCK as u64 / 4;
/// Bytes that a disk writes atomically. The start of the file and redb's head use one sector each.
pub(super) const SECTOR: usize = 512;
/// Bytes of a sector before its checksum.
pub(super) const SEALED: usize = SECTOR - 4;
/// Store format that introduced this layout.
pub(super) const VERSION: u32 = 4;

const MAGIC: &[u8; 15] = b"portolan pages\n";
/// First bytes of a plain redb file, as in formats before this one.
const REDB: &[u8; 4] = b"redb";
/// Seed of the start's checksum; others are seeded with their block's number.
const OF_START: u32 = u32::MAX;

/// Returns the offset of a block of redb.
pub(super) fn at(block: u64) -> u64 {
    (block / GROUP * (GROUP + 1) + 2 + block % GROUP) * BLOCK as u64
}

/// Returns the offset of a group's checksums.
pub(super) fn sums_at(group: u64) -> u64 {
    (group * (GROUP + 1) + 1) * BLOCK as u64
}

/// Returns the length of the file for a length of redb's part.
pub(super) fn file_len(len: u64) -> u64 {
    let blocks = len.div_ceil(BLOCK as u64);
    (1 + blocks.div_ceil(GROUP) + blocks) * BLOCK as u64
}

/// Returns the length of redb's part for a length of the file; `None` for an impossible length.
pub(super) fn redb_len(file_len: u64) -> Option<u64> {
    let blocks = (file_len / BLOCK as u64).checked_sub(1)?;
    let (groups, rest) = (blocks / (GROUP + 1), blocks % (GROUP + 1));
    let len = groups * GROUP + rest.saturating_sub(1);
    (file_len.is_multiple_of(BLOCK as u64) && rest != 1).then_some(len * BLOCK as u64)
}

/// Splits a range that begins at `block` into contiguous pieces: the offset in the file, and the range of bytes.
pub(super) fn pieces(block: u64, len: usize) -> impl Iterator<Item = (u64, std::ops::Range<usize>)> {
    let mut from = 0;
    std::iter::from_fn(move || {
        let here = block + (from / BLOCK) as u64;
        let left = (GROUP - here % GROUP) as usize * BLOCK;
        let piece = from..len.min(from + left);
        from = piece.end;
        (!piece.is_empty()).then(|| (at(here), piece))
    })
}

/// Kind of a file, by its first sector.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum FileStart {
    /// File with this version of the layout.
    Version(u32),
    /// Plain redb file.
    Redb,
    /// Neither, or damaged.
    Unknown,
}

impl FileStart {
    pub(super) fn of(sector: &[u8; SECTOR]) -> Self {
        let version = sector.strip_prefix(MAGIC).and_then(|rest| rest.first_chunk());
        match version {
            Some(version) if is_sealed(sector, OF_START) => Self::Version(u32::from_le_bytes(*version)),
            _ if sector.starts_with(REDB) => Self::Redb,
            _ => Self::Unknown,
        }
    }

    /// Builds the first sector of a file of a version.
    pub(super) fn sector(version: u32) -> [u8; SECTOR] {
        sealed(&[&MAGIC[..], &version.to_le_bytes()].concat(), OF_START)
    }
}

/// Builds a sector with its checksum at the end. Bytes beyond [`SEALED`] are cut off.
pub(super) fn sealed(bytes: &[u8], of: u32) -> [u8; SECTOR] {
    let (mut sector, len) = ([0; SECTOR], bytes.len().min(SEALED));
    sector[..len].copy_from_slice(&bytes[..len]);
    let sum = sum(of, &sector[..SEALED]);
    sector[SEALED..].copy_from_slice(&sum.to_le_bytes());
    sector
}

/// Returns true if a sector has a valid checksum.
pub(super) fn is_sealed(sector: &[u8; SECTOR], of: u32) -> bool {
    sector[SEALED..] == sum(of, &sector[..SEALED]).to_le_bytes()
}

/// Computes the checksum of bytes that belong to one position; it differs between positions for any bytes.
pub(super) fn sum(of: u32, bytes: &[u8]) -> u32 {
    let mut hasher = Hasher::new_with_initial(of);
    hasher.update(bytes);
    hasher.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_block_has_a_place_of_its_own_and_every_length_one_of_the_file() {
        let block = BLOCK as u64;
        let mut next = block;
        for number in 0..3 * GROUP {
            if number % GROUP == 0 {
                assert_eq!(sums_at(number / GROUP), next);
                next += block;
            }
            assert_eq!(at(number), next, "block {number}");
            next += block;
            assert_eq!((file_len((number + 1) * block), redb_len(next)), (next, Some((number + 1) * block)));
        }
        assert_eq!((file_len(0), redb_len(block)), (block, Some(0)));
        for (case, len) in
            [("empty", 0), ("not whole blocks", 5 * block + 1), ("checksums of nothing", sums_at(1) + block)]
        {
            assert_eq!(redb_len(len), None, "{case}");
        }
    }

    #[test]
    fn a_range_across_groups_is_split() {
        let pieces = |block, blocks| pieces(block, blocks * BLOCK).collect::<Vec<_>>();
        assert_eq!(pieces(7, 2), [(at(7), 0..2 * BLOCK)]);
        let (two, all) = (2 * BLOCK, (2 + 1024 + 1) * BLOCK);
        let expected = [(at(1022), 0..two), (at(1024), two..all - BLOCK), (at(2048), all - BLOCK..all)];
        assert_eq!(pieces(1022, 1027), expected);
        assert!(pieces(9, 0).is_empty());
    }

    #[test]
    fn the_start_tells_the_version_and_no_flipped_bit_passes() {
        let start = FileStart::sector(7);
        assert_eq!(FileStart::of(&start), FileStart::Version(7));
        for bit in 0..SECTOR * 8 {
            let mut flipped = start;
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(FileStart::of(&flipped), FileStart::Unknown, "bit {bit}");
        }
        let mut redb = [0; SECTOR];
        redb[..4].copy_from_slice(b"redb");
        assert_eq!(FileStart::of(&redb), FileStart::Redb);
        assert_eq!(FileStart::of(&[0; SECTOR]), FileStart::Unknown);
    }
}
