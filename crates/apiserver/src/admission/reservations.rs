//! What only one object of a logical cluster can have: addresses and ports. Each is a record of its own, written in the same
//! transaction as its holder, so that no two can have it. A record whose holder is gone, or has it no more, is taken over.

use portolan_machinery::lifecycle::allocation;
use portolan_store::{Expect, StoredObject, Write};
use portolan_types::{GroupResource, LogicalClusterId, ObjectKey, Record, Status, object};
use serde_json::Value;

use crate::{
    ApiServer,
    errors::{damaged, status_for},
};

/// The key of a reservation.
pub(super) fn key(cluster: LogicalClusterId, resource: GroupResource, name: &str) -> Option<ObjectKey> {
    Some(ObjectKey::cluster_scoped(cluster, resource, name.parse().ok()?))
}

/// A write that reserves `key` for `holder`; `None` when another holder has it.
pub(super) async fn reserve(
    api: &ApiServer,
    key: &ObjectKey,
    holder: &ObjectKey,
    record: &Value,
) -> Result<Option<Write>, Status> {
    let taken = api.store.get(key).await.map_err(|e| status_for(&e))?;
    let expect = match taken {
        None => Expect::Absent,
        Some(stored) if is_held(api, &stored, holder).await? => return Ok(None),
        Some(stored) => Expect::At(stored.revision),
    };
    Ok(Some(Write { key: key.clone(), expect, record: Some(Record::of(record)) }))
}

/// A write that gives `key` back, when there is something to give back.
pub(super) async fn release(api: &ApiServer, key: ObjectKey, holder: &ObjectKey) -> Result<Option<Write>, Status> {
    let Some(stored) = api.store.get(&key).await.map_err(|e| status_for(&e))? else { return Ok(None) };
    let own = holder_of(&stored, holder)? == Some(holder.clone());
    Ok(own.then_some(Write { key, expect: Expect::At(stored.revision), record: None }))
}

/// Whether the holder is there and still has it: one of its name that was made later has what it was given then.
async fn is_held(api: &ApiServer, stored: &StoredObject, asking: &ObjectKey) -> Result<bool, Status> {
    let Some(holder) = holder_of(stored, asking)? else { return Ok(true) };
    if holder == *asking {
        return Ok(false);
    }
    let Some(service) = api.store.get(&holder).await.map_err(|e| status_for(&e))? else { return Ok(false) };
    let service = service.to_value().map_err(|e| status_for(&e))?;
    let is_it = |(reserved, name): &(allocation::Reserved, String)| {
        reserved.stored_as() == stored.key.resource && name.as_str() == stored.key.name.as_str()
    };
    Ok(allocation::reserved(&service).iter().any(is_it))
}

/// The Service in `spec.parentRef`.
fn holder_of(stored: &StoredObject, like: &ObjectKey) -> Result<Option<ObjectKey>, Status> {
    let value = stored.record.to_value(stored.revision).map_err(|e| damaged(&stored.key, &e))?;
    debug_assert!(!object::name(&value).is_empty());
    let key = |(namespace, name)| ObjectKey::namespaced(like.cluster, like.resource.clone(), namespace, name);
    Ok(allocation::holder(&value).map(key))
}
