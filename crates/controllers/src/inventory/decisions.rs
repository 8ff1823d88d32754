//! `PlacementDecision`: the physical clusters of a `Placement` as other tools read them, at most 100 in one object.

use portolan_kinds::Kind;
use portolan_strategy::lifecycle::DeleteOptions;
use portolan_types::{ObjectKey, object};
use serde_json::{Value, json};

use super::{InventoryController, InventoryKind, MANAGER, condition, is_ours, owner_of};
use crate::plane::{PlaneError, PlaneObject};

/// Most physical clusters in one object (KEP-5313).
const SLICE: usize = 100;
/// Longest value of a label.
const MAX_LABEL: usize = 63;
const INDEX_LABEL: &str = "multicluster.x-k8s.io/decision-index";
const KEY_LABEL: &str = "multicluster.x-k8s.io/decision-key";
const PLACEMENT_LABEL: &str = "multicluster.x-k8s.io/placement-key";
/// Separator of the name of a `Placement` and the index of a further slice. No name of a `Placement` has it.
const SLICE_SEPARATOR: &str = ".slice-";

impl InventoryController {
    /// Writes the decisions of a `Placement`, and deletes slices that it no longer needs.
    pub(super) async fn write_decisions(&self, kind: &Kind, source: &PlaneObject) -> Result<(), PlaneError> {
        let namespace = self.profiles_namespace(source.key.cluster).await?;
        let decisions = decisions(&source.object, &namespace);
        let slices: Vec<_> = decisions.chunks(SLICE).collect();
        // A Placement without physical clusters has one empty slice: nothing was chosen.
        for index in 0..slices.len().max(1) {
            let decisions = slices.get(index).copied().unwrap_or_default();
            let wanted = slice(kind, &source.object, index, decisions);
            self.put(kind, source.key.cluster, &wanted, |own| {
                own["decisions"] = wanted["decisions"].clone();
                object::metadata_mut(own).insert("ownerReferences".into(), owner_of(&source.object));
            })
            .await?;
        }
        self.delete_slices_from(kind, source, slices.len().max(1)).await
    }

    async fn delete_slices_from(&self, kind: &Kind, source: &PlaneObject, mut index: usize) -> Result<(), PlaneError> {
        loop {
            let Ok(name) = slice_name(source.key.name.as_str(), index).parse() else { return Ok(()) };
            let key = ObjectKey { resource: InventoryKind::Decision.resource(), name, ..source.key.clone() };
            match self.plane.get(&key).await? {
                Some(found) if is_ours(&found.object) => {
                    self.plane.delete(kind, &key, &DeleteOptions::default()).await?;
                }
                _ => return Ok(()),
            }
            index += 1;
        }
    }
}

/// Returns the chosen physical clusters, each with the reason of the placement. A leaving copy does not count as
/// chosen.
fn decisions(placement: &Value, profiles: &str) -> Vec<Value> {
    let reason = condition(placement, "Placed").and_then(|placed| placed.get("message")?.as_str());
    let copies = placement.pointer("/status/clusters").and_then(Value::as_array).into_iter().flatten();
    let active = copies.filter(|copy| copy["phase"] == "Active");
    active
        .map(|copy| {
            json!({
                "clusterProfileRef": {"name": copy["name"], "namespace": profiles},
                "reason": reason.unwrap_or("placed"),
            })
        })
        .collect()
}

fn slice(kind: &Kind, placement: &Value, index: usize, decisions: &[Value]) -> Value {
    let name = object::name(placement);
    json!({
        "apiVersion": kind.gvk.group_version().to_string(),
        "kind": &*kind.gvk.kind,
        "metadata": {
            "name": slice_name(name, index),
            "namespace": object::namespace(placement),
            "labels": {
                KEY_LABEL: label_value(placement, name),
                INDEX_LABEL: index.to_string(),
                PLACEMENT_LABEL: label_value(placement, name),
            },
            "ownerReferences": owner_of(placement),
        },
        "schedulerName": MANAGER,
        "decisions": decisions,
    })
}

/// Returns the name of a slice: that of the `Placement` for the first.
fn slice_name(placement: &str, index: usize) -> String {
    if index == 0 { placement.to_owned() } else { format!("{placement}{SLICE_SEPARATOR}{index}") }
}

/// Returns the key of the first slice of the same `Placement`.
pub(super) fn first_slice(key: &ObjectKey) -> ObjectKey {
    let first = key.name.as_str().split(SLICE_SEPARATOR).next().and_then(|name| name.parse().ok());
    ObjectKey { name: first.unwrap_or_else(|| key.name.clone()), ..key.clone() }
}

/// Returns the name of a `Placement` as the value of a label; its uid if the name is too long.
fn label_value<'a>(placement: &'a Value, name: &'a str) -> &'a str {
    if name.len() <= MAX_LABEL { name } else { object::meta_text(placement, "uid") }
}
