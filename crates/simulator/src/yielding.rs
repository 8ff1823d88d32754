//! The store of a simulated cluster. Its operations are done at once, so that a loop over them would never let others in: before each
//! one the task yields when its time slice has lasted for long.

use portolan_apiserver::yield_long_slice;
use portolan_store::{
    Committed, Damaged, Durable, DynStore, EventStream, Hold, RangePage, RangeRequest, Store, StoreError, StoredObject,
    Transaction, WatchScope,
};
use portolan_types::{BoxFuture, LogicalClusterId, ObjectKey, ResourceVersion};

/// Store whose tasks may yield before each operation.
pub(crate) struct YieldingStore(pub(crate) DynStore);

impl Store for YieldingStore {
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

    fn watch(
        &self,
        scope: WatchScope,
        after: Option<ResourceVersion>,
    ) -> BoxFuture<'_, Result<Box<dyn EventStream>, StoreError>> {
        self.0.watch(scope, after)
    }

    fn current(&self) -> ResourceVersion {
        self.0.current()
    }

    fn health(&self) -> Result<(), StoreError> {
        self.0.health()
    }

    fn oldest(&self) -> ResourceVersion {
        self.0.oldest()
    }

    fn back(&self, revisions: u64) -> ResourceVersion {
        self.0.back(revisions)
    }

    fn compact(&self, upto: ResourceVersion) -> BoxFuture<'_, Result<(), StoreError>> {
        self.0.compact(upto)
    }

    fn delete_cluster(&self, cluster: LogicalClusterId) -> BoxFuture<'_, Result<Durable<Committed>, StoreError>> {
        self.0.delete_cluster(cluster)
    }

    fn hold(&self, at: Option<ResourceVersion>) -> BoxFuture<'_, Hold> {
        self.0.hold(at)
    }

    fn known_damage(&self) -> Vec<Damaged> {
        self.0.known_damage()
    }

    fn gone_clusters(&self) -> BoxFuture<'_, Result<Vec<LogicalClusterId>, StoreError>> {
        self.0.gone_clusters()
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        self.0.close()
    }
}

#[cfg(test)]
mod tests {
    use std::{
        pin::pin,
        sync::Arc,
        task::{Context, Waker},
    };

    use portolan_types::GroupResource;

    use super::*;

    #[test]
    fn operations_are_not_done_without_end_in_one_poll() {
        /// More than the runtime lets a task do at once.
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
