//! Randomness of one actor, which follows from the seed of the run.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

/// Sequence of random numbers (`SplitMix64`). Each actor has its own, so that it does not depend on the others' turns.
#[derive(Debug)]
pub(crate) struct Dice(AtomicU64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(AtomicU64::new(seed))
    }

    fn next(&self) -> u64 {
        let mut z = self.0.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed).wrapping_add(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a sequence of its own for another actor.
    pub(crate) fn fork(&self) -> Self {
        Self::new(self.next())
    }

    /// Returns a number from 0 to below `sides`.
    pub(crate) fn roll(&self, sides: u64) -> u64 {
        self.next() % sides
    }

    /// Returns true once in `sides` times.
    pub(crate) fn hits(&self, sides: u64) -> bool {
        self.roll(sides) == 0
    }

    pub(crate) fn pick<T: Copy>(&self, from: &[T]) -> T {
        from[usize::try_from(self.roll(from.len() as u64)).expect("below the length")]
    }

    /// Returns a time of up to `most` milliseconds.
    pub(crate) fn millis(&self, most: u64) -> Duration {
        Duration::from_millis(self.roll(most) + 1)
    }
}
