//! Limiter of the writes in flight, in number and bytes, like the queue of an embedded engine's committer. Further
//! writes are rejected at once.

use std::sync::Arc;

use prometheus::IntGauge;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::{api::StoreError, embedded::committer::QUEUE_BYTES, metrics::StoreMetrics};

/// Most transactions in flight.
const TRANSACTIONS: u32 = 4096;
/// Most bytes in flight.
const BYTES: u32 = QUEUE_BYTES as u32;

pub(super) struct WriteLimiter {
    transactions: Arc<Semaphore>,
    bytes: Arc<Semaphore>,
}

/// Permit of a write in flight, until it is dropped.
pub(super) struct WritePermit {
    _transaction: OwnedSemaphorePermit,
    _bytes: OwnedSemaphorePermit,
    size: i64,
    /// Gauges of the number and bytes of writes in flight.
    shown: [IntGauge; 2],
}

impl Drop for WritePermit {
    fn drop(&mut self) {
        let [queued, bytes] = &self.shown;
        queued.dec();
        bytes.sub(self.size);
    }
}

impl WriteLimiter {
    pub(super) fn new() -> Self {
        let semaphore = |most: u32| Arc::new(Semaphore::new(most as usize));
        Self { transactions: semaphore(TRANSACTIONS), bytes: semaphore(BYTES) }
    }

    /// Acquires a permit for a write of `bytes` bytes.
    ///
    /// # Errors
    /// `Overloaded` if the limit is reached.
    pub(super) fn acquire(&self, bytes: usize, metrics: &StoreMetrics) -> Result<WritePermit, StoreError> {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        let transaction = self.transactions.clone().try_acquire_owned();
        let (Ok(_transaction), Ok(_bytes)) = (transaction, self.bytes.clone().try_acquire_many_owned(bytes)) else {
            metrics.overloaded.inc();
            return Err(StoreError::Overloaded);
        };
        // Each write adds its own share: setting totals from two tasks could leave the older value.
        let (size, shown) = (i64::from(bytes), [metrics.queued.clone(), metrics.queued_bytes.clone()]);
        shown[0].inc();
        shown[1].add(size);
        Ok(WritePermit { _transaction, _bytes, size, shown })
    }

    /// Waits for all writes in flight, and rejects further ones.
    pub(super) async fn close(&self) {
        // An error means that it was closed before.
        let all = self.transactions.acquire_many(TRANSACTIONS).await;
        self.transactions.close();
        drop(all);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::MAX_TRANSACTION_BYTES;

    #[tokio::test]
    async fn writes_in_flight_are_bounded_by_count_and_bytes() {
        for (case, bytes, most) in
            [("many", 0, TRANSACTIONS as usize), ("large", MAX_TRANSACTION_BYTES, QUEUE_BYTES / MAX_TRANSACTION_BYTES)]
        {
            let (queue, metrics) = (WriteLimiter::new(), StoreMetrics::new(None).unwrap());
            let acquire = || queue.acquire(bytes, &metrics);
            let mut places: Vec<_> = (0..most).map(|_| acquire().unwrap()).collect();
            assert!(matches!(acquire(), Err(StoreError::Overloaded)), "{case}");
            let shown = (metrics.queued.get(), metrics.queued_bytes.get(), metrics.overloaded.get());
            assert_eq!(shown, (most as i64, (most * bytes) as i64, 1), "{case}: who is refused keeps no place");
            places.pop();
            assert_eq!(metrics.queued.get(), most as i64 - 1, "{case}");
            places.push(acquire().unwrap());
            assert!(acquire().is_err(), "{case}");
            drop(places);
            assert_eq!((metrics.queued.get(), metrics.queued_bytes.get()), (0, 0), "{case}");
            queue.close().await;
            assert!(acquire().is_err(), "{case}");
        }
    }
}
