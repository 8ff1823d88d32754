//! Rest of an object that was deleted without what its controllers made.

use portolan_types::{annotations, object, placement::PlacementRecord};
use serde_json::Value;

use super::{Origin, TEMPLATE_HASH, made_below};

/// Returns `downstream`, which has no owner any more, as it is shown in place of `shown`, which it was shown as before: its name,
/// the labels that its owner gave it, and nothing of the owner. `None` when it is too large.
///
/// Of a ReplicaSet or a ControllerRevision only the numbers are taken: the rest was made from the owner.
pub fn orphan(downstream: &Value, shown: &Value, origin: Origin<'_>) -> Option<Value> {
    if matches!(shown["kind"].as_str(), Some("ReplicaSet" | "ControllerRevision")) {
        return Some(orphaned_template(downstream, shown, origin));
    }
    let mut orphan = made_below(downstream, object::namespace(shown), None, origin)?;
    object::metadata_mut(&mut orphan).insert("name".into(), object::name(shown).into());
    let hash = object::label(shown, TEMPLATE_HASH).map(str::to_owned);
    object::set_label(&mut orphan, TEMPLATE_HASH, hash);
    Some(orphan)
}

fn orphaned_template(downstream: &Value, shown: &Value, origin: Origin<'_>) -> Value {
    let mut orphan = shown.clone();
    let metadata = object::metadata_mut(&mut orphan);
    ["uid", "resourceVersion", "managedFields", "ownerReferences"].iter().for_each(|key| drop(metadata.remove(*key)));
    let replicas = downstream["spec"]["replicas"].as_i64();
    let record = PlacementRecord::of(shown).unwrap_or_default();
    let shares = record.on(origin.uid).is_some_and(|copy| copy.replicas.is_some());
    if let Some(replicas) = replicas {
        match shares {
            true => super::share(&mut orphan, record, origin, replicas),
            false => orphan["spec"]["replicas"] = replicas.into(),
        }
    }
    debug_assert!(object::annotation(&orphan, annotations::PLACEMENT).is_some());
    orphan
}
