//! Estimates of the bytes that redb writes, takes and frees.

/// Bytes of a page of redb. A larger value takes a run of pages whose number is a power of two.
const PAGE: u64 = 4096;

/// Returns the bytes that a batch of pairs writes: each pair may rewrite a page of its own.
pub(crate) fn estimated_write(pairs: usize, bytes: u64) -> u64 {
    bytes + pairs as u64 * PAGE
}

/// Estimates the bytes of pages that redb takes for a pair, rather too many: a page of several pairs is at least half
/// full, and a larger pair takes a run of pages, which may have up to a page of others. Ignores inner pages.
pub(super) fn estimated_pages(key: &[u8], value: &[u8]) -> u64 {
    let bytes = (key.len() + value.len()) as u64;
    if bytes < PAGE { bytes * 2 } else { (bytes + PAGE).next_power_of_two() }
}

/// Estimates the bytes of pages that redb can reuse after the removal of a pair with a value of `value` bytes, rather
/// too few.
pub(crate) fn estimated_freed(key: &[u8], value: u64) -> u64 {
    let bytes = key.len() as u64 + value;
    if bytes < PAGE { bytes } else { bytes.next_power_of_two() }
}
