//! Segments of sled's log, as sled 0.34.7 writes them (`pagecache/logger.rs`, `serialization.rs`).
//!
//! The log is divided into segments of 512 KiB, each of which has a place in the file. A place is reused once nothing
//! needs its content. A segment has a header, which names its position in the log, and messages up to its end. Both
//! have checksums.

use std::ops::RangeInclusive;

/// Bytes of a segment.
pub(super) const SEGMENT: usize = 512 << 10;
/// Bytes of a segment's header.
pub(super) const HEADER: usize = 20;
/// Bytes at the end of a segment in which no message begins.
const RED_ZONE: usize = 32;
/// Bytes that are compared with zeros at once.
const PIECE: usize = 4096;
const ZEROS: [u8; PIECE] = [0; PIECE];
/// Mask of numbers in headers: all bits but the first are inverted.
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

/// Content at the start of a segment's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SegmentHeader {
    /// No content: never written, or cleared.
    Empty,
    /// Invalid header.
    Damaged,
    /// Valid header of a segment.
    Whole {
        /// Position in the log.
        lsn: u64,
        /// Log position up to which the log was synced when the segment was started, exclusive.
        synced: u64,
    },
}

impl SegmentHeader {
    /// Parses the bytes of a header.
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

/// Complete message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LogMessage {
    /// Number of its segment: position in the log, in segments.
    number: u64,
    /// Offset in the segment.
    at: usize,
    /// Length, including its header.
    len: usize,
    kind: u8,
    /// Page that the message belongs to.
    pub(super) page: u64,
}

impl LogMessage {
    /// Returns the position in the log.
    pub(super) fn lsn(&self) -> u64 {
        self.number * SEGMENT as u64 + self.at as u64
    }

    /// Returns true for the first message of a batch.
    pub(super) fn begins_batch(&self) -> bool {
        self.kind == BATCH
    }

    /// Returns true if the message replaces its page entirely.
    pub(super) fn replaces(&self) -> bool {
        matches!(self.kind, FREE | COUNTER | META | NODE)
    }

    /// Returns true if the message is part of a page.
    pub(super) fn is_of_page(&self) -> bool {
        self.replaces() || self.kind == LINK
    }

    /// Reads the message at an offset of a segment with one of these numbers; `None` if there is no complete one.
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

/// Calls `each` with the messages of a segment in order. Returns the offset of the first incomplete one, or the end.
pub(super) fn walk(segment: &[u8], number: u64, mut each: impl FnMut(LogMessage)) -> usize {
    let mut at = HEADER;
    while at <= SEGMENT - RED_ZONE {
        match LogMessage::read(segment, at, &(number..=number)) {
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

/// Calls `each` with all complete messages of these segments from an offset on, whatever lies between them.
pub(super) fn survey(segment: &[u8], from: usize, numbers: &RangeInclusive<u64>, mut each: impl FnMut(LogMessage)) {
    let mut at = from;
    while at <= SEGMENT - RED_ZONE {
        at += match LogMessage::read(segment, at, numbers) {
            // Most of the rest is empty.
            None if is_empty(&segment[at..segment.len().min(at + PIECE)]) => PIECE - RED_ZONE,
            None => 1,
            Some(message) => {
                each(message);
                message.len
            }
        };
    }
}

/// Returns true if nothing was written there.
pub(super) fn is_empty(bytes: &[u8]) -> bool {
    bytes.chunks(PIECE).all(|piece| *piece == ZEROS[..piece.len()])
}

/// Parses a variable-length number of sled.
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
