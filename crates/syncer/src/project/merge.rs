//! Bringing a projection together with what is stored above, for the implementation of `Upstream::project`.

use portolan_types::{
    Uid, annotations, object,
    placement::{PlacementRecord, Source},
};
use serde_json::Value;

use super::{claims, jobs::translate_own_uid, pending, write_sources};

/// What becomes of a projected object when it is gone on one physical cluster.
#[derive(Clone, Debug, PartialEq)]
pub enum Gone {
    /// It was not from there.
    Unchanged,
    /// It is still on others.
    Changed(Value),
    /// It is nowhere any more.
    Removed,
}

/// The object to store for `put`, from the stored one of its name. Only ReplicaSets and ControllerRevisions are shared by
/// several physical clusters, and claims of one name, of which one is shown. The first two keep what they hold of a template and their status, and their records, sources and replicas
/// are united. `None`: the name is taken by an
/// object that users made, or that another physical cluster made; nothing is written.
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
    if is_claim && !new.clusters.iter().any(|copy| claims::gives_way(existing, &put, &copy.uid)) {
        let mut kept = existing.clone();
        let mut sources = Source::all(existing);
        sources.extend(Source::all(&put));
        write_sources(&mut kept, &sources);
        put = kept;
    }
    if is_shared {
        unite(existing, old, new, &mut put);
    }
    translate_own_uid(&mut put);
    Some(put)
}

fn unite(existing: &Value, old: PlacementRecord, new: PlacementRecord, put: &mut Value) {
    let mut sources = Source::all(existing);
    sources.extend(Source::all(put));
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

/// Shares add up.
pub(super) fn set_replicas(record: &PlacementRecord, object: &mut Value) {
    let shares: Vec<i64> = record.clusters.iter().filter_map(|copy| copy.replicas).collect();
    if !shares.is_empty() {
        object["spec"]["replicas"] = shares.iter().fold(0_i64, |sum, n| sum.saturating_add(*n)).into();
    }
}

/// Takes the word of `physical` that its part of `existing` is gone.
pub fn merge_gone(existing: &Value, physical: &Uid) -> Gone {
    let record = PlacementRecord::of(existing).filter(PlacementRecord::is_projected);
    let Some(mut record) = record.filter(|record| record.on(physical).is_some()) else { return Gone::Unchanged };
    record.clusters.retain(|copy| copy.uid != *physical);
    if record.clusters.is_empty() {
        return Gone::Removed;
    }
    let mut object = existing.clone();
    let mut sources = Source::all(existing);
    sources.remove(physical);
    write_sources(&mut object, &sources);
    record.write_to(&mut object);
    set_replicas(&record, &mut object);
    debug_assert!(object::annotation(&object, annotations::PLACEMENT).is_some());
    Gone::Changed(object)
}
