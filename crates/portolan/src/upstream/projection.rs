//! Objects that physical clusters made, shown above as ordinary stored objects.

use portolan_controllers::PlaneError;
use portolan_machinery::lifecycle;
use portolan_store::{Expect, Transaction, Write};
use portolan_types::{
    ObjectKey, Record, Uid, annotations, object,
    placement::{Phase, PlacementRecord},
    upstream::{Projection, UpstreamError},
};
use serde_json::Value;

use super::{StoreUpstream, failed};

/// Fields of `metadata` that upstream gives and keeps.
const KEPT: [&str; 5] = ["uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "generation"];

/// Writes and removes projected objects. An object of the same name that is not projected from `physical` is left alone.
pub(super) async fn project(
    upstream: &StoreUpstream,
    physical: &Uid,
    projection: Projection,
) -> Result<(), UpstreamError> {
    let mut writes = Vec::new();
    for (key, wanted) in projection.put {
        writes.extend(put(upstream, physical, key, wanted).await?);
    }
    for key in projection.gone {
        writes.extend(remove(upstream, physical, key).await?);
    }
    // Objects are independent of each other: a conflict on one must not hold up the rest, and comes again with the next look.
    let mut conflict = Ok(());
    for write in writes {
        let txn = Transaction { writes: vec![write], ..Transaction::default() };
        match upstream.commit(txn).await {
            Err(UpstreamError::Conflict) => conflict = Err(UpstreamError::Conflict),
            other => other?,
        }
    }
    conflict
}

fn is_projected_from(object: &Value, physical: &Uid) -> bool {
    let record = PlacementRecord::of(object).unwrap_or_default();
    record.clusters.iter().any(|copy| copy.phase == Phase::Projected && copy.uid == *physical)
}

async fn put(
    upstream: &StoreUpstream,
    physical: &Uid,
    key: ObjectKey,
    mut wanted: Value,
) -> Result<Option<Write>, UpstreamError> {
    let Some((current, revision)) = upstream.read(&key).await? else {
        return create(upstream, key, wanted).await.map(Some);
    };
    if !is_projected_from(&current, physical) {
        return Ok(None);
    }
    let metadata = object::metadata_mut(&mut wanted);
    for field in KEPT {
        match object::metadata(&current).get(field) {
            Some(value) => metadata.insert(field.into(), value.clone()),
            None => metadata.remove(field),
        };
    }
    metadata.insert("resourceVersion".into(), revision.to_string().into());
    if wanted == current {
        return Ok(None);
    }
    Ok(Some(Write { key, expect: Expect::At(revision), record: Some(Record::of(&wanted)) }))
}

async fn create(upstream: &StoreUpstream, key: ObjectKey, mut wanted: Value) -> Result<Write, UpstreamError> {
    let seams = upstream.plane.seams();
    let metadata = object::metadata_mut(&mut wanted);
    metadata.insert("uid".into(), seams.uid().as_str().into());
    metadata.insert("creationTimestamp".into(), seams.now_text().into());
    metadata.insert("generation".into(), 1.into());
    metadata.remove("resourceVersion");
    Ok(Write { key, expect: Expect::Absent, record: Some(Record::of(&wanted)) })
}

async fn remove(upstream: &StoreUpstream, physical: &Uid, key: ObjectKey) -> Result<Option<Write>, UpstreamError> {
    let Some((mut current, revision)) = upstream.read(&key).await? else { return Ok(None) };
    if !is_projected_from(&current, physical) {
        return Ok(None);
    }
    if object::finalizers(&current).next().is_none() {
        return Ok(Some(Write { key, expect: Expect::At(revision), record: None }));
    }
    // Its finalizers run first; nothing is below any more.
    PlacementRecord::default().write_to(&mut current);
    object::set_annotation(&mut current, annotations::PLACEMENT, None);
    let kind = upstream.plane.stored_kind(&key.resource).ok_or_else(|| failed(&"unknown kind"))?;
    let record = Record::of(&current);
    upstream.commit(Transaction::one(key.clone(), Expect::At(revision), Some(record))).await?;
    let deleted = upstream.plane.delete(kind, &key, &lifecycle::DeleteOptions::default()).await;
    deleted.map_err(|error: PlaneError| failed(&error))?;
    Ok(None)
}
