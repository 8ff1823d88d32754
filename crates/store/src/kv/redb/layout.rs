//! Where redb's file lies in ours.
//!
//! `start | (checksums | 1024 blocks of redb's) ...`: all of them blocks of 4 KiB, the last group shorter. The start says which layout
//! this is. A block of checksums has one of four bytes, little-endian, for each block of its group.

use crc32fast::Hasher;

/// Bytes of a block, and of redb's smallest page.
pub(super) const BLOCK: usize = 4096;
/// Blocks of redb's that share a block of checksums.
pub(super) const GROUP: u64 = BLOCK as u64 / 4;
/// Bytes that a disk writes whole or not at all: of the start, and of redb's head, no more is used.
pub(super) const SECTOR: usize = 512;
/// Bytes of a sector before its checksum.
pub(super) const SEALED: usize = SECTOR - 4;
/// The format of the store with which this layout came.
pub(super) const VERSION: u32 = 4;

const MAGIC: &[u8; 15] = b"portolan pages\n";
/// As redb's files begin. Those of formats before this one are such.
const REDB: &[u8; 4] = b"redb";
/// What the checksum of the start begins with; others begin with the number of their block.
const OF_START: u32 = u32::MAX;

/// Where a block of redb's lies.
pub(super) fn at(block: u64) -> u64 {
    (block / GROUP * (GROUP + 1) + 2 + block % GROUP) * BLOCK as u64
}

/// Where the checksums of a group lie.
pub(super) fn sums_at(group: u64) -> u64 {
    (group * (GROUP + 1) + 1) * BLOCK as u64
}

/// Bytes of the file for so many of redb's.
pub(super) fn file_len(len: u64) -> u64 {
    let blocks = len.div_ceil(BLOCK as u64);
    (1 + blocks.div_ceil(GROUP) + blocks) * BLOCK as u64
}

/// Bytes of redb's in a file of so many; `None` for a length that no file has.
pub(super) fn redb_len(file_len: u64) -> Option<u64> {
    let blocks = (file_len / BLOCK as u64).checked_sub(1)?;
    let (groups, rest) = (blocks / (GROUP + 1), blocks % (GROUP + 1));
    let len = groups * GROUP + rest.saturating_sub(1);
    (file_len.is_multiple_of(BLOCK as u64) && rest != 1).then_some(len * BLOCK as u64)
}

/// The parts of what begins at `block` that lie in the file without a gap: where, and which bytes of it.
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

/// How a file begins.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Start {
    /// As one with the layout of this version of the store's format.
    Version(u32),
    /// As one of redb's alone.
    Redb,
    /// As neither, or it is damaged.
    Unknown,
}

impl Start {
    pub(super) fn of(sector: &[u8; SECTOR]) -> Self {
        let version = sector.strip_prefix(MAGIC).and_then(|rest| rest.first_chunk());
        match version {
            Some(version) if is_sealed(sector, OF_START) => Self::Version(u32::from_le_bytes(*version)),
            _ if sector.starts_with(REDB) => Self::Redb,
            _ => Self::Unknown,
        }
    }

    /// The start of a file of a version.
    pub(super) fn sector(version: u32) -> [u8; SECTOR] {
        sealed(&[&MAGIC[..], &version.to_le_bytes()].concat(), OF_START)
    }
}

/// A sector with its checksum at the end. What is longer than [`SEALED`] is cut off.
pub(super) fn sealed(bytes: &[u8], of: u32) -> [u8; SECTOR] {
    let (mut sector, len) = ([0; SECTOR], bytes.len().min(SEALED));
    sector[..len].copy_from_slice(&bytes[..len]);
    let sum = sum(of, &sector[..SEALED]);
    sector[SEALED..].copy_from_slice(&sum.to_le_bytes());
    sector
}

/// Whether a sector is as [`sealed`] made it.
pub(super) fn is_sealed(sector: &[u8; SECTOR], of: u32) -> bool {
    sector[SEALED..] == sum(of, &sector[..SEALED]).to_le_bytes()
}

/// The checksum of bytes that belong to one place: two places differ for any bytes.
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
    fn what_crosses_groups_lies_in_pieces() {
        let pieces = |block, blocks| pieces(block, blocks * BLOCK).collect::<Vec<_>>();
        assert_eq!(pieces(7, 2), [(at(7), 0..2 * BLOCK)]);
        let (two, all) = (2 * BLOCK, (2 + 1024 + 1) * BLOCK);
        let expected = [(at(1022), 0..two), (at(1024), two..all - BLOCK), (at(2048), all - BLOCK..all)];
        assert_eq!(pieces(1022, 1027), expected);
        assert!(pieces(9, 0).is_empty());
    }

    #[test]
    fn the_start_tells_the_version_and_no_flipped_bit_passes() {
        let start = Start::sector(7);
        assert_eq!(Start::of(&start), Start::Version(7));
        for bit in 0..SECTOR * 8 {
            let mut flipped = start;
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Start::of(&flipped), Start::Unknown, "bit {bit}");
        }
        let mut redb = [0; SECTOR];
        redb[..4].copy_from_slice(b"redb");
        assert_eq!(Start::of(&redb), Start::Redb);
        assert_eq!(Start::of(&[0; SECTOR]), Start::Unknown);
    }
}
