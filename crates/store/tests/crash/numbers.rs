//! Deterministic sequences of numbers.

use std::hash::Hash;

use crate::digest::ContentDigest;

/// Sequence that is determined by its seed.
pub(crate) struct NumberStream(u64);

impl From<u64> for NumberStream {
    fn from(seed: u64) -> Self {
        Self(seed)
    }
}

impl NumberStream {
    /// Mixes the seed, so that similar seeds give unrelated sequences.
    pub(crate) fn of(seed: impl Hash) -> Self {
        Self(ContentDigest::of(seed))
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}
