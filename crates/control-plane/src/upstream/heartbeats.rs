//! Heartbeats of physical clusters: an object for each, in Portolan's own bookkeeping. Every write of it is a
//! heartbeat, which the scheduler sees as an event; it wakes no watch on physical clusters or workloads.

use portolan_scheduler::heartbeats;
use portolan_store::{Expect, Transaction};
use portolan_types::{LogicalClusterId, ObjectKey, Record, Uid, upstream::UpstreamError};
use serde_json::json;

use super::StoreUpstream;

/// Returns the key of the heartbeat of a physical cluster.
pub(super) fn key(physical: &Uid) -> ObjectKey {
    let name = physical.parse().expect("uids and names have one rule");
    ObjectKey::cluster_scoped(LogicalClusterId::SYSTEM, heartbeats(), name)
}

/// Writes a heartbeat. A damaged one is replaced: it must not make the physical cluster look lost.
pub(super) async fn write(upstream: &StoreUpstream, physical: &Uid, unbroken: u64) -> Result<(), UpstreamError> {
    // A worker that stops late must not leave a heartbeat of a deleted physical cluster.
    if upstream.registered(physical).is_none() {
        return Ok(());
    }
    let object = json!({"metadata": {"name": &**physical}, "unbroken": unbroken});
    let write = || Transaction::one(key(physical), Expect::Anything, Some(Record::of(&object)));
    match upstream.commit(write()).await {
        Err(UpstreamError::Failed(failure)) => {
            let removal = Transaction::one(key(physical), Expect::Damaged, None);
            upstream.commit(removal).await.map_err(|_| UpstreamError::Failed(failure))?;
            upstream.commit(write()).await
        }
        other => other,
    }
}

/// Removes the heartbeat of a deleted physical cluster.
pub(super) async fn forget(upstream: &StoreUpstream, physical: &Uid) -> Result<(), UpstreamError> {
    match upstream.commit(Transaction::one(key(physical), Expect::Anything, None)).await {
        Err(UpstreamError::Conflict) => Ok(()), // there was none
        other => other,
    }
}
