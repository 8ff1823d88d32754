//! Current speed of a core: it is slower while its sibling is busy, and machines differ from the one that the bounds of
//! the rows were measured on.

use std::{collections::BTreeMap, time::Duration};

use crate::cpu;

/// Time of [`work`] on that machine while nothing else ran.
const IN_QUIET: Duration = Duration::from_micros(if cfg!(debug_assertions) { 12_000 } else { 2_500 });
/// The slowest of that many measurements is compared: a step takes longer, so some part of it was certainly slow.
const SAMPLES: usize = 8;

/// Returns the factor by which work is slower now; at least 1.
pub fn slowness() -> f64 {
    let slowest = (0..SAMPLES).map(|_| timed()).max().unwrap_or_default();
    slowest.div_duration_f64(IN_QUIET).max(1.0)
}

fn timed() -> Duration {
    let before = cpu::spent_by_thread();
    std::hint::black_box(work());
    cpu::spent_by_thread().saturating_sub(before)
}

/// Does work like that of most requests: small allocations, copies and lookups.
fn work() -> usize {
    let texts = (0..8_000_u32).map(|n| n.wrapping_mul(0x9E37_79B1).to_string());
    let tree: BTreeMap<String, Vec<u8>> = texts.map(|text| (text.clone(), text.into_bytes())).collect();
    tree.iter().filter(|(text, bytes)| tree.get(*text).is_some_and(|found| found == *bytes)).count()
}
