//! Projection upstream of objects that a physical cluster creates from a copy (Pods, ReplicaSets, ControllerRevisions,
//! Jobs, claims). Pure.
//!
//! Each template of an upstream Deployment has one ReplicaSet upstream, named by the hash of the upstream template, so
//! that all physical clusters share it; it owns the Pods of all of them.

mod claims;
mod events;
mod jobs;
mod merge;
mod orphans;
mod pending;
mod pod_changes;
mod replica_sets;
mod revisions;
mod slices;
mod templates;
mod unreachable;

use std::collections::BTreeMap;

use portolan_types::{
    ObjectKey, Uid, annotations, object,
    placement::{CopyPhase, PlacedCopy, PlacementRecord, ProjectionSource},
};
use serde_json::{Map, Value, json};

pub use claims::{is_next_to_show, mark_used};
pub use events::event;
pub use jobs::translate_own_uid;
pub use merge::{ProjectionRemoval, merge_gone, merge_put};
pub use orphans::orphan;
pub use pending::{is_forwarded, pending_changes, pending_patch};
pub use pod_changes::{PodChanges, PodPart};
pub use replica_sets::{replica_set, replica_set_name};
pub use revisions::revision;
pub use slices::{PodLookup, PodTarget, rename_targets};
pub use unreachable::without_ready;

use crate::{plan, transform};

/// Label by which a Deployment tells its ReplicaSets and Pods apart.
const TEMPLATE_HASH: &str = "pod-template-hash";
/// Largest object that is shown, in bytes of JSON.
const MAX_BYTES: usize = 1024 * 1024;
/// Longest name of an object, in bytes.
const MAX_NAME: usize = 253;

/// Physical cluster that a projection comes from.
#[derive(Clone, Copy, Debug)]
pub struct ProjectionOrigin<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its uid.
    pub uid: &'a Uid,
}

/// Upstream object that controls a projected one.
#[derive(Clone, Copy, Debug)]
pub struct ProjectionOwner<'a> {
    /// Its address.
    pub key: &'a ObjectKey,
    /// Object, with its uid.
    pub object: &'a Value,
}

/// Returns the resource of a kind that controls other objects.
pub fn controller_resource(kind: &str) -> Option<(&'static str, &'static str)> {
    match kind {
        "Deployment" => Some(("apps", "deployments")),
        "ReplicaSet" => Some(("apps", "replicasets")),
        "StatefulSet" => Some(("apps", "statefulsets")),
        "DaemonSet" => Some(("apps", "daemonsets")),
        "Job" => Some(("batch", "jobs")),
        "CronJob" => Some(("batch", "cronjobs")),
        "ReplicationController" => Some(("", "replicationcontrollers")),
        "Service" => Some(("", "services")),
        "Pod" => Some(("", "pods")),
        _ => None,
    }
}

/// Returns true when a controller downstream made `object` from a copy: it has our label, taken from a template, and is
/// no copy itself.
pub fn is_made_downstream(object: &Value, physical: &Uid) -> bool {
    object::label(object, annotations::DOWN_CLUSTER).is_some() && plan::copy_identity(object, physical).is_none()
}

/// Returns the upstream projection of a downstream object, without uid; `None` if it is too large.
///
/// Its name is the downstream one. The cluster's name is appended if the owner is a StatefulSet on several physical
/// clusters that do not share its ordinals, and to EndpointSlices, since there is one per physical cluster.
pub fn projected_object(
    downstream: &Value,
    namespace: &str,
    owner: Option<ProjectionOwner<'_>>,
    origin: ProjectionOrigin<'_>,
) -> Option<Value> {
    let mut shown = downstream.clone();
    let template_hash = owner.and_then(|owner| object::label(owner.object, TEMPLATE_HASH));
    let metadata = shown_metadata(downstream, namespace, owner, template_hash, origin);
    clean_pod_spec(&mut shown);
    shown.get_mut("spec").map(transform::restore_selectors);
    shown["metadata"] = metadata;
    name_node(&mut shown, origin.name);
    if let Some(status) = shown.get_mut("status") {
        *status = crate::status::bounded(status);
    }
    seal(&mut shown, downstream, origin, None);
    pending::note_shown(&mut shown, origin.uid);
    (shown.to_string().len() <= MAX_BYTES).then_some(shown)
}

/// Returns the upstream name.
pub fn shown_name(downstream: &Value, owner: Option<ProjectionOwner<'_>>, origin: ProjectionOrigin<'_>) -> String {
    let name = object::name(downstream);
    let set = owner.filter(|owner| owner.object["kind"] == "StatefulSet");
    let record = set.and_then(|set| PlacementRecord::of(set.object));
    let is_repeated = record.is_some_and(|record| record.clusters.len() > 1 && record.ordinals.is_empty());
    let is_slice = downstream["kind"] == "EndpointSlice";
    if is_repeated || is_slice { name_with_cluster(name, origin.name) } else { name.to_owned() }
}

/// Returns a name that no other physical cluster gives.
pub fn name_with_cluster(name: &str, cluster: &str) -> String {
    let room = MAX_NAME.saturating_sub(cluster.len() + 1);
    let name = crate::status::bounds_to(name, room);
    format!("{}-{cluster}", name.trim_end_matches(['-', '.']))
}

fn shown_metadata(
    downstream: &Value,
    namespace: &str,
    owner: Option<ProjectionOwner<'_>>,
    template_hash: Option<&str>,
    origin: ProjectionOrigin<'_>,
) -> Value {
    let mut labels = foreign_entries(downstream, "labels");
    labels.insert(annotations::PROJECTED_FROM.into(), json!(origin.name));
    if let (Some(hash), true) = (template_hash, labels.contains_key(TEMPLATE_HASH)) {
        labels.insert(TEMPLATE_HASH.into(), json!(hash));
    }
    if let Some(owner) = owner {
        jobs::translate_owner_uid(&mut labels, owner.object);
    }
    let mut metadata = json!({
        "name": shown_name(downstream, owner, origin),
        "namespace": namespace,
        "labels": labels,
        "annotations": foreign_entries(downstream, "annotations"),
    });
    for key in ["generateName", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds"] {
        if let Some(value) = object::metadata(downstream).get(key) {
            metadata[key] = value.clone();
        }
    }
    if let Some(owner) = owner {
        metadata["ownerReferences"] = json!([reference(owner)]);
    }
    metadata
}

fn reference(owner: ProjectionOwner<'_>) -> Value {
    json!({
        "apiVersion": owner.object["apiVersion"],
        "kind": owner.object["kind"],
        "name": object::name(owner.object),
        "uid": object::meta_text(owner.object, "uid"),
        "controller": true,
        "blockOwnerDeletion": true,
    })
}

/// Names the physical cluster as the node of a bound Pod, and the node there in an annotation: upstream a Node stands
/// for a physical cluster. The endpoints of an EndpointSlice are on it, too.
pub fn name_node(pod: &mut Value, cluster: &str) {
    for endpoint in pod.get_mut("endpoints").and_then(Value::as_array_mut).into_iter().flatten() {
        if let Some(node) = endpoint.get_mut("nodeName") {
            *node = cluster.into();
        }
    }
    let Some(node) = pod.pointer("/spec/nodeName").and_then(Value::as_str).map(str::to_owned) else { return };
    object::set_annotation(pod, annotations::NODE, Some(node));
    pod["spec"]["nodeName"] = cluster.into();
}

/// Returns the labels or annotations that are not Portolan's own.
fn foreign_entries(downstream: &Value, field: &str) -> Map<String, Value> {
    let all = object::metadata(downstream).get(field).and_then(Value::as_object);
    let wanted = all.into_iter().flatten().filter(|(key, value)| !transform::is_our_key(key) && value.is_string());
    wanted.map(|(key, value)| (key.clone(), value.clone())).collect()
}

/// Removes the volumes of API tokens from a Pod.
fn clean_pod_spec(shown: &mut Value) {
    let Some(spec) = shown.get_mut("spec").and_then(Value::as_object_mut) else { return };
    if let Some(volumes) = spec.get_mut("volumes").and_then(Value::as_array_mut) {
        volumes.retain(|volume| !transform::is_token_volume(volume));
    }
    for list in ["containers", "initContainers"] {
        for container in spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
            if let Some(mounts) = container.get_mut("volumeMounts").and_then(Value::as_array_mut) {
                mounts.retain(|m| !m["name"].as_str().is_some_and(|name| name.starts_with("kube-api-access-")));
            }
        }
    }
}

/// Adds the source of a projection, and the record that keeps it until its source is gone.
fn seal(shown: &mut Value, downstream: &Value, origin: ProjectionOrigin<'_>, replicas: Option<i64>) {
    let sources = BTreeMap::from([(origin.uid.clone(), ProjectionSource::of(downstream))]);
    write_sources(shown, &sources);
    let copy = PlacedCopy {
        name: origin.name.to_owned(),
        uid: origin.uid.clone(),
        phase: CopyPhase::Projected,
        replicas,
        epoch: 0,
    };
    PlacementRecord { clusters: vec![copy], ..PlacementRecord::default() }.write_to(shown);
}

/// Sets the share that a ReplicaSet has on one physical cluster.
fn share(shown: &mut Value, mut record: PlacementRecord, origin: ProjectionOrigin<'_>, replicas: i64) {
    record.clusters.iter_mut().filter(|copy| copy.uid == *origin.uid).for_each(|copy| copy.replicas = Some(replicas));
    record.write_to(shown);
    merge::set_replicas(&record, shown);
}

fn write_sources(shown: &mut Value, sources: &BTreeMap<Uid, ProjectionSource>) {
    ProjectionSource::write_all(sources, shown);
}

#[cfg(test)]
mod tests;
