//! Objects that are computed and never stored: the face by which a logical cluster shows itself
//! (`logicalclusters.core.kcp.io`), and the health of the server's parts (`componentstatuses`).

use std::sync::Arc;

use portolan_store::StoredObject;
use portolan_types::{GroupResource, LogicalClusterId, ObjectKey, Record, ResourceVersion};
use serde_json::{Value, json};

use crate::{
    call::Target,
    directory::{LogicalCluster, MAX_BYTES, MAX_OBJECTS, Phase},
};

/// The name of the face.
const NAME: &str = "cluster";
/// What clients look for among the parts. All are in this process, which ends when one of them does.
const COMPONENTS: [&str; 3] = ["controller-manager", "etcd-0", "scheduler"];

enum Computed {
    Face,
    Components,
}

fn computed(resource: &GroupResource) -> Option<Computed> {
    match (&*resource.group, &*resource.resource) {
        ("core.kcp.io", "logicalclusters") => Some(Computed::Face),
        ("", "componentstatuses") => Some(Computed::Components),
        _ => None,
    }
}

/// Whether a resource is computed and not stored.
pub(crate) fn is_computed(resource: &GroupResource) -> bool {
    computed(resource).is_some()
}

/// The uid of the face of a logical cluster. The server's parts have none.
pub(crate) fn computed_uid(key: &ObjectKey) -> Option<String> {
    let is_face = matches!(computed(&key.resource), Some(Computed::Face)) && key.name.as_str() == NAME;
    is_face.then(|| face_uid(key.cluster))
}

fn face_uid(cluster: LogicalClusterId) -> String {
    cluster.to_string()
}

/// The computed objects of a resource, or the one of a name; `None` when the resource is stored.
pub(super) fn objects(cluster: &LogicalCluster, target: &Target, name: Option<&str>) -> Option<Vec<StoredObject>> {
    let all = match computed(&target.stored_as())? {
        Computed::Face => vec![(NAME, face(cluster))],
        Computed::Components => COMPONENTS.map(|name| (name, component(name))).to_vec(),
    };
    let wanted = all.into_iter().filter(|(own, _)| name.is_none_or(|name| name == *own));
    Some(wanted.map(|(own, object)| furnished(cluster, target, own, &object)).collect())
}

fn furnished(cluster: &LogicalCluster, target: &Target, name: &str, object: &Value) -> StoredObject {
    let name = name.parse().expect("the names are constants");
    StoredObject {
        key: ObjectKey::cluster_scoped(cluster.id, target.stored_as(), name),
        revision: ResourceVersion::FIRST,
        created: ResourceVersion::FIRST,
        record: Arc::new(Record::of(object)),
    }
}

fn component(name: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "ComponentStatus",
        "metadata": {"name": name},
        "conditions": [{"type": "Healthy", "status": "True", "message": "ok"}],
    })
}

fn face(cluster: &LogicalCluster) -> Value {
    let phase = match cluster.phase {
        Phase::Ready => "Ready",
        Phase::Deleting => "Unavailable",
    };
    let mut object = json!({
        "apiVersion": "core.kcp.io/v1alpha1",
        "kind": "LogicalCluster",
        "metadata": {
            "name": NAME,
            "uid": face_uid(cluster.id),
            "creationTimestamp": cluster.created,
            "annotations": {"kcp.io/cluster": cluster.id.to_string(), "kcp.io/path": cluster.path},
        },
        "spec": {},
        "status": {"phase": phase},
    });
    if let Some(limits) = &cluster.limits {
        let annotations = &mut object["metadata"]["annotations"];
        for (key, limit) in [(MAX_OBJECTS, limits.objects), (MAX_BYTES, limits.bytes)] {
            if let Some(limit) = limit {
                annotations[key] = limit.to_string().into();
            }
        }
    }
    if let Some((parent, uid)) = cluster.parent.zip(cluster.workspace.as_ref()) {
        object["spec"]["owner"] = json!({
            "apiVersion": "tenancy.kcp.io/v1alpha1",
            "resource": "workspaces",
            "cluster": parent.to_string(),
            "name": cluster.path.rsplit(':').next().unwrap_or_default(),
            "uid": uid,
        });
    }
    object
}
