//! Dependents of an object that was deleted without them.

use portolan_types::{annotations, object, placement::PlacementRecord};
use serde_json::Value;

use super::{ProjectionOrigin, TEMPLATE_HASH, projected_object};

/// Returns the projection of `downstream`, which has lost its owner, as a replacement of its earlier projection
/// `shown`: it keeps the name and the labels from the owner, and nothing else of it. `None` if it is too large.
///
/// ReplicaSets and ControllerRevisions take only the numbers: the rest came from the owner.
pub fn orphan(downstream: &Value, shown: &Value, origin: ProjectionOrigin<'_>) -> Option<Value> {
    if matches!(shown["kind"].as_str(), Some("ReplicaSet" | "ControllerRevision")) {
        return Some(orphaned_template(downstream, shown, origin));
    }
    let mut orphan = projected_object(downstream, object::namespace(shown), None, origin)?;
    object::metadata_mut(&mut orphan).insert("name".into(), object::name(shown).into());
    let hash = object::label(shown, TEMPLATE_HASH).map(str::to_owned);
    object::set_label(&mut orphan, TEMPLATE_HASH, hash);
    Some(orphan)
}

fn orphaned_template(downstream: &Value, shown: &Value, origin: ProjectionOrigin<'_>) -> Value {
    let mut orphan = shown.clone();
    let metadata = object::metadata_mut(&mut orphan);
    ["uid", "resourceVersion", "managedFields", "ownerReferences"].iter().for_each(|key| drop(metadata.remove(*key)));
    let replicas = downstream["spec"]["replicas"].as_i64();
    let record = PlacementRecord::of(shown).unwrap_or_default();
    let shares = record.on(origin.uid).is_some_and(|copy| copy.replicas.is_some());
    if let Some(replicas) = replicas {
        if shares {
            super::share(&mut orphan, record, origin, replicas)
        } else {
            orphan["spec"]["replicas"] = replicas.into()
        }
    }
    debug_assert!(object::annotation(&orphan, annotations::PLACEMENT).is_some());
    orphan
}
