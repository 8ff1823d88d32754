//! Writes to objects that physical clusters made: what goes down is admitted, and all else is refused, since the next state that
//! comes up would undo it.

use portolan_apiserver::admission::{Admission, Operation, Request, add_default_tolerations};
use portolan_machinery::{defaults, kinds::KindTable};
use portolan_syncer::project::is_forwarded;
use portolan_types::{BoxFuture, Status, annotations, object, placement::PlacementRecord};
use serde_json::{Map, Value};

/// Parts of an object whose changes are looked at apart.
const APART: [&str; 4] = ["apiVersion", "kind", "metadata", "status"];

/// Subresources by which an object is changed as a whole.
const CHANGES: [&str; 5] = ["", "status", "scale", "ephemeralcontainers", "resize"];

/// Step of admission that refuses changes which cannot get to the physical cluster.
pub(crate) struct ProjectedWrites;

impl Admission for ProjectedWrites {
    fn validate<'a>(
        &'a self,
        request: &'a Request<'a>,
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

fn check(request: &Request<'_>, object: &Value, old: &Value) -> Result<(), Status> {
    let Some(record) = PlacementRecord::of(old).filter(PlacementRecord::is_projected) else { return Ok(()) };
    if !CHANGES.contains(&request.subresource) {
        return Ok(());
    }
    // What comes from a physical cluster may lack what every update is given.
    let mut old = old.clone();
    drop(defaults::apply(KindTable::builtin(), request.kind, &mut old));
    if &*request.kind.gvk.kind == "Pod" {
        add_default_tolerations(&mut old);
    }
    let is_shared = record.clusters.len() > 1 || matches!(&*request.kind.gvk.kind, "ReplicaSet" | "ControllerRevision");
    let Some(field) = refused_field(&request.kind.gvk.kind, request.subresource, is_shared, (&old, object)) else {
        return Ok(());
    };
    let names: Vec<&str> = record.clusters.iter().map(|copy| copy.name.as_str()).collect();
    let why = format!(
        "the physical cluster {} made it, and a change of {field} here would not get there: change the object that it is made from",
        names.join(", ")
    );
    Err(Status::forbidden(&request.kind.group_resource(), request.name, why))
}

/// The first field that is changed and does not go down.
fn refused_field(kind: &str, subresource: &str, is_shared: bool, (old, new): (&Value, &Value)) -> Option<String> {
    if subresource == "status" {
        return (old.get("status") != new.get("status")).then(|| "status".to_owned());
    }
    let without_requests = |object: &Value| {
        let mut object = object.clone();
        if let Some(resources) = object.pointer_mut("/spec/resources").and_then(Value::as_object_mut)
            && kind == "PersistentVolumeClaim"
            && !is_shared
        {
            resources.remove("requests");
        }
        object
    };
    let (old_parts, new_parts) = (without_requests(old), without_requests(new));
    if let Some(field) =
        changed_keys(old_parts.as_object(), new_parts.as_object()).find(|key| !APART.contains(&key.as_str()))
    {
        let inner = changed_keys(old_parts[field.as_str()].as_object(), new_parts[field.as_str()].as_object()).next();
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
    fn only_what_goes_down_can_be_changed_on_what_a_physical_cluster_made() {
        let old = json!({
            "metadata": {"labels": {"app": "web", "pod-template-hash": "a"}, "annotations": {"note": "x"}, "finalizers": []},
            "spec": {"containers": [{"image": "a"}], "resources": {"requests": {"storage": "1Gi"}}}, "status": {"phase": "Running"},
        });
        let check = |kind: &str, subresource: &str, is_shared: bool, pointer: &str, value: Value| {
            let mut new = old.clone();
            let (parent, field) = pointer.rsplit_once('/').unwrap();
            new.pointer_mut(parent).unwrap()[field.replace("~1", "/")] = value;
            refused_field(kind, subresource, is_shared, (&old, &new))
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
            ("an image", "Pod", "", false, "/spec/containers", Some("spec.containers")),
            (
                "an ephemeral container",
                "Pod",
                "ephemeralcontainers",
                false,
                "/spec/ephemeralContainers",
                Some("spec.ephemeralContainers"),
            ),
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
