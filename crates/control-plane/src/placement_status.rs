//! Status of `Placement` objects, from the states of copies.

use portolan_controllers::{Plane, PlaneError, PlaneObject};
use portolan_store::{Expect, Write};
use portolan_syncer::status::CopyStatus;
use portolan_types::{
    GroupResource, ObjectKey, Record, ScaleFields, Status,
    placement::{GROUP, PlacementRecord, PlacementStatus, placement_name},
};
use serde_json::Value;

/// Reads the `Placement` of an object.
pub(crate) async fn placement_of(plane: &Plane, placed: &ObjectKey) -> Result<Option<PlaneObject>, PlaneError> {
    let name = placement_name(&placed.resource, &placed.name).parse();
    let name = name.map_err(|error: portolan_types::InvalidName| Status::internal(error))?;
    plane.get(&ObjectKey { resource: GroupResource::new(GROUP, "placements"), name, ..placed.clone() }).await
}

/// Placed object, as far as the state of its copies depends on it.
pub(crate) struct PlacedObject<'a> {
    pub(crate) key: &'a ObjectKey,
    pub(crate) object: &'a Value,
    /// Fields of the subresource `scale` of a custom kind.
    pub(crate) scale: Option<&'a ScaleFields>,
}

/// Returns the write that updates the `Placement` of an object to its copies' states; `None` if nothing changed.
pub(crate) fn updated_placement(
    found: PlaneObject,
    placed: &PlacedObject<'_>,
    states: &[CopyStatus],
) -> Result<Option<Write>, PlaneError> {
    let PlaneObject { key, mut object, revision } = found;
    let Ok(mut status) = serde_json::from_value::<PlacementStatus>(object["status"].clone()) else { return Ok(None) };
    let before = status.clone();
    let PlacementRecord { limits, withdrawn, .. } = PlacementRecord::of(placed.object).unwrap_or_default();
    for copy in &mut status.clusters {
        let state = states.iter().find(|state| *state.uid == *copy.uid);
        copy.ready = state.map_or(0, |state| ready(placed, state));
        copy.available = state.and_then(|state| available(&placed.key.resource, state));
        let limit = limits.iter().find(|(uid, _)| uid.as_str() == copy.uid).map_or(i64::MAX, |(_, limit)| *limit);
        copy.desired = copy.replicas.or_else(|| desired(placed, state).map(|all| all.min(limit)));
        let published = state.filter(|state| !withdrawn.contains(&state.uid) && !state.is_unreachable());
        copy.addresses = published.map_or(0, |state| i64::try_from(state.addresses()).unwrap_or(i64::MAX));
        (copy.reason, copy.message) = state.and_then(|state| state.failed.clone()).unwrap_or_default();
    }
    if status == before {
        return Ok(None);
    }
    object["status"] = serde_json::to_value(status).map_err(Status::internal)?;
    Ok(Some(Write { key, expect: Expect::At(revision), record: Some(Record::of(&object)) }))
}

/// Returns the number of pods that a copy should have, if its kind counts them.
fn desired(placed: &PlacedObject<'_>, state: Option<&CopyStatus>) -> Option<i64> {
    let resource = &placed.key.resource;
    match (&*resource.group, &*resource.resource) {
        ("apps", "daemonsets") => state?.status.get("desiredNumberScheduled").and_then(Value::as_i64),
        ("apps", _) | ("", "replicationcontrollers") => placed.object.pointer("/spec/replicas").and_then(Value::as_i64),
        _ => placed.scale.and_then(|scale| scale.wanted(placed.object)),
    }
}

/// Returns the available replicas of a copy, if its kind tells them from ready ones by `minReadySeconds`.
fn available(resource: &GroupResource, state: &CopyStatus) -> Option<i64> {
    let number = |key: &str| state.status.get(key).and_then(Value::as_i64).unwrap_or(0);
    let is_reachable = !state.is_unreachable();
    let field = match (&*resource.group, &*resource.resource) {
        ("apps", "daemonsets") => "numberAvailable",
        ("apps", "deployments" | "replicasets" | "statefulsets") | ("", "replicationcontrollers") => {
            "availableReplicas"
        }
        _ => return None,
    };
    is_reachable.then(|| number(field))
}

/// Returns the ready replicas of a copy; for kinds without replicas, 1 for a current copy. A custom kind says by its
/// conditions that it is not ready, and by its scale how many replicas it has.
fn ready(placed: &PlacedObject<'_>, state: &CopyStatus) -> i64 {
    let resource = &placed.key.resource;
    let number = |key: &str| state.status.get(key).and_then(Value::as_i64).unwrap_or(0);
    if state.is_unreachable() {
        return 0;
    }
    match (&*resource.group, &*resource.resource) {
        ("apps", "daemonsets") => number("numberReady"),
        ("apps", _) | ("", "replicationcontrollers") => number("readyReplicas"),
        _ if state.failed.is_some() || !state.is_current || says_unready(state) => 0,
        _ => placed.scale.map_or(1, |scale| scale.observed(&state.status).unwrap_or(0)),
    }
}

/// Returns true if a condition of a copy says that it is not ready or not available.
fn says_unready(state: &CopyStatus) -> bool {
    let conditions = state.status.get("conditions").and_then(Value::as_array).into_iter().flatten();
    conditions.into_iter().any(|c| (c["type"] == "Ready" || c["type"] == "Available") && c["status"] != "True")
}

#[cfg(test)]
mod tests {
    use super::*;
    use portolan_types::LogicalClusterId;
    use serde_json::json;

    #[test]
    fn a_workload_without_a_status_yet_is_not_ready() {
        let mut state = CopyStatus::unreported("east", "u".parse().unwrap(), None);
        state.is_current = true;
        let scale = ScaleFields::new(".spec.replicas", ".status.replicas").unwrap();
        let unready = |status: &str| json!({"replicas": 3, "conditions": [{"type": "Ready", "status": status}]});
        for (group, resource, status, expected) in [
            ("apps", "deployments", Value::Null, 0),
            ("apps", "deployments", json!({"readyReplicas": 2}), 2),
            ("apps", "daemonsets", json!({"numberReady": 3}), 3),
            ("", "configmaps", Value::Null, 1),
            ("example.com", "plain", Value::Null, 1),
            ("example.com", "plain", unready("False"), 0),
            ("example.com", "scaled", Value::Null, 0),
            ("example.com", "scaled", unready("True"), 3),
            ("example.com", "scaled", unready("Unknown"), 0),
        ] {
            state.status = status;
            let resource = GroupResource::new(group, resource);
            let key = ObjectKey::cluster_scoped(LogicalClusterId::ROOT, resource, "x".parse().unwrap());
            let scale = (&*key.resource.resource == "scaled").then_some(&scale);
            let placed = PlacedObject { key: &key, object: &Value::Null, scale };
            assert_eq!(ready(&placed, &state), expected, "{}", key.resource);
        }
    }
}
