//! Checksum of a redb page, over all parts that have no checksum of their own.
//!
//! Objects and history entries have checksums of their own, which tell which of them is damaged. They are left out
//! here, so that a flipped bit in an object damages that object only, not all others in its page. Structure (offsets,
//! lengths, keys) is always included, and so are pages that do not look like leaves with byte pairs.

use super::layout::sum;
use crate::layout::{history_entry, keys};

/// First byte of a leaf page.
const LEAF: u8 = 1;
/// Bytes before the ends of keys and values.
const HEAD: usize = 4;

/// Computes the checksum of a page that begins at `block`.
pub(super) fn page_sum(block: u64, page: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new_with_initial(place(block));
    match LeafPage::of(page) {
        Some(leaf) => {
            hasher.update(leaf.before_values());
            leaf.pairs().filter(|(key, value)| !checks_itself(key, value)).for_each(|(_, value)| hasher.update(value));
        }
        None => hasher.update(page),
    }
    hasher.finalize()
}

/// Computes the checksum of a whole block.
pub(super) fn block_sum(number: u64, block: &[u8]) -> u32 {
    sum(place(number), block)
}

/// Returns the seed of a block's checksum. Blocks 16 TiB apart share a seed.
fn place(block: u64) -> u32 {
    (block & u64::from(u32::MAX)) as u32
}

/// Returns true if a value has a checksum of its own that covers all of it.
fn checks_itself(key: &[u8], value: &[u8]) -> bool {
    keys::is_of_object(key) || keys::is_of_history(key) && history_entry::is_checked(value)
}

/// Leaf page: `1u8 | unused u8 | pairs u16 | end of each key u32 | end of each value u32 | keys | values`,
/// little-endian.
struct LeafPage<'p> {
    page: &'p [u8],
    ends: &'p [u8],
}

impl<'p> LeafPage<'p> {
    /// Parses a leaf; `None` for another kind of page, or if its offsets are damaged.
    fn of(page: &'p [u8]) -> Option<Self> {
        let (head, rest) = page.split_first_chunk::<HEAD>()?;
        let pairs = usize::from(u16::from_le_bytes([head[2], head[3]]));
        let leaf = Self { page, ends: rest.get(..pairs * 8)? };
        let begin = leaf.keys_begin();
        let fits = leaf.all_ends().is_sorted() && leaf.all_ends().all(|end| (begin..=page.len()).contains(&end));
        (head[0] == LEAF && pairs > 0 && fits).then_some(leaf)
    }

    fn count(&self) -> usize {
        self.ends.len() / 8
    }

    fn keys_begin(&self) -> usize {
        HEAD + self.ends.len()
    }

    /// Returns the ends of all keys, then of all values.
    fn all_ends(&self) -> impl Iterator<Item = usize> {
        self.ends.as_chunks::<4>().0.iter().map(|end| u32::from_le_bytes(*end) as usize)
    }

    /// Returns all keys, then all values.
    fn parts(&self) -> impl Iterator<Item = &'p [u8]> {
        let page = self.page;
        let begins = std::iter::once(self.keys_begin()).chain(self.all_ends());
        begins.zip(self.all_ends()).map(move |(begin, end)| &page[begin..end])
    }

    fn before_values(&self) -> &'p [u8] {
        let end = self.all_ends().nth(self.count() - 1).unwrap_or(self.page.len());
        &self.page[..end]
    }

    fn pairs(&self) -> impl Iterator<Item = (&'p [u8], &'p [u8])> {
        self.parts().zip(self.parts().skip(self.count()))
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use portolan_types::{LogicalClusterId, Scope};

    use super::*;
    use crate::{
        engine::redb::layout::BLOCK,
        layout::{
            history_entry::{HistoryChange, HistoryEntry},
            keys::{KeySuffix, meta},
        },
    };

    /// Builds a leaf as redb does.
    fn leaf(pairs: &[(Vec<u8>, Bytes)]) -> Vec<u8> {
        let mut page = vec![LEAF, 0xff];
        page.extend_from_slice(&(pairs.len() as u16).to_le_bytes());
        let mut end = HEAD + pairs.len() * 8;
        for len in pairs.iter().map(|pair| pair.0.len()).chain(pairs.iter().map(|pair| pair.1.len())) {
            end += len;
            page.extend_from_slice(&(end as u32).to_le_bytes());
        }
        pairs.iter().for_each(|pair| page.extend_from_slice(&pair.0));
        pairs.iter().for_each(|pair| page.extend_from_slice(&pair.1));
        page.resize(page.len().next_multiple_of(BLOCK), 0xff);
        page
    }

    fn suffix() -> KeySuffix {
        KeySuffix::new(LogicalClusterId::ROOT, 1, &Scope::Cluster, &"a".parse().unwrap())
    }

    #[test]
    fn only_values_with_own_checksums_and_unread_bytes_are_not_covered() {
        let entry = |revision| {
            HistoryEntry {
                what: HistoryChange::Object(crate::api::ChangeKind::Created, suffix().as_bytes()),
                remaining: 0,
                placed: false,
            }
            .encode(revision)
        };
        let pairs = [
            (keys::history(7), entry(7)),
            (keys::history(8), Bytes::from_static(b"\x01 of an older format")),
            (meta::LAST.to_vec(), Bytes::from_static(&[8, 0, 0, 0, 0, 0, 0, 0])),
            (suffix().object(), Bytes::from_static(b"an object")),
            (suffix().version(8), Bytes::from_static(b"a superseded object")),
        ];
        let page = leaf(&pairs);
        let expected = page_sum(3, &page);
        assert_ne!(page_sum(4, &page), expected, "it is of its place");
        let begins = page.windows(9).position(|part| part == b"an object").unwrap();
        let first = page.windows(pairs[0].1.len()).position(|part| part == pairs[0].1).unwrap();
        let used = begins + 9 + 19;
        for at in 0..page.len() {
            let mut flipped = page.clone();
            flipped[at] ^= 1 << (at % 6);
            let left_out = (first..first + pairs[0].1.len()).contains(&at) || at >= begins;
            let found = page_sum(3, &flipped) != expected;
            assert_eq!(found, !left_out, "byte {at} of {used}");
        }
    }

    #[test]
    fn of_all_other_pages_nothing_is_left_out() {
        let object = leaf(&[(suffix().object(), Bytes::from_static(b"an object"))]);
        let changed = |change: fn(&mut Vec<u8>)| {
            let mut page = object.clone();
            change(&mut page);
            page
        };
        for (case, page) in [
            ("an inner page", changed(|page| page[0] = 2)),
            ("none", changed(|page| page.fill(7))),
            ("without pairs", changed(|page| page[2] = 0)),
            ("with more pairs than there is room for", changed(|page| page[2..4].fill(0xff))),
            ("with an end beyond the page", changed(|page| page[10] = 1)),
            ("with an end before the keys", changed(|page| page[4] = 3)),
            ("with ends that go back", changed(|page| page[8] = 13)),
        ] {
            for at in [0, 3, 200, BLOCK - 1] {
                let mut flipped = page.clone();
                flipped[at] ^= 0x10;
                assert_ne!(page_sum(1, &flipped), page_sum(1, &page), "{case}: byte {at}");
            }
            assert_eq!(page_sum(1, &page), block_sum(1, &page), "{case}");
        }
    }

    #[test]
    fn a_flipped_bit_of_an_older_entry_is_not_left_to_a_checksum_that_it_lacks() {
        assert!(!checks_itself(&keys::history(8), b"\x01 of an older format"));
        assert!(!checks_itself(&keys::history(8), b""));
        assert!(!checks_itself(meta::LAST, b"\x41"));
        assert!(!checks_itself(b"object", b"\x41"), "some other key");
        assert!(!checks_itself(b"", b""));
    }
}
