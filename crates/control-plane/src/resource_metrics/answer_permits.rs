//! Permits for answers about usage. A physical cluster may send the largest answer as slowly as it likes, so the number
//! of answers in memory is bounded, and a tenant has a part of them.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError, Weak},
};

use portolan_types::LogicalClusterId;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Most answers at a time.
const MAX_ANSWERS: usize = 16;
/// Most answers at a time for the requests of one tenant, however many workspaces it has.
const MAX_OF_TENANT: usize = 4;

/// Permits for answers.
pub(super) struct AnswerPermits {
    all: Arc<Semaphore>,
    /// Permits of the tenants that have requests, by the logical clusters that contain them.
    tenants: Mutex<HashMap<LogicalClusterId, Weak<Semaphore>>>,
}

/// Permit for one answer, until it is dropped.
pub(super) struct AnswerPermit {
    _of_all: OwnedSemaphorePermit,
    _of_tenant: OwnedSemaphorePermit,
}

impl Default for AnswerPermits {
    fn default() -> Self {
        Self { all: Arc::new(Semaphore::new(MAX_ANSWERS)), tenants: Mutex::default() }
    }
}

impl AnswerPermits {
    /// Waits for a permit of the tenant, then for a global one: a request that waits for the tenant's permit holds no
    /// global one.
    pub(super) async fn take(&self, tenant: LogicalClusterId) -> AnswerPermit {
        let own = self.of(tenant);
        let of_tenant = own.acquire_owned().await.expect("the semaphore is never closed");
        let of_all = self.all.clone().acquire_owned().await.expect("the semaphore is never closed");
        AnswerPermit { _of_all: of_all, _of_tenant: of_tenant }
    }

    fn of(&self, tenant: LogicalClusterId) -> Arc<Semaphore> {
        let mut tenants = self.tenants.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(own) = tenants.get(&tenant).and_then(Weak::upgrade) {
            return own;
        }
        tenants.retain(|_, own| own.strong_count() > 0);
        let own = Arc::new(Semaphore::new(MAX_OF_TENANT));
        tenants.insert(tenant, Arc::downgrade(&own));
        own
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn a_tenant_has_a_part_of_the_answers() {
        let permits = AnswerPermits::default();
        let (busy, other) = (LogicalClusterId::new(7), LogicalClusterId::new(8));
        let mut held = Vec::new();
        for _ in 0..MAX_OF_TENANT {
            held.push(permits.take(busy).await);
        }
        assert!(permits.take(busy).now_or_never().is_none(), "one too many");
        held.push(permits.take(other).now_or_never().expect("another one has its own"));
        held.remove(0);
        assert!(permits.take(busy).now_or_never().is_some(), "one has ended");
        drop(held);
        permits.of(LogicalClusterId::new(9));
        assert_eq!(permits.tenants.lock().unwrap().len(), 1, "idle ones are forgotten");
    }
}
