//! Other objects that a decision depends on, as they are stored now.

use portolan_store::{Damaged, RangeRequest, RangeScope, StoredObject};
use portolan_types::{GroupResource, LogicalClusterId, ObjectKey, Status};
use serde_json::Value;

use crate::{
    ApiServer,
    errors::{damaged, status_for},
};

async fn get(api: &ApiServer, key: &ObjectKey) -> Result<Option<Value>, Status> {
    let stored = api.store.get(key).await.map_err(|e| status_for(&e))?;
    stored.as_ref().map(tree).transpose()
}

/// A stored object as a tree.
pub(super) fn tree(stored: &StoredObject) -> Result<Value, Status> {
    stored.record.to_value(stored.revision).map_err(|e| damaged(&stored.key, &e))
}

/// An object without namespace; `None` also for what is no name.
pub(super) async fn cluster_scoped(
    api: &ApiServer,
    cluster: LogicalClusterId,
    (group, resource): (&str, &str),
    name: &str,
) -> Result<Option<Value>, Status> {
    let Ok(name) = name.parse() else { return Ok(None) };
    get(api, &ObjectKey::cluster_scoped(cluster, GroupResource::new(group, resource), name)).await
}

/// A namespace.
pub(super) async fn namespace(api: &ApiServer, cluster: LogicalClusterId, name: &str) -> Result<Option<Value>, Status> {
    cluster_scoped(api, cluster, ("", "namespaces"), name).await
}

/// An object in a namespace; `None` also for what is no name.
pub(super) async fn namespaced(
    api: &ApiServer,
    cluster: LogicalClusterId,
    (group, resource): (&str, &str),
    namespace: &str,
    name: &str,
) -> Result<Option<Value>, Status> {
    let (Ok(namespace), Ok(name)) = (namespace.parse(), name.parse()) else { return Ok(None) };
    get(api, &ObjectKey::namespaced(cluster, GroupResource::new(group, resource), namespace, name)).await
}

/// The objects of a resource in a namespace, by name, with keys and revisions.
pub(super) async fn stored_in_namespace(
    api: &ApiServer,
    cluster: LogicalClusterId,
    (group, resource): (&str, &str),
    namespace: &str,
) -> Result<Vec<StoredObject>, Status> {
    let Ok(namespace) = namespace.parse() else { return Ok(Vec::new()) };
    range(api, RangeScope::Namespace(cluster, GroupResource::new(group, resource), namespace)).await
}

/// Those objects of a resource in a logical cluster that are wanted. No others are held.
pub(super) async fn in_cluster(
    api: &ApiServer,
    cluster: LogicalClusterId,
    (group, resource): (&str, &str),
    is_wanted: impl Fn(&Value) -> bool + Send,
) -> Result<Vec<Value>, Status> {
    let scope = RangeScope::Cluster(cluster, GroupResource::new(group, resource));
    Ok(in_slices(api, RangeRequest::slices(scope), is_wanted).await?.0)
}

/// All objects of a resource in a logical cluster, beside what is damaged.
pub(super) async fn readable_in_cluster(
    api: &ApiServer,
    cluster: LogicalClusterId,
    (group, resource): (&str, &str),
) -> Result<(Vec<Value>, Vec<Damaged>), Status> {
    let scope = RangeScope::Cluster(cluster, GroupResource::new(group, resource));
    in_slices(api, RangeRequest::slices(scope).past_damage(), |_| true).await
}

/// What a request and those that go on from it find: of the records one slice is held.
async fn in_slices(
    api: &ApiServer,
    first: RangeRequest,
    is_wanted: impl Fn(&Value) -> bool + Send,
) -> Result<(Vec<Value>, Vec<Damaged>), Status> {
    let (mut next, mut all, mut damaged) = (Some(first), Vec::new(), Vec::new());
    while let Some(slice) = next {
        let page = api.store.range(slice.clone()).await.map_err(|e| status_for(&e))?;
        next = slice.next(&page);
        for stored in &page.objects {
            all.extend(Some(tree(stored)?).filter(&is_wanted));
        }
        damaged.extend(page.damaged);
    }
    Ok((all, damaged))
}

async fn range(api: &ApiServer, scope: RangeScope) -> Result<Vec<StoredObject>, Status> {
    Ok(api.store.range(RangeRequest::all(scope)).await.map_err(|e| status_for(&e))?.objects)
}
