//! Layer over a store: another store that changes some of its operations.

use portolan_types::{BoxFuture, LogicalClusterId, ObjectKey, ResourceVersion};

use super::{
    Committed, Durable, DynStore, EventStream, RangePage, RangeRequest, Store, StoreError, StoredObject, StoredUsage,
    Transaction, WatchScope, damage::DamagedObject, hold::RevisionHold,
};

/// Layer over a store. Every operation goes to [`StoreLayer::inner`] unless the layer has its own; so a new operation
/// of [`Store`] cannot be forgotten.
pub trait StoreLayer: Send + Sync {
    /// Returns the store below.
    fn inner(&self) -> &DynStore;

    /// See [`Store::commit`].
    fn commit(&self, txn: Transaction) -> BoxFuture<'static, Result<Durable<Committed>, StoreError>> {
        self.inner().commit(txn)
    }

    /// See [`Store::get`].
    fn get<'a>(&'a self, key: &'a ObjectKey) -> BoxFuture<'a, Result<Option<StoredObject>, StoreError>> {
        self.inner().get(key)
    }

    /// See [`Store::range`].
    fn range(&self, request: RangeRequest) -> BoxFuture<'_, Result<RangePage, StoreError>> {
        self.inner().range(request)
    }

    /// See [`Store::watch`].
    fn watch(
        &self,
        scope: WatchScope,
        after: Option<ResourceVersion>,
    ) -> BoxFuture<'_, Result<Box<dyn EventStream>, StoreError>> {
        self.inner().watch(scope, after)
    }

    /// See [`Store::known_damage`].
    fn known_damage(&self) -> Vec<DamagedObject> {
        self.inner().known_damage()
    }
}

impl<L: StoreLayer> Store for L {
    fn commit(&self, txn: Transaction) -> BoxFuture<'static, Result<Durable<Committed>, StoreError>> {
        StoreLayer::commit(self, txn)
    }

    fn get<'a>(&'a self, key: &'a ObjectKey) -> BoxFuture<'a, Result<Option<StoredObject>, StoreError>> {
        StoreLayer::get(self, key)
    }

    fn range(&self, request: RangeRequest) -> BoxFuture<'_, Result<RangePage, StoreError>> {
        StoreLayer::range(self, request)
    }

    fn watch(
        &self,
        scope: WatchScope,
        after: Option<ResourceVersion>,
    ) -> BoxFuture<'_, Result<Box<dyn EventStream>, StoreError>> {
        StoreLayer::watch(self, scope, after)
    }

    fn usage(&self, cluster: LogicalClusterId) -> BoxFuture<'_, Result<Option<StoredUsage>, StoreError>> {
        self.inner().usage(cluster)
    }

    fn record_parent(&self, cluster: LogicalClusterId, parent: LogicalClusterId) {
        self.inner().record_parent(cluster, parent);
    }

    fn current(&self) -> ResourceVersion {
        self.inner().current()
    }

    fn health(&self) -> Result<(), StoreError> {
        self.inner().health()
    }

    fn oldest(&self) -> ResourceVersion {
        self.inner().oldest()
    }

    fn back(&self, revisions: u64) -> ResourceVersion {
        self.inner().back(revisions)
    }

    fn compact(&self, upto: ResourceVersion) -> BoxFuture<'_, Result<(), StoreError>> {
        self.inner().compact(upto)
    }

    fn history_bytes(&self) -> Option<u64> {
        self.inner().history_bytes()
    }

    fn shrink_history(&self, most: u64) -> BoxFuture<'_, Result<(), StoreError>> {
        self.inner().shrink_history(most)
    }

    fn dry_run(&self, txn: Transaction) -> BoxFuture<'_, Result<(), StoreError>> {
        self.inner().dry_run(txn)
    }

    fn delete_cluster(&self, cluster: LogicalClusterId) -> BoxFuture<'_, Result<Durable<Committed>, StoreError>> {
        self.inner().delete_cluster(cluster)
    }

    fn hold(&self, at: Option<ResourceVersion>) -> BoxFuture<'_, RevisionHold> {
        self.inner().hold(at)
    }

    fn known_damage(&self) -> Vec<DamagedObject> {
        StoreLayer::known_damage(self)
    }

    fn known_faults(&self) -> Vec<String> {
        self.inner().known_faults()
    }

    fn deleted_clusters(&self) -> BoxFuture<'_, Result<Vec<LogicalClusterId>, StoreError>> {
        self.inner().deleted_clusters()
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        self.inner().close()
    }
}
