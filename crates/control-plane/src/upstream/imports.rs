//! Services that namespaces import, as the syncers read them.

use std::collections::BTreeSet;

use portolan_store::{RangeRequest, RangeScope};
use portolan_types::{
    GroupResource, LabelSelector, ObjectKey, Status, Uid,
    imported_services::{IMPORTED_SERVICE, ImportedServices, imports},
    upstream::UpstreamError,
};
use serde_json::Value;

use super::{StoreUpstream, is_placed, store_failed};

/// Most imports, and most slices, of a namespace that count.
const MAX_OBJECTS: usize = 1000;

/// Returns the Services that the namespace of `key` imports; none when the object at `key` is not placed on
/// `physical`.
pub(super) async fn read(
    upstream: &StoreUpstream,
    physical: &Uid,
    key: &ObjectKey,
) -> Result<ImportedServices, UpstreamError> {
    let Some(namespace) = key.namespace() else { return Ok(ImportedServices::default()) };
    let store = upstream.plane.store();
    let placed = store.get(key).await.map_err(store_failed)?;
    if !placed.is_some_and(|stored| is_placed(&stored, physical)) {
        return Ok(ImportedServices::default());
    }
    let of = |resource| RangeScope::Namespace(key.cluster, resource, namespace.clone());
    let bounded = |scope| RangeRequest { limit: Some(MAX_OBJECTS), ..RangeRequest::all(scope).skip_damaged() };
    let found = store.range(bounded(of(imports()))).await.map_err(store_failed)?;
    let names: BTreeSet<String> = found.objects.iter().map(|stored| stored.key.name.to_string()).collect();
    if names.is_empty() {
        return Ok(ImportedServices::default());
    }
    let labels =
        LabelSelector::parse(IMPORTED_SERVICE).map_err(|error| UpstreamError::Failed(Status::internal(error)))?;
    let slices = bounded(of(GroupResource::new("discovery.k8s.io", "endpointslices")));
    let found = store.range(RangeRequest { labels, ..slices }).await.map_err(store_failed)?;
    let slices: Vec<Value> = found.objects.iter().filter_map(|stored| stored.to_value().ok()).collect();
    Ok(ImportedServices::of(names, &slices))
}
