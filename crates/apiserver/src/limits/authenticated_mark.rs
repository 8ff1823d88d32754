//! Tenant of a connection.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use portolan_types::LogicalClusterId;

/// Mark that a connection has carried a request with valid credentials, with the tenant of its last request. Each
/// request has a reference to it.
#[derive(Clone)]
pub(crate) struct AuthenticatedMark(Arc<AtomicU64>);

/// Mark before valid credentials have come. Neither this nor [`NO_TENANT`] is the id of a logical cluster.
const UNAUTHENTICATED: u64 = u64::MAX;
/// Mark of an authenticated client without an admitted request.
pub(crate) const NO_TENANT: u64 = u64::MAX - 1;

impl AuthenticatedMark {
    /// Marks the connection as one of an authenticated client.
    pub(crate) fn set(&self) {
        // A tenant that is already known stays.
        let _ = self.0.compare_exchange(UNAUTHENTICATED, NO_TENANT, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Charges the connection to the tenant of an admitted request, if its client is authenticated.
    pub(crate) fn charge_to(&self, tenant: LogicalClusterId) {
        if self.tenant().is_some() {
            self.0.store(tenant.get(), Ordering::Relaxed);
        }
    }

    /// Returns the tenant, or [`NO_TENANT`]; `None` if no valid credentials have come.
    pub(crate) fn tenant(&self) -> Option<u64> {
        Some(self.0.load(Ordering::Relaxed)).filter(|mark| *mark != UNAUTHENTICATED)
    }
}

impl Default for AuthenticatedMark {
    fn default() -> Self {
        Self(Arc::new(AtomicU64::new(UNAUTHENTICATED)))
    }
}
