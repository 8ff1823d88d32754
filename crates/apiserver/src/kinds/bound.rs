//! Definitions that bindings serve: schemas of exports, compiled once and shared by all logical clusters.
//!
//! A binding names the schemas by uid; the record of a schema never changes. In the cache of a logical cluster these
//! definitions have names of their own, so that a definition of the same resource replaces none of them.

use portolan_store::{RangeRequest, RangeScope, StoreError, StoredObject};
use portolan_types::{LogicalClusterId, ObjectKey, ObjectName, Status, apis, object};
use serde_json::Value;

use crate::errors::{damaged, status_for};

use super::{
    catalog::{CatalogState, Definitions},
    compiled::LoadedDefinition,
};

/// First character of the cached names; no definition has it.
const MARK: char = ':';

/// Returns the cached name that stands for the definitions of all bindings.
pub(super) fn all_bound() -> ObjectName {
    ":".parse().expect("it is a path segment")
}

/// Returns the cached name of a bound definition; `None` for a name that is too long for any.
pub(super) fn bound_name(name: &str) -> Option<ObjectName> {
    format!("{MARK}{name}").parse().ok()
}

/// Returns true for the cached name of a bound definition.
pub(super) fn is_bound(name: &ObjectName) -> bool {
    name.starts_with(MARK)
}

/// Returns true for the key of a binding.
pub(super) fn is_binding(key: &ObjectKey) -> bool {
    *key.resource.group == *apis::GROUP && *key.resource.resource == *apis::BINDINGS
}

/// Returns the cached name that a write of a definition or binding makes stale.
pub(super) fn name_in_cache(key: &ObjectKey) -> ObjectName {
    if is_binding(key) { all_bound() } else { key.name.clone() }
}

/// Reads the definitions that the bindings of a logical cluster serve.
///
/// # Errors
/// Failure of the store. A damaged binding or schema serves nothing.
pub(super) async fn read(catalog: &CatalogState, cluster: LogicalClusterId) -> Result<Definitions, Status> {
    let mut all = Definitions::new();
    let scope = RangeScope::Cluster(cluster, apis::resource(apis::BINDINGS));
    let mut next = Some(RangeRequest::slices(scope).skip_damaged());
    while let Some(request) = next {
        let page = catalog.store.range(request.clone()).await.map_err(|e| status_for(&e))?;
        next = request.next(&page);
        for stored in page.objects {
            read_binding(catalog, &stored, &mut all).await?;
        }
    }
    Ok(all)
}

async fn read_binding(catalog: &CatalogState, stored: &StoredObject, all: &mut Definitions) -> Result<(), Status> {
    let binding = stored.record.to_value(stored.revision).map_err(|e| damaged(&stored.key, &e))?;
    let Some(export) = apis::ExportAddress::of_bound(&binding) else { return Ok(()) };
    for (resource, bound) in apis::bound_resources(&binding) {
        let uid = bound.pointer("/schema/UID").and_then(Value::as_str).unwrap_or_default();
        let Some(key) = apis::bound_schema(export.cluster, &resource, uid) else { continue };
        let schema = match catalog.store.get(&key).await {
            Ok(Some(schema)) => schema,
            Ok(None) | Err(StoreError::Damaged { .. }) => continue,
            Err(error) => return Err(status_for(&error)),
        };
        let mut crd = schema.record.to_value(schema.revision).map_err(|e| damaged(&key, &e))?;
        if object::is_deleting(&binding) {
            let since = object::meta_text(&binding, "deletionTimestamp").into();
            object::metadata_mut(&mut crd).insert("deletionTimestamp".into(), since);
        }
        let held = catalog.compiled.bound_definition(&crd);
        if let Some(name) = bound_name(&held.definition.name) {
            let (created, revision) = (stored.created, stored.revision);
            let binding = Some(stored.key.name.clone());
            // Of two bindings the first serves; the controller lets none have the resource of another.
            all.entry(name).or_insert(LoadedDefinition { held, created, revision, binding });
        }
    }
    Ok(())
}
