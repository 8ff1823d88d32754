//! Entry of the history: what the write of one revision did, and to which object.

use bytes::Bytes;
use portolan_types::LogicalClusterId;

use crate::api::{ChangeKind, damage::Damage};

/// Flag of an entry whose object had a placement before or after the write.
const PLACED: u8 = 0x80;
/// Flag of an entry that ends with its checksum: all except those written before format 3.
const CHECKED: u8 = 0x40;
/// Operation of an entry for a deleted logical cluster.
const CLUSTER_GONE: u8 = 4;

/// Entry of the history: `operation u8 | writes that follow in the same transaction u16 | suffix or cluster | CRC-32
/// u32`. The checksum covers the revision in its key and all bytes before it: an entry may be the only record of a
/// deletion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HistoryEntry<'a> {
    pub(crate) what: HistoryChange<'a>,
    /// Number of writes that follow in the transaction; 0 marks its boundary.
    pub(crate) remaining: u16,
    pub(crate) placed: bool,
}

/// Content of a history entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum HistoryChange<'a> {
    Object(ChangeKind, &'a [u8]),
    ClusterGone(LogicalClusterId),
}

impl<'a> HistoryEntry<'a> {
    /// Encodes the entry of a revision.
    pub(crate) fn encode(&self, revision: u64) -> Bytes {
        let (operation, rest) = match &self.what {
            HistoryChange::Object(ChangeKind::Created, suffix) => (1, suffix.to_vec()),
            HistoryChange::Object(ChangeKind::Updated, suffix) => (2, suffix.to_vec()),
            HistoryChange::Object(ChangeKind::Deleted, suffix) => (3, suffix.to_vec()),
            HistoryChange::ClusterGone(cluster) => (CLUSTER_GONE, cluster.get().to_be_bytes().to_vec()),
        };
        let mut out = Vec::with_capacity(7 + rest.len());
        out.push(operation | CHECKED | if self.placed { PLACED } else { 0 });
        out.extend_from_slice(&self.remaining.to_le_bytes());
        out.extend_from_slice(&rest);
        out.extend_from_slice(&checksum(revision, &out).to_le_bytes());
        out.into()
    }

    /// # Errors
    /// Fails for bytes that are not an entry of this revision.
    pub(crate) fn decode(revision: u64, bytes: &'a [u8]) -> Result<Self, Damage> {
        let bytes = if is_checked(bytes) { checked(revision, bytes)? } else { bytes };
        let (head, rest) = bytes.split_first_chunk::<3>().ok_or(Damage::Key)?;
        let what = match head[0] & !(PLACED | CHECKED) {
            1 => HistoryChange::Object(ChangeKind::Created, rest),
            2 => HistoryChange::Object(ChangeKind::Updated, rest),
            3 => HistoryChange::Object(ChangeKind::Deleted, rest),
            CLUSTER_GONE => {
                let number = rest.try_into().map_err(|_| Damage::Key)?;
                HistoryChange::ClusterGone(LogicalClusterId::new(u64::from_be_bytes(number)))
            }
            _ => return Err(Damage::Key),
        };
        Ok(Self { what, remaining: u16::from_le_bytes([head[1], head[2]]), placed: head[0] & PLACED != 0 })
    }
}

/// Returns true if an entry ends with its checksum.
pub(crate) fn is_checked(bytes: &[u8]) -> bool {
    bytes.first().is_some_and(|operation| operation & CHECKED != 0)
}

fn checksum(revision: u64, entry: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&revision.to_be_bytes());
    hasher.update(entry);
    hasher.finalize()
}

/// Verifies the checksum of an entry, and returns the entry without it.
fn checked(revision: u64, bytes: &[u8]) -> Result<&[u8], Damage> {
    let (entry, sum) = bytes.split_last_chunk::<4>().ok_or(Damage::Key)?;
    if *sum == checksum(revision, entry).to_le_bytes() { Ok(entry) } else { Err(Damage::Checksum) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::keys;

    #[test]
    fn an_entry_comes_back_as_it_went() {
        for what in [
            HistoryChange::Object(ChangeKind::Created, b"abc"),
            HistoryChange::Object(ChangeKind::Updated, b""),
            HistoryChange::Object(ChangeKind::Deleted, b"\0\xff"),
            HistoryChange::ClusterGone(LogicalClusterId::new(7)),
        ] {
            for (remaining, placed) in [(0, false), (256, true)] {
                let entry = HistoryEntry { what: what.clone(), remaining, placed };
                assert_eq!(HistoryEntry::decode(9, &entry.encode(9)), Ok(entry));
            }
        }
        for bytes in [&b""[..], b"\x01\0", b"\x09\0\0abc", b"\x04\0\0abc", b"\x41\0"] {
            assert_eq!(HistoryEntry::decode(9, bytes), Err(Damage::Key));
        }
        let before_format_3 =
            HistoryEntry { what: HistoryChange::Object(ChangeKind::Deleted, b"abc"), remaining: 2, placed: true };
        assert_eq!(HistoryEntry::decode(9, b"\x83\x02\0abc"), Ok(before_format_3));
    }

    #[test]
    fn any_flipped_bit_of_an_entry_is_found_and_so_is_one_of_another_revision() {
        let suffix = b"\0\0\0\0\0\0\0\x01\0\0\0\x02default\0web\0";
        let entry =
            HistoryEntry { what: HistoryChange::Object(ChangeKind::Updated, suffix), remaining: 0, placed: true }
                .encode(9);
        assert!(HistoryEntry::decode(8, &entry).is_err());
        for bit in 0..entry.len() * 8 {
            let mut bytes = entry.to_vec();
            bytes[bit / 8] ^= 1 << (bit % 8);
            let found = HistoryEntry::decode(9, &bytes);
            // Without its flag it looks like an older entry whose suffix ends with the checksum.
            let is_object = matches!(&found, Ok(HistoryEntry { what: HistoryChange::Object(_, suffix), .. }) if keys::parts(suffix)
                .is_some_and(|parts| parts.name.parse::<portolan_types::ObjectName>().is_ok()));
            assert!(!is_object, "bit {bit}: {found:?}");
        }
    }
}
