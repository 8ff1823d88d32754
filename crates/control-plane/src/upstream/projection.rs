//! Projection: objects that physical clusters made, stored upstream as ordinary objects.

use portolan_store::{Expect, RangeRequest, RangeScope, StoredObject, Transaction, Write};
use portolan_syncer::project::{ProjectionRemoval, controller_resource, merge_gone, merge_put, translate_own_uid};
use portolan_types::{
    GroupResource, ObjectKey, Record, Status, Uid, annotations, object,
    placement::PlacementRecord,
    upstream::{Projection, UpstreamError},
};
use serde_json::Value;

use super::{StoreUpstream, copies, failed, is_placed, store_failed};

/// Writes and removes projected objects. An upstream object of the same name that is not projected stays.
pub(super) async fn project(
    upstream: &StoreUpstream,
    physical: &Uid,
    projection: Projection,
) -> Result<(), UpstreamError> {
    let mut transactions = Vec::new();
    for (key, wanted) in projection.put {
        let Some(write) = put(upstream, physical, key, wanted).await? else { continue };
        let is_create = matches!(write.expect, Expect::Absent);
        let accounts = upstream.accounts.as_ref().filter(|_| is_create);
        let accounts = accounts.map(|accounts| accounts(write.key.cluster)).unwrap_or_default();
        transactions.push(Transaction { writes: vec![write], accounts, ..Transaction::default() });
    }
    for key in projection.gone {
        transactions.extend(remove(upstream, physical, key).await?);
    }
    for (key, subject, event) in projection.events {
        let event = ProjectedEvent { key, subject, event };
        transactions.extend(event.transaction(upstream, physical).await?);
    }
    // Objects are independent: a conflict on one does not stop the others. The next projection retries it.
    let mut outcome = Ok(());
    for txn in transactions {
        match upstream.commit(txn).await {
            Err(UpstreamError::Conflict) => outcome = Err(UpstreamError::Conflict),
            other => other?,
        }
    }
    outcome
}

async fn put(
    upstream: &StoreUpstream,
    physical: &Uid,
    key: ObjectKey,
    wanted: Value,
) -> Result<Option<Write>, UpstreamError> {
    let found = upstream.read(&key).await?;
    let is_known = |current: &Value| PlacementRecord::of(current).is_some_and(|record| record.on(physical).is_some());
    if !found.as_ref().is_some_and(|(current, _)| is_known(current))
        && !comes_from_a_copy(upstream, physical, &key, &wanted).await?
    {
        tracing::warn!(%physical, %key, "an object that comes from nothing placed on the physical cluster is not projected");
        return Ok(None);
    }
    let Some((current, revision)) = found else {
        if !upstream.creates.permit(physical) {
            let message = "the physical cluster creates objects faster than they are projected";
            return Err(UpstreamError::Failed(Status::too_many_requests(message, 1)));
        }
        return Ok(Some(create(upstream, key, wanted)));
    };
    let is_projected = PlacementRecord::of(&current).is_some_and(|record| record.is_projected());
    let Some(mut merged) = merge_put(Some(&current), wanted) else {
        // Of two objects with one name, the later one takes another name.
        return if is_projected { Err(UpstreamError::Conflict) } else { Ok(None) };
    };
    object::metadata_mut(&mut merged).insert("resourceVersion".into(), revision.to_string().into());
    Ok((merged != current).then(|| Write { key, expect: Expect::At(revision), record: Some(Record::of(&merged)) }))
}

/// Returns true if the object that `physical` projects belongs to one placed there. The cluster's word is not enough:
/// it could write into any logical cluster. Claims without an owner are made from StatefulSets.
async fn comes_from_a_copy(
    upstream: &StoreUpstream,
    physical: &Uid,
    key: &ObjectKey,
    wanted: &Value,
) -> Result<bool, UpstreamError> {
    let is_given = |stored: &StoredObject| is_placed(stored, physical);
    let store = upstream.plane.store();
    if let Some(owner) = object::controller_of(wanted) {
        let text = |field: &str| owner.get(field).and_then(Value::as_str).unwrap_or_default();
        let (Some((group, resource)), Ok(name)) = (controller_resource(text("kind")), text("name").parse()) else {
            return Ok(false);
        };
        let owner_key = ObjectKey { resource: GroupResource::new(group, resource), name, ..key.clone() };
        let stored = store.get(&owner_key).await.map_err(store_failed)?;
        return Ok(stored.is_some_and(|stored| stored.record.header.uid == text("uid") && is_given(&stored)));
    }
    let (true, Some(namespace)) = (&*key.resource.resource == "persistentvolumeclaims", key.namespace()) else {
        return Ok(false);
    };
    let sets = RangeScope::Namespace(key.cluster, GroupResource::new("apps", "statefulsets"), namespace.clone());
    let page = store.range(RangeRequest::all(sets).skip_damaged()).await.map_err(store_failed)?;
    match (page.objects.iter().any(is_given), page.damaged.first()) {
        (false, Some(found)) => Err(failed(found)),
        (is_any_given, _) => Ok(is_any_given),
    }
}

fn create(upstream: &StoreUpstream, key: ObjectKey, mut wanted: Value) -> Write {
    let seams = upstream.plane.seams();
    let metadata = object::metadata_mut(&mut wanted);
    metadata.insert("uid".into(), seams.uid().as_str().into());
    metadata.entry("creationTimestamp").or_insert_with(|| seams.now_text().into());
    metadata.insert("generation".into(), 1.into());
    translate_own_uid(&mut wanted);
    Write { key, expect: Expect::Absent, record: Some(Record::of(&wanted)) }
}

/// Event about an object that is placed on a physical cluster or projected from it.
struct ProjectedEvent {
    key: ObjectKey,
    subject: ObjectKey,
    event: Value,
}

impl ProjectedEvent {
    /// Returns the transaction that writes the Event. A namespace that is being deleted gets none, since nothing would
    /// remove it.
    async fn transaction(self, upstream: &StoreUpstream, physical: &Uid) -> Result<Option<Transaction>, UpstreamError> {
        let Self { key, subject, event: mut wanted } = self;
        let about = upstream.plane.store().get(&subject).await.map_err(store_failed)?;
        let is_its = about.is_some_and(|about| {
            wanted["involvedObject"]["uid"] == *about.record.header.uid && is_placed(&about, physical)
        });
        let Some(namespace) = key.namespace().filter(|_| is_its && subject.namespace() == key.namespace()) else {
            return Ok(None);
        };
        let name = namespace.parse().expect("the name of a namespace is the name of an object");
        let around = ObjectKey::cluster_scoped(key.cluster, GroupResource::new("", "namespaces"), name);
        let Some((namespace, at)) = upstream.read(&around).await? else { return Ok(None) };
        if object::is_deleting(&namespace) {
            return Ok(None);
        }
        let expect = match upstream.read(&key).await? {
            None => {
                let seams = upstream.plane.seams();
                let metadata = object::metadata_mut(&mut wanted);
                metadata.insert("uid".into(), seams.uid().as_str().into());
                metadata.insert("creationTimestamp".into(), seams.now_text().into());
                Expect::Absent
            }
            Some((known, revision)) => {
                let from = |event: &Value| object::label(event, annotations::PROJECTED_FROM).map(str::to_owned);
                if from(&known) != from(&wanted) {
                    return Ok(None);
                }
                for field in ["uid", "creationTimestamp"] {
                    let kept = object::meta_text(&known, field).to_owned();
                    object::metadata_mut(&mut wanted).insert(field.into(), kept.into());
                }
                Expect::At(revision)
            }
        };
        let write = Write { key, expect, record: Some(Record::of(&wanted)) };
        Ok(Some(Transaction { writes: vec![write], checks: vec![(around, Expect::At(at))], ..Transaction::default() }))
    }
}

async fn remove(
    upstream: &StoreUpstream,
    physical: &Uid,
    key: ObjectKey,
) -> Result<Option<Transaction>, UpstreamError> {
    let Some((mut current, revision)) = upstream.read(&key).await? else { return Ok(None) };
    let mut txn = Transaction::default();
    let record = match merge_gone(&current, physical) {
        ProjectionRemoval::Unchanged => return Ok(None),
        ProjectionRemoval::Changed(mut object) => {
            copies::forget(upstream, &mut object, &key, &mut txn).await?;
            Some(Record::of(&object))
        }
        ProjectionRemoval::Removed => {
            PlacementRecord::default().write_to(&mut current);
            copies::forget(upstream, &mut current, &key, &mut txn).await?;
            projected_record(upstream, current)
        }
    };
    txn.writes.push(Write { key, expect: Expect::At(revision), record });
    Ok(Some(txn))
}

/// Returns the object with a deletion timestamp if finalizers hold it, which run without a downstream object; `None` if
/// it can be removed.
fn projected_record(upstream: &StoreUpstream, mut object: Value) -> Option<Record> {
    object::finalizers(&object).next()?;
    if !object::is_deleting(&object) {
        let now = upstream.plane.seams().now_text();
        object::metadata_mut(&mut object).insert("deletionTimestamp".into(), now.into());
    }
    Some(Record::of(&object))
}
