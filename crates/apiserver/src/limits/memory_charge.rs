//! Accounting of bytes that requests hold in memory, with a share per tenant.

use std::sync::Arc;

use parking_lot::Mutex;
use portolan_types::Status;

use super::{permits::Permit, too_many};

/// Bytes up to which a request is not charged: the number of concurrent requests bounds them.
pub(crate) const UNCHARGED_BYTES: usize = 64 * 1024;

/// Bytes that one request holds: of its body, and of its response until the last byte is sent. Released with the last
/// clone.
#[derive(Clone)]
pub(crate) struct MemoryCharge(Arc<Mutex<Permit>>);

impl MemoryCharge {
    pub(super) fn new(permit: Permit) -> Self {
        Self(Arc::new(Mutex::new(permit)))
    }

    /// Raises the charge to `bytes`, unless it is higher or `bytes` is small.
    ///
    /// # Errors
    /// 429 if the share is used up.
    pub(crate) fn grow_to(&self, bytes: usize) -> Result<(), Status> {
        let mut permit = self.0.lock();
        let more = if bytes > UNCHARGED_BYTES { bytes.saturating_sub(permit.size()) } else { 0 };
        if more == 0 || permit.grow(more) { Ok(()) } else { Err(too_many()) }
    }

    /// Lowers the charge to `bytes`.
    pub(crate) fn shrink_to(&self, bytes: usize) {
        self.0.lock().shrink(if bytes > UNCHARGED_BYTES { bytes } else { 0 });
    }
}
