//! Guard of projected objects, which physical clusters made: a write is admitted if it is forwarded there, and refused
//! otherwise, since the next projection would undo it.

use portolan_apiserver::admission::{AdmissionPlugin, AdmissionRequest, Operation, add_default_tolerations};
use portolan_kinds::KindTable;
use portolan_strategy::defaults;
use portolan_syncer::{project::is_forwarded, transform::check_ephemeral};
use portolan_types::{BoxFuture, Status, annotations, object, placement::PlacementRecord};
use serde_json::{Map, Value};

/// Fields that are compared separately.
const COMPARED_SEPARATELY: [&str; 4] = ["apiVersion", "kind", "metadata", "status"];

/// Subresources that change an object as a whole.
const WHOLE_OBJECT_SUBRESOURCES: [&str; 5] = ["", "status", "scale", "ephemeralcontainers", "resize"];

/// Admission step that refuses changes which do not reach the physical cluster.
pub(crate) struct ProjectedWriteGuard;

impl AdmissionPlugin for ProjectedWriteGuard {
    fn validate<'a>(
        &'a self,
        request: &'a AdmissionRequest<'a>,
        object: Option<&'a Value>,
        old: Option<&'a Value>,
    ) -> BoxFuture<'a, Result<(), Status>> {
        let checked = match (object, old) {
            (Some(object), Some(old)) if request.operation == Operation::Update => check(request, object, old),
            _ => Ok(()),
        };
        Box::pin(std::future::ready(checked))
    }
}

fn check(request: &AdmissionRequest<'_>, object: &Value, old: &Value) -> Result<(), Status> {
    check_ephemeral_containers(request, object, old)?;
    let Some(record) = PlacementRecord::of(old).filter(PlacementRecord::is_projected) else { return Ok(()) };
    if !WHOLE_OBJECT_SUBRESOURCES.contains(&request.subresource) {
        return Ok(());
    }
    // Projected objects may lack defaults that every update gets.
    let mut old = old.clone();
    drop(defaults::apply(KindTable::builtin(), request.kind, &mut old));
    if &*request.kind.gvk.kind == "Pod" {
        add_default_tolerations(&mut old);
    }
    let is_shared = record.clusters.len() > 1 || matches!(&*request.kind.gvk.kind, "ReplicaSet" | "ControllerRevision");
    let change = ProjectedChange {
        kind: &request.kind.gvk.kind,
        subresource: request.subresource,
        is_shared,
        old: &old,
        new: object,
    };
    let Some(field) = change.refused_field() else {
        return Ok(());
    };
    let names: Vec<&str> = record.clusters.iter().map(|copy| copy.name.as_str()).collect();
    let why = format!(
        "the physical cluster {} made it, and a change of {field} here would not get there: change the object that it is made from",
        names.join(", ")
    );
    Err(Status::forbidden(&request.kind.group_resource(), request.name, why))
}

/// Refuses ephemeral containers that cannot get to a pod on a physical cluster: they could not be taken off again.
fn check_ephemeral_containers(request: &AdmissionRequest<'_>, object: &Value, old: &Value) -> Result<(), Status> {
    let is_placed = PlacementRecord::of(old).is_some_and(|record| !record.clusters.is_empty());
    if request.subresource != "ephemeralcontainers" || !is_placed {
        return Ok(());
    }
    let containers = object.pointer("/spec/ephemeralContainers").and_then(Value::as_array).into_iter().flatten();
    containers.into_iter().try_for_each(check_ephemeral).map_err(|refusal| {
        let why = format!("{}; kubectl debug --profile=restricted asks for nothing of that kind", refusal.message);
        Status::forbidden(&request.kind.group_resource(), request.name, why)
    })
}

/// Change of a projected object.
struct ProjectedChange<'a> {
    kind: &'a str,
    subresource: &'a str,
    /// True if several physical clusters share the object.
    is_shared: bool,
    old: &'a Value,
    new: &'a Value,
}

impl ProjectedChange<'_> {
    /// Returns the first changed field that is not forwarded.
    fn refused_field(&self) -> Option<String> {
        let Self { kind, subresource, is_shared, old, new } = *self;
        if subresource == "status" {
            return (old.get("status") != new.get("status")).then(|| "status".to_owned());
        }
        let without_forwarded = |object: &Value| {
            let mut object = object.clone();
            if kind == "Pod" && !is_shared {
                remove_forwarded(&mut object, subresource);
            }
            if let Some(resources) = object.pointer_mut("/spec/resources").and_then(Value::as_object_mut)
                && kind == "PersistentVolumeClaim"
                && !is_shared
            {
                resources.remove("requests");
            }
            object
        };
        let (old_parts, new_parts) = (without_forwarded(old), without_forwarded(new));
        if let Some(field) = changed_keys(old_parts.as_object(), new_parts.as_object())
            .find(|key| !COMPARED_SEPARATELY.contains(&key.as_str()))
        {
            let inner =
                changed_keys(old_parts[field.as_str()].as_object(), new_parts[field.as_str()].as_object()).next();
            return Some(inner.map_or_else(|| field.clone(), |inner| format!("{field}.{inner}")));
        }
        if object::owner_references(old) != object::owner_references(new) {
            return Some("metadata.ownerReferences".to_owned());
        }
        ["labels", "annotations"].into_iter().find_map(|entries| {
            let of = |object| object::metadata(object).get(entries).and_then(Value::as_object);
            let stays = |key: &&String| (is_shared || !is_forwarded(key)) && *key != annotations::LAST_APPLIED;
            let key = changed_keys(of(old), of(new)).find(stays)?;
            Some(format!("metadata.{entries}[{key}]"))
        })
    }
}

/// Removes the parts of a pod that are forwarded: images, resources by `resize`, and ephemeral containers by their
/// subresource.
fn remove_forwarded(pod: &mut Value, subresource: &str) {
    let Some(spec) = pod.get_mut("spec").and_then(Value::as_object_mut) else { return };
    if subresource == "ephemeralcontainers" {
        spec.remove("ephemeralContainers");
    }
    for list in ["containers", "initContainers"] {
        let containers = spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten();
        for container in containers.filter_map(Value::as_object_mut) {
            container.remove("image");
            if subresource == "resize" {
                container.remove("resources");
            }
        }
    }
}

fn changed_keys<'a>(
    old: Option<&'a Map<String, Value>>,
    new: Option<&'a Map<String, Value>>,
) -> impl Iterator<Item = &'a String> {
    let value = |map: Option<&'a Map<String, Value>>, key: &str| map.and_then(|map| map.get(key));
    let all = old.into_iter().chain(new).flat_map(|map| map.keys());
    all.filter(move |key| value(old, key) != value(new, key))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_forwarded_fields_of_projected_objects_can_be_changed() {
        let old = json!({
            "metadata": {"labels": {"app": "web", "pod-template-hash": "a"}, "annotations": {"note": "x"}, "finalizers": []},
            "spec": {"containers": [{"image": "a"}], "resources": {"requests": {"storage": "1Gi"}}}, "status": {"phase": "Running"},
        });
        let check = |kind: &str, subresource: &str, is_shared: bool, pointer: &str, value: Value| {
            let mut new = old.clone();
            let (parent, field) = pointer.rsplit_once('/').unwrap();
            new.pointer_mut(parent).unwrap()[field.replace("~1", "/")] = value;
            ProjectedChange { kind, subresource, is_shared, old: &old, new: &new }.refused_field()
        };
        for (case, kind, subresource, is_shared, pointer, expected) in [
            ("a label", "Pod", "", false, "/metadata/labels/role", None),
            ("an annotation", "Pod", "", false, "/metadata/annotations/note", None),
            ("a finalizer, which holds it upstream", "Pod", "", false, "/metadata/finalizers", None),
            (
                "a controller's label",
                "Pod",
                "",
                false,
                "/metadata/labels/pod-template-hash",
                Some("metadata.labels[pod-template-hash]"),
            ),
            (
                "Portolan's label",
                "Pod",
                "",
                false,
                "/metadata/labels/sync.portolan.dev~1cluster",
                Some("metadata.labels[sync.portolan.dev/cluster]"),
            ),
            (
                "a label of a ReplicaSet, which is of several",
                "ReplicaSet",
                "",
                true,
                "/metadata/labels/role",
                Some("metadata.labels[role]"),
            ),
            ("other containers", "Pod", "", false, "/spec/containers", Some("spec.containers")),
            ("an image", "Pod", "", false, "/spec/containers/0/image", None),
            ("an image of a template", "ReplicaSet", "", true, "/spec/containers/0/image", Some("spec.containers")),
            ("resources by their subresource", "Pod", "resize", false, "/spec/containers/0/resources", None),
            ("resources past it", "Pod", "", false, "/spec/containers/0/resources", Some("spec.containers")),
            ("an ephemeral container", "Pod", "ephemeralcontainers", false, "/spec/ephemeralContainers", None),
            ("one past it", "Pod", "", false, "/spec/ephemeralContainers", Some("spec.ephemeralContainers")),
            ("replicas", "ReplicaSet", "scale", true, "/spec/replicas", Some("spec.replicas")),
            ("an owner", "Pod", "", false, "/metadata/ownerReferences", Some("metadata.ownerReferences")),
            ("a status", "Pod", "status", false, "/status/phase", Some("status")),
            ("the size of a claim", "PersistentVolumeClaim", "", false, "/spec/resources/requests", None),
            (
                "the size of a claim on several",
                "PersistentVolumeClaim",
                "",
                true,
                "/spec/resources/requests",
                Some("spec.resources"),
            ),
        ] {
            assert_eq!(
                check(kind, subresource, is_shared, pointer, json!([{"new": 1}])).as_deref(),
                expected,
                "{case}"
            );
        }
    }
}
