//! Changes of labels and annotations, made upstream on a projected object, that are still to be written downstream.
//! Pure.

use std::collections::BTreeMap;

use portolan_types::{
    Uid, fingerprint, object,
    placement::{PlacementRecord, ProjectionSource},
};
use serde_json::{Map, Value, json};

use super::{TEMPLATE_HASH, claims::is_claim, pod_changes};
use crate::transform;

const FIELDS: [&str; 2] = ["labels", "annotations"];
/// Key of a claim's requests, which users may raise upstream for a larger volume.
const REQUESTS: &str = "requests";
/// Key of an entry without a value: it marks that the values on a physical cluster were recorded, if there are none.
const KNOWN: &str = ".";

/// Returns the requests of a claim.
fn requests(object: &Value) -> Option<&Value> {
    object.pointer("/spec/resources/requests").filter(|_| is_claim(object))
}

/// Returns true if a change of this label or annotation of a projected object is forwarded: users may change it
/// upstream, and the syncer writes the change downstream. Portolan's own keys, and keys that controllers write, are not
/// forwarded.
pub fn is_forwarded(key: &str) -> bool {
    !transform::is_our_key(key)
        && !transform::is_left_out(key)
        && !transform::GENERATED_JOB_LABELS.contains(&key)
        && key != TEMPLATE_HASH
}

/// Records a fingerprint of each forwarded label and annotation that the physical cluster `physical` has. `shown` is
/// the projected object upstream.
pub(super) fn note_shown(shown: &mut Value, physical: &Uid) {
    let entries = FIELDS.into_iter().flat_map(|field| {
        let entries = entries(shown, field).filter(|(key, _)| is_forwarded(key));
        entries.map(move |(key, value)| (format!("{field}/{key}"), fingerprint(value)))
    });
    // An object without such values is recorded too.
    let known = [(KNOWN.to_owned(), String::new())];
    let resources = requests(shown).map(|requests| (REQUESTS.to_owned(), fingerprint(requests)));
    let parts = pod_changes::shown_entries(shown);
    let entries: BTreeMap<String, String> = entries.chain(known).chain(resources).chain(parts).collect();
    let mut sources = ProjectionSource::all(shown);
    sources.entry(physical.clone()).and_modify(|source| source.shown = entries);
    ProjectionSource::write_all(&sources, shown);
}

/// Returns the changes upstream that the physical cluster `physical` does not have yet; `None` if there are none. The
/// keys are `labels`, `annotations`, and `requests` for the requests of a claim; each value is a merge patch.
pub fn pending_changes(upstream: &Value, physical: &Uid) -> Option<Map<String, Value>> {
    let source = ProjectionSource::on(upstream, physical)?;
    let is_alone = PlacementRecord::of(upstream).is_some_and(|record| record.clusters.len() == 1);
    if source.shown.is_empty() || !is_alone {
        return None;
    }
    let mut pending = Map::new();
    for field in FIELDS {
        let prefix = format!("{field}/");
        let known = |key: &str| source.shown.get(&format!("{prefix}{key}"));
        let changed = entries(upstream, field)
            .filter(|(key, value)| is_forwarded(key) && known(key).is_none_or(|hash| *hash != fingerprint(value)))
            .map(|(key, value)| (key.clone(), value.clone()));
        let own = object::metadata(upstream).get(field).and_then(Value::as_object);
        let removed = source.shown.keys().filter_map(|path| path.strip_prefix(&prefix));
        let removed = removed
            .filter(|key| own.is_none_or(|own| !own.contains_key(*key)))
            .map(|key| (key.to_owned(), Value::Null));
        let changes: Map<String, Value> = changed.chain(removed).collect();
        if !changes.is_empty() {
            pending.insert(field.to_owned(), Value::Object(changes));
        }
    }
    if let (Some(requests), Some(known)) = (requests(upstream), source.shown.get(REQUESTS))
        && fingerprint(requests) != *known
    {
        pending.insert(REQUESTS.to_owned(), requests.clone());
    }
    (!pending.is_empty()).then_some(pending)
}

/// Returns the merge patch that writes pending changes to the object downstream. Its preconditions are the uid and the
/// resourceVersion of `found`.
pub fn pending_patch(mut pending: Map<String, Value>, found: &Value) -> Value {
    let requests = pending.remove(REQUESTS);
    for key in ["uid", "resourceVersion"] {
        pending.insert(key.into(), object::meta_text(found, key).into());
    }
    let mut patch = json!({"metadata": pending});
    if let Some(requests) = requests {
        patch["spec"] = json!({"resources": {"requests": requests}});
    }
    patch
}

/// Copies the upstream changes of `stored` that `physical` has yet to receive into `put`, its present projection.
pub(super) fn keep_pending(stored: &Value, put: &mut Value, physical: &Uid) {
    if put["kind"] == "Pod" {
        pod_changes::keep_pending(stored, put, physical);
    }
    for (field, changes) in pending_changes(stored, physical).into_iter().flatten() {
        if field == REQUESTS {
            if let Some(resources) = put.pointer_mut("/spec/resources") {
                resources["requests"] = changes;
            }
            continue;
        }
        for (key, value) in changes.as_object().into_iter().flatten() {
            let metadata = object::metadata_mut(put);
            if value.is_null() {
                drop(object::child_mut(metadata, &field).remove(key))
            } else {
                drop(object::child_mut(metadata, &field).insert(key.clone(), value.clone()))
            }
        }
    }
}

fn entries<'a>(object: &'a Value, field: &str) -> impl Iterator<Item = (&'a String, &'a Value)> {
    object::metadata(object).get(field).and_then(Value::as_object).into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::project::{ProjectionOrigin, merge_put, projected_object};

    fn east() -> Uid {
        "east".parse().unwrap()
    }

    fn projected_with_labels(labels: Value) -> Value {
        let mut labels = labels;
        labels["sync.portolan.dev/cluster"] = json!("7");
        let downstream = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web-1", "namespace": "shop-x", "uid": "down", "labels": labels}});
        projected_object(&downstream, "shop", None, ProjectionOrigin { name: "east", uid: &east() }).unwrap()
    }

    fn pending(object: &Value) -> Value {
        pending_changes(object, &east()).map_or(Value::Null, Value::Object)
    }

    #[test]
    fn an_upstream_change_stays_until_it_is_synced() {
        let stored = projected_with_labels(json!({"app": "web", "old": "x"}));
        assert_eq!(pending(&stored), Value::Null);
        let mut changed = stored.clone();
        object::set_label(&mut changed, "role", Some("primary".into()));
        object::set_label(&mut changed, "old", None);
        object::set_label(&mut changed, "sync.portolan.dev/cluster", Some("forged".into()));
        object::set_label(&mut changed, "pod-template-hash", Some("forged".into()));
        object::set_annotation(&mut changed, "note", Some("a".into()));
        let expected = json!({"labels": {"role": "primary", "old": null}, "annotations": {"note": "a"}});
        assert_eq!(pending(&changed), expected, "but for what is Portolan's or a controller's");

        let kept = merge_put(Some(&changed), projected_with_labels(json!({"app": "v2", "old": "x"}))).unwrap();
        assert_eq!((object::label(&kept, "role"), object::label(&kept, "old")), (Some("primary"), None));
        assert_eq!(object::label(&kept, "app"), Some("v2"), "what is changed downstream comes up");
        assert_eq!(pending(&kept), expected, "and the rest still has to get there");

        let mut downstream = projected_with_labels(json!({"app": "v2", "role": "primary"}));
        object::set_annotation(&mut downstream, "note", Some("a".into()));
        note_shown(&mut downstream, &east());
        let arrived = merge_put(Some(&kept), downstream).unwrap();
        assert_eq!(pending(&arrived), Value::Null);
        let taken_off = merge_put(Some(&arrived), projected_with_labels(json!({"app": "v2"}))).unwrap();
        assert_eq!(object::label(&taken_off, "role"), None, "from then on downstream says what it is");
    }
}
