//! How fast a core is now: one that shares its units and caches with another that is busy takes more time for the same work, and
//! not every machine is the one on which the rows' bounds were taken.

use std::{collections::BTreeMap, time::Duration};

use crate::cpu;

/// What [`work`] took on that machine while nothing else ran.
const IN_QUIET: Duration = Duration::from_micros(if cfg!(debug_assertions) { 12_000 } else { 2_500 });
/// The slowest of so many is what counts: a step was longer under way, and some of that is sure to have been slow.
const SAMPLES: usize = 8;

/// How many times longer work takes now than in quiet; at least 1.
pub fn slowness() -> f64 {
    let slowest = (0..SAMPLES).map(|_| timed()).max().unwrap_or_default();
    slowest.div_duration_f64(IN_QUIET).max(1.0)
}

fn timed() -> Duration {
    let before = cpu::spent_by_thread();
    std::hint::black_box(work());
    cpu::spent_by_thread().saturating_sub(before)
}

/// What most requests are: small things allocated, copied and looked up.
fn work() -> usize {
    let texts = (0..8_000_u32).map(|n| n.wrapping_mul(0x9E37_79B1).to_string());
    let tree: BTreeMap<String, Vec<u8>> = texts.map(|text| (text.clone(), text.into_bytes())).collect();
    tree.iter().filter(|(text, bytes)| tree.get(*text).is_some_and(|found| found == *bytes)).count()
}
