//! Objects that physical clusters made, shown above as ordinary stored objects.

use portolan_store::{Expect, Transaction, Write};
use portolan_syncer::project::{Gone, merge_gone, merge_put};
use portolan_types::{
    ObjectKey, Record, Uid, object,
    placement::PlacementRecord,
    upstream::{Projection, UpstreamError},
};
use serde_json::Value;

use super::StoreUpstream;

/// Writes and removes projected objects. An object of the same name that was not made below is left alone.
pub(super) async fn project(
    upstream: &StoreUpstream,
    physical: &Uid,
    projection: Projection,
) -> Result<(), UpstreamError> {
    let mut writes = Vec::new();
    for (key, wanted) in projection.put {
        writes.extend(put(upstream, key, wanted).await?);
    }
    for key in projection.gone {
        writes.extend(remove(upstream, physical, key).await?);
    }
    // Objects are independent of each other: a conflict on one must not hold up the rest. It comes again with the next look.
    let mut outcome = Ok(());
    for write in writes {
        let txn = Transaction { writes: vec![write], ..Transaction::default() };
        match upstream.commit(txn).await {
            Err(UpstreamError::Conflict) => outcome = Err(UpstreamError::Conflict),
            other => other?,
        }
    }
    outcome
}

async fn put(upstream: &StoreUpstream, key: ObjectKey, wanted: Value) -> Result<Option<Write>, UpstreamError> {
    let Some((current, revision)) = upstream.read(&key).await? else {
        return Ok(Some(create(upstream, key, wanted)));
    };
    let Some(mut merged) = merge_put(Some(&current), wanted) else { return Ok(None) };
    object::metadata_mut(&mut merged).insert("resourceVersion".into(), revision.to_string().into());
    Ok((merged != current).then(|| Write { key, expect: Expect::At(revision), record: Some(Record::of(&merged)) }))
}

fn create(upstream: &StoreUpstream, key: ObjectKey, mut wanted: Value) -> Write {
    let seams = upstream.plane.seams();
    let metadata = object::metadata_mut(&mut wanted);
    metadata.insert("uid".into(), seams.uid().as_str().into());
    metadata.entry("creationTimestamp").or_insert_with(|| seams.now_text().into());
    metadata.insert("generation".into(), 1.into());
    Write { key, expect: Expect::Absent, record: Some(Record::of(&wanted)) }
}

async fn remove(upstream: &StoreUpstream, physical: &Uid, key: ObjectKey) -> Result<Option<Write>, UpstreamError> {
    let Some((current, revision)) = upstream.read(&key).await? else { return Ok(None) };
    let record = match merge_gone(&current, physical) {
        Gone::Unchanged => return Ok(None),
        Gone::Changed(object) => Some(Record::of(&object)),
        Gone::Removed => held(upstream, current),
    };
    Ok(Some(Write { key, expect: Expect::At(revision), record }))
}

/// What is nowhere any more goes, unless finalizers hold it: they run first, with nothing below.
fn held(upstream: &StoreUpstream, mut object: Value) -> Option<Record> {
    object::finalizers(&object).next()?;
    PlacementRecord::default().write_to(&mut object);
    if !object::is_deleting(&object) {
        let now = upstream.plane.seams().now_text();
        object::metadata_mut(&mut object).insert("deletionTimestamp".into(), now.into());
    }
    Some(Record::of(&object))
}
