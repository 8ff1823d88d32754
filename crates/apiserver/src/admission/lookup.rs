//! Reads of other objects that an admission decision depends on.

use portolan_store::{DamagedObject, RangeRequest, RangeScope, StoredObject};
use portolan_types::{GroupResource, LogicalClusterId, ObjectKey, Status};
use serde_json::Value;

use crate::{
    errors::{damaged, status_for},
    hooks::AdmissionRequest,
    storage::StorageContext,
};

async fn get(storage: &StorageContext, key: &ObjectKey) -> Result<Option<Value>, Status> {
    let stored = storage.store.get(key).await.map_err(|e| status_for(&e))?;
    stored.as_ref().map(tree).transpose()
}

/// Decodes a stored object.
pub(super) fn tree(stored: &StoredObject) -> Result<Value, Status> {
    stored.record.to_value(stored.revision).map_err(|e| damaged(&stored.key, &e))
}

/// Reads a cluster-scoped object; `None` also for an invalid name.
pub(super) async fn cluster_scoped(
    storage: &StorageContext,
    cluster: LogicalClusterId,
    resource: GroupResource,
    name: &str,
) -> Result<Option<Value>, Status> {
    let Ok(name) = name.parse() else { return Ok(None) };
    get(storage, &ObjectKey::cluster_scoped(cluster, resource, name)).await
}

/// Reads a namespace.
pub(super) async fn namespace(
    storage: &StorageContext,
    cluster: LogicalClusterId,
    name: &str,
) -> Result<Option<Value>, Status> {
    cluster_scoped(storage, cluster, GroupResource::new("", "namespaces"), name).await
}

/// Reads an object in the namespace of a request; `None` also for an invalid name.
pub(super) async fn namespaced(
    storage: &StorageContext,
    request: &AdmissionRequest<'_>,
    resource: GroupResource,
    name: &str,
) -> Result<Option<Value>, Status> {
    let (Ok(namespace), Ok(name)) = (request.namespace.parse(), name.parse()) else { return Ok(None) };
    get(storage, &ObjectKey::namespaced(request.cluster.id, resource, namespace, name)).await
}

/// Reads the objects of a resource in a namespace, ordered by name, with keys and revisions.
pub(super) async fn stored_in_namespace(
    storage: &StorageContext,
    cluster: LogicalClusterId,
    resource: GroupResource,
    namespace: &str,
) -> Result<Vec<StoredObject>, Status> {
    let Ok(namespace) = namespace.parse() else { return Ok(Vec::new()) };
    range(storage, RangeScope::Namespace(cluster, resource, namespace)).await
}

/// Reads the objects of a resource in a logical cluster that `wanted` accepts, and holds no others.
pub(super) async fn in_cluster(
    storage: &StorageContext,
    cluster: LogicalClusterId,
    resource: GroupResource,
    is_wanted: impl Fn(&Value) -> bool + Send,
) -> Result<Vec<Value>, Status> {
    let scope = RangeScope::Cluster(cluster, resource);
    Ok(in_slices(storage, RangeRequest::slices(scope), is_wanted).await?.0)
}

/// Reads all objects of a resource in a logical cluster, and reports damaged ones.
pub(super) async fn readable_in_cluster(
    storage: &StorageContext,
    cluster: LogicalClusterId,
    resource: GroupResource,
) -> Result<(Vec<Value>, Vec<DamagedObject>), Status> {
    let scope = RangeScope::Cluster(cluster, resource);
    in_slices(storage, RangeRequest::slices(scope).skip_damaged(), |_| true).await
}

/// Reads a range slice by slice, so that one slice of records is held at a time.
async fn in_slices(
    storage: &StorageContext,
    first: RangeRequest,
    is_wanted: impl Fn(&Value) -> bool + Send,
) -> Result<(Vec<Value>, Vec<DamagedObject>), Status> {
    let (mut next, mut all, mut damaged) = (Some(first), Vec::new(), Vec::new());
    while let Some(slice) = next {
        let page = storage.store.range(slice.clone()).await.map_err(|e| status_for(&e))?;
        next = slice.next(&page);
        for stored in &page.objects {
            all.extend(Some(tree(stored)?).filter(&is_wanted));
        }
        damaged.extend(page.damaged);
    }
    Ok((all, damaged))
}

async fn range(storage: &StorageContext, scope: RangeScope) -> Result<Vec<StoredObject>, Status> {
    Ok(storage.store.range(RangeRequest::all(scope)).await.map_err(|e| status_for(&e))?.objects)
}
