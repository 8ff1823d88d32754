//! Limits of the cache of one physical cluster: it may be hostile, and must not take the memory of the others.

mod shares;

use std::ops::{Add, AddAssign, Sub, SubAssign};

pub(super) use self::shares::{ClusterShares, CopyDemand};

/// Limits of the objects that are held of one physical cluster. It is not synced while it has more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SyncLimits {
    /// Objects.
    pub objects: u64,
    /// Bytes of memory that they take, as estimated from their trees. As many may arrive at a time: while objects are
    /// listed they are held twice.
    pub bytes: u64,
}

impl Default for SyncLimits {
    /// 250,000 objects, 1 GiB.
    fn default() -> Self {
        Self { objects: 250_000, bytes: 1 << 30 }
    }
}

impl SyncLimits {
    pub(super) fn permit(&self, held: HeldObjects) -> bool {
        held.objects <= self.objects && held.bytes <= self.bytes
    }
}

/// Amount of objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct HeldObjects {
    pub(super) objects: u64,
    /// Bytes of memory, estimated.
    pub(super) bytes: u64,
}

impl Add for HeldObjects {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        let objects = self.objects.saturating_add(other.objects);
        Self { objects, bytes: self.bytes.saturating_add(other.bytes) }
    }
}

impl Sub for HeldObjects {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        let objects = self.objects.saturating_sub(other.objects);
        Self { objects, bytes: self.bytes.saturating_sub(other.bytes) }
    }
}

impl AddAssign for HeldObjects {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl SubAssign for HeldObjects {
    fn sub_assign(&mut self, other: Self) {
        *self = *self - other;
    }
}

#[cfg(test)]
mod tests;
