//! The store, with its requests counted.

use std::sync::Arc;

use portolan_store::{
    Committed, Damaged, Durable, DynStore, EventStream, Expect, Hold, RangePage, RangeRequest, RangeScope, Store,
    StoreError, StoredObject, Transaction, Usage, WatchScope,
};
use portolan_types::{BoxFuture, GroupResource, LogicalClusterId, ObjectKey, ResourceVersion};

use crate::metrics::StorageMetrics;

struct Measured {
    inner: DynStore,
    metrics: StorageMetrics,
}

/// The store, whose requests are counted.
pub(crate) fn measured(inner: DynStore, metrics: StorageMetrics) -> DynStore {
    Arc::new(Measured { inner, metrics })
}

impl Store for Measured {
    fn commit(&self, txn: Transaction) -> BoxFuture<'static, Result<Durable<Committed>, StoreError>> {
        // What is written with an object is part of its write.
        let Some(first) = txn.writes.first() else { return self.inner.commit(txn) };
        let operation = match (&first.record, first.expect) {
            (None, _) => "delete",
            (Some(_), Expect::Absent) => "create",
            (Some(_), Expect::Present | Expect::At(_) | Expect::Lives { .. } | Expect::Anything | Expect::Damaged) => {
                "update"
            }
        };
        let asked = self.metrics.asked(operation, &first.key.resource);
        let committing = self.inner.commit(txn);
        Box::pin(async move { asked.answered(committing.await) })
    }

    fn get<'a>(&'a self, key: &'a ObjectKey) -> BoxFuture<'a, Result<Option<StoredObject>, StoreError>> {
        let asked = self.metrics.asked("get", &key.resource);
        Box::pin(async move { asked.answered(self.inner.get(key).await) })
    }

    fn range(&self, request: RangeRequest) -> BoxFuture<'_, Result<RangePage, StoreError>> {
        let asked = self.metrics.asked("list", &resource_of(&request.scope));
        Box::pin(async move { asked.answered(self.inner.range(request).await) })
    }

    fn watch(
        &self,
        scope: WatchScope,
        after: Option<ResourceVersion>,
    ) -> BoxFuture<'_, Result<Box<dyn EventStream>, StoreError>> {
        self.inner.watch(scope, after)
    }

    fn usage(&self, cluster: LogicalClusterId) -> BoxFuture<'_, Result<Option<Usage>, StoreError>> {
        self.inner.usage(cluster)
    }

    fn know_parent(&self, cluster: LogicalClusterId, parent: LogicalClusterId) {
        self.inner.know_parent(cluster, parent);
    }

    fn current(&self) -> ResourceVersion {
        self.inner.current()
    }

    fn back(&self, revisions: u64) -> ResourceVersion {
        self.inner.back(revisions)
    }

    fn known_damage(&self) -> Vec<Damaged> {
        self.inner.known_damage()
    }

    fn known_faults(&self) -> Vec<String> {
        self.inner.known_faults()
    }

    fn health(&self) -> Result<(), StoreError> {
        self.inner.health()
    }

    fn oldest(&self) -> ResourceVersion {
        self.inner.oldest()
    }

    fn compact(&self, upto: ResourceVersion) -> BoxFuture<'_, Result<(), StoreError>> {
        self.inner.compact(upto)
    }

    fn delete_cluster(&self, cluster: LogicalClusterId) -> BoxFuture<'_, Result<Durable<Committed>, StoreError>> {
        self.inner.delete_cluster(cluster)
    }

    fn hold(&self, at: Option<ResourceVersion>) -> BoxFuture<'_, Hold> {
        self.inner.hold(at)
    }

    fn gone_clusters(&self) -> BoxFuture<'_, Result<Vec<LogicalClusterId>, StoreError>> {
        self.inner.gone_clusters()
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        self.inner.close()
    }
}

/// The resource that is listed; none where there are several.
fn resource_of(scope: &RangeScope) -> GroupResource {
    match scope {
        RangeScope::AllClusters(resource)
        | RangeScope::Cluster(_, resource)
        | RangeScope::Namespace(_, resource, _) => resource.clone(),
        RangeScope::All | RangeScope::Everything(_) | RangeScope::PlacedOn(_) | RangeScope::OwnedBy(..) => {
            GroupResource::new("", "")
        }
    }
}
