//! The writes that are under way: bounded in number and in bytes, as those that wait for the committer of an embedded engine. What
//! is more is refused at once, and writes nothing.

use std::sync::Arc;

use prometheus::IntGauge;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::{StoreError, committer::QUEUE_BYTES, metrics::Metrics};

/// Most transactions that are under way at once.
const TRANSACTIONS: u32 = 4096;
/// Most bytes of them.
const BYTES: u32 = QUEUE_BYTES as u32;

pub(super) struct Queue {
    transactions: Arc<Semaphore>,
    bytes: Arc<Semaphore>,
}

/// The place of a write that is under way, until it is dropped.
pub(super) struct Place {
    _transaction: OwnedSemaphorePermit,
    _bytes: OwnedSemaphorePermit,
    size: i64,
    /// How many there are, and how many bytes.
    shown: [IntGauge; 2],
}

impl Drop for Place {
    fn drop(&mut self) {
        let [queued, bytes] = &self.shown;
        queued.dec();
        bytes.sub(self.size);
    }
}

impl Queue {
    pub(super) fn new() -> Self {
        let semaphore = |most: u32| Arc::new(Semaphore::new(most as usize));
        Self { transactions: semaphore(TRANSACTIONS), bytes: semaphore(BYTES) }
    }

    /// A place for a write of so many bytes.
    ///
    /// # Errors
    /// `Overloaded` when there is none.
    pub(super) fn enter(&self, bytes: usize, metrics: &Metrics) -> Result<Place, StoreError> {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        let transaction = self.transactions.clone().try_acquire_owned();
        let (Ok(_transaction), Ok(_bytes)) = (transaction, self.bytes.clone().try_acquire_many_owned(bytes)) else {
            metrics.overloaded.inc();
            return Err(StoreError::Overloaded);
        };
        // Each adds its own: of two that told how much there is, the earlier might have the last word.
        let (size, shown) = (i64::from(bytes), [metrics.queued.clone(), metrics.queued_bytes.clone()]);
        shown[0].inc();
        shown[1].add(size);
        Ok(Place { _transaction, _bytes, size, shown })
    }

    /// Waits for all that are under way, and lets nobody in any more.
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
    use crate::MAX_TRANSACTION_BYTES;

    #[tokio::test]
    async fn what_is_under_way_is_bounded_in_number_and_in_bytes() {
        for (case, bytes, most) in
            [("many", 0, TRANSACTIONS as usize), ("large", MAX_TRANSACTION_BYTES, QUEUE_BYTES / MAX_TRANSACTION_BYTES)]
        {
            let (queue, metrics) = (Queue::new(), Metrics::new(None).unwrap());
            let enter = || queue.enter(bytes, &metrics);
            let mut places: Vec<_> = (0..most).map(|_| enter().unwrap()).collect();
            assert!(matches!(enter(), Err(StoreError::Overloaded)), "{case}");
            let shown = (metrics.queued.get(), metrics.queued_bytes.get(), metrics.overloaded.get());
            assert_eq!(shown, (most as i64, (most * bytes) as i64, 1), "{case}: who is refused keeps no place");
            places.pop();
            assert_eq!(metrics.queued.get(), most as i64 - 1, "{case}");
            places.push(enter().unwrap());
            assert!(enter().is_err(), "{case}");
            drop(places);
            assert_eq!((metrics.queued.get(), metrics.queued_bytes.get()), (0, 0), "{case}");
            queue.close().await;
            assert!(enter().is_err(), "{case}");
        }
    }
}
