//! Reservations of addresses and ports, each of which one object of a logical cluster can hold. A reservation is a
//! record of its own, written in the same transaction as its holder. A reservation whose holder is gone or has
//! released it is reused.

use portolan_store::{Expect, StoredObject, Write};
use portolan_strategy::lifecycle::allocation;
use portolan_types::{GroupResource, LogicalClusterId, ObjectKey, Record, Status, object};
use serde_json::Value;

use crate::{
    errors::{damaged, status_for},
    storage::StorageContext,
};

/// Returns the key of a reservation.
pub(super) fn key(cluster: LogicalClusterId, resource: GroupResource, name: &str) -> Option<ObjectKey> {
    Some(ObjectKey::cluster_scoped(cluster, resource, name.parse().ok()?))
}

/// Returns a write that reserves `key` for `holder`; `None` if another object holds it.
pub(super) async fn reserve(
    storage: &StorageContext,
    key: &ObjectKey,
    holder: &ObjectKey,
    record: &Value,
) -> Result<Option<Write>, Status> {
    let taken = storage.store.get(key).await.map_err(|e| status_for(&e))?;
    let expect = match taken {
        None => Expect::Absent,
        Some(stored) if is_held(storage, &stored, holder).await? => return Ok(None),
        Some(stored) => Expect::At(stored.revision),
    };
    Ok(Some(Write { key: key.clone(), expect, record: Some(Record::of(record)) }))
}

/// Returns a write that releases `key`; `None` if nothing is reserved.
pub(super) async fn release(
    storage: &StorageContext,
    key: ObjectKey,
    holder: &ObjectKey,
) -> Result<Option<Write>, Status> {
    let Some(stored) = storage.store.get(&key).await.map_err(|e| status_for(&e))? else { return Ok(None) };
    let own = holder_of(&stored, holder)? == Some(holder.clone());
    Ok(own.then_some(Write { key, expect: Expect::At(stored.revision), record: None }))
}

/// Returns true if the holder exists and still uses the reservation. A later object of the same name gets a new check.
async fn is_held(storage: &StorageContext, stored: &StoredObject, asking: &ObjectKey) -> Result<bool, Status> {
    let Some(holder) = holder_of(stored, asking)? else { return Ok(true) };
    if holder == *asking {
        return Ok(false);
    }
    let Some(service) = storage.store.get(&holder).await.map_err(|e| status_for(&e))? else { return Ok(false) };
    let service = service.to_value().map_err(|e| status_for(&e))?;
    let is_it = |(reserved, name): &(allocation::Reserved, String)| {
        reserved.stored_as() == stored.key.resource && name.as_str() == stored.key.name.as_str()
    };
    Ok(allocation::reserved(&service).iter().any(is_it))
}

/// Returns the key of the Service in `spec.parentRef`.
fn holder_of(stored: &StoredObject, like: &ObjectKey) -> Result<Option<ObjectKey>, Status> {
    let value = stored.record.to_value(stored.revision).map_err(|e| damaged(&stored.key, &e))?;
    debug_assert!(!object::name(&value).is_empty());
    let key = |(namespace, name)| ObjectKey::namespaced(like.cluster, like.resource.clone(), namespace, name);
    Ok(allocation::holder(&value).map(key))
}
