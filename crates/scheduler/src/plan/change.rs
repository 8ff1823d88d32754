//! Changes of a plan, and objects as they would be written.

use portolan_types::{
    ObjectKey, annotations, object,
    placement::{ResourceAmounts, Taint},
};
use serde_json::{Value, json};

use crate::kinds;

/// Time at which a plan says that a physical cluster was lost: so every toleration with seconds has expired.
const LONG_AGO: &str = "2000-01-01T00:00:00Z";

/// Change that is planned.
#[derive(Clone, Debug, PartialEq)]
pub enum PlannedChange {
    /// Object as it would be stored: a policy, a `PhysicalCluster`, a namespace or an object that is placed.
    Write {
        /// Key of the object.
        key: ObjectKey,
        /// The object.
        object: Value,
    },
    /// Object whose labels and `spec` would replace those of the stored one, if there is one.
    Apply {
        /// Key of a policy or `PhysicalCluster`.
        key: ObjectKey,
        /// The object.
        object: Value,
    },
    /// Object that would be deleted. A `PhysicalCluster` is drained by its deletion.
    Delete {
        /// Key of the object.
        key: ObjectKey,
    },
    /// Taint that would replace one of the same key and effect, or would be removed.
    Taint {
        /// Key of a `PhysicalCluster`.
        key: ObjectKey,
        /// The taint.
        taint: Taint,
        /// True removes it.
        remove: bool,
    },
    /// Cordon that would begin or end.
    Cordon {
        /// Key of a `PhysicalCluster`.
        key: ObjectKey,
        /// False ends it.
        unschedulable: bool,
    },
    /// Bounds that would replace the present ones.
    Bounds {
        /// Key of a `PhysicalCluster`.
        key: ObjectKey,
        /// The bounds.
        bounds: ResourceAmounts,
    },
    /// Pin that would replace the present one.
    Pin {
        /// Key of an object or a namespace.
        key: ObjectKey,
        /// Names of physical clusters; empty removes it.
        clusters: Vec<String>,
    },
    /// Physical cluster that would not answer any more.
    Lose {
        /// Key of a `PhysicalCluster`.
        key: ObjectKey,
    },
    /// Physical cluster that would be drained.
    Drain {
        /// Key of a `PhysicalCluster`.
        key: ObjectKey,
        /// True moves objects that are held by their volumes or because they have started.
        force: bool,
    },
}

impl PlannedChange {
    /// Returns the key of the changed object.
    pub fn key(&self) -> &ObjectKey {
        match self {
            Self::Write { key, .. }
            | Self::Apply { key, .. }
            | Self::Delete { key }
            | Self::Taint { key, .. }
            | Self::Cordon { key, .. }
            | Self::Bounds { key, .. }
            | Self::Pin { key, .. }
            | Self::Lose { key }
            | Self::Drain { key, .. } => key,
        }
    }

    /// Returns the object as it would be; `None` if it would not exist. `stored` is the present one.
    pub(super) fn apply_to(&self, stored: Option<Value>) -> Option<Value> {
        match self {
            Self::Write { key, object } => Some(written(key, object.clone(), stored.as_ref())),
            Self::Apply { key, object } => Some(match stored {
                Some(stored) => replaced(stored, object),
                None => written(key, object.clone(), None),
            }),
            Self::Delete { key } if key.resource == kinds::physical_clusters() => {
                stored.map(|object| with_metadata(object, "deletionTimestamp", json!(LONG_AGO)))
            }
            Self::Delete { .. } => None,
            Self::Taint { taint, remove, .. } => stored.map(|object| with_taint(object, taint, *remove)),
            Self::Cordon { unschedulable, .. } => {
                stored.map(|object| with_spec(object, "unschedulable", json!(unschedulable)))
            }
            Self::Bounds { bounds, .. } => stored.map(|object| with_spec(object, "bounds", json!(bounds))),
            Self::Pin { clusters, .. } => stored.map(|mut object| {
                let names = (!clusters.is_empty()).then(|| clusters.join(","));
                object::set_annotation(&mut object, annotations::PIN, names);
                object
            }),
            Self::Lose { .. } => stored.map(without_answer),
            // It changes nothing on the physical cluster.
            Self::Drain { .. } => stored,
        }
    }
}

/// Returns the object that would be written. A new physical cluster is assumed to become ready, and a new object to be
/// the youngest.
fn written(key: &ObjectKey, mut object: Value, stored: Option<&Value>) -> Value {
    let metadata = object::metadata_mut(&mut object);
    metadata.entry("name").or_insert_with(|| json!(key.name.as_str()));
    metadata.entry("creationTimestamp").or_insert_with(|| json!("9999-12-31T23:59:59Z"));
    if key.resource == kinds::physical_clusters() {
        metadata.entry("uid").or_insert_with(|| json!(format!("planned-{}", key.name)));
        let status = stored.and_then(|stored| stored.get("status")).cloned();
        let ready = || json!({"conditions": [{"type": "Ready", "status": "True"}]});
        object["status"] = status.unwrap_or_else(ready);
    }
    object
}

fn replaced(mut stored: Value, by: &Value) -> Value {
    let labels = object::metadata(by).get("labels").cloned();
    let metadata = object::metadata_mut(&mut stored);
    metadata.remove("labels");
    metadata.extend(labels.map(|labels| ("labels".to_owned(), labels)));
    stored["spec"] = by.get("spec").cloned().unwrap_or_default();
    stored
}

fn with_metadata(mut object: Value, field: &str, value: Value) -> Value {
    object::metadata_mut(&mut object).insert(field.to_owned(), value);
    object
}

fn with_spec(mut object: Value, field: &str, value: Value) -> Value {
    object["spec"][field] = value;
    object
}

fn with_taint(object: Value, taint: &Taint, remove: bool) -> Value {
    let taints = object.pointer("/spec/taints").and_then(Value::as_array).cloned().unwrap_or_default();
    let is_other = |known: &Value| known["key"] != *taint.key || known["effect"] != *taint.effect;
    let others = taints.into_iter().filter(is_other);
    let all: Vec<Value> = others.chain((!remove).then(|| json!(taint))).collect();
    with_spec(object, "taints", json!(all))
}

/// Returns a physical cluster that does not answer, as the server marks it.
fn without_answer(mut object: Value) -> Value {
    let status = &mut object["status"];
    let conditions = status["conditions"].as_array().cloned().unwrap_or_default();
    let others = conditions.into_iter().filter(|condition| condition["type"] != "Ready");
    let ready = json!({"type": "Ready", "status": "Unknown", "reason": "Unreachable", "message": "it does not answer"});
    status["conditions"] = others.chain([ready]).collect();
    let taint = json!({"key": annotations::UNREACHABLE_TAINT, "effect": "NoExecute", "timeAdded": LONG_AGO});
    status["taints"] = json!([taint]);
    object
}

#[cfg(test)]
mod tests {
    use portolan_types::LogicalClusterId;

    use super::*;

    #[test]
    fn changes_of_a_physical_cluster() {
        let key =
            ObjectKey::cluster_scoped(LogicalClusterId::ROOT, kinds::physical_clusters(), "east".parse().unwrap());
        let east = json!({
            "metadata": {"name": "east", "uid": "e", "labels": {"region": "eu"}},
            "spec": {"taints": [{"key": "a", "effect": "NoSchedule"}], "bounds": {"cpu": "1"}},
            "status": {"conditions": [{"type": "Ready", "status": "True"}]},
        });
        let taint = |key: &str, effect: &str| Taint { key: key.into(), value: String::new(), effect: effect.into() };
        let of = |change: PlannedChange, pointer: &str| {
            change.apply_to(Some(east.clone())).and_then(|object| object.pointer(pointer).cloned()).unwrap_or_default()
        };
        let k = || key.clone();
        let add = PlannedChange::Taint { key: k(), taint: taint("a", "NoExecute"), remove: false };
        let remove = PlannedChange::Taint { key: k(), taint: taint("a", "NoSchedule"), remove: true };
        let apply = PlannedChange::Apply { key: k(), object: json!({"spec": {"unschedulable": true}}) };
        for (case, change, pointer, expected) in [
            ("a second effect", add, "/spec/taints/1/effect", json!("NoExecute")),
            ("a taint that goes", remove, "/spec/taints", json!([])),
            ("a cordon", PlannedChange::Cordon { key: k(), unschedulable: true }, "/spec/unschedulable", json!(true)),
            (
                "no bounds",
                PlannedChange::Bounds { key: k(), bounds: ResourceAmounts::new() },
                "/spec/bounds",
                json!({}),
            ),
            ("a loss", PlannedChange::Lose { key: k() }, "/status/conditions/0/status", json!("Unknown")),
            ("a deletion", PlannedChange::Delete { key: k() }, "/metadata/deletionTimestamp", json!(LONG_AGO)),
            ("an apply replaces the spec", apply.clone(), "/spec", json!({"unschedulable": true})),
            ("and the labels", apply.clone(), "/metadata/labels", json!(null)),
            ("and keeps the status", apply, "/status/conditions/0/status", json!("True")),
        ] {
            assert_eq!(of(change, pointer), expected, "{case}");
        }
        let new = PlannedChange::Apply { key: k(), object: json!({"spec": {}}) }.apply_to(None).unwrap();
        assert_eq!(new["status"]["conditions"][0]["status"], "True", "a new one is taken to become ready");
        assert_eq!(new["metadata"]["uid"], "planned-east");
    }
}
