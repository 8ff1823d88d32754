//! Release of a copy that is proven gone or written off: it leaves the placement record. With the last copy, an object
//! that is being deleted is removed.

use portolan_store::{Expect, Transaction, Write};
use portolan_strategy::lifecycle;
use portolan_types::{
    ObjectKey, Record, Uid, annotations, object,
    placement::{PlacedCopy, PlacementRecord},
    upstream::UpstreamError,
};
use serde_json::Value;

use super::{StoreUpstream, copies};

/// Address of one copy of one object.
#[derive(Clone, Copy)]
pub(super) struct CopyAddress<'a> {
    pub(super) key: &'a ObjectKey,
    pub(super) uid: &'a Uid,
    pub(super) physical: &'a Uid,
    pub(super) epoch: u64,
}

/// Removes the copy from the record, in one transaction with `txn`. A record without the copy, or with a later epoch,
/// stays unchanged.
pub(super) async fn release(
    upstream: &StoreUpstream,
    leaving: CopyAddress<'_>,
    mut txn: Transaction,
) -> Result<(), UpstreamError> {
    if let Some((mut current, revision)) = upstream.read(leaving.key).await? {
        let same = object::uid(&current).as_ref() == Some(leaving.uid);
        let mut record = PlacementRecord::of(&current).unwrap_or_default();
        let is_it = |copy: &PlacedCopy| copy.uid == *leaving.physical && copy.epoch == leaving.epoch;
        let released = record.clusters.iter().find(|copy| is_it(copy)).map(|copy| copy.name.clone());
        record.clusters.retain(|copy| !is_it(copy));
        if let (true, Some(name)) = (same, released) {
            record.write_to(&mut current);
            end_write_off(&mut current, &name);
            if record.clusters.is_empty() && object::is_deleting(&current) {
                // All copies have ended gracefully: a kubelet would now delete the object without a grace period.
                object::metadata_mut(&mut current).insert("deletionGracePeriodSeconds".into(), 0.into());
            }
            copies::forget(upstream, &mut current, leaving.key, &mut txn).await?;
            let gone = lifecycle::is_removable(&current);
            txn.writes.push(Write {
                key: leaving.key.clone(),
                expect: Expect::At(revision),
                record: (!gone).then(|| Record::of(&current)),
            });
        }
    }
    upstream.commit(txn).await
}

/// Removes a physical cluster from the write-off annotation, which is for one copy only.
fn end_write_off(object: &mut Value, name: &str) {
    let Some(names) = object::annotation(object, annotations::WRITE_OFF) else { return };
    let others: Vec<&str> =
        names.split(',').map(str::trim).filter(|other| *other != name && !other.is_empty()).collect();
    let left = (!others.is_empty()).then(|| others.join(","));
    object::set_annotation(object, annotations::WRITE_OFF, left);
}
