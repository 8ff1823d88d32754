//! The segments of sled's log, as sled 0.34.7 writes them (`pagecache/logger.rs`, `serialization.rs`).
//!
//! The log is cut into segments of 512 KiB, each of which has a place in the file; a place is used again once nothing needs what is
//! there. A segment has a header, of which it says itself which one it is, and messages up to its end. Both have checksums.

use std::ops::RangeInclusive;

/// Bytes of a segment.
pub(super) const SEGMENT: usize = 512 << 10;
/// Bytes of a segment's header.
pub(super) const HEADER: usize = 20;
/// In so many bytes at the end of a segment no message begins.
const RED_ZONE: usize = 32;
/// So many bytes are looked at in one go, whether they are empty.
const PIECE: usize = 4096;
const ZEROS: [u8; PIECE] = [0; PIECE];
/// Numbers in headers are written with all bits turned but the first.
const TURNED: i64 = i64::MAX;

/// Kinds of messages.
const CAP: u8 = 2;
const BATCH: u8 = 3;
const FREE: u8 = 4;
const COUNTER: u8 = 5;
const META: u8 = 6;
const NODE: u8 = 8;
const LINK: u8 = 10;
const LAST_KIND: u8 = 11;

/// What is at the beginning of a place for a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Head {
    /// Nothing: none was written there, or it was cleared.
    Empty,
    /// What sled has not written so.
    Damaged,
    /// The header of a segment.
    Whole {
        /// Where it begins in the log.
        lsn: u64,
        /// When it was begun, the log was synced up to here, this byte not included.
        synced: u64,
    },
}

impl Head {
    /// Of so many bytes as a header has.
    pub(super) fn of(bytes: &[u8]) -> Self {
        if is_empty(bytes) {
            return Self::Empty;
        }
        let number = |at: usize| bytes[at..].first_chunk().map_or(-1, |bytes| i64::from_le_bytes(*bytes) ^ TURNED);
        let (lsn, synced) = (u64::try_from(number(4)), u64::try_from(number(12).wrapping_add(1)));
        let is_whole = bytes.first_chunk().is_some_and(|sum| !u32::from_le_bytes(*sum) == crc32fast::hash(&bytes[4..]));
        match (lsn, synced) {
            (Ok(lsn), Ok(synced)) if is_whole && lsn.is_multiple_of(SEGMENT as u64) => Self::Whole { lsn, synced },
            _ => Self::Damaged,
        }
    }
}

/// A message that is whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Message {
    /// Of which segment it is: where that begins in the log, in segments.
    number: u64,
    /// Where it begins in the segment.
    at: usize,
    /// Its bytes, header included.
    len: usize,
    kind: u8,
    /// Of which page it is.
    pub(super) page: u64,
}

impl Message {
    /// Where it begins in the log.
    pub(super) fn lsn(&self) -> u64 {
        self.number * SEGMENT as u64 + self.at as u64
    }

    /// Whether it is the first of a batch.
    pub(super) fn begins_batch(&self) -> bool {
        self.kind == BATCH
    }

    /// Whether a page is made of it, and of none before it.
    pub(super) fn replaces(&self) -> bool {
        matches!(self.kind, FREE | COUNTER | META | NODE)
    }

    /// Whether a page may be made of it.
    pub(super) fn is_of_page(&self) -> bool {
        self.replaces() || self.kind == LINK
    }

    /// The message at a place of a segment of one of these numbers; `None` when there is none that is whole.
    fn read(segment: &[u8], at: usize, numbers: &RangeInclusive<u64>) -> Option<Self> {
        let bytes = segment.get(at..).filter(|bytes| bytes.len() >= RED_ZONE)?;
        let (sum, kind) = (u32::from_le_bytes(*bytes.first_chunk()?), bytes[4]);
        if !(1..=LAST_KIND).contains(&kind) {
            return None;
        }
        let mut rest = &bytes[5..];
        let body = usize::try_from(varint(&mut rest)?).ok()?;
        let number = varint(&mut rest).filter(|number| numbers.contains(number))?;
        let page = varint(&mut rest)?;
        let head = bytes.len() - rest.len();
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(rest.get(..body)?);
        hasher.update(&bytes[4..head]);
        (!hasher.finalize() == sum).then_some(Self { number, at, len: head + body, kind, page })
    }
}

/// Tells the messages of a segment in their order, and where they end: at its end, or at what is no whole message.
pub(super) fn walk(segment: &[u8], number: u64, mut each: impl FnMut(Message)) -> usize {
    let mut at = HEADER;
    while at <= SEGMENT - RED_ZONE {
        match Message::read(segment, at, &(number..=number)) {
            None => return at,
            Some(message) if message.kind == CAP => break,
            Some(message) => {
                each(message);
                at += message.len;
            }
        }
    }
    SEGMENT
}

/// Tells all whole messages from a byte on that are of segments of these numbers, whatever lies between them.
pub(super) fn survey(segment: &[u8], from: usize, numbers: &RangeInclusive<u64>, mut each: impl FnMut(Message)) {
    let mut at = from;
    while at <= SEGMENT - RED_ZONE {
        at += match Message::read(segment, at, numbers) {
            // Most of what is none is empty.
            None if is_empty(&segment[at..segment.len().min(at + PIECE)]) => PIECE - RED_ZONE,
            None => 1,
            Some(message) => {
                each(message);
                message.len
            }
        };
    }
}

/// Whether nothing was written there.
pub(super) fn is_empty(bytes: &[u8]) -> bool {
    bytes.chunks(PIECE).all(|piece| *piece == ZEROS[..piece.len()])
}

/// A number as sled writes them, and what follows it.
pub(super) fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let (&first, rest) = bytes.split_first()?;
    let low = |count: usize| {
        let mut number = [0; 8];
        number[..count].copy_from_slice(rest.get(..count)?);
        Some(u64::from_le_bytes(number))
    };
    let (number, count) = match first {
        0..=240 => (u64::from(first), 0),
        241..=248 => (240 + 256 * u64::from(first - 241) + low(1)?, 1),
        249 => (2288 + 256 * low(1)? + u64::from(*rest.get(1)?), 2),
        250.. => (low(usize::from(first - 247))?, usize::from(first - 247)),
    };
    *bytes = &rest[count..];
    Some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_sled_writes_them() {
        for (bytes, number) in [
            (&[0][..], 0),
            (&[240], 240),
            (&[241, 1], 241),
            (&[248, 255], 2287),
            (&[249, 0, 0], 2288),
            (&[249, 255, 255], 67_823),
            (&[250, 0xF0, 0x08, 0x01], 67_824),
            (&[255, 255, 255, 255, 255, 255, 255, 255, 255], u64::MAX),
        ] {
            let mut rest = &[bytes, &[7]].concat()[..];
            assert_eq!((varint(&mut rest), rest), (Some(number), &[7][..]));
            assert_eq!(varint(&mut &bytes[..bytes.len() - 1]), None, "{number}");
        }
    }
}
