//! Merge of a projection with the stored object, for the implementation of `Upstream::project`.

use portolan_types::{
    Uid, annotations, object,
    placement::{PlacementRecord, ProjectionSource},
};
use serde_json::Value;

use super::{claims, jobs::translate_own_uid, pending, write_sources};

/// Result of removing one physical cluster from a projected object.
#[derive(Clone, Debug, PartialEq)]
pub enum ProjectionRemoval {
    /// The object is not from there.
    Unchanged,
    /// The object is still on other physical clusters.
    Changed(Value),
    /// The object is on no physical cluster any more.
    Removed,
}

/// Merges `put` into the stored object of the same name. Several physical clusters share only ReplicaSets and
/// ControllerRevisions, and claims of one name, of which one is projected. The first two keep their template and
/// status, and unite their records, sources and replicas. Returns `None` if a user's object or another physical
/// cluster's object has the name; then nothing is written.
pub fn merge_put(existing: Option<&Value>, mut put: Value) -> Option<Value> {
    let Some(existing) = existing else { return Some(put) };
    let old = PlacementRecord::of(existing).filter(PlacementRecord::is_projected)?;
    let new = PlacementRecord::of(&put)?;
    let is_elsewhere = old.clusters.iter().any(|copy| new.on(&copy.uid).is_none());
    let (is_set, is_revision) = (put["kind"] == "ReplicaSet", put["kind"] == "ControllerRevision");
    let is_claim = claims::is_claim(&put);
    let is_shared = is_set || is_revision || is_claim;
    if is_elsewhere && !is_shared {
        return None;
    }
    let kept =
        ["uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "generation", "finalizers"];
    for key in kept {
        if let Some(value) = object::metadata(existing).get(key) {
            object::metadata_mut(&mut put).insert(key.into(), value.clone());
        }
    }
    if is_revision {
        put["data"] = existing["data"].clone();
        put["revision"] = put["revision"].as_i64().max(existing["revision"].as_i64()).into();
    }
    if is_set {
        put["spec"]["template"] = existing["spec"]["template"].clone();
        if let Some(status) = existing.get("status") {
            put["status"] = status.clone();
        }
    }
    if !is_set && !is_revision {
        new.clusters.iter().for_each(|copy| pending::keep_pending(existing, &mut put, &copy.uid));
    }
    if is_claim && !new.clusters.iter().any(|copy| claims::is_replaced_by(existing, &put, &copy.uid)) {
        let mut kept = existing.clone();
        let mut sources = ProjectionSource::all(existing);
        sources.extend(ProjectionSource::all(&put));
        write_sources(&mut kept, &sources);
        put = kept;
    }
    if is_shared {
        merge_records(existing, old, new, &mut put);
    }
    translate_own_uid(&mut put);
    Some(put)
}

fn merge_records(existing: &Value, old: PlacementRecord, new: PlacementRecord, put: &mut Value) {
    let mut sources = ProjectionSource::all(existing);
    sources.extend(ProjectionSource::all(put));
    let mut record = old;
    for copy in new.clusters {
        record.clusters.retain(|c| c.uid != copy.uid);
        record.clusters.push(copy);
    }
    record.clusters.sort_by(|a, b| a.name.cmp(&b.name));
    record.write_to(put);
    write_sources(put, &sources);
    set_replicas(&record, put);
    let number =
        |object: &Value| object::annotation(object, annotations::REVISION).and_then(|text| text.parse::<u64>().ok());
    if let Some(highest) = number(existing).max(number(put)) {
        object::set_annotation(put, annotations::REVISION, Some(highest.to_string()));
    }
}

/// Sets the sum of the shares.
pub(super) fn set_replicas(record: &PlacementRecord, object: &mut Value) {
    let shares: Vec<i64> = record.clusters.iter().filter_map(|copy| copy.replicas).collect();
    if !shares.is_empty() {
        object["spec"]["replicas"] = shares.iter().fold(0_i64, |sum, n| sum.saturating_add(*n)).into();
    }
}

/// Removes `physical` from `existing`, since its part is gone.
pub fn merge_gone(existing: &Value, physical: &Uid) -> ProjectionRemoval {
    let record = PlacementRecord::of(existing).filter(PlacementRecord::is_projected);
    let Some(mut record) = record.filter(|record| record.on(physical).is_some()) else {
        return ProjectionRemoval::Unchanged;
    };
    record.clusters.retain(|copy| copy.uid != *physical);
    if record.clusters.is_empty() {
        return ProjectionRemoval::Removed;
    }
    let mut object = existing.clone();
    let mut sources = ProjectionSource::all(existing);
    sources.remove(physical);
    write_sources(&mut object, &sources);
    record.write_to(&mut object);
    set_replicas(&record, &mut object);
    debug_assert!(object::annotation(&object, annotations::PLACEMENT).is_some());
    ProjectionRemoval::Changed(object)
}
