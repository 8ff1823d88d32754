//! Counts the syncers that a physical cluster has had, so that the writes of an older one can be told apart.

use portolan_controllers::{Plane, PlaneError};
use portolan_store::{Expect, Transaction};
use portolan_types::{GroupResource, LogicalClusterId, ObjectKey, ObjectName, Record, Uid};
use serde_json::{Value, json};

/// The number of the next syncer of `physical`; never given twice, also across restarts.
pub(super) async fn next(plane: &Plane, physical: &Uid) -> Result<u64, PlaneError> {
    let name: ObjectName = physical.parse().expect("uids and names have one rule");
    let resource = GroupResource::new("internal.portolan.dev", "syncers");
    let key = ObjectKey::cluster_scoped(LogicalClusterId::SYSTEM, resource, name);
    let current = plane.get(&key).await?;
    let last = current.as_ref().and_then(|found| found.object.get("epoch")).and_then(Value::as_u64).unwrap_or(0);
    let expect = current.map_or(Expect::Absent, |found| Expect::At(found.revision));
    let object = json!({"metadata": {"name": &**physical}, "epoch": last + 1});
    plane.store().commit(Transaction::one(key, expect, Some(Record::of(&object)))).await?;
    Ok(last + 1)
}
