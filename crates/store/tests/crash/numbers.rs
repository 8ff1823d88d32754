//! The same numbers in every run.

use std::hash::Hash;

use crate::digest::Digest;

/// A sequence that its seed decides.
pub(crate) struct Numbers(u64);

impl From<u64> for Numbers {
    fn from(seed: u64) -> Self {
        Self(seed)
    }
}

impl Numbers {
    /// As far from those of a like seed as from any others.
    pub(crate) fn of(seed: impl Hash) -> Self {
        Self(Digest::of(seed))
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}
