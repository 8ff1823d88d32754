//! Numbers of syncers. Only the newest syncer of a physical cluster may write, and this counter decides which one that
//! is.

use portolan_controllers::{Plane, PlaneError};
use portolan_store::{Expect, Transaction};
use portolan_types::{GroupResource, LogicalClusterId, ObjectKey, ObjectName, Record, Uid};
use serde_json::{Value, json};

/// Resource of the counters: an object per physical cluster, named by its uid.
pub(crate) fn resource() -> GroupResource {
    GroupResource::new("internal.portolan.dev", "syncers")
}

pub(crate) fn key(physical: &Uid) -> ObjectKey {
    let name: ObjectName = physical.parse().expect("uids and names have one rule");
    ObjectKey::cluster_scoped(LogicalClusterId::SYSTEM, resource(), name)
}

fn number(object: &Value) -> u64 {
    object.get("epoch").and_then(Value::as_u64).unwrap_or(0)
}

/// Returns the number of the newest syncer of `physical`; 0 if it never had one.
pub(super) async fn newest(plane: &Plane, physical: &Uid) -> Result<u64, PlaneError> {
    Ok(plane.get(&key(physical)).await?.map_or(0, |found| number(&found.object)))
}

/// Returns the number of the next syncer of `physical`. Numbers are never reused, also across restarts.
pub(super) async fn next(plane: &Plane, physical: &Uid) -> Result<u64, PlaneError> {
    let key = key(physical);
    let current = plane.get(&key).await?;
    let last = current.as_ref().map_or(0, |found| number(&found.object));
    let expect = current.map_or(Expect::Absent, |found| Expect::At(found.revision));
    let object = json!({"metadata": {"name": &**physical}, "epoch": last + 1});
    plane.store().commit(Transaction::one(key, expect, Some(Record::of(&object)))).await?;
    Ok(last + 1)
}
