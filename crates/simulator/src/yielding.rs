//! Store of a simulated cluster. Its operations complete immediately, so that a loop over them would never yield:
//! before each one, the task yields if its time slice has lasted too long.

use portolan_apiserver::yield_long_slice;
use portolan_store::{
    Committed, Durable, DynStore, RangePage, RangeRequest, StoreError, StoreLayer, StoredObject, Transaction,
};
use portolan_types::{BoxFuture, ObjectKey};

/// Store whose tasks may yield before each operation.
pub(crate) struct YieldingStore(pub(crate) DynStore);

impl StoreLayer for YieldingStore {
    fn inner(&self) -> &DynStore {
        &self.0
    }

    fn commit(&self, txn: Transaction) -> BoxFuture<'static, Result<Durable<Committed>, StoreError>> {
        let inner = self.0.clone();
        Box::pin(async move {
            yield_long_slice().await;
            inner.commit(txn).await
        })
    }

    fn get<'a>(&'a self, key: &'a ObjectKey) -> BoxFuture<'a, Result<Option<StoredObject>, StoreError>> {
        Box::pin(async move {
            yield_long_slice().await;
            self.0.get(key).await
        })
    }

    fn range(&self, request: RangeRequest) -> BoxFuture<'_, Result<RangePage, StoreError>> {
        Box::pin(async move {
            yield_long_slice().await;
            self.0.range(request).await
        })
    }
}

#[cfg(test)]
mod tests {
    use std::{
        pin::pin,
        sync::Arc,
        task::{Context, Waker},
    };

    use portolan_types::{GroupResource, LogicalClusterId};

    use super::*;

    #[test]
    fn operations_are_not_done_without_end_in_one_poll() {
        /// More operations than the runtime lets a task do in one poll.
        const MANY: usize = 1_000;
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let store: DynStore = Arc::new(YieldingStore(portolan_store::memory()));
        let key =
            ObjectKey::cluster_scoped(LogicalClusterId::ROOT, GroupResource::new("", "nodes"), "n".parse().unwrap());
        runtime.block_on(async {
            let mut work = pin!(async {
                for _ in 0..MANY {
                    store.get(&key).await.unwrap();
                }
            });
            let is_done = std::future::poll_fn(|_| {
                let polled = work.as_mut().poll(&mut Context::from_waker(Waker::noop()));
                std::task::Poll::Ready(polled.is_ready())
            });
            assert!(!is_done.await, "it lets others in");
        });
    }
}
