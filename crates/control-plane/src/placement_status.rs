//! Status of `Placement` objects, from the states of copies.

use portolan_controllers::{Plane, PlaneError, PlaneObject};
use portolan_store::{Expect, Write};
use portolan_syncer::status::CopyStatus;
use portolan_types::{
    GroupResource, ObjectKey, Record, ScaleFields, Status, object,
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
    let PlacementRecord { limits, withdrawn, rollout, .. } = PlacementRecord::of(placed.object).unwrap_or_default();
    for copy in &mut status.clusters {
        let state = states.iter().find(|state| *state.uid == *copy.uid);
        copy.ready = state.map_or(0, |state| ready(placed, state));
        copy.available = state.and_then(|state| available(&placed.key.resource, state));
        let of_rollout = state.filter(|_| rollout.is_some());
        copy.updated = of_rollout.and_then(|state| updated(placed, state));
        let limit = limits.iter().find(|(uid, _)| uid.as_str() == copy.uid).map_or(i64::MAX, |(_, limit)| *limit);
        copy.desired = copy.replicas.or_else(|| desired(placed, state).map(|all| all.min(limit)));
        if state.is_some_and(|state| is_uncounted(placed, state, states)) {
            copy.ready = copy.desired.unwrap_or(1);
        }
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

/// Returns the replicas of a copy that have the present template, if its kind counts them.
fn updated(placed: &PlacedObject<'_>, state: &CopyStatus) -> Option<i64> {
    let field = match (&*placed.key.resource.group, &*placed.key.resource.resource) {
        ("apps", "daemonsets") => "updatedNumberScheduled",
        ("apps", "deployments" | "statefulsets") => "updatedReplicas",
        _ => return None,
    };
    let has_it = state.is_current && state.failed.is_none() && state.stamp == object::generation(placed.object);
    Some(if has_it { state.status.get(field).and_then(Value::as_i64).unwrap_or(0) } else { 0 })
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

/// Returns true for a current copy of a scaled custom kind that reports no number of replicas, where another copy
/// reports none either: nothing counts them, and a move would wait forever.
fn is_uncounted(placed: &PlacedObject<'_>, state: &CopyStatus, states: &[CopyStatus]) -> bool {
    let Some(scale) = placed.scale else { return false };
    let is_silent = |state: &CopyStatus| {
        let is_there = state.is_current && state.failed.is_none() && !state.is_unreachable() && !says_unready(state);
        is_there && scale.observed(&state.status).is_none()
    };
    is_silent(state) && states.iter().any(|other| other.uid != state.uid && is_silent(other))
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
    fn a_custom_kind_without_readiness_is_ready_in_a_move() {
        let scale = ScaleFields::new(".spec.replicas", ".status.replicas").unwrap();
        let key = |resource: &str, name: &str| {
            let resource = GroupResource::new("example.com", resource);
            let namespace = "shop".parse().unwrap();
            ObjectKey::namespaced(LogicalClusterId::ROOT, resource, namespace, name.parse().unwrap())
        };
        let object = json!({"spec": {"replicas": 3}});
        let state = |name: &str, epoch: u64, status: Value| {
            let unreported = CopyStatus::unreported(name, name.parse().unwrap(), None);
            CopyStatus { epoch, is_current: true, status, ..unreported }
        };
        let unready = || json!({"conditions": [{"type": "Ready", "status": "False"}]});
        for (case, east, west, expected) in [
            ("neither reports a number", json!({}), json!({}), [3, 3]),
            ("the first one does", json!({"replicas": 3}), json!({}), [3, 0]),
            ("the second one does", json!({}), json!({"replicas": 1}), [0, 1]),
            ("the second one is not ready", json!({}), unready(), [0, 0]),
            ("it is not known if the first one reports any", unready(), json!({}), [0, 0]),
        ] {
            let (placed_key, states) = (key("scaled", "x"), [state("east", 1, east), state("west", 2, west)]);
            let copy = |name: &str| json!({"name": name, "uid": name, "phase": "Active", "ready": -1});
            let found = PlaneObject {
                key: key("placements", "scaled-x"),
                object: json!({"status": {"clusters": [copy("east"), copy("west")]}}),
                revision: portolan_types::ResourceVersion::new(7).unwrap(),
            };
            let placed = PlacedObject { key: &placed_key, object: &object, scale: Some(&scale) };
            let write = updated_placement(found, &placed, &states).unwrap().unwrap();
            let written: Value = serde_json::from_slice(write.record.unwrap().body()).unwrap();
            let ready = |at: usize| written["status"]["clusters"][at]["ready"].as_i64().unwrap();
            assert_eq!([ready(0), ready(1)], expected, "{case}");
        }
    }

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
