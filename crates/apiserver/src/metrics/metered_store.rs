//! Store wrapper that counts requests.

use std::sync::Arc;

use portolan_store::{
    Committed, Durable, DynStore, Expect, RangePage, RangeRequest, RangeScope, StoreError, StoreLayer, StoredObject,
    Transaction,
};
use portolan_types::{BoxFuture, GroupResource, ObjectKey};

use crate::metrics::StorageMetrics;

struct MeteredStore {
    inner: DynStore,
    metrics: StorageMetrics,
}

/// Wraps a store so that its requests are counted.
pub(crate) fn metered(inner: DynStore, metrics: StorageMetrics) -> DynStore {
    Arc::new(MeteredStore { inner, metrics })
}

impl StoreLayer for MeteredStore {
    fn inner(&self) -> &DynStore {
        &self.inner
    }

    fn commit(&self, txn: Transaction) -> BoxFuture<'static, Result<Durable<Committed>, StoreError>> {
        // Further writes of a transaction count as part of its first.
        let Some(first) = txn.writes.first() else { return self.inner.commit(txn) };
        let operation = match (&first.record, first.expect) {
            (None, _) => "delete",
            (Some(_), Expect::Absent) => "create",
            (Some(_), Expect::Present | Expect::At(_) | Expect::Lives { .. } | Expect::Anything | Expect::Damaged) => {
                "update"
            }
        };
        let begin = self.metrics.begin(operation, &first.key.resource);
        let committing = self.inner.commit(txn);
        Box::pin(async move { begin.end(committing.await) })
    }

    fn get<'a>(&'a self, key: &'a ObjectKey) -> BoxFuture<'a, Result<Option<StoredObject>, StoreError>> {
        let begin = self.metrics.begin("get", &key.resource);
        Box::pin(async move { begin.end(self.inner.get(key).await) })
    }

    fn range(&self, request: RangeRequest) -> BoxFuture<'_, Result<RangePage, StoreError>> {
        let begin = self.metrics.begin("list", &resource_of(&request.scope));
        Box::pin(async move { begin.end(self.inner.range(request).await) })
    }
}

/// Returns the listed resource; an empty one for a scope of several.
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
