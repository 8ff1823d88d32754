//! Many bytes in one number, in a test that is not optimized: disks of megabytes, thousands of them.

use std::hash::{Hash, Hasher};

use sha2::{Digest as _, Sha256};

/// Hashes with optimized code, unlike the unoptimized standard hasher in this build.
#[derive(Default)]
pub(crate) struct ContentDigest(Sha256);

impl ContentDigest {
    /// Returns the digest of one value.
    pub(crate) fn of(what: impl Hash) -> u64 {
        let mut digest = Self::default();
        what.hash(&mut digest);
        digest.finish()
    }
}

impl Hasher for ContentDigest {
    fn write(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    fn finish(&self) -> u64 {
        let hash = self.0.clone().finalize();
        u64::from_le_bytes(std::array::from_fn(|byte| hash[byte]))
    }
}
